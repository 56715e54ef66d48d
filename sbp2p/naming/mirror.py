"""Keeps the names of others alive: their catalogs and pointers, while this node has their versions.

Theory of operation. A publisher that goes away takes the only copy of its catalog along, and then
nobody new finds what every seed still has. So whoever has a version of a publisher looks its
pointer up, serves the catalog that it leads to, says so in the DHT, and puts the pointer again, as
it was signed and as long as it is valid: servers come and go, too. All of that every `republish_s`.

Once a minute, and when the store changes, what is to be mirrored is compared with what is. At most
MIRRORED_MAX publishers are. What fails is tried again the next time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from sbp2p import observe
from sbp2p.errors import Sbp2pError
from sbp2p_protocol.ipns import ipns_key
from sbp2p_protocol.limits import MIRRORED_MAX

from .resolve import provider_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbp2p.calls import Calls
    from sbp2p.config import NamingConfig
    from sbp2p.dht import Dht
    from sbp2p.store import Store
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid

    from .pointers import Pointers
    from .quiet import QuietVersions
    from .resolve import Resolver

_LOOK_S: Final = 60.0
_SETTLE_S: Final = 20.0
"""A command that is done sooner looks nothing up and announces nothing."""


@dataclass(frozen=True, slots=True)
class _Mirrored:
    """A catalog that is served here, and the pointer that leads to it."""

    cid: Cid
    record: bytes
    put_at: float
    """Time of trio's clock at which the pointer was put last."""


class Mirror:
    """Serves and announces catalogs of others.

    Args:
        own: the publisher whose name is this node's own business; None if there is none.
        resolver: looks pointers up.
        store: whose versions decide, and where catalogs are served from.
        dht: where they are announced.
        pointers: what is remembered.
        config: knobs.
        calls: where blocking calls run.
        wall_clock: Unix time in seconds.
        quiet: which versions are no reason to mirror anything.
    """

    def __init__(
        self,
        *,
        own: PeerId | None,
        resolver: Resolver,
        store: Store,
        dht: Dht,
        pointers: Pointers,
        config: NamingConfig,
        calls: Calls,
        wall_clock: Callable[[], float],
        quiet: QuietVersions,
    ) -> None:
        self._own = own
        self._resolver = resolver
        self._store = store
        self._dht = dht
        self._pointers = pointers
        self._config = config
        self._calls = calls
        self._wall_clock = wall_clock
        self._quiet = quiet
        self._mirrored: dict[PeerId, _Mirrored] = {}
        self._lookup_at: dict[PeerId, float] = {}
        self._news = trio.Event()

    def changed(self) -> None:
        """Look now whether there is something else to mirror."""
        self._news.set()

    async def run(self) -> None:
        """Mirror what is to be mirrored, for ever."""
        await trio.sleep(_SETTLE_S)
        while True:
            await self._dht.wait_settled()
            try:
                publishers = await self._calls.run_to_end(self._publishers)
                await self._look_up(publishers)
                wanted = await self._calls.run_to_end(self._wanted, publishers, self._wall_clock())
                await self._update(wanted)
            except Sbp2pError as error:
                observe.report_not_saved("mirrored catalogs", error)
            self._news = trio.Event()
            with trio.move_on_after(_LOOK_S):
                await self._news.wait()

    def _publishers(self) -> list[PeerId]:
        """Return whose versions are here; runs in a thread."""
        versions = (each for each in self._store.versions() if not self._quiet.hides(each.manifest))
        found = dict.fromkeys(record.publisher for record in versions)
        return [publisher for publisher in found if publisher != self._own][:MIRRORED_MAX]

    async def _look_up(self, publishers: list[PeerId]) -> None:
        now = trio.current_time()
        kept = {each: self._lookup_at[each] for each in publishers if each in self._lookup_at}
        self._lookup_at = kept
        for publisher in publishers:
            if kept.get(publisher, now) > now:
                continue
            try:
                await self._resolver.refresh(publisher)
            except Sbp2pError as error:
                observe.report_not_found(f"the name of {publisher}", error)
            kept[publisher] = now + self._config.republish_s

    def _wanted(self, publishers: list[PeerId], now: float) -> dict[PeerId, tuple[Cid, bytes]]:
        """Return what is to be mirrored, its blocks in the store; runs in a thread."""
        wanted: dict[PeerId, tuple[Cid, bytes]] = {}
        for publisher in publishers:
            known = self._pointers.pointer(publisher)
            if known is None or not known.record.is_valid_at(now):
                continue
            catalog = self._pointers.catalog(publisher)
            if catalog is None or catalog.cid != known.record.cid:
                continue
            # also when it is there: a loose block that no version holds is swept after a day
            self._store.put_loose(catalog.cid, catalog.block)
            wanted[publisher] = catalog.cid, known.record.encoded
        return wanted

    async def _update(self, wanted: dict[PeerId, tuple[Cid, bytes]]) -> None:
        now = trio.current_time()
        for publisher, was in list(self._mirrored.items()):
            if publisher not in wanted or wanted[publisher][0] != was.cid:
                self._dht.stop_providing([provider_key(was.cid)])
                del self._mirrored[publisher]
        for publisher, (cid, record) in wanted.items():
            before = self._mirrored.get(publisher)
            if before is None:
                await self._dht.provide(provider_key(cid))
            elif now - before.put_at < self._config.republish_s:
                continue
            # as it was signed: anybody may say it again, and nobody can say it otherwise
            await self._dht.put_value(ipns_key(publisher), record)
            self._mirrored[publisher] = _Mirrored(cid, record, now)

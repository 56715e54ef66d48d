"""What this node's key publishes: a catalog of its versions, and the pointer to it.

Theory of operation. Every few seconds the versions in the store that this key signed are compared
with the last catalog. If they say something new, a catalog and a pointer are made with the next
sequence number. In this order, so that a kill at any moment does no harm:

    1. the pointer and the catalog are written down durably (pointers.py): the number is used up
    2. the catalog becomes a loose block of the store, which the exchange serves
    3. the DHT is told who provides it, and then the pointer

If nothing is new, the same pointer is made again with a later end every `republish_s`. What no
server took is tried again, less and less often.

A number is above every one that this home used, above what the network knows of this key (it may be
used on another machine), and at least the Unix time in seconds: a home whose memory was lost does
not use a number twice. A catalog of this key that another machine published is merged into the next
one, so a name never goes back.

Errors: StoreError. Failures of the network are counted, not raised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import trio

from sbp2p import observe
from sbp2p.errors import ConfigError, Sbp2pError, StoreBusyError
from sbp2p_protocol.catalog import (
    Catalog,
    CatalogEntry,
    Models,
    catalog_cid,
    make_catalog,
    merged,
    sign_catalog,
)
from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.ipns import SECOND_NS, ipfs_path, ipns_key, make_ipns_record, read_ipns_record

from .pointers import OwnPointer
from .resolve import provider_key
from .values import PublishedCatalog

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbp2p.calls import Calls
    from sbp2p.config import NamingConfig
    from sbp2p.dht import Dht
    from sbp2p.store import Store
    from sbp2p_keys.identity import PeerId, PrivateKey
    from sbp2p_protocol.cid import Cid

    from .pointers import Pointers
    from .quiet import QuietVersions
    from .resolve import Resolver

_RETRY_MAX_S: Final = 3600.0
_TRIES: Final = 4
"""Times that a number is chosen anew because another process was quicker."""


class _News(Enum):
    """What the store says beside what was said last."""

    NONE = "none"
    DUE = "due"
    NEW = "new"


@dataclass(frozen=True, slots=True)
class _Statement:
    """What is to be told: the pointer, and the catalog that it points to."""

    own: OwnPointer
    changed: bool

    @property
    def cid(self) -> Cid:
        """The catalog's name."""
        return catalog_cid(self.own.block)


class Publisher:
    """Keeps what stands under one key's name up to date.

    Args:
        signer: the key.
        store: whose versions are published, and where the catalog lies.
        dht: where the pointer goes; None keeps everything here.
        resolver: which knows what the network says of this name.
        pointers: what is remembered.
        config: knobs.
        calls: where blocking calls run.
        wall_clock: Unix time in seconds.
        quiet: which versions are not published.
    """

    def __init__(
        self,
        *,
        signer: PrivateKey,
        store: Store,
        dht: Dht | None,
        resolver: Resolver,
        pointers: Pointers,
        config: NamingConfig,
        calls: Calls,
        wall_clock: Callable[[], float],
        quiet: QuietVersions,
    ) -> None:
        self._signer = signer
        self._store = store
        self._dht = dht
        self._resolver = resolver
        self._pointers = pointers
        self._config = config
        self._calls = calls
        self._wall_clock = wall_clock
        self._quiet = quiet
        self._turn = trio.Lock()
        self._published: Cid | None = None
        """The catalog that was put into the DHT by this process last."""
        self._told = b""
        """The pointer that at least one server took last."""
        self._servers = -1
        """How many servers took the last one; -1 before the first try."""
        self._news = trio.Event()

    @property
    def publisher(self) -> PeerId:
        """Whose name it is."""
        return self._signer.peer_id

    async def publish(self) -> PublishedCatalog | None:
        """Publish what is new, or again what is not; None if there is nothing to publish at all.

        Raises:
            StoreError: it could not be written down, so nothing was told to anybody.
            ConfigError: there are too many models for one catalog.
        """
        async with self._turn:
            await self._look_around()
            return await self._state_and_tell()

    def changed(self) -> None:
        """Look now whether there is something new in the store."""
        self._news.set()

    async def run(self) -> None:
        """Publish what becomes new, and again what is due, for ever."""
        if self._dht is not None:
            await self._dht.wait_settled()  # until then there is nobody to hear from, or to tell
        failures = 0
        retry_at = -math.inf
        while True:
            news = _News.NONE
            try:
                async with self._turn:
                    news = await self._calls.run_to_end(self._find_news, self._wall_clock())
                    if news is _News.DUE and trio.current_time() < retry_at:
                        news = _News.NONE
                    if news is not _News.NONE:
                        await self._look_around()
                        await self._state_and_tell()
            except Sbp2pError as error:
                observe.report_not_saved("what this key publishes", error)
            if news is not _News.NONE:
                failures = 0 if self._is_told else failures + 1
                wait = min(self._config.retry_s * 2.0 ** min(failures - 1, 16), _RETRY_MAX_S)
                retry_at = trio.current_time() + wait if failures else -math.inf
            self._news = trio.Event()
            with trio.move_on_after(self._config.look_s):
                await self._news.wait()

    # -- what to say ------------------------------------------------------------------------------

    async def _look_around(self) -> None:
        """Hear what the network says of this name: another machine may use the same key."""
        try:
            await self._resolver.refresh(self.publisher)
        except Sbp2pError as error:
            observe.report_not_found("the name of this key", error)

    def _find_news(self, now: float) -> _News:
        """Compare the store with what was said last; runs in a thread."""
        own = self._pointers.own(self.publisher)
        models = self._models(own)
        if not models:
            return _News.NONE
        if own is None or not self._is_said(own, models):
            return _News.NEW
        due = now - own.made >= self._config.republish_s
        return _News.DUE if due or own.record.encoded != self._told else _News.NONE

    def _state(self, now: float) -> _Statement | None:
        """Write down what is to be told, and return it; runs in a thread."""
        for _ in range(_TRIES):
            statement = self._next_statement(now)
            if statement is None:
                return None
            own = statement.own
            if self._pointers.set_own(own.record, own.block, own.made):
                self._pointers.take(own.record, own.made)
                self._pointers.keep_catalog(self.publisher, own.block, own.made)
                # also when nothing changed: a loose block that nobody holds is swept after a day
                self._store.put_loose(statement.cid, own.block)
                return statement
        raise StoreBusyError("another process publishes under this key all the time")

    def _next_statement(self, now: float) -> _Statement | None:
        own = self._pointers.own(self.publisher)
        models = self._models(own)
        if not models:
            return None
        for said in (own, self._said_elsewhere(now)):
            if said is not None and self._is_said(said, models):
                again = self._sign(said.record.sequence, said.catalog, said.block, now)
                return _Statement(again, False)
        sequence = self._next_sequence(own, now)
        try:
            catalog = make_catalog(self.publisher, sequence, models)
        except LocalProtocolError as error:
            raise ConfigError(f"too many models for one catalog: {error}") from error
        block = sign_catalog(catalog, self._signer)
        return _Statement(self._sign(sequence, catalog, block, now), True)

    def _models(self, own: OwnPointer | None) -> Models:
        """Return all that this key publishes, here or elsewhere, as far as is known.

        Where two machines gave one number to different manifests, the one that was said stays, so
        that both come to say the same.
        """
        heard = self._pointers.catalog(self.publisher)
        return merged(
            {} if heard is None else heard.catalog.models,
            {} if own is None else own.catalog.models,
            self._signed_here(),
        )

    def _said_elsewhere(self, now: float) -> OwnPointer | None:
        """Return the newest pointer of this key if its catalog is here: another machine's."""
        known = self._pointers.pointer(self.publisher)
        heard = self._pointers.catalog(self.publisher)
        if known is None or heard is None or known.record.cid != heard.cid:
            return None
        return OwnPointer(known.record, heard.catalog, heard.block, now)

    def _is_said(self, said: OwnPointer, models: Models) -> bool:
        """Whether a pointer says all this, and none that is newer, or contradicts it, is known."""
        known = self._pointers.pointer(self.publisher)
        if known is not None and (
            known.record.sequence > said.record.sequence or known.record.contradicts(said.record)
        ):
            return False
        try:
            return make_catalog(self.publisher, said.catalog.sequence, models) == said.catalog
        except LocalProtocolError:
            return False

    def _signed_here(self) -> dict[str, list[CatalogEntry]]:
        models: dict[str, list[CatalogEntry]] = {}
        for record in self._store.versions():
            if record.publisher == self.publisher and not self._quiet.hides(record.manifest):
                entry = CatalogEntry(record.version, record.cid)
                models.setdefault(record.name, []).append(entry)
        return models

    def _next_sequence(self, own: OwnPointer | None, now: float) -> int:
        known = self._pointers.pointer(self.publisher)
        used = [0 if own is None else own.record.sequence]
        used.append(0 if known is None else known.record.sequence)
        return max(max(used) + 1, int(now))

    def _sign(self, sequence: int, catalog: Catalog, block: bytes, now: float) -> OwnPointer:
        encoded = make_ipns_record(
            self._signer,
            ipfs_path(catalog_cid(block)),
            sequence=sequence,
            valid_until_ns=int((now + self._config.lifetime_s) * SECOND_NS),
            ttl_ns=int(self._config.ttl_s * SECOND_NS),
        )
        return OwnPointer(read_ipns_record(encoded, self.publisher), catalog, block, now)

    # -- saying it --------------------------------------------------------------------------------

    @property
    def _is_told(self) -> bool:
        """Whether the last try reached somebody, or there is nobody to reach."""
        return self._dht is None or self._servers != 0

    async def _state_and_tell(self) -> PublishedCatalog | None:
        statement = await self._calls.run_to_end(self._state, self._wall_clock())
        if statement is None:
            return None
        own = statement.own
        self._servers = await self._put(statement)
        if self._is_told:
            self._told = own.record.encoded
        return PublishedCatalog(
            cid=statement.cid,
            sequence=own.record.sequence,
            models=len(own.catalog.models),
            valid_until=own.record.valid_until,
            servers=self._servers,
            changed=statement.changed,
        )

    async def _put(self, statement: _Statement) -> int:
        """Give the DHT a statement; return how many servers took the pointer."""
        if self._dht is None:
            return 0
        cid, before = statement.cid, self._published
        if before is not None and before != cid:
            self._dht.stop_providing([provider_key(before)])
        await self._dht.provide(provider_key(cid))
        self._published = cid
        return await self._dht.put_value(ipns_key(self.publisher), statement.own.record.encoded)

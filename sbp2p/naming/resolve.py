"""From a publisher and a name to a manifest, and what is refused on the way.

Theory of operation. Two ways lead to an answer, and both are tried at once: the publisher's pointer
in the DHT, whose catalog is fetched as a block, and the question RESOLVE to connected peers. Each
ends in something that the publisher signed. Then memory decides (pointers.py): of all that is known
the highest version counts, and nothing older than what was ever seen here does.

    what came back                        what is said
    a newer pointer                       its catalog's version
    an older pointer, or version          what is known here; it counts as a refused rollback
    two pointers with one sequence        the one known first; the contradiction is kept, and shown
    nothing                               the last pointer while it is valid, with its age
    nothing, and it has expired           NotFoundError

Errors: NotFoundError, PeerUnreachableError when there is nobody to ask, StoreError.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from sbp2p.errors import NotFoundError, PeerMisbehavedError, PeerUnreachableError, Sbp2pError
from sbp2p.exchange import Source
from sbp2p.exchange.unwrap import unwrapped_errors
from sbp2p_keys.multi import multihash_encode
from sbp2p_protocol.catalog import CatalogEntry, read_signed_catalog
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.ipns import IpnsRecord, ipns_key, open_ipns_record
from sbp2p_protocol.link import NameLink

from .pointers import Verdict
from .values import Origin, ResolvedName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sbp2p.calls import Calls
    from sbp2p.config import NamingConfig
    from sbp2p.dht import Dht
    from sbp2p.exchange import Exchange
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.catalog import Catalog
    from sbp2p_protocol.cid import Cid

    from .pointers import KnownPointer, Pointers

_PROVIDERS: Final = 8
"""Providers of a catalog that are looked for: it is small, and any of them will do."""

_ORIGINS: Final[tuple[Origin, ...]] = ("pointer", "peers", "kept")
"""The most telling first."""

_NAMES_SHOWN: Final = 8
"""Names of a catalog in a hint."""


def provider_key(cid: Cid) -> bytes:
    """Return the key under which the DHT keeps the providers of a block: its multihash."""
    return multihash_encode(cid.hash_code, cid.digest)


class _Found(NamedTuple):
    """A statement that answers the question, and the signed manifest if that is what it was."""

    entry: CatalogEntry
    origin: Origin
    document: bytes | None = None


@dataclass(slots=True)
class _Inquiry:
    """One resolution under way."""

    publisher: PeerId
    name: str
    version: int | None
    sources: list[Source]
    rollbacks: int = 0
    heard: bool = False
    """Whether the pointer was confirmed just now."""
    listed: tuple[str, ...] | None = None
    """The names in the publisher's catalog, if it was read."""
    found: list[_Found] = field(default_factory=list)
    helpers: dict[PeerId, Source] = field(default_factory=dict)
    failures: list[Sbp2pError] = field(default_factory=list)
    lookup: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Of the way over the pointer; it gets a deadline when peers have answered."""


class Resolver:
    """Resolves names.

    Args:
        swarm: whose connected peers are asked.
        exchange: which asks them, and fetches catalogs.
        dht: where pointers are looked up; None to do without.
        pointers: what is remembered.
        config: knobs.
        calls: where `pointers` is called.
        wall_clock: Unix time in seconds.
    """

    def __init__(
        self,
        *,
        swarm: Swarm,
        exchange: Exchange,
        dht: Dht | None,
        pointers: Pointers,
        config: NamingConfig,
        calls: Calls,
        wall_clock: Callable[[], float],
    ) -> None:
        self._swarm = swarm
        self._exchange = exchange
        self._dht = dht
        self._pointers = pointers
        self._config = config
        self._calls = calls
        self._wall_clock = wall_clock

    async def resolve(
        self,
        publisher: PeerId,
        name: str,
        version: int | None = None,
        *,
        sources: Iterable[Source] = (),
        lookup: bool = True,
        ask: bool = True,
    ) -> ResolvedName:
        """Return what a name stands for.

        Args:
            publisher: whose name it is.
            name: of the model.
            version: a number, for exactly that version; the newest if None.
            sources: peers to ask beside those that are connected.
            lookup: whether the publisher's pointer is looked up.
            ask: whether peers are asked.

        Raises:
            NotFoundError: nothing that is valid now says what it stands for.
            PeerUnreachableError: nobody could be asked, and nothing is remembered.
        """
        inquiry = _Inquiry(publisher, name, version, list(sources))
        async with trio.open_nursery() as nursery:
            if lookup:
                nursery.start_soon(self._follow_pointer, inquiry)
            if ask:
                nursery.start_soon(self._ask_peers, inquiry)
        return await self._calls.run_to_end(self._conclude, inquiry, self._wall_clock())

    def connected(self) -> dict[PeerId, Source]:
        """Return the peers that are asked anyway, with the addresses at which they were dialled."""
        return {
            peer_id: Source(
                peer_id,
                tuple(
                    each.remote_address
                    for each in self._swarm.connections(peer_id)
                    if each.initiator
                ),
            )
            for peer_id in self._swarm.peers()
        }

    # -- the pointer ----------------------------------------------------------------------------

    async def _follow_pointer(self, inquiry: _Inquiry) -> None:
        with inquiry.lookup:
            try:
                catalog = await self._read_catalog(inquiry)
            except Sbp2pError as error:
                inquiry.failures.append(error)
                return
            if catalog is not None:
                inquiry.listed = tuple(catalog.models)
                entry = catalog.find(inquiry.name, inquiry.version)
                if entry is not None:
                    inquiry.found.append(_Found(entry, "pointer" if inquiry.heard else "kept"))

    async def _read_catalog(self, inquiry: _Inquiry) -> Catalog | None:
        """Return what the best pointer that is valid now leads to; None if there is none."""
        await self._refresh_pointer(inquiry)
        known = await self._calls.run_to_end(self._pointers.pointer, inquiry.publisher)
        if known is None or not known.record.is_valid_at(self._wall_clock()):
            return None
        return await self._catalog(known.record, inquiry)

    async def _refresh_pointer(self, inquiry: _Inquiry) -> None:
        """Look the pointer up, and remember what is better than what was known."""
        if self._dht is None:
            return
        with trio.move_on_after(self._config.lookup_timeout_s):
            found = await self._dht.get_value(ipns_key(inquiry.publisher))
            if found is not None:
                await self._take_records(found.values, inquiry)

    async def refresh(self, publisher: PeerId) -> None:
        """Look a publisher's pointer and catalog up, and remember them; raises as `resolve`."""
        inquiry = _Inquiry(publisher, "", None, [])
        await self._read_catalog(inquiry)

    async def _take_records(self, values: Iterable[bytes], inquiry: _Inquiry) -> None:
        """Compare what was told, the best first, with what is remembered."""
        now = self._wall_clock()
        for number, value in enumerate(values):
            try:
                record = open_ipns_record(value, inquiry.publisher, now)
            except RemoteProtocolError:
                continue  # it has expired on the way
            verdict = await self._calls.run_to_end(self._pointers.take, record, now)
            # servers that lag behind others are no fraud; all of them behind this node may be one
            if number == 0:
                inquiry.heard = verdict in (Verdict.NEWER, Verdict.SAME)
                inquiry.rollbacks += verdict is Verdict.OLDER

    # -- its catalog ----------------------------------------------------------------------------

    async def _catalog(self, record: IpnsRecord, inquiry: _Inquiry) -> Catalog | None:
        """Return the catalog that a record points to; None if it points to something else."""
        cid = record.cid
        if cid is None:
            return None
        publisher = inquiry.publisher
        kept = await self._calls.run_to_end(self._pointers.catalog, publisher)
        if kept is not None and kept.cid == cid:
            return kept.catalog
        block = await self._fetch(cid, inquiry)
        try:
            catalog = read_signed_catalog(block, publisher)
        except RemoteProtocolError as error:
            raise PeerMisbehavedError(
                f"the name of {publisher} points to what is no catalog: {error}",
                hint="no peer can help: tell the publisher",
            ) from error
        if catalog.sequence > record.sequence:
            raise PeerMisbehavedError(
                f"the catalog of {publisher} is newer than the pointer that leads to it"
            )
        await self._calls.run_to_end(
            self._pointers.keep_catalog, publisher, block, self._wall_clock()
        )
        return catalog

    async def _fetch(self, cid: Cid, inquiry: _Inquiry) -> bytes:
        """Get a block from its providers, from named peers, and from connected ones."""
        send, arrivals = trio.open_memory_channel[Source](_PROVIDERS)
        with unwrapped_errors(), trio.move_on_after(self._config.lookup_timeout_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._find_providers, cid, send, inquiry)
                block = await self._exchange.fetch_block(
                    cid, sources=self._peers(inquiry), arrivals=arrivals
                )
                nursery.cancel_scope.cancel()
                return block
        raise PeerUnreachableError(f"no peer sent the catalog {cid} in time")

    async def _find_providers(
        self, cid: Cid, send: trio.MemorySendChannel[Source], inquiry: _Inquiry
    ) -> None:
        async with send:
            if self._dht is None:
                return
            async with self._dht.find_providers(provider_key(cid), count=_PROVIDERS) as search:
                async for provider in search:
                    source = Source(provider.peer_id, provider.addresses)
                    inquiry.helpers[provider.peer_id] = source
                    await send.send(source)

    # -- connected peers ------------------------------------------------------------------------

    def _peers(self, inquiry: _Inquiry) -> list[Source]:
        named = {source.peer_id for source in inquiry.sources}
        connected = [peer for peer in self._swarm.peers() if peer not in named]
        return [
            *inquiry.sources,
            *(Source(peer) for peer in connected[: self._config.ask_peers_max]),
        ]

    async def _ask_peers(self, inquiry: _Inquiry) -> None:
        sources = self._peers(inquiry)
        if not sources:
            return
        link = NameLink(inquiry.publisher, inquiry.name, inquiry.version)
        try:
            with trio.move_on_after(self._config.ask_timeout_s):
                document, manifest = await self._exchange.resolve(link, sources=sources)
                entry = CatalogEntry(manifest.version, manifest.cid)
                inquiry.found.append(_Found(entry, "peers", document.to_bytes()))
                inquiry.lookup.deadline = trio.current_time() + self._config.lookup_grace_s
        except Sbp2pError as error:
            inquiry.failures.append(error)

    # -- what is said ---------------------------------------------------------------------------

    def _conclude(self, inquiry: _Inquiry, now: float) -> ResolvedName:
        """Weigh what was found against what is remembered; runs in a thread."""
        publisher, name = inquiry.publisher, inquiry.name
        # the publisher's own pointer first: where statements contradict, the first one stays
        inquiry.found.sort(key=lambda each: _ORIGINS.index(each.origin))
        for each in inquiry.found:
            verdict = self._pointers.take_version(
                publisher, name, each.entry, now, document=each.document
            )
            is_rollback = verdict is Verdict.OLDER and each.origin == "peers"
            inquiry.rollbacks += is_rollback and inquiry.version is None
        known = self._pointers.pointer(publisher)
        found = self._choose(inquiry)
        if found is None:
            raise _failure(inquiry, known, now, alone=self._dht is None)
        entry, origin = found
        record = None if known is None else known.record
        age_s = None if known is None else max(0.0, now - known.seen)
        return ResolvedName(
            publisher=publisher,
            name=name,
            version=entry.version,
            manifest=entry.manifest,
            origin=origin,
            age_s=0.0 if inquiry.heard else age_s,
            sequence=None if record is None else record.sequence,
            valid_until=None if record is None else record.valid_until,
            ttl_s=0.0 if record is None else record.ttl_s,
            sources=tuple(inquiry.helpers.values()),
            rollbacks=inquiry.rollbacks,
            evidence=tuple(self._pointers.evidence(publisher)),
        )

    def _choose(self, inquiry: _Inquiry) -> tuple[CatalogEntry, Origin] | None:
        """Return the answer, if anything that was found now allows one."""
        if not inquiry.found:
            return None
        wanted = inquiry.found[0].entry
        if inquiry.version is None:
            # what was found was remembered, so this is the highest of all
            known = self._pointers.version(inquiry.publisher, inquiry.name)
            wanted = wanted if known is None else known.entry
        for each in inquiry.found:
            if each.entry == wanted:
                return wanted, each.origin
        return wanted, "kept"


def _failure(
    inquiry: _Inquiry, known: KnownPointer | None, now: float, *, alone: bool
) -> Sbp2pError:
    """Return why there is no answer."""
    publisher, name = inquiry.publisher, inquiry.name
    what = name if inquiry.version is None else f"{name}@{inquiry.version}"
    for error in inquiry.failures:
        if isinstance(error, PeerMisbehavedError):
            return error
    if inquiry.listed is not None:
        some = ", ".join(inquiry.listed[:_NAMES_SHOWN]) or "nothing"
        return NotFoundError(
            f"{publisher} does not publish {what}", hint=f"its catalog lists {some}"
        )
    if known is not None and not known.record.is_valid_at(now):
        hours = (now - known.record.valid_until) / 3600
        return NotFoundError(
            f"what is known of the name of {publisher} ended {hours:.1f} h ago",
            hint="its publisher has to be online to say it again",
        )
    unreachable = [each for each in inquiry.failures if isinstance(each, PeerUnreachableError)]
    if alone and unreachable:
        return unreachable[0]
    if alone and not inquiry.failures:
        return PeerUnreachableError(
            f"nobody to ask for {what} of {publisher}",
            hint="use a link with ?peer=, or connect to a seed first",
        )
    return NotFoundError(
        f"nobody knows {what} of {publisher}",
        hint="check the peer id; its publisher may be offline, or may not have published yet",
    )

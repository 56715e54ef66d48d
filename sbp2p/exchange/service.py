"""The exchange of one node: serves its store to peers, and fetches from them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sbp2p.calls import ThreadCalls
from sbp2p_protocol.cid import verify_block
from sbp2p_protocol.exchange_messages import PROTOCOL_ID

from .fetch import Fetch
from .finding import Finder
from .gossip import Gossip
from .library import Library
from .peers import open_peers
from .permits import Permits
from .reading import BlockBuffers
from .serve import ServingSession, ServingStatistics
from .source import Source
from .uploads import Uploads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    import trio

    from sbp2p.calls import Calls
    from sbp2p.config import NodeConfig
    from sbp2p.observe import Traffic
    from sbp2p.store import Store
    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_keys.signing import SignedDocument
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.link import Link
    from sbp2p_protocol.manifest import Manifest
    from sbp2p_protocol.multiaddr import Address
    from sbp2p_protocol.web_seeds import WebUrl

    from .peers import Peers
    from .progress import Choice, FetchProgress, FetchResult, FoundVersion

_THREADS: Final = 8
"""Blocking calls at once: two writers and a commit for a fetch, a read for each of some peers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeStatistics:
    """What this node has served since it began."""

    bytes_sent: int
    """Block payload only."""
    blocks_sent: int
    blocks_rejected: int
    streams: tuple[ServingStatistics, ...]
    """Peers that ask just now."""
    traffic: tuple[Traffic, ...]
    """By peer and version, both ways; the one that moved last first."""


class Exchange:
    """Serves from the moment it is made; `fetch` may run any number of times at once.

    Args:
        swarm: whose peers are served, and asked.
        store: what is served, and where fetched versions are registered.
        config: knobs.
        threads: where blocking calls run; worker threads by default.
        rng: spreads load; unseeded by default.
    """

    def __init__(
        self,
        swarm: Swarm,
        store: Store,
        config: NodeConfig,
        *,
        threads: Calls | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._swarm = swarm
        self._store = store
        self._config = config
        self._threads = threads if threads is not None else ThreadCalls(_THREADS)
        self._rng = rng if rng is not None else random.Random()  # noqa: S311  # guards nothing
        self._library = Library(store, self._threads, config.exchange, self._rng)
        self._uploads = Uploads(config.exchange, self._rng)
        self._uploads.peers_limited = lambda: swarm.limits.config.peer_upload_bytes_s is not None
        self._gossip = Gossip(swarm, self._library, lambda _mine, _other, _root: True)
        self._permits = Permits(swarm.roles, store)
        self._buffers = BlockBuffers(config.exchange.serve_memory_bytes)
        self._serving: set[ServingSession] = set()
        self._past = [0, 0, 0]
        swarm.handle(PROTOCOL_ID, self._serve)

    async def fetch(
        self,
        link: Link,
        destination: Path | Callable[[Manifest], Path],
        *,
        sources: Iterable[Source] = (),
        arrivals: trio.MemoryReceiveChannel[Source] | None = None,
        trust: Callable[[SignedDocument, Manifest], Awaitable[None]] | None = None,
        choose: Callable[[FoundVersion], Choice] | None = None,
        progress: Callable[[FetchProgress], None] | None = None,
        in_order: bool = False,
        overwrite: bool = False,
        pinned: bool = True,
        web_seeds: Sequence[WebUrl] = (),
        learns: bool = True,
    ) -> FetchResult:
        """Get a version, or a part of it, into a folder, verified.

        Args:
            link: what to get. The peers it names are asked, too.
            destination: folder that the version's paths are relative to, or what tells it once
                the manifest is known.
            sources: peers to ask.
            arrivals: more of them while it runs. As long as this channel is open, a fetch that
                cannot go on waits for `patience_s`; otherwise it gives up when all were asked.
            trust: called once with the verified document; raises TrustError to refuse it.
            choose: returns the wanted part; runs in a thread. All blocks and files by default.
            progress: called in the event loop about ten times a second and at each phase.
            in_order: ask for blocks in the order of the files, not rarest first.
            overwrite: replace different files at the destination when the fetch finishes.
            pinned: keep the version when space is wanted.
            web_seeds: HTTP servers that have the files, besides those that the manifest names.
            learns: ask peers, too, that those who are asked tell of.

        Raises:
            NotFoundError: the version, or some of its blocks, is with no peer.
            PeerUnreachableError: nobody could be asked, or everybody left.
            PeerMisbehavedError: the version itself is malformed, or every peer broke the protocol.
            StoreError: the disk failed, or the destination is in use; what was committed is safe.
            TrustError: from `trust`.
        """
        fetch = Fetch(
            link,
            destination,
            swarm=self._swarm,
            store=self._store,
            library=self._library,
            uploads=self._uploads,
            threads=self._threads,
            config=self._config,
            rng=self._rng,
            trust=trust,
            choose=choose,
            progress=progress,
            in_order=in_order,
            overwrite=overwrite,
            pinned=pinned,
            web_seeds=web_seeds,
            learns=learns,
        )
        return await fetch.run([*sources, *sources_of(link)], arrivals)

    async def find(
        self,
        link: Link,
        *,
        sources: Iterable[Source] = (),
        arrivals: trio.MemoryReceiveChannel[Source] | None = None,
    ) -> FoundVersion:
        """Return what a link names, with its tree and tensor index, but not its blocks.

        Args:
            link: what to find. The peers it names are asked, too.
            sources: peers to ask.
            arrivals: more of them while it runs.

        Raises:
            NotFoundError, PeerUnreachableError, PeerMisbehavedError: as `fetch`.
        """
        async with self._asking([*sources, *sources_of(link)], arrivals) as peers:
            finder = Finder(peers, self._library, self._threads)
            return await finder.read(*await finder.find(link))

    async def resolve(
        self, link: Link, *, sources: Iterable[Source] = ()
    ) -> tuple[SignedDocument, Manifest]:
        """Return the verified manifest that a link names, and nothing of what it describes.

        Raises:
            NotFoundError, PeerUnreachableError, PeerMisbehavedError: as `fetch`.
        """
        async with self._asking([*sources, *sources_of(link)]) as peers:
            return await Finder(peers, self._library, self._threads).find(link)

    async def fetch_block(
        self,
        cid: Cid,
        *,
        sources: Iterable[Source] = (),
        arrivals: trio.MemoryReceiveChannel[Source] | None = None,
    ) -> bytes:
        """Return one loose block, from the store or from a peer, verified, and keep it.

        Args:
            cid: of the block.
            sources: peers to ask.
            arrivals: more of them while it runs.

        Raises:
            NotFoundError, PeerUnreachableError: it cannot be had, after `patience_s`.
            StoreError: the store failed.
        """
        found: list[bytes] = []

        def take(wanted: Cid, data: bytes) -> None:
            verify_block(wanted, data)
            found.append(data)

        async with self._asking(sources, arrivals) as peers:
            await peers.nodes.fetch([cid], take)
        return found[0]

    def _asking(
        self,
        sources: Iterable[Source],
        arrivals: trio.MemoryReceiveChannel[Source] | None = None,
    ) -> AbstractAsyncContextManager[Peers]:
        return open_peers(
            sources,
            arrivals,
            swarm=self._swarm,
            store=self._store,
            threads=self._threads,
            config=self._config,
            on_tick=lambda _: None,
        )

    def published(self, root: Cid) -> None:
        """Tell peers that follow this root that every block of it is here now."""
        self._library.completed(root)

    def statistics(self) -> ExchangeStatistics:
        """Return the counters at this moment."""
        now = [session.statistics for session in self._serving]
        return ExchangeStatistics(
            bytes_sent=self._past[0] + sum(each.bytes_sent for each in now),
            blocks_sent=self._past[1] + sum(each.blocks_sent for each in now),
            blocks_rejected=self._past[2] + sum(each.blocks_rejected for each in now),
            streams=tuple(now),
            traffic=self._library.ledger.traffic(),
        )

    async def _serve(self, stream: Stream) -> None:
        session = ServingSession(
            stream,
            swarm=self._swarm,
            store=self._store,
            library=self._library,
            permits=self._permits,
            uploads=self._uploads,
            gossip=self._gossip,
            buffers=self._buffers,
            threads=self._threads,
            config=self._config.exchange,
        )
        refusal = self._permits.refusal(stream.peer_id)
        if len(self._serving) >= self._config.exchange.max_serving_streams:
            refusal = "this node serves as many streams as it may"
        if refusal is not None:
            await session.refuse(refusal)
            return
        self._serving.add(session)
        try:
            await session.run()
        finally:
            self._serving.discard(session)
            done = session.statistics
            self._past[0] += done.bytes_sent
            self._past[1] += done.blocks_sent
            self._past[2] += done.blocks_rejected


def sources_of(link: Link) -> list[Source]:
    """Return the peers that a link names, each with all its addresses."""
    addresses: dict[PeerId, list[Address]] = {}
    for address in link.peers:
        if address.peer_id is not None:
            addresses.setdefault(address.peer_id, []).append(address)
    return [Source(peer_id, tuple(found)) for peer_id, found in addresses.items()]

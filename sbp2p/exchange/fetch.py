"""One fetch: from a link to verified files.

Theory of operation. The steps, each named in `FetchProgress.phase`:

    FINDING       the signed manifest, from the store or from peers; trust is asked of the caller
    READING       the tree and the tensor index, whole, whatever part is wanted: they are small,
                  and with them this node can serve the version
    CHECKING      the download is opened or resumed, and blocks that other local files hold copied
    TRANSFERRING  the rest, from all peers at once
    FINISHING     files get their names, the version is registered

Peers are connected to from the start and may join and leave at any time. From CHECKING on other
peers are told what is here, so two nodes that fetch the same version help each other.

When nothing may come any more (see `BlockScheduler.hope`) for `patience_s`, the fetch gives up and
says how many blocks are missing. Everything committed stays; so it is after a cancellation, which
takes a second at most.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from sbp2p.errors import NotFoundError, PeerUnreachableError, StoreError
from sbp2p_protocol.cid import verify_block
from sbp2p_protocol.exchange_events import (
    NodeArrived,
    NodeRejected,
    VersionArrived,
    VersionMissing,
)
from sbp2p_protocol.link import ManifestLink
from sbp2p_protocol.tensor_index import parse_index_root, read_tensor_index
from sbp2p_protocol.tree import TreeWalker

from .nodes import NodeFetcher, malformed
from .progress import FetchProgress, FetchResult, FoundVersion, Phase, RateMeter
from .questions import Questions, unreachable
from .scheduler import BlockScheduler
from .sources import Sources
from .unwrap import unwrapped_errors
from .writer import BlockWriter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    from sbp2p.config import NodeConfig
    from sbp2p.store import Download, Store
    from sbp2p.swarm import Swarm
    from sbp2p_keys.signing import SignedDocument
    from sbp2p_protocol.bitmap import Bitmap
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.exchange_events import ClientEvent
    from sbp2p_protocol.link import Link
    from sbp2p_protocol.manifest import Manifest
    from sbp2p_protocol.tensor_index import TensorEntry

    from .library import Library
    from .session import PeerSession
    from .sources import Source
    from .threads import Calls

T = TypeVar("T")

_TICK_S: Final = 0.1
"""How often time is looked at: stalls, pauses, the endgame, progress."""
_CLOSE_S: Final = 0.7
"""How long a cancelled fetch waits for its last commit: it must end within a second."""


class Fetch:
    """One version on its way here. Made and run by `Exchange.fetch`, whose arguments these are."""

    def __init__(
        self,
        link: Link,
        destination: Path | Callable[[Manifest], Path] | None,
        *,
        swarm: Swarm,
        store: Store,
        library: Library,
        threads: Calls,
        config: NodeConfig,
        trust: Callable[[SignedDocument, Manifest], Awaitable[None]] | None = None,
        choose: Callable[[FoundVersion], Bitmap] | None = None,
        progress: Callable[[FetchProgress], None] | None = None,
        in_order: bool = False,
        overwrite: bool = False,
    ) -> None:
        self._link = link
        self._destination = destination
        self._swarm = swarm
        self._store = store
        self._library = library
        self._threads = threads
        self._config = config
        self._trust = trust
        self._choose = choose
        self._progress = progress
        self._in_order = in_order
        self._overwrite = overwrite
        self._keep_waiting = False
        self._started = trio.current_time()
        self._phase = Phase.FINDING
        self._manifest: Manifest | None = None
        self._table: BlockTable | None = None
        self._scheduler: BlockScheduler | None = None
        self._bytes_total = self._bytes_verified = self._bytes_local = self._bytes_network = 0
        self._bytes_resumed = 0
        self._transfer_seconds = 0.0
        self._blocks_total = self._blocks_verified = 0
        self._rate = RateMeter(self._started)
        self._last_hope = self._started

    async def run(
        self, sources: Iterable[Source], arrivals: trio.MemoryReceiveChannel[Source] | None
    ) -> FetchResult:
        """Fetch from `sources`, and from those that come over `arrivals` while it runs."""
        return await self._with_sources(sources, arrivals, self._fetch)

    async def look(self, sources: Iterable[Source]) -> FoundVersion:
        """Return what the link names, with its tree and tensor index, without its blocks."""
        return await self._with_sources(sources, None, self._look)

    async def _with_sources(
        self,
        sources: Iterable[Source],
        arrivals: trio.MemoryReceiveChannel[Source] | None,
        work: Callable[[], Awaitable[T]],
    ) -> T:
        with unwrapped_errors():
            async with trio.open_nursery() as nursery:
                self._sources = Sources(
                    swarm=self._swarm,
                    config=self._config.exchange,
                    owner=self,
                    left=self._left,
                    tried=self._tried,
                    nursery=nursery,
                )
                self._questions = Questions(self._sources, self._config.exchange)
                self._nodes = NodeFetcher(
                    self._sources,
                    self._store,
                    self._config.exchange,
                    self._threads,
                    self._config.swarm.ban_score,
                )
                for source in sources:
                    self._sources.add(source)
                if arrivals is not None:
                    self._keep_waiting = True
                    nursery.start_soon(self._take_arrivals, arrivals)
                nursery.start_soon(self._tick)
                result = await work()
                for session in self._sources.sessions.values():
                    session.leave()
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        return result

    async def _take_arrivals(self, arrivals: trio.MemoryReceiveChannel[Source]) -> None:
        async for source in arrivals:
            self._sources.add(source)
        self._keep_waiting = False

    # -- the steps ------------------------------------------------------------------------------

    async def _look(self) -> FoundVersion:
        self._enter(Phase.FINDING)
        document, manifest = await self._find()
        self._manifest = manifest
        if self._trust is not None:
            await self._trust(document, manifest)
        self._enter(Phase.READING)
        table = self._table = await self._read_tree(manifest.root)
        return FoundVersion(document, manifest, table, await self._read_tensors(manifest))

    async def _fetch(self) -> FetchResult:
        version = await self._look()
        manifest = version.manifest
        wanted = await self._threads.run(self._choose_blocks, version)
        self._enter(Phase.CHECKING)
        download = await self._threads.run(self._open, version, wanted)
        try:
            await self._fill(download)
            self._enter(Phase.FINISHING)
            await self._threads.run(download.finish)
            self._library.closed(manifest.root, download.have)
            if download.have.all():
                self._library.completed(manifest.root)
            await self._threads.run(download.close)
        finally:
            self._library.closed(manifest.root, download.have)
            with (
                suppress(StoreError),
                trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_S),
            ):
                await self._threads.run(download.close)
        self._enter(Phase.DONE)
        return self._result(version, wanted)

    async def _find(self) -> tuple[SignedDocument, Manifest]:
        """Return the signed manifest that the link names."""
        link = self._link
        if isinstance(link, ManifestLink):
            cid = link.manifest
            record = await self._threads.run(self._store.version, cid)
            if record is not None:
                return record.document, record.manifest
            return await self._questions.find(
                f"version {cid}",
                lambda client: client.get_version(cid),
                lambda manifest: manifest.cid == cid,
                exact=True,
                keep_waiting=self._keep_waiting,
            )
        local = await self._threads.run(self._store.newest, link.publisher, link.name)
        if local is not None and link.version not in (None, local.version):
            local = None
        if local is not None and link.version is not None:
            return local.document, local.manifest
        publisher, name, version = link.publisher, link.name, link.version
        try:
            found = await self._questions.find(
                f"{name} of publisher {publisher}",
                lambda client: client.resolve(publisher.to_bytes(), name, version),
                lambda manifest: (
                    manifest.publisher == publisher
                    and manifest.name == name
                    and version in (None, manifest.version)
                ),
                exact=version is not None,
                keep_waiting=self._keep_waiting,
            )
        except (NotFoundError, PeerUnreachableError):
            if local is None:
                raise
            return local.document, local.manifest
        # what is here counts, too: a peer that has not heard of it must not roll it back
        if local is not None and local.version >= found[1].version:
            return local.document, local.manifest
        return found

    async def _read_tree(self, root: Cid) -> BlockTable:
        walker = TreeWalker(root)
        while not walker.done:
            await self._nodes.fetch(walker.needed(), walker.receive_node)
        with malformed():
            return await self._threads.run(walker.finish)

    async def _read_tensors(self, manifest: Manifest) -> tuple[TensorEntry, ...]:
        if manifest.tensors is None or self._table is None:
            return ()
        blocks: dict[Cid, bytes] = {}

        def take(cid: Cid, data: bytes) -> None:
            verify_block(cid, data)
            blocks[cid] = data

        await self._nodes.fetch([manifest.tensors], take)
        root = blocks[manifest.tensors]
        with malformed():
            pages = parse_index_root(root)
        await self._nodes.fetch(list(dict.fromkeys(pages)), take)
        in_order = [blocks[cid] for cid in pages]
        with malformed():
            entries = await self._threads.run(read_tensor_index, root, in_order, self._table)
        return tuple(entries)

    def _choose_blocks(self, version: FoundVersion) -> Bitmap:
        """Return what is wanted, and count it; runs in a thread."""
        table = version.table
        if self._choose is None:
            wanted = table.blocks_of_files(range(len(table.files)))
        else:
            wanted = self._choose(version)
        self._blocks_total = wanted.count()
        self._bytes_total = sum(map(table.length, wanted))
        return wanted

    def _open(self, version: FoundVersion, wanted: Bitmap) -> Download:
        return self._store.open_download(
            version.document,
            version.manifest,
            version.table,
            self._destination_of(version.manifest),
            wanted,
            overwrite=self._overwrite,
        )

    def _destination_of(self, manifest: Manifest) -> Path:
        if self._destination is None:
            raise ValueError("a fetch needs a destination")
        if callable(self._destination):
            return self._destination(manifest)
        return self._destination

    async def _fill(self, download: Download) -> None:
        root, table = download.manifest.root, download.table
        self._library.opened(root, download.have)
        self._bytes_resumed = self._bytes_total - sum(map(table.length, download.missing))
        steps = download.adopt_local()
        while (step := await self._threads.run(next, steps, None)) is not None:
            self._library.gained(root, step.indices)
        missing = download.missing
        self._blocks_verified = self._blocks_total - missing.count()
        self._bytes_verified = self._bytes_total - sum(map(table.length, missing))
        self._bytes_local = self._bytes_verified - self._bytes_resumed
        if missing.any():
            await self._transfer(download, missing)

    async def _transfer(self, download: Download, missing: Bitmap) -> None:
        root = download.manifest.root

        def verified(index: int, length: int) -> None:
            self._blocks_verified += 1
            self._bytes_verified += length
            self._bytes_network += length
            self._library.gained(root, (index,))

        scheduler = BlockScheduler(
            root,
            download.table,
            missing,
            sessions=self._sources.sessions,
            ban_score=self._config.swarm.ban_score,
            rng=random.Random(),  # noqa: S311  # spreads load, guards nothing
            on_verified=verified,
        )
        if self._in_order:
            scheduler.picker.prefer(missing)
        writer = self._writer = BlockWriter(
            download,
            config=self._config.exchange,
            commit_bytes=self._config.store.commit_batch_bytes // 2,
            threads=self._threads,
            verified=scheduler.verified,
            bad=scheduler.bad,
        )
        self._enter(Phase.TRANSFERRING)
        began = self._last_hope = trio.current_time()
        self._scheduler = scheduler
        for session in self._sources.sessions.values():
            if session.greeted:
                scheduler.joined(session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            nursery.start_soon(scheduler.run)
            await scheduler.done.wait()
            nursery.cancel_scope.cancel()
        self._transfer_seconds = trio.current_time() - began

    # -- sessions: what they tell (SessionOwner) ------------------------------------------------

    def joined(self, session: PeerSession) -> None:
        """A peer can be asked."""
        self._sources.greeted(session)
        self._questions.joined(session)
        self._nodes.joined(session)
        if self._scheduler is not None:
            self._scheduler.joined(session)

    async def handle(self, session: PeerSession, event: ClientEvent) -> None:
        """Take what a peer sent; waits while the disk is behind."""
        match event:
            case NodeArrived() | NodeRejected():
                self._nodes.take(session, event)
            case VersionArrived() | VersionMissing():
                self._questions.take(session, event)
            case _:
                if self._scheduler is not None:
                    block = self._scheduler.take(session, event)
                    if block is not None:
                        await self._writer.put(block)

    def drained(self, session: PeerSession) -> None:
        """A peer's events are handled: ask for more."""
        self._nodes.assign()
        if self._scheduler is not None:
            self._scheduler.refill(session)

    def _left(self, session: PeerSession) -> None:
        self._questions.left(session)
        self._nodes.left(session)
        if self._scheduler is not None:
            self._scheduler.left(session)

    def _tried(self) -> None:
        self._questions.tried()

    # -- time -----------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await trio.sleep(_TICK_S)
            now = trio.current_time()
            for session in list(self._sources.sessions.values()):
                stall = session.check_time(now)
                if stall is not None:
                    self._nodes.stalled(session, stall.nodes)
                    if self._scheduler is not None:
                        self._scheduler.stalled(session, stall.digests)
            if self._scheduler is not None and not self._scheduler.done.is_set():
                self._scheduler.refill_all()
                self._check_hope(self._scheduler, now)
            self._rate.update(self._bytes_network, now)
            self._report()

    def _check_hope(self, scheduler: BlockScheduler, now: float) -> None:
        if scheduler.hope:
            self._last_hope = now
            return
        if now - self._last_hope < self._config.exchange.patience_s and (
            self._sources.known or self._keep_waiting
        ):
            return
        missing = f"{scheduler.picker.missing_count} of {self._blocks_total} blocks are missing"
        kept = "what has arrived is kept: the same command continues from there"
        usable = len(self._sources.usable())
        if not usable:
            reason = unreachable(self._sources)
            raise PeerUnreachableError(f"{missing}: {reason}", hint=f"{reason.hint}; {kept}")
        raise NotFoundError(f"{missing}, and none of {usable} connected peers has one", hint=kept)

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._report()

    def _report(self) -> None:
        if self._progress is None:
            return
        self._progress(
            FetchProgress(
                phase=self._phase,
                manifest=self._manifest,
                bytes_total=self._bytes_total,
                bytes_verified=self._bytes_verified,
                bytes_local=self._bytes_local + self._bytes_resumed,
                bytes_received=self._received(),
                blocks_total=self._blocks_total,
                blocks_verified=self._blocks_verified,
                peers=len(self._sources.usable()),
                rate=self._rate.rate,
            )
        )

    def _received(self) -> int:
        return sum(each.bytes_received for each in self._sources.statistics())

    def _result(self, version: FoundVersion, wanted: Bitmap) -> FetchResult:
        useless = self._scheduler.bytes_useless if self._scheduler is not None else 0
        return FetchResult(
            version=version,
            wanted=wanted,
            destination=self._destination_of(version.manifest),
            bytes_wanted=self._bytes_total,
            bytes_resumed=self._bytes_resumed,
            bytes_local=self._bytes_local,
            bytes_received=self._received(),
            bytes_useless=useless,
            seconds=trio.current_time() - self._started,
            transfer_seconds=self._transfer_seconds,
            sources=self._sources.statistics(),
        )

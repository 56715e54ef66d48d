"""One fetch: from a link to verified files.

Theory of operation. The steps, each named in `FetchProgress.phase`:

    FINDING       the signed manifest, from the store or from peers; trust is asked of the caller
    READING       the tree and the tensor index
    CHECKING      the download is opened or resumed, and blocks that other local files hold copied
    TRANSFERRING  the rest, from all peers at once, and what no peer has from web seeds
    FINISHING     files get their names, the version is registered

Peers are connected to from the start and may join and leave at any time. From CHECKING on other
peers are told what is here, so two nodes that fetch the same version help each other.

When nothing may come any more (see `BlockScheduler.hope`) for `patience_s`, or at once when every
peer was blamed or has shown that it lacks what is left, the fetch gives up and says how many blocks
are missing. Everything committed stays; so it is after a cancellation, which takes a second at
most.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from sbp2p.errors import NotFoundError, StoreError
from sbp2p_protocol.picking import Picking

from .finding import Finder
from .peers import ABSENT_S, open_peers
from .progress import Choice, FetchProgress, FetchResult, FoundVersion, Phase, RateMeter
from .questions import unreachable
from .scheduler import BlockScheduler
from .web import make_web_seeds
from .writer import BlockWriter

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from sbp2p.calls import Calls
    from sbp2p.config import NodeConfig
    from sbp2p.store import Download, Store
    from sbp2p.swarm import Swarm
    from sbp2p_keys.signing import SignedDocument
    from sbp2p_protocol.bitmap import Bitmap
    from sbp2p_protocol.link import Link
    from sbp2p_protocol.manifest import Manifest
    from sbp2p_protocol.web_seeds import WebUrl

    from .library import Library
    from .peers import Peers
    from .source import Source
    from .uploads import Uploads
    from .web_seed import WebSeeds

_CLOSE_S: Final = 0.7
"""How long a cancelled fetch waits for its last commit: it must end within a second."""


class Fetch:
    """One version on its way here. Made and run by `Exchange.fetch`, whose arguments these are."""

    def __init__(
        self,
        link: Link,
        destination: Path | Callable[[Manifest], Path],
        *,
        swarm: Swarm,
        store: Store,
        library: Library,
        uploads: Uploads,
        threads: Calls,
        config: NodeConfig,
        rng: random.Random,
        trust: Callable[[SignedDocument, Manifest], Awaitable[None]] | None = None,
        choose: Callable[[FoundVersion], Choice] | None = None,
        progress: Callable[[FetchProgress], None] | None = None,
        in_order: bool = False,
        overwrite: bool = False,
        pinned: bool = True,
        web_seeds: Sequence[WebUrl] = (),
        learns: bool = True,
    ) -> None:
        self._link = link
        self._destination = destination
        self._swarm = swarm
        self._store = store
        self._library = library
        self._uploads = uploads
        self._threads = threads
        self._config = config
        self._rng = rng
        self._trust = trust
        self._choose = choose
        self._progress = progress
        self._in_order = in_order
        self._overwrite = overwrite
        self._pinned = pinned
        self._web_urls = tuple(web_seeds)
        self._learns = learns
        self._web: WebSeeds | None = None
        self._opening = _Opening()
        self._peers: Peers | None = None
        self._scheduler: BlockScheduler | None = None
        self._started = self._last_hope = self._last_tick = trio.current_time()
        self._transfer_seconds = 0.0
        self._part_files: tuple[tuple[str, Path], ...] = ()
        self._rate = RateMeter(self._started)
        self._phase = Phase.FINDING
        self._is_stuck = False
        self._manifest: Manifest | None = None
        self._bytes_total = self._bytes_verified = self._bytes_network = 0
        self._bytes_resumed = self._bytes_local = 0
        self._blocks_total = self._blocks_verified = 0

    async def run(
        self, sources: Iterable[Source], arrivals: trio.MemoryReceiveChannel[Source] | None
    ) -> FetchResult:
        """Fetch from `sources`, and from those that come over `arrivals` while it runs."""
        async with open_peers(
            sources,
            arrivals,
            swarm=self._swarm,
            store=self._store,
            threads=self._threads,
            config=self._config,
            on_tick=self._tick,
            ordered=self._in_order or self._config.exchange.picking is Picking.SEQUENTIAL,
            learns=self._learns,
        ) as peers:
            self._peers = peers
            self._enter(Phase.FINDING)
            finder = Finder(peers, self._library, self._threads)
            document, manifest = await finder.find(self._link)
            self._manifest = manifest
            if self._trust is not None:
                await self._trust(document, manifest)
            self._enter(Phase.READING)
            version = await finder.read(document, manifest)
            choice = await self._threads.run(self._choose_blocks, version)
            folder = self._destination
            if callable(folder):
                folder = folder(manifest)
            await self._download(peers, version, choice, folder)
            self._enter(Phase.DONE)
            return self._result(peers, version, choice.wanted, folder)

    def _choose_blocks(self, version: FoundVersion) -> Choice:
        """Return what is wanted, and count it; runs in a thread."""
        table = version.table
        if self._choose is None:
            choice = Choice(table.blocks_of_files(range(len(table.files))))
        else:
            choice = self._choose(version)
        self._blocks_total = choice.wanted.count()
        self._bytes_total = sum(map(table.length, choice.wanted))
        return choice

    async def _download(
        self, peers: Peers, version: FoundVersion, choice: Choice, folder: Path
    ) -> None:
        self._enter(Phase.CHECKING)
        root = version.manifest.root
        try:
            download = await self._threads.run(
                self._opening.open,
                lambda: self._store.open_download(
                    version.document,
                    version.manifest,
                    version.table,
                    folder,
                    choice.wanted,
                    files=choice.files,
                    overwrite=self._overwrite,
                    pinned=self._pinned,
                ),
            )
            try:
                await self._fill(peers, download)
                self._enter(Phase.FINISHING)
                await self._threads.run(download.finish)
                self._part_files = _part_files(download)
            finally:
                self._library.closed(root, download.have)
            await self._threads.run(download.close)
            if download.have.all():
                self._library.completed(root)
        finally:
            # does nothing when all went well
            with (
                suppress(StoreError),
                trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_S),
            ):
                await self._threads.run(self._opening.close)

    async def _fill(self, peers: Peers, download: Download) -> None:
        root, length = download.manifest.root, download.table.length
        self._library.opened(root, download.have)
        self._bytes_resumed = self._bytes_total - sum(map(length, download.missing))
        steps = download.adopt_local()
        while (step := await self._threads.run(next, steps, None)) is not None:
            self._library.gained(root, step.indices)
        missing = download.missing
        self._blocks_verified = self._blocks_total - missing.count()
        self._bytes_verified = self._bytes_total - sum(map(length, missing))
        self._bytes_local = self._bytes_verified - self._bytes_resumed
        if missing.any():
            await self._transfer(peers, download, missing)

    async def _transfer(self, peers: Peers, download: Download, missing: Bitmap) -> None:
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
            sessions=peers.sources.sessions,
            library=self._library,
            uploads=self._uploads,
            ban_score=self._config.swarm.ban_score,
            picking=self._config.exchange.picking,
            rng=self._rng,
            found=peers.sources.add,
            on_verified=verified,
        )
        if self._in_order:
            scheduler.picker.prefer(missing)
        writer = BlockWriter(
            download,
            config=self._config.exchange,
            threads=self._threads,
            verified=scheduler.verified,
            bad=scheduler.bad,
        )
        self._enter(Phase.TRANSFERRING)
        began = self._last_hope = trio.current_time()
        self._scheduler = scheduler
        self._web = make_web_seeds(
            self._web_urls,
            download.manifest.meta,
            table=download.table,
            config=self._config.web,
            limits=self._swarm.limits,
        )
        peers.attach(scheduler, writer)
        self._library.began(root, scheduler)
        self._uploads.fetching(1)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.run)
                nursery.start_soon(scheduler.run)
                if self._web is not None:
                    nursery.start_soon(self._web.run, scheduler, writer)
                await scheduler.done.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._uploads.fetching(-1)
            self._library.ended(root, scheduler)
        self._transfer_seconds = trio.current_time() - began

    # -- time -----------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        if self._peers is None:
            return
        if self._scheduler is not None and not self._scheduler.done.is_set():
            self._check_hope(self._peers, self._scheduler, now)
        self._last_tick = now
        self._rate.update(self._bytes_network, now)
        self._report()

    def _check_hope(self, peers: Peers, scheduler: BlockScheduler, now: float) -> None:
        web = self._web
        self._is_stuck = not scheduler.hope
        if not self._is_stuck or (web and web.hope) or now - self._last_tick > ABSENT_S:
            self._last_hope = now
            return
        sources = peers.sources
        over = sources.exhausted or (sources.all_here and scheduler.nobody_will)
        if now - self._last_hope < self._config.exchange.patience_s and (
            peers.more_may_come or not over
        ):
            return
        missing = f"{scheduler.picker.missing_count} of {self._blocks_total} blocks are missing"
        for seed in web.statistics() if web else ():
            missing += f"; web seed {seed.url}: {seed.dropped}"
        kept = "what has arrived is kept: the same command continues from there"
        usable = len(peers.sources.usable())
        if not usable:
            reason = unreachable(peers.sources)
            raise type(reason)(f"{missing}: {reason}", hint=f"{reason.hint}; {kept}")
        raise NotFoundError(f"{missing}, and none of {usable} connected peers has one", hint=kept)

    # -- telling --------------------------------------------------------------------------------

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._report()

    def _report(self) -> None:
        if self._progress is None or self._peers is None:
            return
        sources = self._peers.sources
        self._progress(
            FetchProgress(
                phase=self._phase,
                manifest=self._manifest,
                bytes_total=self._bytes_total,
                bytes_verified=self._bytes_verified,
                bytes_local=self._bytes_local + self._bytes_resumed,
                bytes_received=sources.bytes_received + self._bytes_of_web,
                blocks_total=self._blocks_total,
                blocks_verified=self._blocks_verified,
                peers=len(sources.usable()),
                is_stuck=self._is_stuck,
                rate=self._rate.rate,
            )
        )

    def _result(
        self, peers: Peers, version: FoundVersion, wanted: Bitmap, folder: Path
    ) -> FetchResult:
        useless = self._scheduler.bytes_useless if self._scheduler is not None else 0
        return FetchResult(
            version=version,
            wanted=wanted,
            destination=folder,
            bytes_wanted=self._bytes_total,
            bytes_resumed=self._bytes_resumed,
            bytes_local=self._bytes_local,
            bytes_received=peers.sources.bytes_received + self._bytes_of_web,
            bytes_useless=useless,
            seconds=trio.current_time() - self._started,
            transfer_seconds=self._transfer_seconds,
            part_files=self._part_files,
            sources=peers.sources.statistics(),
            web_seeds=self._web.statistics() if self._web is not None else (),
        )

    @property
    def _bytes_of_web(self) -> int:
        return self._web.bytes_received if self._web is not None else 0


def _part_files(download: Download) -> tuple[tuple[str, Path], ...]:
    """Return the paths of files that are here in part, each with where the part lies."""
    work = Path(download.parts.folder)
    lying = (
        (file.path, download.file_path(number)) for number, file in enumerate(download.table.files)
    )
    return tuple(
        (name, Path(at)) for name, at in lying if at is not None and Path(at).parent == work
    )


class _Opening:
    """A download that is closed in the end, also when its opening was abandoned half way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._download: Download | None = None

    def open(self, open_download: Callable[[], Download]) -> Download:
        """Open, in a thread whose caller may be gone by then."""
        with self._lock:
            if self._closed:
                raise StoreError("the fetch was given up")
            self._download = open_download()
            return self._download

    def close(self) -> None:
        """Close what was opened, after waiting for it; raises StoreError."""
        with self._lock:
            self._closed = True
            if self._download is not None:
                self._download.close()

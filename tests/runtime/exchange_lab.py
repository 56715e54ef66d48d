"""Nodes for the exchange's tests: real swarms over a memory network, real stores."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import trio
from blake3 import blake3
from trio.testing import MockClock

from sbp2p.calls import InlineCalls
from sbp2p.config import ExchangeConfig, NodeConfig, StoreConfig
from sbp2p.exchange import Exchange, Source
from sbp2p.store import Store
from sbp2p.swarm import open_swarm
from sbp2p.transport import LinkProfile, MemoryNetwork
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.bitmap import Bitmap
from sbp2p_protocol.exchange_events import NameWanted, Subscribed, VersionWanted
from sbp2p_protocol.exchange_messages import PROTOCOL_ID, RejectReason
from sbp2p_protocol.exchange_server import ExchangeServer, Wanted
from sbp2p_protocol.limits import BLOCK_MAX
from sbp2p_protocol.link import ManifestLink
from sbp2p_protocol.manifest import Manifest, sign_manifest
from sbp2p_protocol.multiaddr import parse_address
from sbp2p_protocol.tree import TreeFile, TreeWalker, build_tree
from sbp2p_protocol.unixfs import build_file
from tests.runtime.store_samples import noise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from sbp2p.exchange import FetchResult
    from sbp2p.handlers import StreamHandler
    from sbp2p.stream import Stream
    from sbp2p.swarm import Gate, Swarm
    from sbp2p_keys.signing import SignedDocument
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.multiaddr import Address

PUBLISHER = PrivateKey.from_seed(b"p" * 32)
BLOCK = 4096


@dataclass(frozen=True)
class Version:
    """A signed version with a real tree."""

    document: SignedDocument
    manifest: Manifest
    table: BlockTable
    nodes: list[tuple[Cid, bytes]]
    files: Mapping[str, bytes]

    @property
    def link(self) -> ManifestLink:
        return ManifestLink(self.manifest.cid)

    def block(self, index: int) -> bytes:
        number, offset = self.table.locations(index)[0]
        data = self.files[self.table.files[number].path]
        return data[offset : offset + self.table.length(index)]

    def assert_at(self, root: Path) -> None:
        for path, data in self.files.items():
            assert (root / path).read_bytes() == data, path


def make_version(
    files: Mapping[str, bytes], *, number: int = 1, name: str = "model", block: int = BLOCK
) -> Version:
    """Cut files into blocks, build their tree, sign it."""
    nodes: list[tuple[Cid, bytes]] = []
    entries: list[TreeFile] = []
    for path, data in files.items():
        pieces = [data[at : at + block] for at in range(0, len(data), block)]
        built = build_file((blake3(piece).digest(), len(piece)) for piece in pieces)
        nodes += built.nodes
        entries.append(TreeFile(path, built.cid, built.tsize))
    tree = build_tree(entries)
    nodes += tree.nodes
    manifest = Manifest(
        name=name, version=number, root=tree.root, publisher=PUBLISHER.peer_id, created=1
    )
    walker = TreeWalker(tree.root)
    by_cid = dict(nodes)
    while not walker.done:
        for cid in walker.needed():
            walker.receive_node(cid, by_cid[cid])
    return Version(
        sign_manifest(manifest, PUBLISHER), manifest, walker.finish(), nodes, dict(files)
    )


def small_version(blocks: int = 40, **options: int) -> Version:
    """Return a version with three files and about that many unique blocks."""
    number = int(options.get("number", 1))
    return make_version(
        {
            "config.json": b'{"layers": 2}',
            "a/weights.bin": noise(f"weights{number}", (blocks - 2) * BLOCK + 17),
            "empty": b"",
        },
        number=number,
    )


@dataclass
class LabNode:
    """One node of a test: its parts."""

    key: PrivateKey
    swarm: Swarm
    store: Store
    exchange: Exchange
    home: Path
    addresses: list[Address]

    @property
    def source(self) -> Source:
        return Source(self.key.peer_id, tuple(self.addresses))

    async def publish(self, version: Version) -> None:
        """Have a version, whole."""
        root = self.home / f"published-{version.manifest.version}"
        for path, data in version.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        self.store.put_loose_many(version.nodes)
        self.store.add_version(version.document, version.manifest, version.table, root)
        self.exchange.published(version.manifest.root)

    def have(self, version: Version, indices: list[int], where: str = "part") -> None:
        """Have some blocks of a version: a download that was not finished."""
        self.store.put_loose_many(version.nodes)
        wanted = version.table.blocks_of_files(range(len(version.table.files)))
        with self.store.open_download(
            version.document, version.manifest, version.table, self.home / where, wanted
        ) as download:
            for index in indices:
                download.write_block(index, [version.block(index)])

    async def get(self, version: Version, *sources: LabNode | Source) -> FetchResult:
        """Fetch a version into `out`, from these nodes."""
        asked = [each.source if isinstance(each, LabNode) else each for each in sources]
        return await self.exchange.fetch(version.link, self.out, sources=asked)

    @property
    def out(self) -> Path:
        return self.home / "out"


class Lab:
    """Makes nodes in one memory network."""

    def __init__(self, folder: Path, profile: LinkProfile | None, config: NodeConfig) -> None:
        self.network = MemoryNetwork(profile=profile)
        self.config = config
        self._folder = folder
        self._stack = AsyncExitStack()
        self._count = 0

    async def node(self, *, gate: Gate | None = None, **exchange_options: Any) -> LabNode:
        """Start a node that listens."""
        self._count += 1
        key = PrivateKey.from_seed(bytes([self._count]) * 32)
        config = replace(self.config, exchange=replace(self.config.exchange, **exchange_options))
        home = self._folder / f"node-{self._count}"
        home.mkdir()
        store = self._stack.enter_context(Store.open(home, config.store))
        swarm = await self._stack.enter_async_context(
            open_swarm(key, config, gate=gate, transports=[self.network])
        )
        addresses = await swarm.listen(parse_address(f"/memory/{self._count}"))
        # while a worker thread runs the event loop is idle, and a virtual clock would jump
        virtual = isinstance(trio.lowlevel.current_clock(), MockClock)
        threads = InlineCalls() if virtual else None
        exchange = Exchange(swarm, store, config, threads=threads)
        return LabNode(key, swarm, store, exchange, home, addresses)

    async def serve(self, handler: StreamHandler) -> tuple[Swarm, Source]:
        """Start a peer that serves the exchange protocol its own way."""
        self._count += 1
        key = PrivateKey.from_seed(bytes([self._count]) * 32)
        swarm = await self._stack.enter_async_context(
            open_swarm(key, self.config, transports=[self.network])
        )
        swarm.handle(PROTOCOL_ID, handler)
        addresses = await swarm.listen(parse_address(f"/memory/{self._count}"))
        return swarm, Source(key.peer_id, tuple(addresses))


@asynccontextmanager
async def open_lab(
    folder: Path, *, profile: LinkProfile | None = None, **exchange_options: Any
) -> AsyncIterator[Lab]:
    """Yield a lab; its nodes end with it."""
    options = {"patience_s": 20.0, **exchange_options}
    config = NodeConfig(
        exchange=replace(ExchangeConfig(), **options),
        store=StoreConfig(commit_batch_bytes=8 * BLOCK),
    )
    lab = Lab(folder, profile, config)
    with trio.fail_after(600):
        async with lab._stack:
            yield lab


@dataclass
class BadSeed:
    """A peer that serves a version in some wrong way; `handle` is a stream handler."""

    version: Version
    has: set[int] | None = None
    """Blocks that it says it has; all by default."""
    corrupt: frozenset[int] = frozenset()
    """Blocks it sends with a wrong byte."""
    lacks: frozenset[int] = frozenset()
    """Blocks that it says it has and rejects."""
    silent_after: int | None = None
    """After so many blocks it answers nothing more."""
    busy_times: int = 0
    """So many requests are rejected as busy first."""
    leaves_after: int | None = None
    """After so many blocks it ends the stream, each time."""
    delay_s: float = 0.0
    """Wait before each block."""
    corrupt_nodes: bool = False
    forget_document: bool = False
    sent: list[int] = field(default_factory=list)
    requested: list[int] = field(default_factory=list)
    streams: int = 0

    async def handle(self, stream: Stream) -> None:
        """Serve one stream."""
        self.streams += 1
        server = ExchangeServer(max_outstanding_bytes=16 * BLOCK_MAX)
        async with trio.open_nursery() as nursery:
            wake = trio.Event()

            async def receive() -> None:
                nonlocal wake
                while data := await stream.receive_some():
                    server.receive_data(data)
                    wake.set()
                server.receive_eof()
                nursery.cancel_scope.cancel()

            nursery.start_soon(receive)
            while not server.closed:
                self._answer(server)
                if data := server.data_to_send():
                    await stream.send_all(data)
                wanted = server.next_wanted()
                if wanted is None:
                    await wake.wait()
                    wake = trio.Event()
                elif not await self._serve(server, wanted, stream):
                    nursery.cancel_scope.cancel()
                    return

    def _answer(self, server: ExchangeServer) -> None:
        while (event := server.next_event()) is not None:
            match event:
                case VersionWanted(request):
                    if self.forget_document:
                        server.send_not_found(request)
                    else:
                        server.send_version(request, self.version.document.to_bytes())
                case NameWanted(request):
                    server.send_version(request, self.version.document.to_bytes())
                case Subscribed(subscription):
                    if self.has is None:
                        server.send_have_all(subscription)
                    else:
                        bitmap = Bitmap(len(self.version.table), self.has)
                        server.send_bits(subscription, bitmap.to_bytes())

    async def _serve(self, server: ExchangeServer, wanted: Wanted, stream: Stream) -> bool:
        if wanted.cid is not None:
            data = dict(self.version.nodes)[wanted.cid]
            if self.corrupt_nodes:
                data = bytes([data[0] ^ 1]) + data[1:]
            await stream.send_all(server.block_header(wanted.digest, len(data)) + data)
            return True
        index = self.version.table.index(wanted.digest)
        assert index is not None
        self.requested.append(index)
        if self.silent_after is not None and len(self.sent) >= self.silent_after:
            await trio.sleep_forever()
        if self.leaves_after is not None and len(self.sent) >= self.leaves_after * self.streams:
            return False
        if self.busy_times > 0:
            self.busy_times -= 1
            server.reject(wanted.digest, RejectReason.BUSY)
            return True
        if index in self.lacks:
            server.reject(wanted.digest, RejectReason.NOT_HAVE)
            return True
        await trio.sleep(self.delay_s)
        data = self.version.block(index)
        if index in self.corrupt:
            data = bytes([data[0] ^ 1]) + data[1:]
        await stream.send_all(server.block_header(wanted.digest, len(data)) + data)
        self.sent.append(index)
        return True

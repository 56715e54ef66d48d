"""The node: what users of the library hold.

    async with sbp2p.Node() as node:
        version = await node.publish("path/to/model", name="my-model")
        print(version.link(node.addresses))

    async with sbp2p.Node() as node:
        result = await node.fetch("sbp2p:bafy...?peer=/ip4/...", to="path/to/copy")

Theory of operation: a node is one home (key, trust, store), one swarm and one exchange, opened and
closed together by `async with`. Everything that takes long is a method that can be cancelled and
leaves what was verified; nothing runs on after the block.

Errors: only the Sbp2pError tree, with a hint that says what to do next; ValueError and TypeError
for arguments that no call can mean; RuntimeError outside the `async with`, and outside trio.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sbp2p.config import NodeConfig
from sbp2p.errors import ConfigError
from sbp2p.exchange.web import read_web_seeds
from sbp2p.perf import measure_bandwidth
from sbp2p.ping import ping
from sbp2p.roles import Role
from sbp2p.swarm import Gate
from sbp2p_keys.identity import PeerId, PrivateKey

from . import fetching, local, naming, publishing, room
from .arguments import not_open, read_address, require_trio, texts
from .environment import Environment
from .finding_peers import provider_key
from .home import Home
from .parts import open_parts
from .private_swarm import open_private

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from sbp2p.calls import Calls
    from sbp2p.connection import Connection
    from sbp2p.dht import Dht
    from sbp2p.discovery import Discovery
    from sbp2p.errors import Sbp2pError
    from sbp2p.exchange import Exchange
    from sbp2p.namespace import Namespace
    from sbp2p.naming import Following, Naming, ResolvedName
    from sbp2p.observe import SwarmStatistics
    from sbp2p.perf import PerfResult
    from sbp2p.store import RemovedVersion, Store
    from sbp2p.swarm import Swarm
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.link import Link
    from sbp2p_protocol.manifest import MetaValue
    from sbp2p_protocol.multiaddr import Address
    from sbp2p_protocol.rounds import RoundSettings
    from sbp2p_protocol.topology import Topology

    from .finding_peers import PeerFinder
    from .namespaces import Namespaces
    from .parts import Parts
    from .publishing import PublishResult
    from .room import Collected
    from .trusting import TrustCallback
    from .values import Damage, Description, FetchResult, Progress, Version


@dataclass(frozen=True, slots=True)
class _Running:
    """A node while it is open."""

    signer: PrivateKey
    parts: Parts
    stack: AsyncExitStack


class Node:
    """A libp2p node that publishes, seeds and fetches versions of checkpoints.

    Args:
        home: folder for the key, the trust store and the index; $SBP2P_HOME or the platform's
            place for a user's data if None.
        listen: multiaddrs to listen on, such as /ip4/0.0.0.0/tcp/4801; none to only dial.
        identity: a key to use instead of the home's.
        passphrase: of the home's key file.
        config: knobs.
        gate: who may connect.
        swarm_file: of the private swarm to be in; the home's if None, and if that has none, the
            public network.
        environment: the world around the node; the real one if None.
    """

    def __init__(
        self,
        *,
        home: Path | str | None = None,
        listen: Sequence[str] = (),
        identity: PrivateKey | None = None,
        passphrase: bytes | None = None,
        config: NodeConfig | None = None,
        gate: Gate | None = None,
        swarm_file: Path | str | None = None,
        environment: Environment | None = None,
    ) -> None:
        self._home = Home(home)
        self._listen = [read_address(text) for text in texts(listen)]
        self._identity = identity
        self._passphrase = passphrase
        self._config = config or NodeConfig()
        self._gate = gate or Gate()
        self._swarm_file = None if swarm_file is None else Path(swarm_file).expanduser()
        self._environment = environment or Environment()
        self._entered = False
        self._running: _Running | None = None
        self._namespaces: Namespaces | None = None
        self.ephemeral = False
        """Another process runs a node on this home: this one took a throw-away identity."""

    async def __aenter__(self) -> Self:
        require_trio()
        if self._entered:
            raise RuntimeError("this node is open already: open it once, and share it")
        self._entered = True
        async with AsyncExitStack() as stack:
            stack.callback(self._leave)
            signer, identity = await self._calls.run_to_end(self._open_identity, stack)
            private = await self._calls.run_to_end(
                open_private,
                *(self._home, self._swarm_file, signer, identity, self._config, self._environment),
            )
            parts = await open_parts(
                stack,
                identity,
                signer=signer,
                home=self._home.path,
                remembers=not self.ephemeral,
                config=self._config,
                gate=self._gate,
                environment=self._environment,
                private=private,
            )
            for address in self._listen:
                await parts.swarm.listen(address)
            self._running = _Running(signer, parts, stack.pop_all())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open.stack.__aexit__(kind, error, trace)

    def _leave(self) -> None:
        self._entered = False
        self._namespaces = None

    def _open_identity(self, stack: AsyncExitStack) -> tuple[PrivateKey, PrivateKey]:
        """Return the key to sign with, and the one to run as; sets `ephemeral`."""
        self._home.create()
        if self._identity is not None:
            return self._identity, self._identity
        signer = self._home.identity(self._passphrase)
        lock = self._home.lock()
        self.ephemeral = lock is None
        if lock is None:
            return signer, PrivateKey.generate()
        stack.callback(lock.release)
        return signer, signer

    @property
    def _calls(self) -> Calls:
        return self._environment.calls

    @property
    def _open(self) -> _Running:
        """The parts, while they can be used."""
        if not self._entered:
            raise not_open()
        return self._opened

    @property
    def _opened(self) -> _Running:
        """The parts, also after the end: they still know who the node was."""
        if self._running is None:
            raise not_open()
        return self._running

    # -- its parts ----------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """What is on disk."""
        return self._open.parts.store

    @property
    def swarm(self) -> Swarm:
        """Who is connected."""
        return self._open.parts.swarm

    @property
    def exchange(self) -> Exchange:
        """What is fetched and served."""
        return self._open.parts.exchange

    @property
    def discovery(self) -> Discovery:
        """Who else is known."""
        return self._open.parts.discovery

    @property
    def dht(self) -> Dht | None:
        """This node's part in the DHT; None if it takes none."""
        return self._open.parts.dht

    @property
    def naming(self) -> Naming:
        """What names stand for, and what stands under this node's own."""
        return self._open.parts.naming

    @property
    def finder(self) -> PeerFinder:
        """Who finds peers for a fetch."""
        return self._open.parts.finder

    def _changed(self) -> None:
        """Tell others of what is new here, or gone, when they next look."""
        self._open.parts.naming.changed()
        if self._open.parts.announcing is not None:
            self._open.parts.announcing.changed()

    # -- this node ----------------------------------------------------------------------------

    @property
    def home(self) -> Path:
        """The folder of the key, the trust store and the index."""
        return self._home.path

    @property
    def peer_id(self) -> PeerId:
        """Who this node is to its peers."""
        return self._opened.parts.swarm.peer_id

    @property
    def publisher(self) -> PeerId:
        """Whose key signs what this node publishes: the home's, also when `ephemeral`."""
        return self._opened.signer.peer_id

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where peers can dial this node, each ending in its peer id."""
        return self._opened.parts.swarm.addresses

    def statistics(self) -> SwarmStatistics:
        """Return the counters of all connections, peers and versions at this moment."""
        parts = self._opened.parts
        return replace(parts.swarm.statistics(), traffic=parts.exchange.statistics().traffic)

    # -- publishing -------------------------------------------------------------------------------

    async def publish(
        self,
        path: Path | str,
        *,
        name: str | None = None,
        version: int | None = None,
        meta: Mapping[str, MetaValue] | None = None,
        parents: Sequence[Cid] = (),
        progress: Callable[[Progress], None] | None = None,
    ) -> Version:
        """Hash the checkpoint at `path` and sign it as a version; see `publish_in_detail`."""
        result = await self.publish_in_detail(
            path, name=name, version=version, meta=meta, parents=parents, progress=progress
        )
        return result.version

    async def publish_in_detail(
        self,
        path: Path | str,
        *,
        name: str | None = None,
        version: int | None = None,
        meta: Mapping[str, MetaValue] | None = None,
        parents: Sequence[Cid] = (),
        progress: Callable[[Progress], None] | None = None,
    ) -> PublishResult:
        """Hash, sign and index the checkpoint at `path`, which stays where it is.

        It can be fetched from this node from then on, until its files change or it is removed.
        Publishing content that is already the newest version returns that version.

        Args:
            path: a folder, or one file.
            name: what to call the model; the last part of the path if None.
            version: a number above those published; the next one if None.
            meta: small facts to sign along.
            parents: manifests this was made from; the previous version is always among them.
            progress: called about ten times a second.

        Raises:
            CheckpointError: the files cannot be published, or changed meanwhile.
            ConfigError: the name or the number cannot be.
            StoreError: the disk failed.
        """
        request = publishing.make_request(
            path,
            name=name,
            version=version,
            meta=meta,
            parents=parents,
            now=self._environment.wall_clock(),
        )
        result = await publishing.publish(
            self.store, self._open.signer, request, progress, calls=self._calls
        )
        self._changed()
        return result

    async def wait_announced(self, version: Version) -> None:
        """Wait until the DHT was told of a version; for ever while no server can be reached.

        Raises:
            ConfigError: this node takes no part in a DHT.
        """
        announcing = self._open.parts.announcing
        if announcing is None:
            raise ConfigError("this node takes no part in a DHT: its settings say so")
        await announcing.wait_announced(provider_key(version.cid))

    # -- fetching ---------------------------------------------------------------------------------

    async def fetch(
        self,
        link: Link | str,
        *,
        to: Path | str | None = None,
        files: Sequence[str] = (),
        tensors: Sequence[str] = (),
        peers: Sequence[str] = (),
        overwrite: bool = False,
        pinned: bool = True,
        web_seeds: Sequence[str] = (),
        trust: TrustCallback | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> FetchResult:
        """Fetch a version, or a part of it, and verify every byte; resumes by itself.

        Args:
            link: what to fetch, and peers that may have it.
            to: the folder for its files; the model's name in the working folder if None.
            files: only files that match one of these globs; a text is one glob.
            tensors: only what these tensor names or globs need; their files have holes elsewhere.
            peers: more addresses to ask, each ending in /p2p/<peer-id>.
            overwrite: replace different files that are in the way.
            pinned: keep the version when space is wanted (`collect`, or a quota).
            web_seeds: URLs of folders on web servers that have the files, besides those that the
                publisher names; NodeConfig.web says when they are asked.
            trust: asked when a publisher is new; without it a new publisher is refused, unless
                the link names the content exactly.
            progress: called about ten times a second.

        Raises:
            NotFoundError: no peer knows the version, or no file or tensor matches.
            PeerUnreachableError: no peer is left that has what is missing; what came is kept.
            TrustError: the publisher is not one to trust.
            StoreError: the disk is full, failing or not writable; what came is kept.
        """
        result = await fetching.fetch(
            self,
            self._home,
            fetching.parse(link),
            fetching.Wish(
                to=fetching.folder(to),
                files=texts(files),
                tensors=texts(tensors),
                peers=tuple(map(read_address, texts(peers))),
                overwrite=overwrite,
                pinned=pinned,
                web_seeds=read_web_seeds(texts(web_seeds)),
            ),
            trust=trust,
            progress=progress,
            calls=self._calls,
        )
        self._changed()
        return result

    async def describe(self, link: Link | str, *, peers: Sequence[str] = ()) -> Description:
        """Return what a version is: manifest, files and tensors, without fetching its content."""
        more = tuple(map(read_address, texts(peers)))
        return await fetching.describe(self, fetching.parse(link), more)

    # -- names ------------------------------------------------------------------------------------

    async def resolve(self, link: Link | str, *, peers: Sequence[str] = ()) -> ResolvedName:
        """Return what a name (`sbp2p://PEER/NAME[@VERSION]`) stands for, fetching nothing of it.

        Args:
            link: the name; the peers in it are asked, too.
            peers: more addresses to ask, each ending in /p2p/<peer-id>.

        Raises:
            NotFoundError: nothing that is valid now says what it stands for.
            PeerUnreachableError: nobody could be asked.
            PeerMisbehavedError: the name points to what is no catalog.
            ConfigError: the link is no name.
        """
        more = tuple(map(read_address, texts(peers)))
        return await naming.resolve(self, fetching.parse(link), more)

    def follow(
        self,
        link: Link | str,
        *,
        peers: Sequence[str] = (),
        after: int = 0,
        trouble: Callable[[Sbp2pError], None] | None = None,
    ) -> Following:
        """Return an endless async iterator over the versions of a name, the newest first.

        Each version is told once, and none that is older than one before. To fetch one, give
        `fetch` the name with the number that was told.

        Args:
            link: the name, without a version; the peers in it are asked, too.
            peers: more addresses to ask, each ending in /p2p/<peer-id>.
            after: tell only of versions with higher numbers.
            trouble: told of what goes wrong while there is nothing new.

        Raises:
            ConfigError: the link is no name, or it names one version.
        """
        more = tuple(map(read_address, texts(peers)))
        return naming.follow(self, fetching.parse(link), more, after=after, trouble=trouble)

    # -- what is here ---------------------------------------------------------------------------

    def versions(self) -> list[Version]:
        """Return every version in every folder of this node's store."""
        return local.list_versions(self.store)

    def find(self, reference: str) -> Version:
        """Return the version that a CID, the beginning of one, NAME or NAME@NUMBER means.

        Raises:
            NotFoundError: nothing here matches.
            ConfigError: it could mean several versions.
        """
        return local.find_version(self.store, reference)

    async def verify(
        self, version: Version, *, progress: Callable[[Progress], None] | None = None
    ) -> list[Damage]:
        """Rehash a version's files; damaged blocks are no longer served, and are returned."""
        return await local.verify(self.store, version, progress, calls=self._calls)

    async def remove(self, version: Version, *, delete_files: bool = False) -> RemovedVersion:
        """Forget a version in its folder; delete the files that were fetched if asked."""
        removed = await local.remove(
            self.store, version, delete_files=delete_files, calls=self._calls
        )
        self._changed()
        return removed

    def pin(self, version: Version) -> None:
        """Keep a version when space is wanted."""
        self.store.pin(version.cid)

    def unpin(self, version: Version) -> None:
        """Let a fetched version go when space is wanted; nothing is deleted yet."""
        self.store.unpin(version.cid)

    async def collect(self, limit_bytes: int = 0) -> Collected:
        """Delete fetched versions that are not pinned, the longest unused first.

        Args:
            limit_bytes: stop when what was fetched takes no more than this. What was published,
                what a running fetch needs and what the user changed is never deleted.
        """
        try:
            return await room.collect(self.store, limit_bytes, calls=self._calls)
        finally:
            self._changed()

    # -- training together ------------------------------------------------------------------------

    def namespace(
        self,
        name: str,
        *,
        role: Role | str = Role.PEER,
        topology: Topology | str = "full",
        peer_filter: Callable[[PeerId], bool] | None = None,
        peers: Sequence[str] = (),
        rounds: RoundSettings | None = None,
        codec: str = "lossless",
    ) -> AbstractAsyncContextManager[Namespace]:
        """Be in a namespace while the returned block runs: nodes that train a model together.

        Args:
            name: of the namespace, and of the model that is published in it.
            role: what this node does for the members.
            topology: who exchanges models with whom, or its text, such as "ring".
            peer_filter: who may be a member, as far as this node goes.
            peers: addresses of members; more are found through them, the DHT and the LAN.
            rounds: how long a round lasts at most, and what counts in it.
            codec: how this node's updates are encoded, such as "int8".

        Raises:
            ConfigError: the name cannot be, or this node is in that namespace already.
        """
        from .namespaces import open_namespaces  # most nodes never train

        if self._namespaces is None:
            running = self._open
            self._namespaces = open_namespaces(
                running.parts,
                signer=running.signer,
                environment=self._environment,
                home=self.home,
                config=self._config,
                changed=self._changed,
            )
        addresses = tuple(map(read_address, texts(peers)))
        return self._namespaces.open(
            name,
            role=role,
            topology=topology,
            peer_filter=peer_filter,
            peers=addresses,
            settings=rounds,
            codec=codec,
        )

    # -- peers ------------------------------------------------------------------------------------

    async def connect(self, address: str) -> PeerId:
        """Connect to the peer at an address; return who answered.

        Raises:
            PeerUnreachableError: nobody did, or somebody else than the address names.
        """
        return (await self.swarm.connect([read_address(address)])).peer_id

    async def ping(
        self, peer: PeerId | str, count: int = 1, interval_s: float = 1.0
    ) -> list[float]:
        """Return `count` round-trip times to a peer or an address, in seconds."""
        return await ping(await self._connection(peer), count, interval_s)

    async def measure_bandwidth(
        self, peer: PeerId | str, *, upload_bytes: int, download_bytes: int
    ) -> PerfResult:
        """Measure the throughput to and from a peer or an address by the libp2p perf protocol."""
        return await measure_bandwidth(await self._connection(peer), upload_bytes, download_bytes)

    async def _connection(self, peer: PeerId | str) -> Connection:
        if isinstance(peer, PeerId):
            return await self.swarm.connect([], peer)
        return await self.swarm.connect([read_address(peer)])

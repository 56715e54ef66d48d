"""From a link to files: what a node adds to the exchange's fetch.

The link is read, the peers are gathered, the destination and the wanted part are chosen, the trust
store is asked, and what came of it is put in the library's own words.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from sbp2p.checkpoint.select import Selection, select_blocks
from sbp2p.errors import ConfigError, NotFoundError
from sbp2p.exchange import Choice, FetchProgress, Phase, Source
from sbp2p.exchange.unwrap import unwrapped_errors
from sbp2p.store import DestinationConflictError
from sbp2p.store.errors import os_errors
from sbp2p.store.targets import WORK_FOLDER
from sbp2p_protocol.link import BadLinkError, ManifestLink, NameLink, parse_link

from .naming import check_answer
from .trusting import require_trust
from .values import Description, FetchResult, FileInfo, Progress, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sbp2p.calls import Calls
    from sbp2p.exchange import FetchResult as ExchangeResult
    from sbp2p.exchange import FoundVersion
    from sbp2p.store import Store
    from sbp2p_keys.identity import PeerId
    from sbp2p_keys.signing import SignedDocument
    from sbp2p_protocol.link import Link
    from sbp2p_protocol.manifest import Manifest
    from sbp2p_protocol.multiaddr import Address
    from sbp2p_protocol.web_seeds import WebUrl

    from .home import Home
    from .node import Node
    from .trusting import TrustCallback
    from .values import Phase as NodePhase

_PHASES: dict[Phase, NodePhase] = {
    Phase.FINDING: "connecting",
    Phase.READING: "metadata",
    Phase.CHECKING: "local",
    Phase.TRANSFERRING: "network",
    Phase.FINISHING: "network",
    Phase.DONE: "network",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a user wants of a version, and where."""

    to: Path | str | None = None
    files: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    peers: tuple[Address, ...] = ()
    overwrite: bool = False
    pinned: bool = True
    web_seeds: tuple[WebUrl, ...] = ()

    def destination(self, manifest: Manifest, store: Store) -> Path:
        """Return the folder for the files: the one given, or one named after the model here.

        The publisher chose that name. It may be `.ssh` or `bin`, and the working folder the user's
        home, so without a word only a folder is taken that is new, empty, or of sbp2p already.

        Raises:
            ConfigError: the name is that of a hidden folder.
            DestinationConflictError: other files lie in that folder.
        """
        if self.to is not None:
            return Path(self.to)
        path = Path(manifest.name.rpartition("/")[2])
        if path.name.startswith("."):
            raise ConfigError(
                f"a folder named after {manifest.name} would be a hidden one",
                hint="say where the files belong: --to DIR",
            )
        if not self.overwrite and _holds_other_files(path, store):
            raise DestinationConflictError(
                f"{path} exists already and holds other files",
                hint=f"say --to {shlex.quote(str(path))} if it is the place, or another folder",
            )
        return path


def _holds_other_files(path: Path, store: Store) -> bool:
    with os_errors("look at", path):
        if not path.is_dir() or {each.name for each in path.iterdir()} <= {WORK_FOLDER}:
            return False
        root = path.resolve()
    return all(record.root_path != root for record in store.versions())


def folder(to: Path | str | None) -> Path | str | None:
    """Return where to put files; raises ConfigError for an empty text: some variable is unset."""
    if to == "":
        raise ConfigError(
            "the folder to fetch into is an empty text", hint="say . for the working directory"
        )
    return to


def parse(link: Link | str) -> Link:
    """Read a link; raises ConfigError."""
    if isinstance(link, (ManifestLink, NameLink)):
        return link
    if not isinstance(link, str):
        raise TypeError(f"a link is a text, not {type(link).__name__}")
    try:
        return parse_link(link)
    except BadLinkError as error:
        raise ConfigError(
            str(error), hint="links look like sbp2p:<cid>?peer=<address> or sbp2p://<peer>/<name>"
        ) from error


def sources_of(node: Node, addresses: Iterable[Address]) -> list[Source]:
    """Return whom to ask: the given addresses, and the peers that are connected."""
    found: dict[PeerId, list[Address]] = {peer: [] for peer in node.swarm.peers()}
    for address in addresses:
        if address.peer_id is None:
            raise ConfigError(
                f"{address.text} does not say which peer is there",
                hint="add /p2p/<peer-id> at its end, as `sbp2p seed` prints it",
            )
        found.setdefault(address.peer_id, []).append(address)
    return [Source(peer, tuple(known)) for peer, known in found.items()]


class _Chooser:
    """Turns the user's globs into wanted blocks, and remembers what they meant."""

    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        self.selection: Selection | None = None

    def __call__(self, version: FoundVersion) -> Choice:
        """Return the wanted part; raises NotFoundError for a glob that matches nothing."""
        wish = self._wish
        if wish.tensors and not version.tensors:
            raise NotFoundError(
                "this version has no tensor index, so tensors cannot be fetched by name",
                hint="use --files; `sbp2p inspect` lists them",
            )
        self.selection = select_blocks(
            version.table, version.tensors, files=wish.files, tensors=wish.tensors
        )
        return Choice(self.selection.wanted, self.selection.numbers)


async def fetch(
    node: Node,
    home: Home,
    link: Link,
    wish: Wish,
    *,
    trust: TrustCallback | None,
    progress: Callable[[Progress], None] | None,
    calls: Calls,
) -> FetchResult:
    """Fetch what `wish` says of the version that `link` names; see Node.fetch."""
    started = trio.current_time()
    chooser = _Chooser(wish)

    sources = sources_of(node, wish.peers)
    search = node.finder.new_search(link, [each.peer_id for each in sources])

    async def check(document: SignedDocument, manifest: Manifest) -> None:
        check_answer(link, manifest)
        await require_trust(home, link, manifest, trust, calls=calls)
        search.found(manifest)

    def report(now: FetchProgress) -> None:
        search.report(in_need=now.is_stuck or not now.peers)
        if progress is not None:
            progress(_progress(now, trio.current_time() - started))

    def destination(manifest: Manifest) -> Path:
        return wish.destination(manifest, node.store)

    with unwrapped_errors():
        async with search:
            result = await node.exchange.fetch(
                await search.resolve(sources),
                destination,
                sources=sources,
                arrivals=search.arrivals,
                trust=check,
                choose=chooser,
                progress=report,
                overwrite=wish.overwrite,
                pinned=wish.pinned,
                web_seeds=wish.web_seeds,
            )
    record = await calls.run_to_end(
        node.store.version, result.version.manifest.cid, result.destination
    )
    if record is None or chooser.selection is None:
        raise NotFoundError("the version was removed while it was fetched")
    return _result(result, Version.of(record), chooser.selection, trio.current_time() - started)


async def describe(node: Node, link: Link, peers: Sequence[Address]) -> Description:
    """Find a version and read its tree and tensor index."""
    sources = sources_of(node, peers)
    with unwrapped_errors():
        async with node.finder.new_search(link, [each.peer_id for each in sources]) as search:
            exact = await search.resolve(sources)
            found = await node.exchange.find(exact, sources=sources, arrivals=search.arrivals)
    table = found.table
    files = tuple(FileInfo(file.path, file.size, file.cid, file.count) for file in table.files)
    return Description(
        manifest=found.manifest,
        signers=found.document.signers(),
        files=files,
        tensors=found.tensors,
        size=sum(file.size for file in files),
        unique_bytes=table.total_bytes,
        blocks=len(table),
    )


def _progress(now: FetchProgress, elapsed: float) -> Progress:
    return Progress(
        phase=_PHASES[now.phase],
        done_bytes=now.bytes_verified,
        total_bytes=now.bytes_total,
        network_bytes=now.bytes_received,
        peers=now.peers,
        elapsed_s=elapsed,
    )


def _result(
    result: ExchangeResult, version: Version, selection: Selection, seconds: float
) -> FetchResult:
    return FetchResult(
        version=version,
        destination=result.destination,
        files=len(selection.numbers) - len(result.part_files),
        total_bytes=result.bytes_wanted,
        network_bytes=result.bytes_received,
        local_bytes=result.bytes_local,
        resumed_bytes=result.bytes_resumed,
        seconds=seconds,
        transfer_seconds=result.transfer_seconds,
        peers=tuple(
            (source.peer_id, source.bytes_received)
            for source in result.sources
            if source.bytes_received
        ),
        part_files=result.part_files,
        web_seeds=result.web_seeds,
    )

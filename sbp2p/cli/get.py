"""`sbp2p get`: fetch a version, or a part of it, and verify every byte."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from .console import Settings
from .invocation import Invocation
from .options import (  # noqa: TC001  (typer evaluates annotations)
    DownloadLimit,
    Home,
    Json,
    Listen,
    Peers,
    PeerUploadLimit,
    Quiet,
    Roles,
    UploadLimit,
    Verbose,
)
from .rates import Rates
from .text import format_bytes, format_count, format_duration, format_rate, printable

if TYPE_CHECKING:
    from sbp2p.node import FetchResult, Node, TrustCallback
    from sbp2p_protocol.manifest import Manifest

    from .console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """The command's own arguments."""

    link: str
    to: str | None
    files: tuple[str, ...]
    tensors: tuple[str, ...]
    peers: tuple[str, ...]
    overwrite: bool
    trust_new: bool
    seed: bool
    listen: tuple[str, ...]
    limits: Rates
    roles: tuple[str, ...]


def command(
    link: Annotated[
        str,
        Argument(metavar="LINK", help="sbp2p:CID?peer=ADDR or sbp2p://PEER/NAME[@VERSION]."),
    ],
    to: Annotated[
        str | None,
        Option(
            "--to",
            metavar="DIR",
            help="The directory for the files. Default: the model's name, here.",
            show_default=False,
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        Option(
            "--files",
            metavar="GLOB",
            help="Only files whose path matches. Repeatable.",
            show_default=False,
        ),
    ] = None,
    tensors: Annotated[
        list[str] | None,
        Option(
            "--tensors",
            metavar="GLOB",
            help="Only what the tensors whose name matches need; "
            "their files have holes elsewhere. Repeatable.",
            show_default=False,
        ),
    ] = None,
    peers: Peers = None,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace different files that are in the way.")
    ] = False,
    trust_new: Annotated[
        bool, Option("--trust-new", help="Accept and remember a publisher that is new here.")
    ] = False,
    seed: Annotated[
        bool, Option("--seed", help="Listen, and serve what is here until Ctrl-C.")
    ] = False,
    listen: Listen = None,
    upload_limit: UploadLimit = None,
    download_limit: DownloadLimit = None,
    peer_upload_limit: PeerUploadLimit = None,
    role: Roles = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Fetch a version by its link; verify every byte; resume by running it again."""
    wish = _Wish(
        link=link,
        to=to,
        files=tuple(files or ()),
        tensors=tuple(tensors or ()),
        peers=tuple(peers or ()),
        overwrite=overwrite,
        trust_new=trust_new,
        seed=seed,
        listen=tuple(listen or ()),
        limits=Rates(upload_limit, download_limit, peer_upload_limit),
        roles=tuple(role or ()),
    )
    return Invocation(Settings(home, json, quiet, verbose), partial(_run, wish=wish))


def _run(console: Console, *, wish: _Wish) -> int:
    from sbp2p.config import NodeConfig
    from sbp2p.errors import ConfigError
    from sbp2p_protocol.link import parse_link

    from .roles import parse_rules
    from .session import with_node

    if wish.listen and not wish.seed:
        raise ConfigError("--listen goes with --seed")
    parse_link(wish.link)  # a wrong link is told before the node is imported and opened
    console.resume_hint = "what came is kept: run the same command again to go on"
    config = NodeConfig(limits=wish.limits.parse(), roles=parse_rules(wish.roles))
    return with_node(console, partial(_fetch, console, wish), config=config)


async def _fetch(console: Console, wish: _Wish, node: Node) -> int:
    import trio

    from .progress import Reporter
    from .serving import announce, serve, start_listening

    if wish.seed:
        await start_listening(console, node, wish.listen)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell_connections, console, node)
        with Reporter(console) as reporter:
            result = await node.fetch(
                wish.link,
                to=wish.to,
                files=wish.files,
                tensors=wish.tensors,
                peers=wish.peers,
                overwrite=wish.overwrite,
                trust=_trust(console, wish.trust_new),
                progress=reporter,
            )
        nursery.cancel_scope.cancel()
    console.event("done", **_fields(result))
    for line in _summary(result):
        console.result(line)
    if not wish.seed:
        return 0
    announce(console, node, result.version)
    return await serve(console, node)


async def _tell_connections(console: Console, node: Node) -> None:
    """Report each peer that this node gets connected to."""
    from sbp2p.swarm import PeerConnected

    with node.swarm.subscribe() as events:
        async for event in events:
            if isinstance(event, PeerConnected):
                console.event("connected", peer=str(event.peer_id))
                console.note(f"connected to {event.peer_id}")


def _trust(console: Console, trust_new: bool) -> TrustCallback:
    """Return who decides about publishers that are new here."""
    from sbp2p.node import accept_new, refuse_new

    from .session import ask

    async def ask_user(manifest: Manifest, reason: str) -> bool:
        console.complain(printable(f"{manifest.name} is published by {manifest.publisher},"))
        console.complain("who is new here. Check the peer id with its owner.")
        return await ask(console, "Trust it for this name from now on?")

    if trust_new:
        return accept_new
    return ask_user if console.can_ask else refuse_new


def _fields(result: FetchResult) -> dict[str, Any]:
    version = result.version
    return {
        "cid": str(version.cid),
        "name": version.name,
        "version": version.version,
        "publisher": str(version.publisher),
        "destination": str(result.destination),
        "complete": version.complete,
        "files": result.files,
        "total_bytes": result.total_bytes,
        "network_bytes": result.network_bytes,
        "local_bytes": result.local_bytes,
        "resumed_bytes": result.resumed_bytes,
        "seconds": round(result.seconds, 6),
        "transfer_seconds": round(result.transfer_seconds, 6),
        "peers": [{"peer": str(peer), "bytes": count} for peer, count in result.peers],
        "part_files": {path: str(part) for path, part in result.part_files},
    }


def _summary(result: FetchResult) -> list[str]:
    version = result.version
    title = printable(f"{version.name} version {version.version}")
    whole = format_count(result.files, "whole file")
    lines = [
        f"fetched {title} to {printable(str(result.destination))}",
        f"  {format_bytes(result.total_bytes)} verified, {whole}, "
        f"in {format_duration(result.seconds)}",
    ]
    parts = []
    if result.network_bytes:
        network = f"{format_bytes(result.network_bytes)} from "
        network += format_count(len(result.peers), "peer")
        if result.transfer_seconds > 0:
            network += f" at {format_rate(result.network_bytes / result.transfer_seconds)}"
        parts.append(network)
    if result.local_bytes:
        parts.append(f"{format_bytes(result.local_bytes)} from other files here")
    if result.resumed_bytes:
        parts.append(f"{format_bytes(result.resumed_bytes)} were here already")
    if parts:
        lines.append(f"  {'; '.join(parts)}")
    for path, part in result.part_files:
        where = printable(str(part))
        lines.append(f"  part of {printable(path)}: {where}")
    return lines

"""`sbp2p seed`: serve what is here."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from .console import Settings
from .finding import Finding
from .invocation import Invocation
from .options import (  # noqa: TC001  (typer evaluates annotations)
    Announce,
    Bootstrap,
    DownloadLimit,
    Home,
    Json,
    Listen,
    ModelName,
    Network,
    NoLan,
    PeerUploadLimit,
    Quiet,
    Roles,
    SwarmFile,
    UploadLimit,
    Verbose,
)
from .rates import Rates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.node import Node

    from .console import Console


def command(
    paths: Annotated[
        list[str] | None,
        Argument(
            metavar="[PATH]...",
            help="Checkpoints to publish first, as `sbp2p publish` does.",
            show_default=False,
        ),
    ] = None,
    name: ModelName = None,
    listen: Listen = None,
    allow: Annotated[
        list[str] | None,
        Option(
            "--allow",
            metavar="PEER",
            help="Serve only this peer id. Repeatable.",
            show_default=False,
        ),
    ] = None,
    deny: Annotated[
        list[str] | None,
        Option(
            "--deny",
            metavar="PEER",
            help="Never serve this peer id. Repeatable.",
            show_default=False,
        ),
    ] = None,
    no_bench: Annotated[
        bool, Option("--no-bench", help="Do not let peers measure the bandwidth to this node.")
    ] = False,
    upload_limit: UploadLimit = None,
    download_limit: DownloadLimit = None,
    peer_upload_limit: PeerUploadLimit = None,
    role: Roles = None,
    swarm: SwarmFile = None,
    bootstrap: Bootstrap = None,
    no_lan: NoLan = False,
    network: Network = None,
    announce: Announce = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Serve every version that this node has, until Ctrl-C."""
    work = partial(
        _run,
        paths=paths or (),
        name=name,
        listen=listen or (),
        allow=allow or (),
        deny=deny or (),
        serve_perf=not no_bench,
        limits=Rates(upload_limit, download_limit, peer_upload_limit),
        roles=role or (),
        swarm_file=swarm,
        finding=Finding(tuple(bootstrap or ()), no_lan, network, announce),
    )
    return Invocation(Settings(home, json, quiet, verbose), work)


def _run(
    console: Console,
    *,
    paths: Sequence[str],
    name: str | None,
    listen: Sequence[str],
    allow: Sequence[str],
    deny: Sequence[str],
    serve_perf: bool,
    limits: Rates,
    roles: Sequence[str],
    swarm_file: str | None,
    finding: Finding,
) -> int:
    from sbp2p.config import NodeConfig
    from sbp2p.errors import ConfigError

    from .roles import parse_rules
    from .serving import announce, gate, serve, start_listening
    from .session import with_node

    if name is not None and len(paths) != 1:
        raise ConfigError("--name needs exactly one PATH to name")

    async def body(node: Node) -> int:
        console.interrupts.is_expected = not paths
        await start_listening(console, node, listen)
        for path in paths:
            await _publish(console, node, path, name)
        versions = node.versions()
        for version in versions:
            announce(console, node, version)
        if not versions:
            console.note("nothing to seed yet: versions published or fetched later are served")
        return await serve(console, node)

    # whoever measured the bandwidth would be let past the limits
    config = NodeConfig(
        serve_perf=serve_perf and limits.upload is None and limits.peer_upload is None,
        limits=limits.parse(),
        roles=parse_rules(roles),
        discovery=finding.discovery(stays=True),
        dht=finding.dht(),
    )
    return with_node(console, body, gate=gate(allow, deny), config=config, swarm_file=swarm_file)


async def _publish(console: Console, node: Node, path: str, name: str | None) -> None:
    from .progress import Reporter
    from .publish import published_fields, summary

    started = time.perf_counter()
    with Reporter(console) as reporter:
        result = await node.publish_in_detail(path, name=name, progress=reporter)
    seconds = time.perf_counter() - started
    console.event("published", **published_fields(result, seconds))
    for line in summary(result, seconds):
        console.note(line)

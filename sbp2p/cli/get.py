"""`sbp2p get`: fetch a version, or a part of it, and verify every byte."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

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
    Network,
    NoLan,
    Peers,
    PeerUploadLimit,
    Quiet,
    Roles,
    SwarmFile,
    UploadLimit,
    Verbose,
)
from .rates import Rates

if TYPE_CHECKING:
    from sbp2p.config import StoreConfig
    from sbp2p.node import Node

    from .console import Console


_WHEN: Final[dict[str, Literal["fallback", "first", "never"]]] = {
    "fallback": "fallback",
    "first": "first",
    "never": "never",
}


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
    patience_s: float | None
    unpinned: bool
    quota: str | None
    web_seeds: tuple[str, ...]
    web: str
    limits: Rates
    roles: tuple[str, ...]
    swarm_file: str | None
    finding: Finding


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
    patience: Annotated[
        float | None,
        Option(
            "--patience",
            metavar="SECONDS",
            min=0,
            help="How long to wait while nobody has what is missing. Default: 10.",
            show_default=False,
        ),
    ] = None,
    unpinned: Annotated[
        bool,
        Option("--unpinned", help="Let this version go when space is wanted; see `sbp2p gc`."),
    ] = False,
    quota: Annotated[
        str | None,
        Option(
            "--quota",
            metavar="SIZE",
            help="Make room within this for all that was fetched, such as 200GB, "
            "by deleting versions that are not pinned.",
            show_default=False,
        ),
    ] = None,
    web_seeds: Annotated[
        list[str] | None,
        Option(
            "--web-seed",
            metavar="URL",
            help="A folder on a web server that has the files, too. Repeatable.",
            show_default=False,
        ),
    ] = None,
    web: Annotated[
        str,
        Option(
            "--web",
            metavar="WHEN",
            help="Ask web seeds as a fallback, first (from the start), or never.",
        ),
    ] = "fallback",
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
        patience_s=patience,
        unpinned=unpinned,
        quota=quota,
        web_seeds=tuple(web_seeds or ()),
        web=web,
        limits=Rates(upload_limit, download_limit, peer_upload_limit),
        roles=tuple(role or ()),
        swarm_file=swarm,
        finding=Finding(tuple(bootstrap or ()), no_lan, network, announce),
    )
    return Invocation(Settings(home, json, quiet, verbose), partial(_run, wish=wish))


def _run(console: Console, *, wish: _Wish) -> int:
    from sbp2p.config import ExchangeConfig, NodeConfig, WebConfig
    from sbp2p.errors import ConfigError
    from sbp2p_protocol.link import parse_link

    from .roles import parse_rules
    from .session import with_node

    if wish.listen and not wish.seed:
        raise ConfigError("--listen goes with --seed")
    parse_link(wish.link)  # a wrong link is told before the node is imported and opened
    console.resume_hint = "what came is kept: run the same command again to go on"
    exchange = ExchangeConfig()
    if wish.patience_s is not None:
        exchange = replace(exchange, patience_s=wish.patience_s)
    config = NodeConfig(
        exchange=exchange,
        store=_store(wish.quota),
        web=WebConfig(use=_when(wish.web)),
        limits=wish.limits.parse(),
        roles=parse_rules(wish.roles),
        discovery=wish.finding.discovery(stays=wish.seed),
        dht=wish.finding.dht(),
    )
    return with_node(
        console, partial(_fetch, console, wish), config=config, swarm_file=wish.swarm_file
    )


def _store(quota: str | None) -> StoreConfig:
    from sbp2p.config import StoreConfig

    from .sizes import parse_size

    return StoreConfig(quota_bytes=None if quota is None else parse_size("--quota", quota))


def _when(text: str) -> Literal["fallback", "first", "never"]:
    from sbp2p.errors import ConfigError

    try:
        return _WHEN[text]
    except KeyError:
        raise ConfigError(f"--web {text!r} is none of {', '.join(_WHEN)}") from None


async def _fetch(console: Console, wish: _Wish, node: Node) -> int:
    import trio

    from .fetched import fields, summary, tell_connections, who_trusts
    from .progress import Reporter
    from .serving import announce, serve, start_listening

    if wish.seed:
        await start_listening(console, node, wish.listen)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell_connections, console, node)
        with Reporter(console) as reporter:
            result = await node.fetch(
                wish.link,
                to=wish.to,
                files=wish.files,
                tensors=wish.tensors,
                peers=wish.peers,
                overwrite=wish.overwrite,
                pinned=not wish.unpinned,
                web_seeds=wish.web_seeds,
                trust=who_trusts(console, wish.trust_new),
                progress=reporter,
            )
        nursery.cancel_scope.cancel()
    console.event("done", **fields(result))
    for line in summary(result):
        console.result(line)
    if not wish.seed:
        return 0
    announce(console, node, result.version)
    return await serve(console, node)

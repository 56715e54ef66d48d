"""`sbp2p follow`: fetch each new version of a name as it appears.

Theory of operation. The name is followed (`Node.follow`), and each version that is told is fetched
into a folder of its own, DIR/NUMBER, so that whoever reads an older one is not disturbed; blocks
that did not change are copied from the folder before. With --in-place every version goes into DIR
itself: changed files are replaced, one atomic step each, and files that a newer version does not
have stay where they are. A fetch that fails for lack of peers is tried again, unless there is a
newer version first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from typer import Argument, Option

from .console import Settings
from .finding import Finding
from .invocation import Invocation
from .options import (  # noqa: TC001  (typer evaluates annotations)
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
from .text import format_duration, printable

if TYPE_CHECKING:
    from sbp2p.errors import Sbp2pError
    from sbp2p.naming import Following, ResolvedName
    from sbp2p.node import FetchResult, Node
    from sbp2p_protocol.link import NameLink

    from .console import Console

_RETRY_S: Final = 5.0
_RETRY_MAX_S: Final = 60.0
"""Waits between two tries to fetch a version; each is twice the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """The command's own arguments."""

    link: str
    to: str | None
    in_place: bool
    keep: int | None
    after: int
    once: bool
    peers: tuple[str, ...]
    trust_new: bool
    seed: bool
    listen: tuple[str, ...]
    finding: Finding
    limits: Rates
    roles: tuple[str, ...]
    swarm_file: str | None


def command(
    link: Annotated[str, Argument(metavar="LINK", help="sbp2p://PEER/NAME, without a version.")],
    to: Annotated[
        str | None,
        Option(
            "--to",
            metavar="DIR",
            help="Versions go into DIR/NUMBER. Default: a directory with the model's name, here.",
            show_default=False,
        ),
    ] = None,
    in_place: Annotated[
        bool,
        Option(
            "--in-place",
            help="Versions go into DIR itself: changed files are replaced, others stay.",
        ),
    ] = False,
    keep: Annotated[
        int | None,
        Option(
            "--keep",
            metavar="N",
            min=1,
            help="Keep the newest N versions in DIR; delete older ones that were fetched there.",
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        int,
        Option("--after", metavar="N", min=0, help="Only versions with higher numbers."),
    ] = 0,
    once: Annotated[
        bool, Option("--once-current", help="Fetch the newest version there is, and end.")
    ] = False,
    peers: Peers = None,
    trust_new: Annotated[
        bool, Option("--trust-new", help="Accept and remember a publisher that is new here.")
    ] = False,
    seed: Annotated[bool, Option("--seed", help="Listen, and serve what is here.")] = False,
    listen: Listen = None,
    bootstrap: Bootstrap = None,
    no_lan: NoLan = False,
    network: Network = None,
    upload_limit: UploadLimit = None,
    download_limit: DownloadLimit = None,
    peer_upload_limit: PeerUploadLimit = None,
    role: Roles = None,
    swarm: SwarmFile = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Fetch each new version of a name as it appears, until Ctrl-C."""
    wish = _Wish(
        link=link,
        to=to,
        in_place=in_place,
        keep=keep,
        after=after,
        once=once,
        peers=tuple(peers or ()),
        trust_new=trust_new,
        seed=seed,
        listen=tuple(listen or ()),
        finding=Finding(tuple(bootstrap or ()), no_lan, network),
        limits=Rates(upload_limit, download_limit, peer_upload_limit),
        roles=tuple(role or ()),
        swarm_file=swarm,
    )
    return Invocation(Settings(home, json, quiet, verbose), partial(_run, wish=wish))


def _run(console: Console, *, wish: _Wish) -> int:
    from sbp2p.config import NodeConfig
    from sbp2p.errors import ConfigError

    from .roles import parse_rules
    from .session import with_node

    if wish.listen and not wish.seed:
        raise ConfigError("--listen goes with --seed")
    if wish.in_place and wish.to is None:
        raise ConfigError("--in-place replaces files: say where, with --to DIR")
    if wish.in_place and wish.keep is not None:
        raise ConfigError("--keep is about folders, and with --in-place there is only one")
    if wish.to == "":
        raise ConfigError("--to is an empty text", hint="say . for the working directory")
    link = _parse(wish.link)
    if wish.to is None and _model(link).startswith("."):
        raise ConfigError(
            f"a folder named after {link.name} would be a hidden one",
            hint="say where the files belong: --to DIR",
        )
    console.resume_hint = "what came is kept: run the same command again to go on"
    config = NodeConfig(
        limits=wish.limits.parse(),
        roles=parse_rules(wish.roles),
        discovery=wish.finding.discovery(stays=True),
        dht=wish.finding.dht(),
    )
    return with_node(
        console, partial(_follow, console, wish, link), config=config, swarm_file=wish.swarm_file
    )


def _parse(text: str) -> NameLink:
    """Read the link before the node is opened; raises ConfigError."""
    from sbp2p.errors import ConfigError
    from sbp2p_protocol.link import NameLink, parse_link

    link = parse_link(text)
    if not isinstance(link, NameLink) or link.version is not None:
        raise ConfigError(
            "this link names one version, and that never changes",
            hint="follow sbp2p://PEER/NAME, or fetch this version with `sbp2p get`",
        )
    return link


def _model(link: NameLink) -> str:
    """Return the last part of the model's name."""
    return link.name.rpartition("/")[2]


async def _follow(console: Console, wish: _Wish, link: NameLink, node: Node) -> int:
    import trio

    from .fetched import tell_connections
    from .serving import start_listening

    if wish.seed:
        await start_listening(console, node, wish.listen)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell_connections, console, node)
        troubles = _Troubles(console)
        following = node.follow(link, peers=wish.peers, after=wish.after, trouble=troubles.tell)
        fetcher = _Fetcher(console, wish, link, node)
        console.note(f"following {printable(link.name)} of {link.publisher}")
        console.interrupts.is_expected = not wish.once
        await _each(console, wish, following, fetcher, troubles)
        nursery.cancel_scope.cancel()
    return 0


async def _each(
    console: Console, wish: _Wish, following: Following, fetcher: _Fetcher, troubles: _Troubles
) -> None:
    """Fetch version after version, for ever or once."""
    import trio

    from sbp2p.errors import NotFoundError, PeerUnreachableError

    resolved = await anext(following)
    wait = _RETRY_S
    while True:
        _announce(console, resolved)
        try:
            await fetcher.fetch(resolved)
        except (NotFoundError, PeerUnreachableError) as error:
            troubles.tell(error)
            with trio.move_on_after(wait):
                resolved = await anext(following)
            wait = min(2 * wait, _RETRY_MAX_S)
            continue
        if wish.once:
            return
        wait = _RETRY_S
        troubles.clear()
        resolved = await anext(following)


class _Troubles:
    """Tells what is wrong once, and not every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ""

    def tell(self, error: Sbp2pError) -> None:
        text = printable(str(error))
        if text != self._last:
            self._last = text
            self._console.event("trouble", error=str(error), hint=error.hint)
            self._console.note(f"waiting: {text}")

    def clear(self) -> None:
        self._last = ""


class _Fetcher:
    """Fetches versions into their folders."""

    def __init__(self, console: Console, wish: _Wish, link: NameLink, node: Node) -> None:
        self._console = console
        self._wish = wish
        self._link = link
        self._node = node

    async def fetch(self, resolved: ResolvedName) -> None:
        """Fetch one version, say so, and delete what is older than wanted."""
        from .fetched import fields, summary

        result = await self._get(resolved)
        self._console.event("done", **fields(result))
        for line in summary(result):
            self._console.result(line)
        await self._forget()

    async def _get(self, resolved: ResolvedName) -> FetchResult:
        from dataclasses import replace

        from .fetched import who_trusts
        from .progress import Reporter

        with Reporter(self._console) as reporter:
            return await self._node.fetch(
                replace(self._link, version=resolved.version),
                to=self._folder(resolved),
                peers=self._wish.peers,
                overwrite=self._wish.in_place,
                trust=who_trusts(self._console, self._wish.trust_new),
                progress=reporter,
            )

    def _folder(self, resolved: ResolvedName) -> Path:
        return self._base if self._wish.in_place else self._base / str(resolved.version)

    @property
    def _base(self) -> Path:
        return Path(_model(self._link) if self._wish.to is None else self._wish.to)

    async def _forget(self) -> None:
        """Delete versions that were fetched here and are not among the newest."""
        import trio

        from .rm import report_removed

        keep = self._wish.keep
        if keep is None:
            return
        base = await trio.to_thread.run_sync(self._base.resolve)
        here = [
            version
            for version in self._node.versions()
            if (version.publisher, version.name) == (self._link.publisher, self._link.name)
            and version.path.parent == base
            and not version.published_here
        ]
        here.sort(key=lambda version: version.version)
        for old in here[:-keep]:
            removed = await self._node.remove(old, delete_files=True)
            title = printable(f"{old.name} version {old.version}")
            report_removed(self._console, old, title, removed)


def _announce(console: Console, resolved: ResolvedName) -> None:
    console.event(
        "new_version",
        name=resolved.name,
        version=resolved.version,
        cid=str(resolved.manifest),
        publisher=str(resolved.publisher),
        origin=resolved.origin,
        age_s=None if resolved.age_s is None else round(resolved.age_s, 3),
        sequence=resolved.sequence,
        rollbacks=resolved.rollbacks,
        contradictions=len(resolved.evidence),
    )
    line = f"version {resolved.version} of {printable(resolved.name)}"
    if resolved.origin == "kept" and resolved.age_s is not None:
        line += f", as it was {format_duration(resolved.age_s)} ago"
    console.note(line)
    if resolved.evidence:
        console.complain(
            f"its publisher has signed {len(resolved.evidence)} statements that contradict others:"
            " somebody else may have the key"
        )

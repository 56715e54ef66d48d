"""`sbp2p verify`: are the files still what was published?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from .console import Settings
from .invocation import Invocation
from .options import Home, Json, Quiet, Verbose  # noqa: TC001  (typer evaluates annotations)
from .text import LINES_SHOWN, first, format_bytes, format_count, printable

if TYPE_CHECKING:
    from sbp2p.node import Version
    from sbp2p.store import Store

    from .console import Console


def command(
    what: Annotated[
        str,
        Argument(
            metavar="REF|PATH",
            help="A version of this node (CID, NAME or NAME@VERSION), "
            "or the directory that its files are in.",
        ),
    ],
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Rehash a version's files; name what is damaged, and stop serving that."""
    return Invocation(Settings(home, json, quiet, verbose), partial(_run, what=what))


def _run(console: Console, *, what: str) -> int:
    from sbp2p.errors import PeerMisbehavedError
    from sbp2p.node.local import record_of, verify
    from sbp2p.node.values import Version

    from .progress import Reporter
    from .session import with_store

    async def body(store: Store) -> int:
        version = _find(store, what)
        with Reporter(console) as reporter:
            damage = await verify(store, version, reporter)
        complete = Version.of(record_of(store, version)).complete
        title = printable(f"{version.name} version {version.version}")
        shown, more = first(
            damage, LINES_SHOWN, "damaged file", everything=console.settings.verbose
        )
        for each in shown:
            console.result(f"damaged: {printable(str(each.path))}: {printable(each.problem)}")
        for line in more:
            console.result(line)
        console.event(
            "verified",
            cid=str(version.cid),
            name=version.name,
            version=version.version,
            path=str(version.path),
            size=version.size,
            files=version.files,
            ok=not damage,
            complete=complete,
            damaged=[{"path": str(each.path), "problem": each.problem} for each in damage],
        )
        if damage:
            raise PeerMisbehavedError(
                f"{title}: {format_count(len(damage), 'file')} of {version.files} damaged",
                hint="`sbp2p get` its link with the same --to and --overwrite: "
                "only what is damaged is fetched",
            )
        place = printable(str(version.path))
        if complete:
            amount = f"{format_bytes(version.size)}, {format_count(version.files, 'file')}"
            console.result(f"{title} in {place} is good: {amount}")
        else:
            console.result(f"what is here of {title} in {place} is good; the rest is not here")
        return 0

    return with_store(console, body)


def _find(store: Store, what: str) -> Version:
    """Return the version of that reference, or the newest one in that directory."""
    from sbp2p.errors import NotFoundError
    from sbp2p.node.local import find_version, list_versions

    try:
        return find_version(store, what)
    except NotFoundError:
        folder = Path(what).resolve()
        there = [version for version in list_versions(store) if version.path == folder]
        if not there:
            raise
        return max(there, key=lambda version: (version.created, version.version))

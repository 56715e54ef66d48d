"""`sbp2p gc`: delete fetched versions that are not pinned."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Option

from .console import Settings
from .invocation import Invocation
from .options import (  # noqa: TC001  (typer evaluates annotations)
    Home,
    Json,
    Quiet,
    Verbose,
)
from .text import format_bytes, format_count, printable

if TYPE_CHECKING:
    from sbp2p.node import Version
    from sbp2p.store import Store

    from .console import Console


def command(
    down_to: Annotated[
        str,
        Option(
            "--down-to",
            metavar="SIZE",
            help="Stop when what was fetched takes no more than this, such as 200GB.",
        ),
    ] = "0",
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what may go, in which order; delete nothing.")
    ] = False,
    yes: Annotated[
        bool, Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")
    ] = False,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Delete the files of fetched versions that are not pinned, the longest unused first."""
    work = partial(_run, down_to=down_to, dry_run=dry_run, yes=yes)
    return Invocation(Settings(home, json, quiet, verbose), work)


def _run(console: Console, *, down_to: str, dry_run: bool, yes: bool) -> int:
    from sbp2p.calls import ThreadCalls
    from sbp2p.errors import ConfigError
    from sbp2p.node.room import collect, collectable

    from .session import ask, with_store
    from .sizes import parse_size

    limit = parse_size("--down-to", down_to)

    async def body(store: Store) -> int:
        used = await ThreadCalls().run_to_end(lambda: store.bytes_used)
        may_go = await ThreadCalls().run_to_end(collectable, store)
        if dry_run or not may_go or used <= limit:
            _tell(console, may_go, used, limit)
            return 0
        if not yes:
            if not console.can_ask:
                raise ConfigError(
                    f"nobody is there to confirm that up to {format_count(len(may_go), 'version')}"
                    " may be deleted",
                    hint="say --yes; --dry-run lists them",
                )
            _tell(console, may_go, used, limit)
            if not await ask(console, f"Delete them until {format_bytes(limit)} are used?"):
                console.note("nothing was deleted")
                return 0
        done = await collect(store, limit)
        for version in done.versions:
            console.event("collected", **_fields(version))
            console.result(f"deleted {_title(version)}")
        console.event(
            "room",
            files_deleted=done.files_deleted,
            bytes_freed=done.bytes_freed,
            bytes_used=done.bytes_used,
        )
        freed = f"{format_count(done.files_deleted, 'file')}, {format_bytes(done.bytes_freed)}"
        console.note(f"{freed} deleted; what was fetched takes {format_bytes(done.bytes_used)} now")
        return 0

    return with_store(console, body)


def _tell(console: Console, may_go: list[Version], used: int, limit: int) -> None:
    for version in may_go:
        console.event("collectable", **_fields(version))
        console.result(f"may go: {_title(version)}, {format_bytes(version.size)}")
    console.event("room", files_deleted=0, bytes_freed=0, bytes_used=used)
    console.note(f"what was fetched takes {format_bytes(used)}")
    if not may_go:
        console.note("nothing may go: `sbp2p unpin REF` lets a fetched version go")
    elif used <= limit:
        console.note(f"that is no more than {format_bytes(limit)}: nothing has to go")


def _title(version: Version) -> str:
    return printable(f"{version.name} version {version.version} in {version.path}")


def _fields(version: Version) -> dict[str, object]:
    return {
        "cid": str(version.cid),
        "name": version.name,
        "version": version.version,
        "path": str(version.path),
        "size": version.size,
    }

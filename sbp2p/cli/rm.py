"""`sbp2p rm`: forget a version."""

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
    Reference,
    Verbose,
)
from .text import LINES_SHOWN, first, format_bytes, format_count, printable

if TYPE_CHECKING:
    from sbp2p.node import Version
    from sbp2p.store import RemovedVersion, Store

    from .console import Console


def command(
    reference: Reference,
    files: Annotated[
        bool,
        Option(
            "--files",
            help="Also delete its files that were fetched, unless they changed since "
            "or belong to another version.",
        ),
    ] = False,
    yes: Annotated[
        bool, Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")
    ] = False,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Stop serving a version and forget it; its files stay unless --files is given."""
    work = partial(_run, reference=reference, delete_files=files, yes=yes)
    return Invocation(Settings(home, json, quiet, verbose), work)


def _run(console: Console, *, reference: str, delete_files: bool, yes: bool) -> int:
    from sbp2p.errors import ConfigError
    from sbp2p.node.local import find_version, remove

    from .session import ask, with_store

    async def body(store: Store) -> int:
        version = find_version(store, reference)
        title = printable(f"{version.name} version {version.version} in {version.path}")
        if not yes:
            if not console.can_ask:
                raise ConfigError(
                    f"nobody is there to confirm that {title} is to be removed",
                    hint="say --yes",
                )
            more = " and delete its fetched files" if delete_files else ""
            if not await ask(console, f"Forget {title}{more}?"):
                console.note("nothing was removed")
                return 0
        removed = await remove(store, version, delete_files=delete_files)
        report_removed(console, version, title, removed)
        return 0

    return with_store(console, body)


def report_removed(console: Console, version: Version, title: str, removed: RemovedVersion) -> None:
    """Say what was forgotten, deleted and kept."""
    console.event(
        "removed",
        cid=str(version.cid),
        name=version.name,
        version=version.version,
        path=str(version.path),
        files_deleted=removed.files_deleted,
        bytes_deleted=removed.bytes_deleted,
        kept=[str(path) for path in removed.kept],
    )
    console.result(f"forgot {title}")
    if removed.files_deleted:
        freed = format_bytes(removed.bytes_deleted)
        console.result(f"  deleted {format_count(removed.files_deleted, 'file')}, {freed}")
    shown, more = first(removed.kept, LINES_SHOWN, "kept file", everything=console.settings.verbose)
    for path in shown:
        console.result(f"  kept {printable(str(path))}: changed, or part of another version")
    for line in more:
        console.result(f"  {line}")

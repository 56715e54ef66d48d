"""`sbp2p ls`: what this node has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .console import Settings
from .invocation import Invocation
from .options import Home, Json, Quiet, Verbose  # noqa: TC001  (typer evaluates annotations)
from .text import columns, format_bytes, format_count, printable

if TYPE_CHECKING:
    from sbp2p.node import Version
    from sbp2p.store import Store

    from .console import Console

_SHORT_CID = 20
"""Characters of a CID in the table: enough for `sbp2p inspect` to tell versions apart."""


def command(
    home: Home = None, json: Json = False, quiet: Quiet = False, verbose: Verbose = False
) -> Invocation:
    """List the versions that this node has."""
    return Invocation(Settings(home, json, quiet, verbose), _run)


def _run(console: Console) -> int:
    from sbp2p.node.local import list_versions

    from .session import with_store

    async def body(store: Store) -> int:
        versions = sorted(list_versions(store), key=lambda v: (v.name, v.version, v.path))
        for version in versions:
            console.event("version", **version_fields(version))
        for line in _table(versions):
            console.result(line)
        if not versions:
            console.note("nothing here yet: `sbp2p publish PATH`, or `sbp2p get LINK`")
        return 0

    return with_store(console, body)


def version_fields(version: Version) -> dict[str, Any]:
    """Return a version as the fields of a JSON event."""
    return {
        "cid": str(version.cid),
        "link": version.link(),
        "name": version.name,
        "version": version.version,
        "publisher": str(version.publisher),
        "path": str(version.path),
        "size": version.size,
        "files": version.files,
        "created": version.created,
        "complete": version.complete,
        "published_here": version.published_here,
        "pinned": version.pinned,
    }


def _table(versions: list[Version]) -> list[str]:
    if not versions:
        return []
    rows = [("VERSION", "SIZE", "FILES", "CID", "STATE", "PATH")]
    for version in versions:
        state = "published" if version.published_here else "fetched"
        if not (version.pinned or version.published_here):
            state = "unpinned"
        rows.append(
            (
                printable(f"{version.name}@{version.version}"),
                format_bytes(version.size),
                format_count(version.files, "file").split()[0],
                str(version.cid)[:_SHORT_CID],
                state if version.complete else "incomplete",
                printable(str(version.path)),
            )
        )
    return columns(rows, right=frozenset({1, 2}))

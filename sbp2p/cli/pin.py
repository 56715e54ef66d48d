"""`sbp2p pin`: keep a version when space is wanted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .console import Settings
from .invocation import Invocation
from .options import (  # noqa: TC001  (typer evaluates annotations)
    Home,
    Json,
    Quiet,
    Reference,
    Verbose,
)
from .text import printable

if TYPE_CHECKING:
    from sbp2p.store import Store

    from .console import Console


def command(
    reference: Reference,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Keep a version when space is wanted. What `get` fetched is pinned, unless it was told not."""
    work = partial(change, reference=reference, pinned=True)
    return Invocation(Settings(home, json, quiet, verbose), work)


def change(console: Console, *, reference: str, pinned: bool) -> int:
    """Pin a version or let it go; what both commands do."""
    from sbp2p.calls import ThreadCalls
    from sbp2p.node.local import find_version

    from .session import with_store

    async def body(store: Store) -> int:
        version = find_version(store, reference)
        call = store.pin if pinned else store.unpin
        await ThreadCalls().run_to_end(call, version.cid)
        console.event(
            "kept" if pinned else "let_go",
            cid=str(version.cid),
            name=version.name,
            version=version.version,
        )
        title = printable(f"{version.name} version {version.version}")
        if pinned:
            console.result(f"{title} stays when space is wanted")
        elif version.published_here:
            console.result(f"{title} stays: it was published here, and `sbp2p rm` forgets it")
        else:
            console.result(f"{title} goes when space is wanted: `sbp2p gc`, or a quota")
        return 0

    return with_store(console, body)

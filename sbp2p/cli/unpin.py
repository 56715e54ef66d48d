"""`sbp2p unpin`: let a version go when space is wanted."""

from __future__ import annotations

from functools import partial

from .console import Settings
from .invocation import Invocation
from .options import (  # noqa: TC001  (typer evaluates annotations)
    Home,
    Json,
    Quiet,
    Reference,
    Verbose,
)
from .pin import change


def command(
    reference: Reference,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Let a fetched version go when space is wanted; nothing is deleted yet."""
    work = partial(change, reference=reference, pinned=False)
    return Invocation(Settings(home, json, quiet, verbose), work)

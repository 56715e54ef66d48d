"""`sbp2p merge`: many models into one, a tensor at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from .console import Settings
from .finding import Finding
from .invocation import Invocation
from .options import (  # noqa: TC001  (typer evaluates annotations)
    Bootstrap,
    Home,
    Json,
    Network,
    NoLan,
    Peers,
    Quiet,
    SwarmFile,
    Verbose,
)

if TYPE_CHECKING:
    from .console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The command's own arguments."""

    inputs: tuple[str, ...]
    method: str
    options: tuple[str, ...]
    weights: tuple[str, ...]
    base: str | None
    output: str | None
    names: str
    policies: tuple[str, ...]
    dtype: str
    max_shard_size: str | None
    publish: str | None
    threads: int | None
    restart: bool
    dry_run: bool
    to: str | None
    peers: tuple[str, ...]
    trust_new: bool
    swarm_file: str | None
    finding: Finding


def command(
    inputs: Annotated[
        list[str] | None,
        Argument(
            metavar="LINK|PATH|REF...",
            help="Models: a link, a file or folder, or a version of this node (CID, NAME or "
            "NAME@VERSION).",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str, Option("--method", metavar="METHOD", help="How they are merged; see --list.")
    ] = "mean",
    options: Annotated[
        list[str] | None,
        Option(
            "--option",
            metavar="KEY=VALUE",
            help="An option of the method, such as density=0.2. Repeatable.",
            show_default=False,
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        Option(
            "--weight",
            metavar="WEIGHT",
            help="Of each input in their order, or INPUT=WEIGHT. Repeatable. Default: 1.",
            show_default=False,
        ),
    ] = None,
    base: Annotated[
        str | None,
        Option(
            "--base",
            metavar="LINK|PATH|REF",
            help="The model that the inputs were trained from, for methods that want it.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None,
        Option(
            "--output",
            metavar="DIR",
            help="The folder for the result; new or empty.",
            show_default=False,
        ),
    ] = None,
    names: Annotated[
        str,
        Option(
            "--names",
            metavar="RULE",
            help="When not all have the same tensors: strict (an error), intersection, or "
            "keep-local (the first input's, merged where all have them).",
        ),
    ] = "strict",
    policies: Annotated[
        list[str] | None,
        Option(
            "--policy",
            metavar="GLOB=POLICY",
            help="What becomes of tensors whose name matches, such as '*.num_batches=max'. "
            "Repeatable; the first that matches counts.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        str, Option("--dtype", metavar="DTYPE", help="Of the result: keep, F32, F16, BF16, ...")
    ] = "keep",
    max_shard_size: Annotated[
        str | None,
        Option(
            "--max-shard-size",
            metavar="SIZE",
            help="Most bytes of tensors in a file, such as 5GB. Default: files like the inputs'.",
            show_default=False,
        ),
    ] = None,
    publish: Annotated[
        str | None,
        Option(
            "--publish",
            metavar="NAME",
            help="Sign the result as a new version of this name, and print its link.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        Option(
            "--threads",
            metavar="N",
            min=1,
            help="Default: one for each core. The result is the same for any number.",
            show_default=False,
        ),
    ] = None,
    restart: Annotated[
        bool, Option("--restart", help="Throw away what an interrupted merge has done.")
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    show_methods: Annotated[
        bool, Option("--list", help="List the methods, with their papers and breakdown points.")
    ] = False,
    to: Annotated[
        str | None,
        Option(
            "--to",
            metavar="DIR",
            help="Where inputs are fetched to. Default: a folder in the home, for `sbp2p gc` to "
            "clear.",
            show_default=False,
        ),
    ] = None,
    peers: Peers = None,
    trust_new: Annotated[
        bool, Option("--trust-new", help="Accept and remember publishers that are new here.")
    ] = False,
    swarm: SwarmFile = None,
    bootstrap: Bootstrap = None,
    no_lan: NoLan = False,
    network: Network = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Merge models of any size into one; resume by running it again."""
    settings = Settings(home, json, quiet, verbose)
    if show_methods:
        return Invocation(settings, _show_methods)
    wish = Wish(
        inputs=tuple(inputs or ()),
        method=method,
        options=tuple(options or ()),
        weights=tuple(weights or ()),
        base=base,
        output=output,
        names=names,
        policies=tuple(policies or ()),
        dtype=dtype,
        max_shard_size=max_shard_size,
        publish=publish,
        threads=threads,
        restart=restart,
        dry_run=dry_run,
        to=to,
        peers=tuple(peers or ()),
        trust_new=trust_new,
        swarm_file=swarm,
        finding=Finding(tuple(bootstrap or ()), no_lan, network),
    )
    return Invocation(settings, partial(_run, wish=wish))


def _show_methods(console: Console) -> int:
    _require_torch()
    from .merge_report import show_methods

    return show_methods(console)


def _run(console: Console, *, wish: Wish) -> int:
    from sbp2p.errors import ConfigError

    if not wish.inputs:
        raise ConfigError("nothing to merge", hint="name the models, or see `sbp2p merge --list`")
    if not wish.output:
        raise ConfigError("there is no folder for the result", hint="say --output DIR")
    _require_torch()
    from .merge_run import run

    return run(console, wish)


def _require_torch() -> None:
    """Raise ConfigError when what computes is not installed."""
    from importlib import import_module

    from sbp2p.errors import ConfigError

    try:
        import_module("torch")
    except ImportError as error:
        raise ConfigError(
            "merging needs PyTorch, which is not installed", hint="pip install 'sbp2p[torch]'"
        ) from error

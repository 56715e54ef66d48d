"""`sbp2p inspect`: what a version is, or what publishing a checkpoint would make of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

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
    Verbose,
)
from .text import (
    FACTS_SHOWN,
    LINES_SHOWN,
    columns,
    first,
    format_bytes,
    format_count,
    printable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sbp2p.node import Description, Node
    from sbp2p.store import Store
    from sbp2p_protocol.manifest import MetaValue
    from sbp2p_protocol.tensor_index import TensorEntry

    from .console import Console

_FACT_LENGTH: Final = 200
"""Characters of a fact that are shown unasked; a value in `meta` may have 4096."""


def command(
    what: Annotated[
        str,
        Argument(
            metavar="PATH|LINK|REF",
            help="A checkpoint on disk, a link, or a version of this node.",
        ),
    ],
    tensors: Annotated[
        bool, Option("--tensors", help="List every tensor, not just how many there are.")
    ] = False,
    peers: Peers = None,
    bootstrap: Bootstrap = None,
    no_lan: NoLan = False,
    network: Network = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Show manifest, files and tensors of a version, without fetching its content."""
    work = partial(
        _run,
        what=what,
        list_tensors=tensors,
        peers=tuple(peers or ()),
        finding=Finding(tuple(bootstrap or ()), no_lan, network),
    )
    return Invocation(Settings(home, json, quiet, verbose), work)


def _run(
    console: Console,
    *,
    what: str,
    list_tensors: bool,
    peers: Sequence[str],
    finding: Finding,
) -> int:
    from sbp2p.config import NodeConfig

    from .session import with_node, with_store

    async def ask_peers(node: Node) -> int:
        return _show(console, await node.describe(what, peers=peers), list_tensors)

    async def look_here(store: Store) -> int:
        from .inspect_stored import describe_stored

        return _show(console, describe_stored(store, what), list_tensors)

    if what.startswith("sbp2p:"):
        config = NodeConfig(discovery=finding.discovery(stays=False), dht=finding.dht())
        return with_node(console, ask_peers, config=config)
    if peers:
        from sbp2p.errors import ConfigError

        raise ConfigError("--peer goes with a link: what is here is not asked for elsewhere")
    if Path(what).exists():
        from .inspect_path import inspect_path

        return inspect_path(console, Path(what), list_tensors=list_tensors)
    return with_store(console, look_here)


def _show(console: Console, description: Description, list_tensors: bool) -> int:
    console.event("version", **_fields(description, list_tensors))
    for line in _lines(description, everything=console.settings.verbose):
        console.result(line)
    if list_tensors:
        for line in tensor_lines(description.tensors):
            console.result(line)
    return 0


def _fields(description: Description, list_tensors: bool) -> dict[str, Any]:
    manifest = description.manifest
    return {
        "cid": str(manifest.cid),
        "name": manifest.name,
        "version": manifest.version,
        "publisher": str(manifest.publisher),
        "signers": sorted(map(str, description.signers)),
        "created": manifest.created,
        "root": str(manifest.root),
        "parents": [str(parent) for parent in manifest.parents],
        "meta": {key: plain(value) for key, value in manifest.meta.items()},
        "size": description.size,
        "unique_bytes": description.unique_bytes,
        "blocks": description.blocks,
        "files": [
            {"path": file.path, "size": file.size, "cid": str(file.cid), "blocks": file.blocks}
            for file in description.files
        ],
        "tensor_count": len(description.tensors),
        "dtypes": bytes_by_dtype(description.tensors),
    } | ({"tensors": tensor_fields(description.tensors)} if list_tensors else {})


def _lines(description: Description, *, everything: bool) -> list[str]:
    """Return everything but the tensors, for people; not all of what there is much of."""
    from datetime import UTC, datetime

    manifest = description.manifest
    try:
        created = datetime.fromtimestamp(manifest.created, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # a publisher may write any number
        created = f"{manifest.created} s after 1970"
    rows = [
        ("name", printable(manifest.name)),
        ("version", str(manifest.version)),
        ("cid", str(manifest.cid)),
        ("publisher", str(manifest.publisher)),
        *fact_rows(
            "signed by", "signer", sorted(map(str, description.signers)), everything=everything
        ),
        ("created", created),
        *fact_rows("parent", "parent", list(map(str, manifest.parents)), everything=everything),
        *fact_rows("meta", "fact", _meta_lines(manifest.meta), everything=everything),
        ("root", str(manifest.root)),
        ("size", size_line(description.size, description.unique_bytes, description.blocks)),
        ("files", f"{len(description.files):,}"),
        ("tensors", dtype_line(description.tensors)),
    ]
    shown, more = first(description.files, LINES_SHOWN, "file", everything=everything)
    files = [("SIZE", "BLOCKS", "FILE")]
    files += [(format_bytes(f.size), str(f.blocks), printable(f.path)) for f in shown]
    return [*columns(rows), "", *columns(files, right=frozenset({0, 1})), *more]


def fact_rows(
    label: str, what: str, values: Sequence[str], *, everything: bool
) -> list[tuple[str, str]]:
    """Return one row for each value: the first ten, cut to a length that is read, or everything."""
    shown, more = first(values, FACTS_SHOWN, what, everything=everything)
    cut = [
        value if everything or len(value) <= _FACT_LENGTH else f"{value[:_FACT_LENGTH]}..."
        for value in shown
    ]
    return [(label, value) for value in [*cut, *more]]


def _meta_lines(meta: Mapping[str, MetaValue]) -> list[str]:
    return [printable(f"{key} = {plain(value)}") for key, value in sorted(meta.items())]


def size_line(size: int, unique_bytes: int, blocks: int) -> str:
    """Return how large a version is, and how much of it is there only once."""
    line = f"{format_bytes(size)} in {format_count(blocks, 'block')}"
    return line if unique_bytes == size else f"{line}, {format_bytes(unique_bytes)} without repeats"


def bytes_by_dtype(tensors: Iterable[TensorEntry]) -> dict[str, int]:
    """Return how many bytes the tensors of each dtype take, largest first."""
    total: dict[str, int] = {}
    for tensor in tensors:
        total[tensor.dtype] = total.get(tensor.dtype, 0) + tensor.length
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def dtype_line(tensors: Sequence[TensorEntry]) -> str:
    """Return how many tensors there are and of which dtypes."""
    if not tensors:
        return "none that could be named"
    parts = (f"{dtype} {format_bytes(size)}" for dtype, size in bytes_by_dtype(tensors).items())
    return f"{len(tensors):,} ({', '.join(parts)})"


def tensor_fields(tensors: Iterable[TensorEntry]) -> list[dict[str, Any]]:
    """Return tensors as JSON."""
    return [
        {
            "name": tensor.name,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "file": tensor.file,
            "offset": tensor.offset,
            "length": tensor.length,
        }
        for tensor in tensors
    ]


def tensor_lines(tensors: Sequence[TensorEntry]) -> list[str]:
    """Return tensors as a table below an empty line."""
    rows = [("SIZE", "DTYPE", "SHAPE", "TENSOR", "FILE")]
    for tensor in tensors:
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        size = format_bytes(tensor.length)
        rows.append((size, tensor.dtype, shape, printable(tensor.name), printable(tensor.file)))
    return ["", *columns(rows, right=frozenset({0}))]


def plain(value: MetaValue) -> str | int | bool:
    """Return a meta value as JSON can hold it: bytes as hexadecimal."""
    return value.hex() if isinstance(value, bytes) else value

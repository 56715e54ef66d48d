"""`sbp2p inspect PATH`: a dry run of publishing. Nothing is signed, stored or changed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .inspect import (
    bytes_by_dtype,
    dtype_line,
    fact_rows,
    size_line,
    tensor_fields,
    tensor_lines,
)
from .text import LINES_SHOWN, columns, first, format_bytes, printable

if TYPE_CHECKING:
    from pathlib import Path

    from sbp2p.checkpoint.publish import PublishedTree
    from sbp2p.checkpoint.scan import SourceFile
    from sbp2p_protocol.tensor_index import TensorEntry

    from .console import Console


@dataclass(slots=True)
class _Found:
    """What the files of a checkpoint say about themselves."""

    formats: dict[str, str] = field(default_factory=dict)
    """By path: safetensors, pytorch_zip, gguf, or `opaque`."""
    tensors: list[TensorEntry] = field(default_factory=list)


def inspect_path(console: Console, path: Path, *, list_tensors: bool) -> int:
    """Show what a version of the checkpoint at `path` would hold."""
    found = _look(path)
    tree = _hash(console, path)
    console.event("checkpoint", **_fields(path, tree, found, list_tensors))
    for line in _lines(path, tree, found, everything=console.settings.verbose):
        console.result(line)
    if list_tensors:
        for line in tensor_lines(found.tensors):
            console.result(line)
    return 0


def _look(path: Path) -> _Found:
    """Read the headers of every file."""
    from sbp2p.checkpoint.scan import open_source, scan

    found = _Found()
    for file in scan(path).files:
        descriptor = open_source(file)
        try:
            _look_into(found, file, descriptor)
        finally:
            os.close(descriptor)
    found.tensors.sort(key=lambda tensor: (tensor.name, tensor.file))
    return found


def _look_into(found: _Found, file: SourceFile, descriptor: int) -> None:
    from sbp2p.checkpoint.formats import ByteSource, inspect
    from sbp2p_protocol.tensor_index import TensorEntry

    layout = inspect(ByteSource(file.size, lambda n, at: os.pread(descriptor, n, at))).layout
    found.formats[file.path] = "opaque" if layout is None else layout.format
    found.tensors += [
        TensorEntry(span.name, span.dtype, span.shape, file.path, span.offset, span.length)
        for span in (layout.tensors if layout is not None else None) or ()
    ]


def _hash(console: Console, path: Path) -> PublishedTree:
    """Hash everything and build the tree, as publishing would."""
    from sbp2p.checkpoint.publish import publish_tree
    from sbp2p.node import Progress

    from .progress import Reporter

    with Reporter(console) as reporter:

        def report(done: int, total: int) -> None:
            reporter(Progress(phase="hashing", done_bytes=done, total_bytes=total))

        return publish_tree(path, progress=report)


def _fields(path: Path, tree: PublishedTree, found: _Found, list_tensors: bool) -> dict[str, Any]:
    return {
        "path": str(path),
        "root": str(tree.root),
        "size": sum(file.size for file in tree.table.files),
        "unique_bytes": tree.table.total_bytes,
        "blocks": len(tree.table),
        "files": [
            {
                "path": file.path,
                "size": file.size,
                "cid": str(file.cid),
                "blocks": file.count,
                "format": found.formats.get(file.path, "opaque"),
            }
            for file in tree.table.files
        ],
        "tensor_count": tree.tensor_count,
        "dtypes": bytes_by_dtype(found.tensors),
        "notes": list(tree.notes),
    } | ({"tensors": tensor_fields(found.tensors)} if list_tensors else {})


def _lines(path: Path, tree: PublishedTree, found: _Found, *, everything: bool) -> list[str]:
    size = sum(file.size for file in tree.table.files)
    rows = [
        ("path", printable(str(path))),
        ("root", str(tree.root)),
        ("size", size_line(size, tree.table.total_bytes, len(tree.table))),
        ("files", f"{len(tree.table.files):,}"),
        ("tensors", dtype_line(found.tensors)),
        *fact_rows("note", "note", list(map(printable, tree.notes)), everything=everything),
    ]
    shown, more = first(tree.table.files, LINES_SHOWN, "file", everything=everything)
    files = [("SIZE", "BLOCKS", "FORMAT", "FILE")]
    files += [
        (
            format_bytes(file.size),
            str(file.count),
            found.formats.get(file.path, "opaque"),
            printable(file.path),
        )
        for file in shown
    ]
    return [*columns(rows), "", *columns(files, right=frozenset({0, 1})), *more]

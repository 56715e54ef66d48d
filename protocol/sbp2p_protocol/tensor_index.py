"""Every tensor of a version by name: where its bytes lie, without reading any file header.

Theory of operation: entries are sorted by (name, file), and packed into dag-cbor pages of at most
1 MiB, each complete in itself; the root lists the pages. Two files may both hold a tensor of one
name (an adapter beside its model), so a name may have several entries; two entries may share bytes
(tied weights).

Error cases: builders raise LocalProtocolError, parsers RemoteProtocolError whatever the bytes.
`read_tensor_index` also checks what no single page can: order across pages, the count, and that
every extent lies in a file of the version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from sbp2p_protocol.cid import DAG_CBOR, Cid
from sbp2p_protocol.dag_cbor import decode, encode
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.fields import FORMAT, Fields
from sbp2p_protocol.limits import (
    FILE_BYTES_MAX,
    NODE_BLOCK_MAX,
    TENSOR_DIMENSIONS_MAX,
    TENSOR_NAME_MAX,
    TENSOR_PAGES_MAX,
    TENSORS_MAX,
)
from sbp2p_protocol.paths import check_path, path_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.dag_cbor import CborValue

_ROOT_KEYS: Final = frozenset(("format", "count", "pages"))
_PAGE_KEYS: Final = frozenset(("format", "files", "tensors"))
_DTYPE: Final = re.compile("[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,64}\\Z")
_DIMENSION_MAX: Final = 2**63 - 1

PAGE_CONTENT_MAX: Final = NODE_BLOCK_MAX - 64
"""Bytes of encoded paths and entries in a page; the rest is room for the map around them."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: `length` bytes at `offset` of `file` (a path in the version).

    `dtype` is a safetensors name (`F32`, `BF16`) or the file format's own; `shape` is in elements,
    outermost first, empty for a scalar.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    length: int


# An index names few files in many rows, and a path of 4 KiB takes 0.1 ms to check.
_path_fault = lru_cache(maxsize=64)(check_path)
_path_order = lru_cache(maxsize=64)(path_order)


def build_tensor_index(entries: Iterable[TensorEntry]) -> tuple[Cid, list[tuple[Cid, bytes]]]:
    """Build the index over entries in any order.

    Returns:
        (root CID, blocks): every block with its CID, pages in order, the root last.

    Raises:
        LocalProtocolError: no entries (a version without tensors has no index), one name twice in
            one file, or a value that the format does not allow.
    """
    ordered = list(entries)
    if not 0 < len(ordered) <= TENSORS_MAX:
        raise LocalProtocolError(f"{len(ordered)} tensors (1 to {TENSORS_MAX} can be indexed)")
    for entry in ordered:
        if (reason := _fault(entry)) is not None:
            raise LocalProtocolError(f"tensor {entry.name[:200]!r} of {entry.file!r}: {reason}")
    ordered.sort(key=_order)
    for previous, entry in pairwise(ordered):
        if _order(previous) == _order(entry):
            raise LocalProtocolError(f"tensor {entry.name[:200]!r} twice in {entry.file!r}")
    blocks = [(Cid.for_block(DAG_CBOR, page), page) for page in _pages(ordered)]
    if len(blocks) > TENSOR_PAGES_MAX:
        raise LocalProtocolError(f"an index of {len(blocks)} pages (at most {TENSOR_PAGES_MAX})")
    root = encode(
        {"format": FORMAT, "count": len(ordered), "pages": [cid for cid, _ in blocks]},
    )
    cid = Cid.for_block(DAG_CBOR, root)
    return cid, [*blocks, (cid, root)]


def _order(entry: TensorEntry) -> tuple[bytes, tuple[bytes, ...]]:
    return entry.name.encode("utf-8"), _path_order(entry.file)


def _pages(ordered: Sequence[TensorEntry]) -> Iterator[bytes]:
    """Yield pages; each takes entries while their encoded bytes and new paths fit."""
    files: dict[str, int] = {}
    rows: list[list[object]] = []
    room = PAGE_CONTENT_MAX
    for entry in ordered:
        row = _row(entry, files.get(entry.file, len(files)))
        cost = len(encode(row)) + (0 if entry.file in files else len(encode(entry.file)))
        if cost > room:
            yield _page(files, rows)
            files, rows, room = {}, [], PAGE_CONTENT_MAX
            row = _row(entry, 0)
            cost = len(encode(row)) + len(encode(entry.file))
        files.setdefault(entry.file, len(files))
        rows.append(row)
        room -= cost
    yield _page(files, rows)


def _row(entry: TensorEntry, file_number: int) -> list[object]:
    return [entry.name, entry.dtype, entry.shape, file_number, entry.offset, entry.length]


def _page(files: dict[str, int], rows: list[list[object]]) -> bytes:
    return encode({"format": FORMAT, "files": list(files), "tensors": rows})


def _fault(entry: TensorEntry) -> str | None:
    """Return what the format does not allow about an entry, or None."""
    try:
        size = len(entry.name.encode("utf-8"))
    except UnicodeEncodeError:
        return "its name has a lone surrogate"
    if size > TENSOR_NAME_MAX:
        return f"its name has {size} bytes (at most {TENSOR_NAME_MAX})"
    if _DTYPE.match(entry.dtype) is None:
        return f"dtype {entry.dtype[:64]!r} is not 1 to 64 printable characters"
    if len(entry.shape) > TENSOR_DIMENSIONS_MAX:
        return f"{len(entry.shape)} dimensions (at most {TENSOR_DIMENSIONS_MAX})"
    if any(not 0 <= dimension <= _DIMENSION_MAX for dimension in entry.shape):
        return "a dimension is negative or over 63 bits"
    if entry.offset < 0 or entry.length < 0 or entry.offset + entry.length > FILE_BYTES_MAX:
        return f"extent {entry.offset}+{entry.length} is not one of a file"
    if (reason := _path_fault(entry.file)) is not None:
        return f"file name: {reason}"
    return None


def parse_index_root(data: bytes) -> list[Cid]:
    """Return the pages of an index, in order; raises RemoteProtocolError."""
    return _root(data)[1]


def _root(data: bytes) -> tuple[int, list[Cid]]:
    fields = Fields(decode(data), _ROOT_KEYS, "tensor index")
    fields.check_format()
    count = fields.integer("count", 1, TENSORS_MAX)
    pages = fields.cids("pages", TENSOR_PAGES_MAX)
    if not pages or len(set(pages)) != len(pages):
        raise fields.fault("pages", "is empty or names one page twice")
    if any(not page.is_blake3 or page.codec != DAG_CBOR for page in pages):
        raise fields.fault("pages", "holds a link that is not dag-cbor with BLAKE3")
    return count, pages


def parse_index_page(data: bytes) -> list[TensorEntry]:
    """Return the entries of one page, in order; raises RemoteProtocolError."""
    fields = Fields(decode(data), _PAGE_KEYS, "tensor index page")
    fields.check_format()
    files = [path for path in fields.items("files", NODE_BLOCK_MAX) if isinstance(path, str)]
    rows = fields.items("tensors", NODE_BLOCK_MAX)
    entries: list[TensorEntry] = []
    used = 0
    for row in rows:
        entry, number = _entry(row, files)
        if number > used or (entries and _order(entries[-1]) >= _order(entry)):
            raise RemoteProtocolError("tensor index page: entries or files are out of order")
        used = max(used, number + 1)
        entries.append(entry)
    if not entries or used != len(fields.items("files", NODE_BLOCK_MAX)) or len(set(files)) != used:
        raise RemoteProtocolError("tensor index page: empty, or files that no tensor uses")
    return entries


def _entry(row: CborValue, files: list[str]) -> tuple[TensorEntry, int]:
    match row:
        case [str(name), str(dtype), list(shape), int(number), int(offset), int(length)]:
            pass
        case _:
            raise RemoteProtocolError("tensor index page: a row that is not an entry")
    dimensions = [dimension for dimension in shape if type(dimension) is int]
    if len(dimensions) != len(shape) or bool in {type(number), type(offset), type(length)}:
        raise RemoteProtocolError("tensor index page: a number that is not an integer")
    if not 0 <= number < len(files):
        raise RemoteProtocolError(f"tensor index page: file {number} of {len(files)}")
    entry = TensorEntry(name, dtype, tuple(dimensions), files[number], offset, length)
    if (reason := _fault(entry)) is not None:
        raise RemoteProtocolError(f"tensor index page: tensor {name[:200]!r}: {reason}")
    return entry, number


def read_tensor_index(root: bytes, pages: Iterable[bytes], table: BlockTable) -> list[TensorEntry]:
    """Return all entries of an index, checked against the version's files.

    Args:
        root: the root block, verified.
        pages: the blocks of parse_index_root(root), in that order, verified.
        table: the version's block table.

    Raises:
        RemoteProtocolError: malformed blocks, entries out of order across pages, a count that is
            wrong, or an extent that is not in a file of the version.
    """
    count, _ = _root(root)
    entries: list[TensorEntry] = []
    for page in pages:
        more = parse_index_page(page)
        if entries and _order(entries[-1]) >= _order(more[0]):
            raise RemoteProtocolError("tensor index: pages are out of order")
        entries += more
        if len(entries) > count:
            break
    if len(entries) != count:
        raise RemoteProtocolError(f"tensor index: {len(entries)} entries, {count} announced")
    sizes = {file.path: file.size for file in table.files}
    for entry in entries:
        if entry.offset + entry.length > sizes.get(entry.file, -1):
            raise RemoteProtocolError(
                f"tensor index: {entry.name[:200]!r} lies outside file {entry.file!r}"
            )
    return entries

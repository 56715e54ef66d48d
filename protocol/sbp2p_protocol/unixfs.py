"""File and directory nodes: UnixFS over dag-pb, the subset that sbp2p writes and reads.

Theory of operation: a file of one block is that raw leaf. A longer file is a balanced tree: nodes
of up to 1024 links, filled left to right, all leaves equally deep; each node tells how many file
bytes lie under each child. An empty file is the raw leaf of no bytes, and has no block to fetch. A
directory lists its entries by name; entries are directories, files, or raw leaves, and for a raw
leaf Tsize is the length of the file: nothing else says it. Everything is named by BLAKE3; the
builders take another hash function so that the published UnixFS vectors check them.

Trees are stricter than UnixFS: no inline data, modes, times, symlinks or sharded directories, one
byte form, and no empty directories. Normative text: protocol/data-model.md section 3.

Error cases: builders raise LocalProtocolError, parsers RemoteProtocolError whatever the bytes.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from sbp2p_protocol.cid import BLAKE3, DAG_PB, RAW, Cid
from sbp2p_protocol.dag_pb import (
    PbLink,
    PbNode,
    decode_node,
    decode_varint,
    encode_node,
    encode_varint,
)
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import BLOCK_MAX, FILE_BYTES_MAX, NODE_BLOCK_MAX
from sbp2p_protocol.paths import check_name, check_siblings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NODE_WIDTH: Final = 1024
"""Links in a file node; the `unixfs-v1-2025` profile's width. Part of the format."""

_DIGEST_SIZE: Final = 32
_DIRECTORY: Final = b"\x08\x01"
_FILE: Final = b"\x08\x02"

EMPTY_FILE: Final = Cid.for_block(RAW, b"")
"""The CID of a file of zero bytes."""


@dataclass(frozen=True, slots=True)
class FileTree:
    """A built file: its CID, bytes, bytes with nodes (Tsize), and its nodes, children first."""

    cid: Cid
    size: int
    tsize: int
    nodes: list[tuple[Cid, bytes]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """A name in a directory; `tsize` of a raw leaf is the file's length, else advisory."""

    name: str
    cid: Cid
    tsize: int


@dataclass(frozen=True, slots=True)
class DirectoryTree:
    """A built directory: its CID, bytes with everything under it (Tsize), and its one node."""

    cid: Cid
    tsize: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory node, read: its entries in order of their UTF-8 names."""

    entries: tuple[DirectoryEntry, ...]


@dataclass(frozen=True, slots=True)
class FileNode:
    """A file node, read: `sizes[i]` file bytes lie under child i, `size` under all.

    The children are either all nodes (`children`) or all raw leaves (`digests`, 32 bytes each).
    """

    size: int
    sizes: array[int]
    children: tuple[Cid, ...]
    digests: bytes

    def leaves(self) -> Iterator[tuple[bytes, int]]:
        """Yield (digest, length) of the raw leaves; nothing for a node of nodes."""
        for at in range(0, len(self.digests), _DIGEST_SIZE):
            yield self.digests[at : at + _DIGEST_SIZE], self.sizes[at // _DIGEST_SIZE]


def build_file(
    leaves: Iterable[tuple[bytes, int]],
    *,
    hash_code: int = BLAKE3,
    sink: Callable[[Cid, bytes], None] | None = None,
) -> FileTree:
    """Build the tree over (digest, length) leaves in file order.

    Args:
        leaves: the blocks of the file, each 1 to BLOCK_MAX bytes; none for an empty file.
        hash_code: the hash function of the leaves and nodes.
        sink: takes each node as it is complete; without it they gather in `FileTree.nodes`,
            about 50 bytes a leaf.

    Raises:
        LocalProtocolError: a leaf of impossible length.
    """
    nodes: list[tuple[Cid, bytes]] = []
    emit = sink or (lambda cid, data: nodes.append((cid, data)))
    builder = _BalancedBuilder(hash_code, emit)
    leaf_prefix = Cid(1, RAW, hash_code, bytes(_DIGEST_SIZE)).to_bytes()[:-_DIGEST_SIZE]
    for digest, length in leaves:
        if not 0 < length <= BLOCK_MAX or len(digest) != _DIGEST_SIZE:
            raise LocalProtocolError(f"a leaf of {length} bytes (1 to {BLOCK_MAX} allowed)")
        builder.add(0, (leaf_prefix + digest, length, length))
    cid, size, tsize = builder.finish()
    return FileTree(Cid.from_bytes(cid), size, tsize, nodes)


_Child: TypeAlias = tuple[bytes, int, int]
"""A complete subtree that waits for its parent: binary CID, file bytes, Tsize. A big file has
millions of them, so they are plain tuples."""


class _BalancedBuilder:
    """Keeps at most one unfinished node per level; level 0 holds leaves."""

    def __init__(self, hash_code: int, emit: Callable[[Cid, bytes], None]) -> None:
        self._hash_code = hash_code
        self._emit = emit
        self._levels: list[list[_Child]] = [[]]

    def add(self, level: int, child: _Child) -> None:
        if level == len(self._levels):
            self._levels.append([])
        # a full node waits for the next child: if none comes, it is the root
        if len(self._levels[level]) == NODE_WIDTH:
            self._close(level)
        self._levels[level].append(child)

    def _close(self, level: int) -> None:
        children = self._levels[level]
        data = encode_file_node(children)
        cid = Cid.for_block(DAG_PB, data, self._hash_code)
        self._emit(cid, data)
        size = sum(size for _, size, _ in children)
        tsize = len(data) + sum(tsize for _, _, tsize in children)
        children.clear()
        self.add(level + 1, (cid.to_bytes(), size, tsize))

    def finish(self) -> _Child:
        if not self._levels[0]:
            return Cid.for_block(RAW, b"", self._hash_code).to_bytes(), 0, 0
        level = 0
        while level + 1 < len(self._levels) or len(self._levels[level]) > 1:
            self._close(level)
            level += 1
        return self._levels[level][0]


def encode_file_node(children: list[tuple[bytes, int, int]]) -> bytes:
    """Encode a file node over (binary CID, file bytes, Tsize) children."""
    parts: list[bytes] = []
    for cid, _, tsize in children:
        # the name is present and empty (12 00): that is what other implementations hash
        body = b"".join(
            (b"\x0a", encode_varint(len(cid)), cid, b"\x12\x00\x18", encode_varint(tsize))
        )
        parts += (b"\x12", encode_varint(len(body)), body)
    message = [_FILE, b"\x18", encode_varint(sum(size for _, size, _ in children))]
    for _, size, _ in children:
        message += (b"\x20", encode_varint(size))
    return b"".join(parts) + encode_node(PbNode(data=b"".join(message)))


def build_directory(entries: Iterable[DirectoryEntry], *, hash_code: int = BLAKE3) -> DirectoryTree:
    """Build a directory node over entries in any order.

    Raises:
        LocalProtocolError: no entries, a name that is not allowed, two names that some file system
            takes for one, or more entries than a node holds.
    """
    ordered = sorted(entries, key=lambda entry: entry.name.encode("utf-8", "surrogatepass"))
    if not ordered:
        raise LocalProtocolError("a directory without files is not part of a version")
    for entry in ordered:
        if (reason := check_name(entry.name)) is not None:
            raise LocalProtocolError(f"file name {entry.name!r}: {reason}")
    if (reason := check_siblings(entry.name for entry in ordered)) is not None:
        raise LocalProtocolError(reason)
    links = tuple(PbLink(entry.cid, entry.name, entry.tsize) for entry in ordered)
    data = encode_node(PbNode(links, _DIRECTORY))
    if len(data) > NODE_BLOCK_MAX:
        raise LocalProtocolError(
            f"{len(ordered)} names in one directory do not fit a block of {NODE_BLOCK_MAX} bytes: "
            "spread them over subdirectories"
        )
    tsize = len(data) + sum(entry.tsize for entry in ordered)
    return DirectoryTree(Cid.for_block(DAG_PB, data, hash_code), tsize, data)


def parse_node(data: bytes) -> FileNode | Directory:
    """Read a tree node of either kind; raises RemoteProtocolError."""
    node = decode_node(data)
    if node.data == _DIRECTORY:
        return _directory(node)
    return _file_node(node)


def parse_directory(data: bytes) -> Directory:
    """Read a directory node; raises RemoteProtocolError."""
    node = parse_node(data)
    if not isinstance(node, Directory):
        raise RemoteProtocolError("a file where a directory belongs")
    return node


def parse_file_node(data: bytes) -> FileNode:
    """Read a file node; raises RemoteProtocolError."""
    node = parse_node(data)
    if not isinstance(node, FileNode):
        raise RemoteProtocolError("a directory where a file belongs")
    return node


def _directory(node: PbNode) -> Directory:
    if not node.links:
        raise RemoteProtocolError("a directory without entries")
    entries = []
    previous = b""
    for link in node.links:
        if link.name is None or link.tsize is None:
            raise RemoteProtocolError("a directory entry without name or Tsize")
        if (reason := check_name(link.name)) is not None:
            raise RemoteProtocolError(f"file name {link.name[:300]!r}: {reason}")
        raw = link.name.encode("utf-8")
        if raw <= previous:
            raise RemoteProtocolError(f"directory entry {link.name!r} is out of order or repeated")
        previous = raw
        codec = _codec(link)
        if codec == RAW:
            _check_single_leaf(link.cid, link.tsize)
        entries.append(DirectoryEntry(link.name, link.cid, link.tsize))
    if (reason := check_siblings(entry.name for entry in entries)) is not None:
        raise RemoteProtocolError(reason)
    return Directory(tuple(entries))


def _check_single_leaf(cid: Cid, length: int) -> None:
    if length > BLOCK_MAX:
        raise RemoteProtocolError(f"a leaf of {length} bytes (at most {BLOCK_MAX})")
    if (length == 0) != (cid == EMPTY_FILE):
        raise RemoteProtocolError(f"leaf {cid} with a length of {length}")


def _codec(link: PbLink) -> int:
    if not link.cid.is_blake3 or link.cid.codec not in (RAW, DAG_PB):
        raise RemoteProtocolError(f"tree link {link.cid} is neither raw nor dag-pb with BLAKE3")
    return link.cid.codec


def _file_node(node: PbNode) -> FileNode:
    size, sizes = _file_sizes(node.data or b"")
    if not 0 < len(node.links) <= NODE_WIDTH or len(sizes) != len(node.links):
        raise RemoteProtocolError(f"a file node of {len(node.links)} links, {len(sizes)} sizes")
    codecs = set(map(_codec, node.links))
    if len(codecs) != 1:
        raise RemoteProtocolError("a file node with both leaves and nodes as children")
    for link, under in zip(node.links, sizes, strict=True):
        if link.name != "" or link.tsize is None or under == 0:
            raise RemoteProtocolError("a file link with a name, without Tsize or without bytes")
    if codecs == {DAG_PB}:
        return FileNode(size, sizes, tuple(link.cid for link in node.links), b"")
    for link, under in zip(node.links, sizes, strict=True):
        if under > BLOCK_MAX or link.tsize != under:
            raise RemoteProtocolError(f"a leaf of {under} bytes with Tsize {link.tsize}")
    return FileNode(size, sizes, (), b"".join(link.cid.digest for link in node.links))


def _file_sizes(data: bytes) -> tuple[int, array[int]]:
    """Read the UnixFS message of a file node: its bytes, and the bytes under each child."""
    if not data.startswith(_FILE + b"\x18"):
        raise RemoteProtocolError("a tree node that is neither a plain directory nor a plain file")
    size, at = decode_varint(data, len(_FILE) + 1)
    sizes = array("Q")
    total = 0
    while at < len(data):
        if data[at] != 0x20:
            raise RemoteProtocolError("a file node with inline data, mode or time")
        under, at = decode_varint(data, at + 1)
        sizes.append(under)
        total += under
    if total != size or size > FILE_BYTES_MAX:
        raise RemoteProtocolError(f"a file node of {size} bytes over children of {total}")
    return size, sizes

"""A version's whole tree: built from files, or read back from its root CID.

Theory of operation: `build_tree` turns files (path, CID, Tsize) into nested directories and their
root. `TreeWalker` goes the other way, for a node that has only the root: `needed()` names the nodes
that are missing, `receive_node()` takes them in any order, from anyone, and `finish()` walks the
complete tree in path order and gives the block table. Between the two only parsed nodes are kept:
32 bytes and a size for each leaf.

Nodes arrive in two steps because they fail for two reasons. Bytes that are not what their CID says
are the sender's fault: IntegrityError, the walker is unchanged and the node can be asked of someone
else. Bytes that are right and still not a tree are the publisher's fault: BadTreeError, and no peer
can help.

Bounds (limits.py): links and leaves in what arrives, which bounds the memory of the walker; then
files, leaves and depth during the walk, because one node may stand in many places: a few nodes can
spell a tree of astronomic size. So the leaves are bounded by how many arrived, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbp2p_protocol.blocktable import BlockTable, BlockTableBuilder
from sbp2p_protocol.cid import DAG_PB, RAW, Cid, verify_block
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import (
    FILE_DEPTH_MAX,
    PATH_DEPTH_MAX,
    TREE_LINKS_MAX,
    VERSION_FILES_MAX,
    VERSION_LEAVES_MAX,
)
from sbp2p_protocol.paths import check_path
from sbp2p_protocol.unixfs import (
    Directory,
    DirectoryEntry,
    DirectoryTree,
    FileNode,
    build_directory,
    parse_node,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class BadTreeError(RemoteProtocolError):
    """The version itself is malformed, whoever sent it: blame its publisher."""


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A file to put into a tree; `tsize` is its length if `cid` is a raw leaf."""

    path: str
    cid: Cid
    tsize: int


@dataclass(frozen=True, slots=True)
class Tree:
    """Built directories: the root's CID and every directory node, children first."""

    root: Cid
    nodes: list[tuple[Cid, bytes]]


class _Folder:
    """A directory under construction."""

    __slots__ = ("files", "folders")

    def __init__(self) -> None:
        self.files: list[DirectoryEntry] = []
        self.folders: dict[str, _Folder] = {}


def build_tree(files: Iterable[TreeFile]) -> Tree:
    """Build the directories over files in any order.

    Raises:
        LocalProtocolError: no files, a path that is not allowed, a path that is both file and
            directory, two names that some file system takes for one, or too many files.
    """
    top = _Folder()
    for count, file in enumerate(files):
        if count >= VERSION_FILES_MAX:
            raise LocalProtocolError(f"more than {VERSION_FILES_MAX} files in a version")
        if (reason := check_path(file.path)) is not None:
            raise LocalProtocolError(f"file name {file.path!r}: {reason}")
        *parents, name = file.path.split("/")
        folder = top
        for parent in parents:
            folder = folder.folders.setdefault(parent, _Folder())
        folder.files.append(DirectoryEntry(name, file.cid, file.tsize))
    nodes: list[tuple[Cid, bytes]] = []
    return Tree(_close_folder(top, nodes).cid, nodes)


def _close_folder(folder: _Folder, nodes: list[tuple[Cid, bytes]]) -> DirectoryTree:
    entries = list(folder.files)
    for name, inner in folder.folders.items():
        closed = _close_folder(inner, nodes)
        entries.append(DirectoryEntry(name, closed.cid, closed.tsize))
    built = build_directory(entries)
    nodes.append((built.cid, built.data))
    return built


class TreeWalker:
    """Reads a tree from its root: says which nodes it needs, takes them, gives the block table."""

    def __init__(self, root: Cid) -> None:
        """Start at `root`; raises BadTreeError if it cannot be a directory of ours."""
        if not root.is_blake3 or root.codec != DAG_PB:
            raise BadTreeError(f"root {root} is not dag-pb with BLAKE3")
        self._root = root
        self._nodes: dict[Cid, FileNode | Directory] = {}
        self._wanted: dict[Cid, None] = {root: None}  # an ordered set
        self._links = 0
        self._leaves_read = 0

    @property
    def done(self) -> bool:
        """Whether every node has arrived."""
        return not self._wanted

    def needed(self) -> list[Cid]:
        """Return the nodes that are known to be missing, in the order they were met."""
        return list(self._wanted)

    def receive_node(self, cid: Cid, data: bytes) -> None:
        """Take one needed node.

        Raises:
            IntegrityError: `data` is not this block; the walker is unchanged, ask another peer.
            BadTreeError: the block is not a tree node of ours, or the tree passes a bound.
            LocalProtocolError: the node is not needed.
        """
        if cid not in self._wanted:
            raise LocalProtocolError(f"tree node {cid} is not needed")
        verify_block(cid, data)
        try:
            node = parse_node(data)
        except RemoteProtocolError as error:
            raise BadTreeError(f"tree node {cid}: {error}") from error
        del self._wanted[cid]
        self._nodes[cid] = node
        self._count(node)
        for child in _child_nodes(node):
            if child not in self._nodes:
                self._wanted[child] = None

    def _count(self, node: FileNode | Directory) -> None:
        if isinstance(node, Directory):
            self._links += len(node.entries)
            self._leaves_read += sum(entry.cid.codec == RAW for entry in node.entries)
        else:
            self._links += len(node.children)
            self._leaves_read += len(node.sizes) - len(node.children)
        if self._links > TREE_LINKS_MAX or self._leaves_read > VERSION_LEAVES_MAX:
            raise BadTreeError(f"over {TREE_LINKS_MAX} links or {VERSION_LEAVES_MAX} leaves")

    def finish(self) -> BlockTable:
        """Return the block table of the complete tree.

        Raises:
            BadTreeError: sizes that contradict each other, a file where a directory belongs or the
                reverse, or a tree that passes a bound.
            LocalProtocolError: nodes are still missing.
        """
        if self._wanted:
            raise LocalProtocolError(f"{len(self._wanted)} tree nodes are still missing")
        builder = BlockTableBuilder(most_unique=self._leaves_read)
        try:
            for path, cid, leaves in self._files(self._root, "", 1):
                builder.add_file(path, cid, leaves)
            return builder.build()
        except LocalProtocolError as error:
            raise BadTreeError(str(error)) from error

    def _files(
        self, cid: Cid, prefix: str, depth: int
    ) -> Iterator[tuple[str, Cid, Iterator[tuple[bytes, int]]]]:
        """Yield (path, CID, leaves) of the files under a directory, in path order."""
        node = self._nodes[cid]
        if not isinstance(node, Directory):
            raise BadTreeError(f"root {cid} is a file, not a directory")
        if depth > PATH_DEPTH_MAX:
            raise BadTreeError(f"directories nested over {PATH_DEPTH_MAX} deep")
        for entry in node.entries:
            path = prefix + entry.name
            if entry.cid.codec == RAW:
                leaf = [(entry.cid.digest, entry.tsize)] if entry.tsize else []
                yield path, entry.cid, iter(leaf)
            elif isinstance(self._nodes[entry.cid], Directory):
                yield from self._files(entry.cid, path + "/", depth + 1)
            else:
                yield path, entry.cid, self._leaves(entry.cid, None, 1)

    def _leaves(self, cid: Cid, size: int | None, depth: int) -> Iterator[tuple[bytes, int]]:
        """Yield (digest, length) of the leaves under a file node that should hold `size` bytes."""
        node = self._nodes[cid]
        if not isinstance(node, FileNode):
            raise BadTreeError(f"directory {cid} inside a file")
        if size is not None and node.size != size:
            raise BadTreeError(f"file node {cid} holds {node.size} bytes, its parent says {size}")
        if depth > FILE_DEPTH_MAX:
            raise BadTreeError(f"file nodes nested over {FILE_DEPTH_MAX} deep")
        yield from node.leaves()
        for child, under in zip(node.children, node.sizes, strict=False):
            yield from self._leaves(child, under, depth + 1)


def _child_nodes(node: FileNode | Directory) -> Iterable[Cid]:
    if isinstance(node, FileNode):
        return node.children
    return [entry.cid for entry in node.entries if entry.cid.codec == DAG_PB]

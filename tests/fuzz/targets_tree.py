"""Targets of file trees and tensor indexes: single nodes, whole trees that lie, pages of an index.

A tree's nodes are named by their hash, so mutated nodes would only ever be refused for it. The tree
target therefore reads its input as a program that builds nodes, true ones and lying ones, and names
them right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blake3 import blake3

from sbp2p_keys.errors import KeysError
from sbp2p_keys.multi import decode_uvarint
from sbp2p_protocol import dag_cbor
from sbp2p_protocol.blocktable import BlockTable, BlockTableBuilder
from sbp2p_protocol.cid import DAG_PB, Cid, raw_cid
from sbp2p_protocol.dag_pb import PbLink, PbNode, decode_node, encode_node
from sbp2p_protocol.errors import IntegrityError, RemoteProtocolError
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.limits import BLOCK_MAX, FILE_BYTES_MAX, MIB
from sbp2p_protocol.paths import check_path
from sbp2p_protocol.tensor_index import (
    TensorEntry,
    build_tensor_index,
    parse_index_page,
    parse_index_root,
    read_tensor_index,
)
from sbp2p_protocol.tree import BadTreeError, TreeWalker
from sbp2p_protocol.unixfs import (
    Directory,
    FileNode,
    build_directory,
    encode_file_node,
    parse_directory,
    parse_file_node,
    parse_node,
)

from .corpus import DIGESTS, TREE_ROOT, field_bytes, hex_bytes, vectors
from .engine import Target
from .expect import Refused, attempt, expect, expect_equal
from .mutate import varint
from .structure import cbor, frames, protobuf, records
from .targets_data import tree_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

# -- single nodes ----------------------------------------------------------------------------------


def _unixfs(data: bytes) -> None:
    node = attempt(RemoteProtocolError, parse_node, data)
    parsers: tuple[Callable[[bytes], FileNode | Directory], ...] = (
        parse_directory,
        parse_file_node,
    )
    for parser in parsers:
        attempt(RemoteProtocolError, parser, data)
    if isinstance(node, Directory):
        expect_equal(build_directory(node.entries).data, data, "a directory, encoded again")
    elif isinstance(node, FileNode):
        expect_equal(sum(node.sizes), node.size, "sizes")
        expect(node.size <= FILE_BYTES_MAX, "size")
        leaves = list(node.leaves())
        expect_equal(len(leaves) + len(node.children), len(node.sizes), "children")
        expect(all(0 < length <= BLOCK_MAX for _, length in leaves), "a leaf's length")
        links = decode_node(data).links
        children = [
            (link.cid.to_bytes(), size, link.tsize or 0)
            for link, size in zip(links, node.sizes, strict=True)
        ]
        expect_equal(encode_file_node(children), data, "a file node, encoded again")


# -- whole trees -----------------------------------------------------------------------------------

OP: Final = 4
"""Bytes of an operation: what to make, and three numbers that say how."""

_SPELLED_MAX: Final = 500
"""Files and leaves that a program's tree may spell: more only takes longer."""

_LENGTHS: Final = (1, 2, 1000, BLOCK_MAX - 1, BLOCK_MAX, BLOCK_MAX + 1, 0, 2**40)
_SIZE_LIES: Final = (0, 0, 0, 0, 0, 1, -1, 2**62)
_NAMES: Final = (
    "a",
    "b",
    "c.bin",
    "model.safetensors",
    "..",
    "A",
    "e\u0301",
    "\u00e9",
    "nul",
    "z/z",
)


class _Program:
    """Builds nodes from operations; the last one is the root."""

    def __init__(self, data: bytes) -> None:
        self.nodes: dict[Cid, bytes] = {}
        self._made: list[tuple[Cid, int, int]] = []  # CID, size as it says, how much it spells
        for at in range(0, len(data) - OP + 1, OP):
            self._run(*data[at : at + OP])

    @property
    def root(self) -> Cid:
        return self._made[-1][0] if self._made else TREE_ROOT

    def _run(self, kind: int, first: int, second: int, third: int) -> None:
        match kind % 5:
            case 0:
                self._file(first, second, third)
            case 1:
                self._file_of_files(first, second, third)
            case 2 | 3:
                self._directory(first, second, third)
            case _:
                self._damage(first << 8 | second, third)

    def _add(self, data: bytes, size: int, spelled: int) -> None:
        cid = Cid.for_block(DAG_PB, data)
        self.nodes[cid] = data
        self._made.append((cid, size, spelled))

    def _file(self, count: int, digest: int, length: int) -> None:
        size = _LENGTHS[length % len(_LENGTHS)]
        children = [
            (raw_cid(DIGESTS[(digest + number) % len(DIGESTS)]).to_bytes(), size, size)
            for number in range(1 + count % 6)
        ]
        self._add(encode_file_node(children), size * len(children), len(children))

    def _file_of_files(self, count: int, start: int, lie: int) -> None:
        chosen = self._pick(1 + count % 4, start)
        wrong = _SIZE_LIES[lie % len(_SIZE_LIES)]
        children = [(cid.to_bytes(), max(0, size + wrong), size) for cid, size, _ in chosen]
        spelled = sum(spelled for _, _, spelled in chosen)
        if chosen and spelled <= _SPELLED_MAX:
            self._add(encode_file_node(children), sum(size for _, size, _ in children), spelled)

    def _directory(self, count: int, start: int, name: int) -> None:
        chosen = self._pick(count % 5, start)
        links = []
        for number, (cid, size, _) in enumerate(chosen):
            links.append((_NAMES[(name + number) % len(_NAMES)], cid, size))
        for number in range(count >> 6):
            leaf = raw_cid(blake3(bytes(number)).digest())
            links.append((f"leaf{(start + number) % 7}", leaf, number))
        links.sort(key=lambda link: link[0].encode())
        spelled = 1 + sum(spelled for _, _, spelled in chosen) + (count >> 6)
        if spelled <= _SPELLED_MAX:
            pb_links = tuple(PbLink(cid, name, size) for name, cid, size in links)
            self._add(encode_node(PbNode(pb_links, b"\x08\x01")), 0, spelled)

    def _damage(self, at: int, value: int) -> None:
        if self._made:
            cid, size, spelled = self._made[-1]
            data = bytearray(self.nodes[cid])
            data[at % len(data)] ^= value
            self._add(bytes(data), size, spelled)

    def _pick(self, count: int, start: int) -> list[tuple[Cid, int, int]]:
        if not self._made:
            return []
        return [self._made[-1 - (start + number) % len(self._made)] for number in range(count)]


def _tree(data: bytes) -> None:
    program = _Program(data)
    walker = TreeWalker(program.root)
    while not walker.done:
        cid = walker.needed()[-1]
        block = program.nodes.get(cid)
        wrong = attempt(IntegrityError, walker.receive_node, cid, b"another block")
        expect(isinstance(wrong, Refused), "a block that is not what its name says")
        if block is None:
            return
        if isinstance(attempt(BadTreeError, walker.receive_node, cid, block), Refused):
            return
        expect(cid not in walker.needed(), "a node that arrived is needed")
    table = attempt(BadTreeError, walker.finish)
    if not isinstance(table, Refused):
        _check_table(table)


def _check_table(table: BlockTable) -> None:
    expect_equal(
        sum(table.length(number) for number in range(len(table))), table.total_bytes, "sum"
    )
    expect_equal(sum(file.size for file in table.files), table.file_bytes, "files")
    occurrences = 0
    for number, file in enumerate(table.files):
        expect(check_path(file.path) is None, f"path {file.path!r}")
        expect_equal(table.file_number(file.path), number, "file number")
        end = 0
        for block, offset, length in table.file_blocks(number):
            expect_equal(offset, end, "offset")
            expect(0 < length <= BLOCK_MAX, "length")
            expect_equal(table.index(table.digest(block)), block, "index")
            end = offset + length
            occurrences += 1
        expect_equal(end, file.size, "size")
    expect_equal(occurrences, table.occurrences, "occurrences")


def _tree_seeds() -> list[bytes]:
    programs = (
        "00020004 02010000",
        "00050004 00030100 01020000 02020002",
        "00010003 02010001 00020204 02030001 02810000",
        "02c00000 02010001 02010002 02010003",
        "00000004 01000000 01000000 01000000 01000000 01000000 02010000",
        "00010006 02010000 04000501",
        "".join("02020000" for _ in range(40)),
    )
    return [bytes.fromhex(program) for program in programs]


# -- tensor indexes --------------------------------------------------------------------------------


def _index_root(data: bytes) -> None:
    pages = attempt(RemoteProtocolError, parse_index_root, data)
    if not isinstance(pages, Refused):
        value = dag_cbor.decode(data)
        assert isinstance(value, dict)
        expect_equal(value["pages"], pages, "pages")
        expect(len(set(pages)) == len(pages) > 0, "pages")


def _index_page(data: bytes) -> None:
    entries = attempt(RemoteProtocolError, parse_index_page, data)
    if not isinstance(entries, Refused):
        _, blocks = build_tensor_index(entries)
        expect_equal([block for _, block in blocks[:-1]], [data], "a page, built again")


def _table() -> BlockTable:
    builder = BlockTableBuilder()
    for path, size in (("a.safetensors", 1000), ("b/model.gguf", 3 * MIB)):
        lengths = [min(BLOCK_MAX, size - at) for at in range(0, size, BLOCK_MAX)]
        leaves = [(DIGESTS[number], length) for number, length in enumerate(lengths)]
        builder.add_file(
            path, raw_cid(DIGESTS[0]), leaves if path[0] == "b" else [(DIGESTS[7], 1000)]
        )
    return builder.build()


_TABLE: Final = _table()

ENTRIES: Final = (
    TensorEntry("weight", "F32", (2, 5), "a.safetensors", 100, 40),
    TensorEntry("weight", "Q4_0", (32,), "b/model.gguf", 4096, 18),
    TensorEntry("scalar", "I64", (), "a.safetensors", 140, 8),
    TensorEntry("empty", "BF16", (0, 7), "b/model.gguf", 0, 0),
    TensorEntry("\u00e9" * 20, "F8_E4M3", (1, 1, 1), "b/model.gguf", 3 * MIB - 1, 1),
)


def _index(data: bytes) -> None:
    root, *pages = _framed_parts(data) or [b""]
    entries = attempt(RemoteProtocolError, read_tensor_index, root, pages, _TABLE)
    if not isinstance(entries, Refused):
        sizes = {file.path: file.size for file in _TABLE.files}
        inside = all(0 <= one.offset <= sizes[one.file] - one.length for one in entries)
        expect(inside, "a tensor outside its file")


def _framed_parts(data: bytes) -> list[bytes]:
    parts: list[bytes] = []
    at = 0
    while at < len(data):
        try:
            size, at = decode_uvarint(data, at)
        except KeysError:
            break
        parts.append(data[at : at + size])
        at += size
    return parts


def _index_seeds() -> list[bytes]:
    seeds = []
    for count in (1, 3, len(ENTRIES)):
        *pages, root = [block for _, block in build_tensor_index(ENTRIES[:count])[1]]
        seeds.append(b"".join(map(encode_length_prefixed, [root, *pages])))
    first = build_tensor_index(ENTRIES[:1])[1][0][1]
    second = build_tensor_index(ENTRIES[1:2])[1][0][1]
    root = dag_cbor.encode({"format": 1, "count": 2, "pages": [TREE_ROOT, raw_cid(DIGESTS[1])]})
    split = [root, first, second]
    return [*seeds, b"".join(varint(len(part)) + part for part in split)]


TARGETS: Final = (
    Target(
        name="unixfs",
        modules=("sbp2p_protocol.unixfs",),
        check=_unixfs,
        seeds=tree_nodes,
        mutations=(protobuf,),
    ),
    Target(
        name="tree",
        modules=("sbp2p_protocol.tree", "sbp2p_protocol.blocktable"),
        check=_tree,
        seeds=_tree_seeds,
        mutations=(records(OP),),
        max_size=64 * OP,
        test_runs=80,
    ),
    Target(
        name="tensor_index_root",
        modules=("sbp2p_protocol.tensor_index", "sbp2p_protocol.fields"),
        check=_index_root,
        seeds=lambda: [
            build_tensor_index(ENTRIES)[1][-1][1],
            *field_bytes(vectors("protocol", "tensor_index")["invalid_roots"], "hex"),
        ],
        mutations=(cbor,),
        max_size=16 * 1024,
    ),
    Target(
        name="tensor_index_page",
        modules=("sbp2p_protocol.tensor_index", "sbp2p_protocol.fields"),
        check=_index_page,
        seeds=lambda: [
            build_tensor_index(ENTRIES)[1][0][1],
            *hex_bytes([case["blocks"] for case in vectors("protocol", "tensor_index")["valid"]])[
                :4
            ],
            *field_bytes(vectors("protocol", "tensor_index")["invalid_pages"], "hex"),
        ],
        mutations=(cbor,),
        max_size=16 * 1024,
        test_runs=100,
    ),
    Target(
        name="tensor_index",
        modules=("sbp2p_protocol.tensor_index",),
        check=_index,
        seeds=_index_seeds,
        mutations=(frames(cbor),),
        max_size=8192,
        test_runs=100,
    ),
)

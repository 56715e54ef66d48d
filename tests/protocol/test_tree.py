from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.cid import DAG_CBOR, DAG_PB, RAW, SHA2_256, Cid, hash_bytes, raw_cid
from sbp2p_protocol.dag_pb import PbLink, PbNode, encode_node
from sbp2p_protocol.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import MIB
from sbp2p_protocol.paths import path_order
from sbp2p_protocol.tree import BadTreeError, TreeFile, TreeWalker, build_tree
from sbp2p_protocol.unixfs import build_file, encode_file_node

if TYPE_CHECKING:
    from sbp2p_protocol.blocktable import BlockTable

_FILE = Path(__file__).resolve().parents[2] / "protocol" / "vectors" / "tree.json"
VECTORS: list[dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))["trees"]

Leaf = tuple[bytes, int]
Nodes = dict[Cid, bytes]


def leaf(n: int) -> Leaf:
    return hash_bytes(n.to_bytes(8, "big")), n + 1


def publish(files: dict[str, list[Leaf]]) -> tuple[Cid, Nodes]:
    nodes: Nodes = {}
    entries = []
    for path, leaves in files.items():
        built = build_file(leaves, sink=nodes.__setitem__)
        entries.append(TreeFile(path, built.cid, built.tsize))
    tree = build_tree(entries)
    nodes.update(tree.nodes)
    return tree.root, nodes


def walk(root: Cid, nodes: Nodes) -> BlockTable:
    walker = TreeWalker(root)
    while not walker.done:
        for cid in walker.needed():
            walker.receive_node(cid, nodes[cid])
    return walker.finish()


def contents(table: BlockTable) -> dict[str, list[Leaf]]:
    return {
        file.path: [(table.digest(number), length) for number, _, length in table.file_blocks(at)]
        for at, file in enumerate(table.files)
    }


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_vector(case: dict[str, Any]) -> None:
    files = {
        file["path"]: [(bytes.fromhex(digest), length) for digest, length in file["leaves"]]
        for file in case["files"]
    }
    root, nodes = publish(files)
    assert str(root) == case["root"]
    assert {str(cid): data.hex() for cid, data in nodes.items()} == case["nodes"]
    table = walk(root, nodes)
    assert [(str(file.cid), file.path, file.size) for file in table.files] == [
        (file["cid"], file["path"], file["size"]) for file in case["files"]
    ]
    assert [table.digest(i).hex() for i in range(len(table))] == case["unique"]


@given(
    st.dictionaries(
        st.lists(st.sampled_from(["a", "b.x", "a-b", "z"]), min_size=1, max_size=3).map("/".join),
        st.lists(st.integers(0, 9).map(leaf), max_size=4),
        min_size=1,
        max_size=8,
    )
)
def test_what_is_built_is_read_back(files: dict[str, list[Leaf]]) -> None:
    # drop paths that are both file and directory
    files = {p: c for p, c in files.items() if not any(q.startswith(p + "/") for q in files)}
    read = contents(walk(*publish(files)))
    assert read == files
    assert list(read) == sorted(files, key=path_order)


def test_one_node_may_stand_in_many_places() -> None:
    same = [leaf(1), leaf(2)]
    root, nodes = publish({"a/x": same, "b/x": same, "c": same})
    assert len(nodes) == 3  # the file, the directory that a and b are, the root
    table = walk(root, nodes)
    assert (len(table), table.occurrences) == (2, 6)


def test_nodes_are_taken_in_any_order_and_only_once() -> None:
    root, nodes = publish({"a": [leaf(1), leaf(2)], "d/b": [leaf(3), leaf(4)], "e": [leaf(5)]})
    walker = TreeWalker(root)
    assert walker.needed() == [root]
    walker.receive_node(root, nodes[root])
    assert len(walker.needed()) == 2
    with pytest.raises(LocalProtocolError, match="still missing"):
        walker.finish()
    for cid in reversed(walker.needed()):
        walker.receive_node(cid, nodes[cid])
    with pytest.raises(LocalProtocolError, match="not needed"):
        walker.receive_node(root, nodes[root])
    (last,) = walker.needed()
    walker.receive_node(last, nodes[last])
    assert [file.path for file in walker.finish().files] == ["a", "d/b", "e"]


def test_a_bad_node_can_be_asked_of_someone_else() -> None:
    root, nodes = publish({"a": [leaf(1)]})
    walker = TreeWalker(root)
    with pytest.raises(IntegrityError):
        walker.receive_node(root, nodes[root] + b"\x00")
    walker.receive_node(root, nodes[root])
    assert walker.done


# -- publishers that lie ---------------------------------------------------------------------------


class Forge:
    """Makes nodes that are named right and say what they like."""

    def __init__(self) -> None:
        self.nodes: Nodes = {}

    def put(self, data: bytes) -> Cid:
        cid = Cid.for_block(DAG_PB, data)
        self.nodes[cid] = data
        return cid

    def directory(self, *entries: tuple[str, Cid, int]) -> Cid:
        links = tuple(PbLink(cid, name, tsize) for name, cid, tsize in entries)
        return self.put(encode_node(PbNode(links, b"\x08\x01")))

    def file(self, *children: tuple[Cid, int]) -> Cid:
        return self.put(encode_file_node([(cid.to_bytes(), size, size) for cid, size in children]))


def test_a_child_that_holds_other_than_its_parent_says() -> None:
    forge = Forge()
    inner = forge.file((raw_cid(bytes(32)), 5))
    root = forge.directory(("a", forge.file((inner, 6)), 0))
    with pytest.raises(BadTreeError, match="parent says 6"):
        walk(root, forge.nodes)


def test_a_leaf_with_two_lengths() -> None:
    forge = Forge()
    root = forge.directory(("a", raw_cid(bytes(32)), 5), ("b", raw_cid(bytes(32)), 6))
    with pytest.raises(BadTreeError, match="two lengths"):
        walk(root, forge.nodes)


def test_a_directory_inside_a_file_and_a_file_as_root() -> None:
    forge = Forge()
    folder = forge.directory(("a", raw_cid(bytes(32)), 5))
    root = forge.directory(("a", forge.file((folder, 5)), 0))
    with pytest.raises(BadTreeError, match="inside a file"):
        walk(root, forge.nodes)
    root = forge.file((raw_cid(bytes(32)), 5), (raw_cid(bytes(32)), 5))
    with pytest.raises(BadTreeError, match="is a file"):
        walk(root, forge.nodes)


def test_a_few_nodes_that_spell_a_huge_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbp2p_protocol.blocktable.VERSION_FILES_MAX", 1000)
    monkeypatch.setattr("sbp2p_protocol.blocktable.VERSION_LEAVES_MAX", 10_000)
    forge = Forge()
    folder = forge.directory(("a", raw_cid(bytes(32)), 5))
    for _ in range(30):
        folder = forge.directory(("a", folder, 0), ("b", folder, 0))
    with pytest.raises(BadTreeError, match="files"):
        walk(folder, forge.nodes)
    node, size = raw_cid(bytes(32)), 5
    for _ in range(3):
        node, size = forge.file(*[(node, size)] * 1024), size * 1024
    with pytest.raises(BadTreeError, match="leaves"):
        walk(forge.directory(("a", node, 0)), forge.nodes)


def test_nesting_is_bounded() -> None:
    forge = Forge()
    node = raw_cid(bytes(32))
    for _ in range(5):
        node = forge.file((node, 5))
    with pytest.raises(BadTreeError, match="over 4 deep"):
        walk(forge.directory(("a", node, 0)), forge.nodes)
    folder = forge.directory(("a", raw_cid(bytes(32)), 5))
    for _ in range(2000):
        folder = forge.directory(("a", folder, 0))
    with pytest.raises(BadTreeError, match="over 32 deep"):
        walk(folder, forge.nodes)


def test_what_arrives_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbp2p_protocol.tree.TREE_LINKS_MAX", 3)
    monkeypatch.setattr("sbp2p_protocol.tree.VERSION_LEAVES_MAX", 5)
    for files in ({"a": [leaf(n) for n in range(6)]}, {n: [leaf(1)] for n in "abcd"}):
        with pytest.raises(BadTreeError, match="over 3 links or 5 leaves"):
            walk(*publish(files))


@pytest.mark.parametrize("widths", [(128, 128, 4), (2, 128, 128), (128, 60), (1, 1, 9_000)])
def test_few_nodes_cannot_spell_many_leaves(
    widths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbp2p_protocol.blocktable.VERSION_REPEATS_FREE", 4096)
    nodes: dict[Cid, bytes] = {}
    node, size = raw_cid(bytes(32)), 1
    for width in widths[:-1]:
        data = encode_file_node([(node.to_bytes(), size, size)] * width)
        node, size = Cid.for_block(DAG_PB, data), size * width
        nodes[node] = data
    # the last factor: as many files of one directory, or directories in each other
    count = min(widths[-1], 100)
    tree = build_tree([TreeFile(f"{n:04}", node, size) for n in range(count)])
    nodes.update(tree.nodes)
    root = tree.root
    while count < widths[-1]:
        factor = min(-(-widths[-1] // count), 100)
        links = tuple(PbLink(root, f"{n:04}", 1) for n in range(factor))
        data = encode_node(PbNode(links, b"\x08\x01"))
        root, count = Cid.for_block(DAG_PB, data), count * factor
        nodes[root] = data
    received = sum(map(len, nodes.values()))
    tracemalloc.start()
    with pytest.raises(BadTreeError, match=r"repeats the same few blocks|more than 65536 files"):
        walk(root, nodes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * MIB + 50 * received


@pytest.mark.parametrize(
    "root",
    [raw_cid(bytes(32)), Cid(1, DAG_CBOR, 0x1E, bytes(32)), Cid(1, DAG_PB, SHA2_256, bytes(32))],
)
def test_roots_of_other_kinds_are_refused(root: Cid) -> None:
    with pytest.raises(BadTreeError):
        TreeWalker(root)


@given(st.binary(max_size=60))
def test_garbage_with_the_right_name_is_the_publishers_fault(data: bytes) -> None:
    walker = TreeWalker(Cid.for_block(DAG_PB, data))
    with pytest.raises(RemoteProtocolError):
        walker.receive_node(walker.needed()[0], data)


# -- publishing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        ([], "without files"),
        (["a", "a/b"], "one name"),
        (["A/x", "a/y"], "one name"),
        (["a", "a"], "one name"),
        (["../a"], "place"),
        (["a:b"], "Windows"),
    ],
)
def test_trees_that_cannot_be_published(paths: list[str], reason: str) -> None:
    with pytest.raises(LocalProtocolError, match=reason):
        build_tree([TreeFile(path, raw_cid(bytes(32)), 5) for path in paths])


def test_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbp2p_protocol.tree.VERSION_FILES_MAX", 2)
    with pytest.raises(LocalProtocolError, match="more than 2 files"):
        build_tree([TreeFile(name, Cid(1, RAW, 0x1E, bytes(32)), 5) for name in "abc"])

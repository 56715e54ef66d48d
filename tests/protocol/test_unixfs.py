from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.cid import DAG_PB, RAW, SHA2_256, Cid, hash_bytes, raw_cid
from sbp2p_protocol.dag_pb import PbLink, PbNode, encode_node
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import BLOCK_MAX, MIB, NODE_BLOCK_MAX
from sbp2p_protocol.unixfs import (
    EMPTY_FILE,
    Directory,
    DirectoryEntry,
    FileNode,
    build_directory,
    build_file,
    encode_file_node,
    parse_directory,
    parse_file_node,
    parse_node,
)
from tests.vectors import load_vectors

VECTORS = load_vectors("unixfs")
PROFILE = VECTORS["unixfs-v1-2025"]

_FILE = Path(__file__).resolve().parents[2] / "protocol" / "vectors" / "names.json"
NAMES: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))

Leaf = tuple[bytes, int]


def keystream_leaves(seed: str, sizes: set[int]) -> dict[int, list[Leaf]]:
    """Hash the keystream once, in 1 MiB leaves, and return the leaves of each file size."""
    key = hashlib.sha256(seed.encode()).digest()
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    zeros, chunk = bytes(MIB), bytearray(MIB)
    whole: list[Leaf] = []
    files: dict[int, list[Leaf]] = {}
    for at in range(0, max(sizes) + 1, MIB):
        stream.update_into(zeros, chunk)
        for size in sizes:
            if at <= size < at + MIB:
                tail = chunk[: size - at]
                last = [(hashlib.sha256(tail).digest(), len(tail))] if tail else []
                files[size] = whole + last
        whole.append((hashlib.sha256(chunk).digest(), MIB))
    return files


SEEDS = {case["seed"] for case in PROFILE["files"]}


@pytest.mark.parametrize("seed", sorted(SEEDS))
def test_published_layouts_reproduce(seed: str) -> None:
    cases = [case for case in PROFILE["files"] if case["seed"] == seed]
    leaves = keystream_leaves(seed, {case["size"] for case in cases})
    for case in cases:
        built = build_file(leaves[case["size"]], hash_code=SHA2_256)
        assert (str(built.cid), built.size) == (case["cid"], case["size"])
        assert built.tsize == case.get("tsize", built.size)


def test_well_known_blocks() -> None:
    known = VECTORS["well_known"]
    assert str(build_file([], hash_code=SHA2_256).cid) == known["empty_raw"]
    hello = hashlib.sha256(b"hello world").digest()
    built = build_file([(hello, 11)], hash_code=SHA2_256)
    assert str(built.cid) == PROFILE["hello world (ascii, no newline)"]
    for name in ("empty_dir_block_hex", "empty_file_block_hex"):
        with pytest.raises(RemoteProtocolError):
            parse_node(bytes.fromhex(known[name]))


def leaf(n: int, length: int = MIB) -> Leaf:
    return hash_bytes(n.to_bytes(8, "big")), length


def test_files_of_zero_and_one_block_have_no_nodes() -> None:
    empty, one = build_file([]), build_file([leaf(1, 9)])
    assert (empty.cid, empty.size, empty.tsize, empty.nodes) == (EMPTY_FILE, 0, 0, [])
    assert (one.cid, one.size, one.tsize, one.nodes) == (raw_cid(leaf(1)[0]), 9, 9, [])


@pytest.mark.parametrize(
    ("count", "nodes"), [(2, 1), (1024, 1), (1025, 3), (2048, 3), (2049, 4), (5000, 6)]
)
def test_trees_are_balanced_and_filled_left_to_right(count: int, nodes: int) -> None:
    built = build_file(leaf(n) for n in range(count))
    assert len(built.nodes) == nodes
    blocks = dict(built.nodes)
    assert built.tsize == count * MIB + sum(map(len, blocks.values()))

    def walk(cid: Cid) -> tuple[list[bytes], set[int]]:
        node = parse_file_node(blocks[cid])
        if not node.children:
            return [digest for digest, _ in node.leaves()], {1}
        below = [walk(child) for child in node.children]
        depths = {depth + 1 for _, child in below for depth in child}
        return [digest for digests, _ in below for digest in digests], depths

    digests, depths = walk(built.cid)
    assert digests == [leaf(n)[0] for n in range(count)]
    assert len(depths) == 1
    assert parse_file_node(blocks[built.cid]).size == count * MIB


def test_three_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbp2p_protocol.unixfs.NODE_WIDTH", 3)
    built = build_file(leaf(n) for n in range(10))
    kinds = [
        (node.size // MIB, len(node.sizes))
        for _, data in built.nodes
        for node in [parse_file_node(data)]
    ]
    # three full leaf parents and a full node over them; the right edge is as deep as the rest
    assert sorted(kinds) == [(1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (9, 3), (10, 2)]


def test_a_sink_takes_the_nodes_children_first() -> None:
    taken: list[Cid] = []
    built = build_file((leaf(n) for n in range(1025)), sink=lambda cid, _: taken.append(cid))
    assert taken[-1] == built.cid
    assert taken == [cid for cid, _ in build_file(leaf(n) for n in range(1025)).nodes]


@pytest.mark.parametrize("length", [0, BLOCK_MAX + 1])
def test_impossible_leaves_are_our_bug(length: int) -> None:
    with pytest.raises(LocalProtocolError):
        build_file([leaf(1, length)])


# -- directories -----------------------------------------------------------------------------------


def entry(name: str, tsize: int = 5) -> DirectoryEntry:
    return DirectoryEntry(name, raw_cid(hash_bytes(name.encode("utf-8", "replace"))), tsize)


def test_directories_are_in_byte_order() -> None:
    built = build_directory([entry("b"), entry("\u00e9"), entry("a.txt"), entry("Z")])
    names = [item.name for item in parse_directory(built.data).entries]
    assert names == ["Z", "a.txt", "b", "\u00e9"]
    assert built.cid == Cid.for_block(DAG_PB, built.data)
    assert built.tsize == len(built.data) + 20


@pytest.mark.parametrize(
    ("names", "reason"),
    [([], "without files"), (["a", "A"], "one name"), ([".."], "place"), (["\ud800"], "U\\+D800")],
)
def test_bad_directories_are_refused_when_built(names: list[str], reason: str) -> None:
    with pytest.raises(LocalProtocolError, match=reason):
        build_directory(entry(name) for name in names)


def test_a_directory_that_does_not_fit_a_block_says_so() -> None:
    with pytest.raises(LocalProtocolError, match="subdirectories"):
        build_directory(entry(f"{n:0100}") for n in range(8000))


def directory(*links: PbLink, data: bytes = b"\x08\x01") -> bytes:
    return encode_node(PbNode(links, data))


def link(name: str | None, tsize: int | None = 5, codec: int = RAW, code: int = 0x1E) -> PbLink:
    return PbLink(Cid(1, codec, code, bytes(32)), name, tsize)


@pytest.mark.parametrize(
    "data",
    [
        directory(link("b"), link("a")),
        directory(link("a"), link("a")),
        directory(link("A"), link("a")),
        directory(link("caf\u00e9"), link("cafe\u0301")),
        directory(link("..")),
        directory(link("a/b")),
        directory(link("")),
        directory(link(None)),
        directory(link("a", None)),
        directory(link("a", BLOCK_MAX + 1)),
        directory(link("a", 0)),
        directory(PbLink(EMPTY_FILE, "a", 1)),
        directory(link("a", codec=0x71)),
        directory(link("a", code=SHA2_256)),
        directory(PbLink(Cid(0, DAG_PB, SHA2_256, bytes(32)), "a", 5)),
        directory(link("a"), data=b"\x08\x01\x18\x00"),
        directory(link("a"), data=b"\x08\x05"),
        directory(link("a"), data=b"\x08\x04"),
        directory(),
    ],
)
def test_other_directories_are_refused_on_receipt(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_directory(data)


@pytest.mark.parametrize("name", NAMES["refused"], ids=ascii)
def test_a_name_that_may_not_be_is_refused_at_both_ends(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="file name"):
        build_directory([entry(name)])
    if name != "\ud800":  # which no protobuf text can hold
        with pytest.raises(RemoteProtocolError, match="file name"):
            parse_directory(directory(link(name)))


def test_an_empty_file_is_an_entry() -> None:
    data = directory(PbLink(EMPTY_FILE, "a", 0))
    assert parse_directory(data).entries == (DirectoryEntry("a", EMPTY_FILE, 0),)


# -- file nodes ------------------------------------------------------------------------------------


def file_node(*links: PbLink, data: str) -> bytes:
    return encode_node(PbNode(links, bytes.fromhex(data)))


@pytest.mark.parametrize(
    "data",
    [
        file_node(link(""), data="08021805"),  # no sizes
        file_node(data="08021800"),  # no links
        file_node(link(""), data="080218062005"),  # sum is wrong
        file_node(link(""), data="0802180520052000"),  # more sizes than links
        file_node(link(""), data="08021805200538a403"),  # a mode
        file_node(link(""), data="080212016118012001"),  # inline data
        file_node(link(""), data="08021805220105"),  # packed sizes
        file_node(link("x"), data="080218052005"),
        file_node(link(None), data="080218052005"),
        file_node(link("", None), data="080218052005"),
        file_node(link("", 6), data="080218052005"),  # a leaf's Tsize is its length
        file_node(link("", 0), data="080218002000"),
        file_node(link(""), link("", codec=DAG_PB), data="0802180a20052005"),  # leaf and node
        file_node(link("", code=SHA2_256), data="080218052005"),
        file_node(link("", BLOCK_MAX + 1), data="080218818040" + "20818040"),
        file_node(*[link("", 1)] * 1025, data="0802188108" + "2001" * 1025),
        file_node(link("", 1, DAG_PB), data="080218ffffffffffffffff7f20ffffffffffffffff7f"),
        b"",
    ],
)
def test_other_file_nodes_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_file_node(data)


def test_a_node_of_nodes_takes_any_tsize() -> None:
    node = parse_file_node(file_node(link("", 7, DAG_PB), data="080218052005"))
    assert (node.size, list(node.sizes), len(node.children), node.digests) == (5, [5], 1, b"")


def test_kinds_are_told_apart() -> None:
    with pytest.raises(RemoteProtocolError, match="file where"):
        parse_directory(file_node(link(""), data="080218052005"))
    with pytest.raises(RemoteProtocolError, match="directory where"):
        parse_file_node(directory(link("a")))


@given(st.lists(st.integers(1, BLOCK_MAX), min_size=1, max_size=20))
def test_file_nodes_round_trip(lengths: list[int]) -> None:
    data = encode_file_node([(raw_cid(leaf(n)[0]).to_bytes(), n, n) for n in lengths])
    assert list(parse_file_node(data).leaves()) == [leaf(n, n) for n in lengths]


_damage = st.sampled_from(
    [directory(link("a"), link("b", 9, DAG_PB)), file_node(link(""), data="080218052005")]
)


@given(st.binary(max_size=80) | _damage, st.data())
def test_garbage_raises_only_the_remote_error(data: bytes, draw: st.DataObject) -> None:
    garbage = bytearray(data)
    if garbage:
        at = draw.draw(st.integers(0, len(garbage) - 1))
        garbage[at] ^= draw.draw(st.integers(0, 255))
    try:
        node = parse_node(bytes(garbage))
    except RemoteProtocolError:
        return
    if isinstance(node, Directory):
        rebuilt = build_directory(node.entries).data
    elif node.children:
        return  # Tsize of nodes is advisory and not kept
    else:
        assert isinstance(node, FileNode)
        rebuilt = encode_file_node(
            [(raw_cid(d).to_bytes(), size, size) for d, size in node.leaves()]
        )
    assert rebuilt == bytes(garbage)


def test_a_full_width_leaf_parent_fits_a_block() -> None:
    data = encode_file_node([(raw_cid(bytes(32)).to_bytes(), MIB, MIB)] * 1024)
    assert len(data) < NODE_BLOCK_MAX // 16

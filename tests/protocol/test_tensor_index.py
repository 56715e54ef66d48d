from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.blocktable import BlockTable, BlockTableBuilder
from sbp2p_protocol.cid import DAG_CBOR, Cid, hash_bytes, raw_cid
from sbp2p_protocol.dag_cbor import encode
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import NODE_BLOCK_MAX
from sbp2p_protocol.tensor_index import (
    TensorEntry,
    build_tensor_index,
    parse_index_page,
    parse_index_root,
    read_tensor_index,
)

_FILE = Path(__file__).resolve().parents[2] / "protocol" / "vectors" / "tensor_index.json"
VECTORS: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))

ENTRY = TensorEntry("w", "F32", (2, 3), "model.safetensors", 100, 24)


def table(sizes: dict[str, int]) -> BlockTable:
    builder = BlockTableBuilder()
    for path, size in sizes.items():
        builder.add_file(path, raw_cid(bytes(32)), [(hash_bytes(path.encode()), size)])
    return builder.build()


TABLE = table({"a/model.safetensors": 1000, "b.gguf": 1000, "model.safetensors": 1000})


def read(entries: list[TensorEntry], files: BlockTable = TABLE) -> list[TensorEntry]:
    root, blocks = build_tensor_index(entries)
    nodes = dict(blocks)
    assert all(cid == Cid.for_block(DAG_CBOR, data) for cid, data in blocks)
    assert blocks[-1][0] == root
    pages = parse_index_root(nodes[root])
    assert pages == [cid for cid, _ in blocks[:-1]]
    return read_tensor_index(nodes[root], [nodes[page] for page in pages], files)


def from_vector(row: list[Any]) -> TensorEntry:
    name, dtype, shape, file, offset, length = row
    return TensorEntry(name, dtype, tuple(shape), file, offset, length)


@pytest.mark.parametrize("case", VECTORS["valid"], ids=lambda case: case["name"])
def test_valid_vector(case: dict[str, Any]) -> None:
    entries = [from_vector(row) for row in case["entries"]]
    root, blocks = build_tensor_index(reversed(entries))
    assert str(root) == case["root"]
    assert [[str(cid), data.hex()] for cid, data in blocks] == case["blocks"]
    read_back = [entry for _, data in blocks[:-1] for entry in parse_index_page(data)]
    assert read_back == entries


@pytest.mark.parametrize("case", VECTORS["invalid_pages"], ids=lambda case: case["name"])
def test_invalid_page_vector(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_index_page(bytes.fromhex(case["hex"]))


@pytest.mark.parametrize("case", VECTORS["invalid_roots"], ids=lambda case: case["name"])
def test_invalid_root_vector(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_index_root(bytes.fromhex(case["hex"]))


def test_entries_come_back_sorted() -> None:
    entries = [
        ENTRY,
        replace(ENTRY, file="a/model.safetensors"),
        replace(ENTRY, name="W", shape=(), length=4),
        replace(ENTRY, name="\u00e9", shape=(0,), length=0, offset=1000),
        replace(ENTRY, name="", dtype="Q4_K", file="b.gguf"),
    ]
    assert read(entries) == [entries[4], entries[2], entries[1], entries[0], entries[3]]


def test_pages_are_full_and_never_over_a_block() -> None:
    files = [f"model-{n:05}-of-00007.safetensors" for n in range(7)]
    entries = [
        TensorEntry(f"{n:06}." + "x" * 200, "BF16", (4096, 4096), files[n % 7], 0, n)
        for n in range(12_000)
    ]
    _, blocks = build_tensor_index(entries)
    sizes = [len(data) for _, data in blocks]
    assert len(sizes) == 4
    assert all(size <= NODE_BLOCK_MAX for size in sizes)
    assert all(size > NODE_BLOCK_MAX - 400 for size in sizes[:-2])
    assert read(entries, table(dict.fromkeys(files, 20_000))) == entries


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "\ud800"},
        {"name": "x" * 4097},
        {"dtype": ""},
        {"dtype": "x" * 65},
        {"dtype": "F\n"},
        {"shape": (1,) * 65},
        {"shape": (-1,)},
        {"shape": (2**63,)},
        {"offset": -1},
        {"length": -1},
        {"offset": 2**62},
        {"file": "../a"},
        {"file": "\ud800"},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_values_that_the_format_does_not_allow(changes: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        build_tensor_index([replace(ENTRY, **changes)])


def test_an_index_has_entries_and_each_once_per_file() -> None:
    with pytest.raises(LocalProtocolError, match="0 tensors"):
        build_tensor_index([])
    with pytest.raises(LocalProtocolError, match="twice"):
        build_tensor_index([ENTRY, replace(ENTRY, offset=0)])


@pytest.mark.parametrize(
    "entry",
    [
        replace(ENTRY, file="elsewhere"),
        replace(ENTRY, offset=977),
        replace(ENTRY, offset=1001, length=0, shape=(0,)),
    ],
)
def test_extents_lie_in_files_of_the_version(entry: TensorEntry) -> None:
    with pytest.raises(RemoteProtocolError, match="outside"):
        read([entry])


def test_pages_are_checked_together() -> None:
    _, first = build_tensor_index([ENTRY])
    _, second = build_tensor_index([replace(ENTRY, name="z")])
    pages = [first[0][1], second[0][1]]
    root = encode({"format": 1, "count": 2, "pages": [first[0][0], second[0][0]]})
    assert len(read_tensor_index(root, pages, TABLE)) == 2
    for wrong in ([pages[1], pages[0]], [pages[0], pages[0]], [pages[0]], [], [*pages, pages[1]]):
        with pytest.raises(RemoteProtocolError):
            read_tensor_index(root, wrong, TABLE)


_entries = st.builds(
    TensorEntry,
    st.text(max_size=8),
    st.sampled_from(["F32", "BF16", "I64"]),
    st.lists(st.integers(0, 2**63 - 1), max_size=3).map(tuple),
    st.sampled_from([file.path for file in TABLE.files]),
    st.integers(0, 500),
    st.integers(0, 500),
)


@given(st.lists(_entries, min_size=1, max_size=20, unique_by=lambda e: (e.name, e.file)))
def test_round_trip(entries: list[TensorEntry]) -> None:
    assert set(read(entries)) == set(entries)


@given(st.binary(max_size=100))
def test_garbage_raises_only_the_remote_error(data: bytes) -> None:
    for parse in (parse_index_root, parse_index_page):
        with pytest.raises(RemoteProtocolError):
            parse(data)


@given(st.sampled_from([0, 1]), st.data())
def test_damage_is_refused_or_read(which: int, data: st.DataObject) -> None:
    _, blocks = build_tensor_index([ENTRY, replace(ENTRY, name="z", file="b.gguf")])
    block = bytearray(blocks[which][1])
    at = data.draw(st.integers(0, len(block) - 1))
    block[at] ^= data.draw(st.integers(1, 255))
    for parse in (parse_index_root, parse_index_page):
        try:
            parse(bytes(block))
        except RemoteProtocolError:
            continue

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.blocktable import BlockTable, BlockTableBuilder, DigestIndex
from sbp2p_protocol.cid import hash_bytes, raw_cid
from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.limits import BLOCK_MAX, VERSION_PATHS_MAX

CID = raw_cid(bytes(32))


def digest(n: int) -> bytes:
    return hash_bytes(n.to_bytes(8, "big"))


def table(files: dict[str, list[int]]) -> BlockTable:
    """Build a table; block n has n + 1 bytes."""
    builder = BlockTableBuilder()
    for path, blocks in files.items():
        builder.add_file(path, CID, [(digest(n), n + 1) for n in blocks])
    return builder.build()


def test_blocks_are_numbered_by_first_appearance() -> None:
    built = table({"a": [5, 7, 5], "b": [], "c": [7, 9]})
    assert [built.digest(i) for i in range(len(built))] == [digest(5), digest(7), digest(9)]
    assert [built.length(i) for i in range(3)] == [6, 8, 10]
    assert (built.total_bytes, built.file_bytes, built.occurrences) == (24, 38, 5)
    assert [(f.path, f.size, f.first, f.count) for f in built.files] == [
        ("a", 20, 0, 3),
        ("b", 0, 3, 0),
        ("c", 18, 3, 2),
    ]


def test_lookup_by_digest() -> None:
    built = table({"a": [1, 2, 3]})
    assert [built.index(digest(n)) for n in (1, 2, 3, 4)] == [0, 1, 2, None]
    assert built.index(digest(1)[:31]) is None
    with pytest.raises(IndexError):
        built.digest(3)


def test_every_location_of_a_block() -> None:
    built = table({"a": [], "b": [5, 7, 5], "c": [], "d": [7], "e": []})
    assert built.locations(0) == [(1, 0), (1, 14)]
    assert built.locations(1) == [(1, 6), (3, 0)]


def test_files_by_path() -> None:
    built = table({"a": [1], "a/b": [2], "a.txt": [3]})
    assert [built.file_number(path) for path in ("a", "a/b", "a.txt", "b", "A")] == [
        0,
        1,
        2,
        None,
        None,
    ]


def test_blocks_of_a_byte_range() -> None:
    built = table({"a": [9, 9, 4], "b": [2]})  # a: 10 + 10 + 5 bytes, b: 3
    assert list(built.file_blocks(0)) == [(0, 0, 10), (0, 10, 10), (1, 20, 5)]
    assert list(built.file_blocks(0, 9, 11)) == [(0, 0, 10), (0, 10, 10)]
    assert list(built.file_blocks(0, 10, 10)) == []
    assert list(built.file_blocks(0, 24, 99)) == [(1, 20, 5)]
    assert list(built.file_blocks(0, 25, 99)) == []
    assert list(built.blocks_for({0: [(20, 1)], 1: [(0, 0), (2, 5)]})) == [1, 2]
    assert list(built.blocks_of_files([1])) == [2]


@pytest.mark.parametrize("length", [0, -1, BLOCK_MAX + 1])
def test_leaves_of_impossible_length_are_refused(length: int) -> None:
    with pytest.raises(LocalProtocolError, match="leaf"):
        BlockTableBuilder().add_file("a", CID, [(digest(1), length)])


def test_one_digest_with_two_lengths_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="two lengths"):
        BlockTableBuilder().add_file("a", CID, [(digest(1), 1), (digest(1), 2)])


@pytest.mark.parametrize(("first", "second"), [("b", "a"), ("a", "a"), ("a.txt", "a/b")])
def test_files_come_in_path_order(first: str, second: str) -> None:
    builder = BlockTableBuilder()
    builder.add_file(first, CID, [])
    with pytest.raises(LocalProtocolError, match="not after"):
        builder.add_file(second, CID, [])


def test_bad_paths_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="place"):
        BlockTableBuilder().add_file("a/../b", CID, [])


def test_bounds_stop_an_endless_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbp2p_protocol.blocktable.VERSION_LEAVES_MAX", 10)
    builder = BlockTableBuilder()
    builder.add_file("a", CID, [(digest(1), 1)] * 6)
    with pytest.raises(LocalProtocolError, match="more than 10 leaves"):
        builder.add_file("b", CID, iter(lambda: (digest(1), 1), None))


def test_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbp2p_protocol.blocktable.VERSION_FILES_MAX", 2)
    with pytest.raises(LocalProtocolError, match="more than 2 files"):
        table({"a": [], "b": [], "c": []})


@given(st.lists(st.integers(0, 400), max_size=300))
def test_the_index_is_a_set_in_order(numbers: list[int]) -> None:
    index, model = DigestIndex(), dict[bytes, int]()
    for n in numbers:
        assert index.find(digest(n)) == model.get(digest(n))
        assert index.add(digest(n)) == model.setdefault(digest(n), len(model))
    assert [index.digest(i) for i in range(len(index))] == list(model)


@given(st.lists(st.lists(st.integers(0, 20), max_size=8), max_size=6))
def test_the_table_agrees_with_a_plain_model(files: list[list[int]]) -> None:
    built = table({f"{i}": blocks for i, blocks in enumerate(files)})
    where: dict[int, list[tuple[int, int]]] = {}
    for number, blocks in enumerate(files):
        offset = 0
        for block in blocks:
            where.setdefault(block, []).append((number, offset))
            offset += block + 1
    assert [(built.digest(i), built.locations(i)) for i in range(len(built))] == [
        (digest(block), places) for block, places in where.items()
    ]


def test_paths_of_a_version_are_bounded_together() -> None:
    builder = BlockTableBuilder()
    folder = "/".join(["d" * 250] * 15)
    cid = raw_cid(bytes(32))
    count = VERSION_PATHS_MAX // len(f"{folder}/{0:06}")
    for number in range(count):
        builder.add_file(f"{folder}/{number:06}", cid, [])
    with pytest.raises(LocalProtocolError, match="paths of more than"):
        builder.add_file(f"{folder}/{count:06}", cid, [])


def test_a_few_blocks_again_and_again_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbp2p_protocol.blocktable.VERSION_REPEATS_FREE", 100)
    monkeypatch.setattr("sbp2p_protocol.blocktable.VERSION_REPEATS_MAX", 3)
    two = [(digest(1), 1), (digest(2), 1)]
    assert len(table({"a": [1] * 103})) == 1
    builder = BlockTableBuilder()
    builder.add_file("a", CID, [*two, *two[:1] * 105])
    with pytest.raises(LocalProtocolError, match="more than 106 leaves in a version that repeats"):
        builder.build()
    builder = BlockTableBuilder()
    builder.add_file("a", CID, two[:1] * 200)  # what comes later may make up for it
    builder.add_file("b", CID, [(digest(n), 1) for n in range(2, 60)])
    assert len(builder.build()) == 59
    builder = BlockTableBuilder(most_unique=2)
    with pytest.raises(LocalProtocolError, match="more than 106 leaves"):
        builder.add_file("a", CID, iter(lambda: two[0], None))

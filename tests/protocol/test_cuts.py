from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.cuts import ALONE_MIN, cut_lengths
from sbp2p_protocol.limits import BLOCK_MAX, KIB, MIB

_FILE = Path(__file__).resolve().parents[2] / "protocol" / "vectors" / "cuts.json"
VECTORS: list[dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))["cases"]


def cuts(size: int, spans: list[tuple[int, int]] | None) -> list[int]:
    return list(cut_lengths(size, spans))


def layout(*lengths: int, header: int = 100) -> list[tuple[int, int]]:
    """Return spans of tensors that follow each other after a header."""
    spans, at = [], header
    for length in lengths:
        spans.append((at, length))
        at += length
    return spans


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_vector(case: dict[str, Any]) -> None:
    spans = case["spans"]
    got = cuts(case["size"], None if spans is None else [(at, size) for at, size in spans])
    assert got == case["lengths"]


def test_an_unchanged_tensor_is_the_same_blocks_behind_any_header() -> None:
    big = 3 * MIB + 5
    for header in (8, 100, 70_000, 2 * MIB):
        got = cuts(header + big, layout(big, header=header))
        assert got[-4:] == [MIB, MIB, MIB, 5]
        assert sum(got[:-4]) == header


def test_small_tensors_between_large_ones_share_a_block() -> None:
    sizes = [ALONE_MIN, 10, 0, 20, ALONE_MIN - 1, ALONE_MIN]
    assert cuts(100 + sum(sizes), layout(*sizes)) == [100, ALONE_MIN, 29 + ALONE_MIN, ALONE_MIN]


def test_a_shared_block_ends_at_a_tensor_start_within_one_mib() -> None:
    sizes = [60 * KIB] * 20
    assert cuts(100 + sum(sizes), layout(*sizes)) == [100, 17 * 60 * KIB, 3 * 60 * KIB]


@pytest.mark.parametrize(
    "spans",
    [
        [(200, 100), (0, 100)],
        [(0, 101), (100, 10)],
        [(0, 5 * MIB)],
        [(0, -1)],
        [(-5, 10)],
        [(0, 0)],
    ],
)
def test_spans_that_do_not_fit_the_file_make_it_opaque(spans: list[tuple[int, int]]) -> None:
    assert cuts(2 * MIB + 1, spans) == [MIB, MIB, 1]


_pieces = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 64, ALONE_MIN, MIB]),
        st.sampled_from([0, 1, 5000, ALONE_MIN - 1, ALONE_MIN, MIB, 2 * MIB + 3]),
    ),
    max_size=30,
)


@given(_pieces, st.sampled_from([0, 10, MIB + 1]))
def test_every_cut_obeys_the_rules(pieces: list[tuple[int, int]], trailer: int) -> None:
    spans, at = [], 0
    for gap, length in pieces:
        spans.append((at + gap, length))
        at += gap + length
    got = cuts(at + trailer, spans)
    assert sum(got) == at + trailer
    assert all(0 < length <= BLOCK_MAX for length in got)
    starts = {sum(got[:i]) for i in range(len(got) + 1)}
    for offset, length in spans:
        if length >= ALONE_MIN:
            assert {offset, offset + length} <= starts
            assert set(range(offset, offset + length, MIB)) <= starts
        else:
            # a small tensor is never split
            assert not starts & set(range(offset + 1, offset + length))


@given(st.integers(0, 3 * MIB), st.lists(st.tuples(st.integers(), st.integers()), max_size=5))
def test_any_spans_cover_the_file_exactly(size: int, spans: list[tuple[int, int]]) -> None:
    assert sum(cuts(size, spans)) == size

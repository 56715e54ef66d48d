"""Several rows of float32 at once: the same bits as a row at a time, or nothing at all."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p.merge.coefficients import Coefficients
from sbp2p.merge.dtypes import FLOATS
from sbp2p.merge.exact import LinearSum
from sbp2p.merge.extent import Workspace

F32 = FLOATS["F32"]
SPACE = Workspace()
SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
WEIGHTS = [float(2**-3), 0.02, 1.0]


def in_two_ways(
    rows: list[list[float]], coefficients: list[Fraction]
) -> tuple[bytes, bytes] | None:
    """Return what both ways give, or None when the block is not plain."""
    block = torch.tensor(rows, dtype=torch.float32)
    linear = LinearSum(Coefficients.of(coefficients), [F32] * len(rows), F32)
    assert linear.takes([torch.float32] * len(rows))
    ours, theirs = torch.empty(block.shape[1]), torch.empty(block.shape[1])
    if not linear.compute_block(block, ours, SPACE):
        return None
    linear.compute(block.unbind(), [SPACE.extent(row) for row in block], theirs, SPACE)
    return ours.numpy().tobytes(), theirs.numpy().tobytes()


@settings(max_examples=200, deadline=None)
@given(
    st.integers(2, 9).flatmap(
        lambda count: st.lists(
            st.lists(SINGLES, min_size=count, max_size=count), min_size=1, max_size=6
        )
    )
)
def test_any_numbers_give_the_same_bits_or_are_left(columns: list[list[float]]) -> None:
    rows = [list(row) for row in zip(*columns, strict=True)]
    count = len(rows)
    for weights in ([Fraction(1, count)] * count, [Fraction(i + 1, 45) for i in range(count)]):
        both = in_two_ways(rows, weights)
        assert both is None or both[0] == both[1]


@pytest.mark.parametrize("scale", WEIGHTS)
def test_weights_of_models_are_taken(scale: float) -> None:
    noise = torch.randn(8, 30_000, generator=torch.Generator().manual_seed(7)) * scale
    noise[:, ::1000] = 0.0
    both = in_two_ways(noise.tolist(), [Fraction(1, 8)] * 8)
    assert both is not None
    assert both[0] == both[1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_left(bad: float) -> None:
    assert in_two_ways([[1.0, 2.0], [bad, 1.0]], [Fraction(1, 2)] * 2) is None


def test_numbers_far_apart_are_left() -> None:
    assert in_two_ways([[1e30, 1.0], [1e-30, 1.0]], [Fraction(1, 2)] * 2) is None


def test_only_rows_of_float32_are_taken() -> None:
    half = [Fraction(1, 2)] * 2
    assert not LinearSum(Coefficients.of(half), [FLOATS["BF16"]] * 2, FLOATS["BF16"]).takes(
        [torch.bfloat16] * 2
    )
    one = [Fraction(1), Fraction(0)]
    assert not LinearSum(Coefficients.of(one), [F32] * 2, F32).takes([torch.float32] * 2)

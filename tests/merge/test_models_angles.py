"""Sines and angles that need no C library: as good as its own."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbp2p.merge.models.angles import arc_cosine, cosine, sine


@settings(max_examples=50)
@given(st.floats(0, math.pi))
@example(0.0)
@example(math.pi)
@example(math.pi / 2)
def test_sine(angle: float) -> None:
    assert abs(sine(angle) - math.sin(angle)) < 2e-15


@settings(max_examples=50)
@given(st.floats(-1, 1))
@example(1.0)
@example(-1.0)
@example(1 - 2**-53)
@example(0.0)
def test_arc_cosine(cos: float) -> None:
    assert abs(arc_cosine(cos) - math.acos(cos)) < 2e-15


def test_small_angles_keep_their_digits() -> None:
    assert sine(1e-200) == 1e-200
    assert abs(arc_cosine(1 - 2**-53) / math.acos(1 - 2**-53) - 1) < 1e-14


@settings(max_examples=50)
@given(
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=4),
    st.integers(-200, 200),
    st.sampled_from([1, -1]),
)
def test_parallel_vectors_have_a_cosine_of_one_exactly(
    vector: list[float], power: int, sign: int
) -> None:
    square = float(sum(Fraction(each) ** 2 for each in vector))
    if square < 1e-90:
        return
    factor = sign * 2.0**power
    assert cosine(square * factor, square, square * factor * factor) == sign


def test_cosine_of_what_has_no_direction() -> None:
    assert cosine(0.0, 0.0, 4.0) == 0.0
    assert cosine(0.0, 4.0, 0.0) == 0.0


def test_cosine_is_rounded_once_and_stays_in_range() -> None:
    assert cosine(1.0, 2.0, 2.0) == 0.5
    assert cosine(1.0, 3.0, 1.0) == float(1 / Decimal(3).sqrt())
    assert cosine(1e300, 1e300, 1e300) == 1.0
    assert cosine(1.0000000000000002, 1.0, 1.0) == 1.0
    assert cosine(5e-324, 5e-324, 5e-324) == 1.0

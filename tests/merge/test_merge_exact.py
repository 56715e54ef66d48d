"""The exact sum against rational numbers: every dtype, ties, cancellation, all magnitudes."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p.merge.coefficients import Coefficients
from sbp2p.merge.distill import distill, nearest_columns
from sbp2p.merge.dtypes import FLOATS, view
from sbp2p.merge.exact import LinearSum
from sbp2p.merge.extent import Workspace
from tests.merge.merge_oracle import ORACLES, Oracle, exact_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

SPACE = Workspace()


def summed(
    rows: Sequence[list[int]], coefficients: Sequence[Fraction | float], source: str, target: str
) -> list[int]:
    oracle = ORACLES[source]
    tensors = [view(bytearray(oracle.pack(row)), FLOATS[source].torch) for row in rows]
    if oracle.bits == 8:
        tensors = [each.to(torch.float32) for each in tensors]
    out = torch.empty(len(rows[0]), dtype=FLOATS[target].torch)
    formats = [FLOATS[source]] * len(rows)
    linear = LinearSum(Coefficients.of(coefficients), formats, FLOATS[target])
    linear.compute(tensors, [SPACE.extent(each) for each in tensors], out, SPACE)
    return ORACLES[target].unpack(bytes(out.view(torch.uint8).tolist()))


def expected(
    rows: Sequence[list[int]], coefficients: Sequence[Fraction | float], source: str, target: str
) -> list[int]:
    exact = [Fraction(each) for each in coefficients]
    return [
        exact_sum(ORACLES[source], list(column), exact, ORACLES[target])
        for column in zip(*rows, strict=True)
    ]


def codes(oracle: Oracle) -> st.SearchStrategy[int]:
    """All finite codes; those around powers of two and a few magnitudes come often."""
    sign = 1 << (oracle.bits - 1)
    anywhere = st.integers(0, oracle.largest)
    near_one = oracle.bias << oracle.mantissa
    around = st.integers(near_one - 5, near_one + 5)
    small = st.integers(0, 3)
    step = 1 << oracle.mantissa
    powers = st.integers(1, oracle.largest >> oracle.mantissa).map(lambda e: e * step)
    size = st.one_of(anywhere, around, small, powers, st.just(oracle.largest))
    both = st.tuples(size, st.booleans()).map(lambda pair: pair[0] | (pair[1] * sign))
    return both.filter(oracle.is_finite)


COEFFICIENTS: st.SearchStrategy[Fraction | float] = st.one_of(
    st.fractions(-4, 4, max_denominator=12),
    st.sampled_from([Fraction(0), Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(-1)]),
    st.floats(-4, 4, allow_subnormal=False),
    st.sampled_from([1e-300, 1e300, 2.0**-40, Fraction(1, 10**30), Fraction(10**12, 7)]),
)


@st.composite
def problems(draw: st.DrawFn, source: str) -> tuple[list[list[int]], list[Fraction | float]]:
    count = draw(st.integers(1, 6))
    width = draw(st.integers(1, 5))
    oracle = ORACLES[source]
    rows = [draw(st.lists(codes(oracle), min_size=width, max_size=width)) for _ in range(count)]
    if draw(st.booleans()) and oracle.signed_zero:  # what cancels
        sign = 1 << (oracle.bits - 1)
        rows.append([code ^ sign for code in rows[0]])
    if draw(st.booleans()):
        equal: list[Fraction | float] = [Fraction(1, len(rows))] * len(rows)
        return rows, equal
    return rows, [draw(COEFFICIENTS) for _ in rows]


PAIRS = [
    *((each, each) for each in ORACLES),
    ("F32", "BF16"), ("F32", "F16"), ("F64", "F32"), ("F64", "BF16"), ("F32", "F8_E4M3"),
    ("BF16", "F32"), ("F16", "BF16"), ("F32", "F64"), ("F8_E5M2", "F16"), ("BF16", "F8_E5M2FNUZ"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), PAIRS)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_every_sum_is_the_correctly_rounded_one(
    source: str, target: str, data: st.DataObject
) -> None:
    rows, coefficients = data.draw(problems(source))
    assert summed(rows, coefficients, source, target) == expected(
        rows, coefficients, source, target
    )


@given(st.lists(st.lists(st.floats(-1e290, 1e290), min_size=3, max_size=3), min_size=1, max_size=9))
@settings(max_examples=50, deadline=None)
def test_distilled_sums_have_every_leading_bit_right(rows: list[list[float]]) -> None:
    sums = distill(torch.tensor(rows, dtype=torch.float64)).tolist()
    for got, column in zip(sums, zip(*rows, strict=True), strict=True):
        right = sum(map(Fraction, column), Fraction(0))
        assert abs(Fraction(got) - right) <= abs(right) * Fraction(2) ** -46 or (
            abs(Fraction(got) - right) <= Fraction(2) ** -1074
        )
        assert (got > 0) == (right > 0)
        assert (got < 0) == (right < 0)


@pytest.mark.parametrize("dtype", ["F64", "F32", "BF16", "F16", "F8_E4M3"])
@pytest.mark.parametrize(
    "coefficients",
    [
        [Fraction(1, 2)] * 2,
        [Fraction(1, 3)] * 3,
        [Fraction(1, 7)] * 7,
        [Fraction(k, 36_000) for k in range(1000, 9000, 1000)],
        [Fraction(1, 1 << 27 | 1), Fraction(5, 3)],
        [0.1, 0.2, 0.3, 0.4],
        [Fraction(-1, 3), Fraction(4, 3)],
    ],
)
def test_quick_stages_agree_with_exact_signs(
    dtype: str, coefficients: Sequence[Fraction | float]
) -> None:
    form = FLOATS[dtype]
    generator = torch.Generator().manual_seed(len(coefficients))
    common = torch.randn(3000, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(coefficients), 3000, generator=generator, dtype=torch.float64)
    values = (common + noise * 0.05).to(form.torch).double()
    exact = Coefficients.of(coefficients)
    right, settled = nearest_columns(values, exact, form)
    assert settled.all()
    rows = [row.to(torch.float32 if form.bytes == 1 else form.torch) for row in values]
    out = torch.empty(3000, dtype=form.torch)
    extents = [SPACE.extent(row) for row in rows]
    LinearSum(exact, [form] * len(rows), form).compute(rows, extents, out, SPACE)
    assert torch.equal(out.double(), right)


@pytest.mark.parametrize("dtype", ["F64", "F32", "BF16", "F16"])
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_magnitudes_are_measured(dtype: str, data: st.DataObject) -> None:
    oracle = ORACLES[dtype]
    row = data.draw(st.lists(codes(oracle), min_size=1, max_size=9))
    low, peak = SPACE.extent(view(bytearray(oracle.pack(row)), FLOATS[dtype].torch))
    sizes = [abs(oracle.value(code)) for code in row]
    assert Fraction(peak) == max(sizes)
    if any(sizes):
        assert Fraction(low) == min(size for size in sizes if size)
    else:
        assert low == math.inf
    odd = torch.tensor([1.0, data.draw(st.sampled_from([math.nan, math.inf, -math.inf])), 0.0])
    assert not math.isfinite(SPACE.extent(odd.to(FLOATS[dtype].torch)).peak)


@pytest.mark.parametrize("dtype", ["F64", "F32", "BF16"])
def test_what_cancels_is_zero_and_zeros_keep_their_sign(dtype: str) -> None:
    oracle = ORACLES[dtype]
    one, minus = oracle.code(Fraction(1)), oracle.code(Fraction(-1))
    third, zero = oracle.code(Fraction(1, 3)), 0
    negative = 1 << (oracle.bits - 1)
    rows = [
        [one, third, zero, negative, negative, one],
        [minus, third | negative, zero, negative, zero, 1],
        [zero, negative, zero, negative, negative, minus],
    ]
    for coefficients in ([Fraction(1, 3)] * 3, [Fraction(1, 4)] * 3, [0.1] * 3):
        got = summed(rows, coefficients, dtype, dtype)
        assert got == expected(rows, coefficients, dtype, dtype)
        assert got[:5] == [zero, zero, zero, negative, zero]

"""From float64, and from rational numbers, to every floating dtype, rounded once."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p.merge.dtypes import FLOATS
from sbp2p.merge.rounding import nearest, store
from tests.merge.merge_oracle import ORACLES, Oracle


def stored(values: list[float], dtype: str) -> list[int]:
    out = torch.empty(len(values), dtype=FLOATS[dtype].torch)
    store(torch.tensor(values, dtype=torch.float64), FLOATS[dtype], out)
    return ORACLES[dtype].unpack(bytes(out.view(torch.uint8).tolist()))


def right(value: float, oracle: Oracle) -> int:
    return oracle.code(Fraction(value), negative_zero=str(value)[0] == "-")


@pytest.mark.parametrize("dtype", FLOATS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_float64_is_rounded_once(dtype: str, data: st.DataObject) -> None:
    oracle = ORACLES[dtype]
    code = data.draw(st.integers(0, oracle.largest))
    low = float(oracle.magnitude(code))
    half = float((oracle.magnitude(code + 1) - oracle.magnitude(code)) / 2)
    values = [low, low + half, -low, -(low + half)]
    values += [low + half * (1 + 2.0**-e) for e in (20, 28, 45)]
    values += [-low - half * (1 - 2.0**-e) for e in (20, 28, 45)]
    values += data.draw(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5))
    values = [each for each in values if abs(each) < float("inf")]
    assert stored(values, dtype) == [right(each, oracle) for each in values]


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F8_E4M3", "F8_E5M2"])
def test_every_number_and_every_midpoint(dtype: str) -> None:
    oracle = ORACLES[dtype]
    step = 1 if oracle.bits == 8 else 101
    codes = range(0, oracle.largest, step)
    values = [float(oracle.magnitude(code)) for code in codes]
    middles = [float(oracle.magnitude(code) + oracle.magnitude(code + 1)) / 2 for code in codes]
    assert stored(values, dtype) == list(codes)
    assert stored(middles, dtype) == [code + code % 2 for code in codes]


def test_torch_rounds_twice_where_this_does_not() -> None:
    value = 1 + 2.0**-8 + 2.0**-40
    assert torch.tensor(value, dtype=torch.float64).to(torch.bfloat16).item() == 1
    assert stored([value], "BF16") == stored([1 + 2.0**-7], "BF16")


def test_what_is_too_large_is_infinite_or_the_largest() -> None:
    for dtype, each in FLOATS.items():
        oracle = ORACLES[dtype]
        top = each.largest if oracle.infinity is None else oracle.infinity
        if dtype == "F64":
            continue
        codes = stored([1e300, each.largest, -1e300], dtype)
        assert codes[0] == (oracle.largest if oracle.infinity is None else top)
        assert codes[1] == oracle.largest
        assert codes[2] == codes[0] | (1 << (oracle.bits - 1))


@pytest.mark.parametrize("dtype", FLOATS)
@given(st.fractions(), st.integers(-1100, 1000))
@settings(max_examples=15, deadline=None)
def test_rational_numbers_are_rounded_once(dtype: str, value: Fraction, power: int) -> None:
    oracle = ORACLES[dtype]
    value *= Fraction(2) ** power
    got = nearest(value, FLOATS[dtype])
    if abs(got) < float("inf") and abs(got) <= FLOATS[dtype].largest:
        code = oracle.code(Fraction(got), negative_zero=got == 0 and value < 0)
    else:
        code = oracle.code(Fraction(2) ** 2000 * (1 if got > 0 else -1))
    assert code == oracle.code(value)

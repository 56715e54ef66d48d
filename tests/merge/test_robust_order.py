"""Sorted columns, means to one rounding, and distances with the same bits everywhere."""

from __future__ import annotations

from fractions import Fraction
from math import inf
from random import Random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbp2p.merge.robust.geometry import inner_products, squared_distances
from sbp2p.merge.robust.means import mean_rows
from sbp2p.merge.robust.order import median_of, network, selection, sort_rows
from tests.merge.robust_reference import ListGroup, exact, mean

_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
few = settings(max_examples=60)


def rows_of(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("count", [*range(1, 18), 31, 64])
def test_the_network_sorts(count: int) -> None:
    """By the zero-one principle all columns of 0 and 1 would do; up to 10 rows these are all."""
    if count <= 10:
        columns = torch.tensor(list(range(2**count)))
        values = ((columns >> torch.arange(count)[:, None]) & 1).double()
    else:
        values = torch.randn(count, 500, dtype=torch.float64)
    wanted = values.sort(dim=0).values
    assert torch.equal(torch.stack(sort_rows(values.unbind(0))), wanted)
    middle = sort_rows(values.unbind(0), count // 4, count - count // 4)
    assert torch.equal(torch.stack(middle), wanted[count // 4 : count - count // 4])


def test_a_median_needs_a_part_of_the_network() -> None:
    full = 2 * len(network(9))
    part = sum(lesser + greater for _, _, lesser, greater in selection(9, 4, 5))
    assert (full, part) == (56, 40)


@few
@given(st.lists(_FLOATS, min_size=1, max_size=9))
@example([1e308, 1.7e308, 1.6e308])
@example([1.7e308, -1.7e308, 1.0])
@example([1.0, 1e100, 1.0, -1e100])
@example([5e-324, 5e-324, 0.0])
@example([1.7976931348623157e308])
def test_a_mean_is_right_to_one_rounding(values: list[float]) -> None:
    found = float(mean_rows([torch.tensor([each], dtype=torch.float64) for each in values])[0])
    wanted = mean(exact(values))
    ulp = abs(wanted) / 2**52 + Fraction(1, 2**1074)
    # what is lost of the errors is a 2^-104th of the sum of the magnitudes
    slack = mean([abs(each) for each in exact(values)]) / 2**100
    assert abs(Fraction(found) - wanted) <= ulp + slack
    assert min(values) <= found <= max(values)


@few
@given(_FLOATS, st.integers(1, 9))
@example(-0.0, 3)
def test_the_mean_of_the_same_is_the_same(value: float, count: int) -> None:
    row = torch.tensor([value], dtype=torch.float64)
    assert mean_rows([row] * count).view(torch.int64).equal(row.view(torch.int64))


def test_zeros_have_one_sign_whatever_their_order() -> None:
    values = rows_of([0.0, -0.0, -0.0], [-0.0, 0.0, -0.0], [-0.0, -0.0, -0.0])
    assert not median_of(values.unbind(0)).signbit().any()


@pytest.mark.parametrize("threads", [1, 2])
def test_distances_have_the_same_bits_for_any_number_of_threads(threads: int) -> None:
    """The numbers are those of another machine, too: no addition's order is left to torch."""
    random = Random(4).random  # noqa: S311
    models = [[random() for _ in range(40_000)] for _ in range(5)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = squared_distances(ListGroup(models))
        products = inner_products(ListGroup(models), centre="median")
    finally:
        torch.set_num_threads(before)
    assert found[1][3] == float.fromhex("0x1.a1c19bc649c9ap+12")
    assert products[1][3] == float.fromhex("-0x1.30a27588e5900p+8")


def test_distances_above_the_range_are_infinite_and_nothing_else_is() -> None:
    found = squared_distances(ListGroup([[0.0, 1.0], [1.0, 1.0], [1e200, -1e308]]))
    assert found == [[0.0, 1.0, inf], [1.0, 0.0, inf], [inf, inf, 0.0]]

"""Every robust method against its definition in exact rationals, ties and near ties included."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt
from statistics import median
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from sbp2p.merge.method import get
from sbp2p.merge.robust.geometry import inner_products, squared_distances
from tests.merge import robust_reference as reference
from tests.merge.robust_reference import ListGroup, coefficients, exact, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.merge.robust_reference import Exact, Model

_FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
few = settings(max_examples=40)
_WHOLE = st.integers(-3, 3).map(float)


def models(numbers: st.SearchStrategy[float], least: int = 1) -> st.SearchStrategy[list[Model]]:
    """Return lists of up to nine models of up to four weights."""
    return st.integers(1, 4).flatmap(
        lambda size: st.lists(
            st.lists(numbers, min_size=size, max_size=size), min_size=least, max_size=9
        )
    )


def close(got: Sequence[Fraction], wanted: Sequence[Fraction]) -> bool:
    """Return whether values agree to two roundings of float64."""
    return all(
        abs(a - b) <= abs(b) / 2**52 + Fraction(1, 2**1074)
        for a, b in zip(got, wanted, strict=True)
    )


_COORDINATEWISE: dict[str, Callable[[Sequence[Fraction], int], Fraction]] = {
    "trimmed-mean": reference.trimmed,
    "mean-around-median": reference.around_median,
    "phocas": reference.phocas,
}


@few
@given(models(_FLOATS | _WHOLE))
@example([[-0.0], [0.0], [1e-45]])
def test_median_is_the_one_in_the_middle(rows: list[Model]) -> None:
    wanted = [median(column) for column in zip(*map(exact, rows), strict=True)]
    assert close(merged(get("median"), rows), wanted)


@pytest.mark.parametrize("name", ["trimmed-mean"])
@few
@given(rows=models(_FLOATS | _WHOLE), data=st.data())
def test_a_coordinatewise_mean_is_its_definition(
    name: str, rows: list[Model], data: st.DataObject
) -> None:
    f = data.draw(st.integers(0, (len(rows) - 1) // 2))
    wanted = [_COORDINATEWISE[name](column, f) for column in zip(*map(exact, rows), strict=True)]
    assert close(merged(get(name, f=f), rows), wanted)


@pytest.mark.parametrize("name", ["mean-around-median", "phocas"])
@few
@given(rows=models(_WHOLE), data=st.data())
def test_what_is_near_is_its_definition_even_where_two_are_as_near(
    name: str, rows: list[Model], data: st.DataObject
) -> None:
    f = data.draw(st.integers(0, (len(rows) - 1) // 2))
    columns = list(zip(*map(exact, rows), strict=True))
    if name == "phocas":  # a centre with a rounding error decides ties of exact rationals by it
        assume(all(reference.trimmed(c, f) * 64 % 1 == 0 for c in columns))
    wanted = [_COORDINATEWISE[name](column, f) for column in columns]
    assert close(merged(get(name, f=f), rows), wanted)


@few
@given(models(_FLOATS, least=2), st.integers(1, 5))
def test_squared_distances_are_right_to_the_last_digits(rows: list[Model], piece: int) -> None:
    found = squared_distances(ListGroup(rows, piece=piece))
    for i, a in enumerate(map(exact, rows)):
        for j, b in enumerate(map(exact, rows)):
            wanted = reference.squared(a, b)
            assert abs(Fraction(found[i][j]) - wanted) <= wanted / 2**48
            assert found[i][j] == found[j][i]


@few
@given(models(_FLOATS, least=2), st.integers(1, 5))
def test_inner_products_are_right_for_the_norms(rows: list[Model], piece: int) -> None:
    base = [1.0] * len(rows[0])
    found = inner_products(ListGroup(rows, base, piece), centre="base")
    moves = [[x - 1 for x in exact(row)] for row in rows]
    norms = [sqrt(sum(x * x for x in move)) for move in moves]
    for i, a in enumerate(moves):
        for j, b in enumerate(moves):
            wanted = sum((x * y for x, y in zip(a, b, strict=True)), Fraction())
            assert abs(Fraction(found[i][j]) - wanted) <= Fraction(norms[i] * norms[j]) / 2**48


@few
@given(models(_WHOLE, least=3), st.data())
def test_krum_selects_by_exact_scores_and_ties_by_key(
    rows: list[Model], data: st.DataObject
) -> None:
    f = data.draw(st.integers(0, (len(rows) - 3) // 2))
    m = data.draw(st.integers(1, len(rows) - f))
    order = reference.krum_order([exact(row) for row in rows], f)
    found = coefficients(get("multi-krum", f=f, m=m), ListGroup(rows))
    assert found == [Fraction(1, m) if i in order[:m] else 0 for i in range(len(rows))]
    assert coefficients(get("krum", f=f), ListGroup(rows))[order[0]] == 1


@few
@given(models(_FLOATS, least=3), st.floats(-1e6, 1e6, width=32), st.data())
def test_krum_selects_by_exact_scores_however_close_the_models_are(
    rows: list[Model], far: float, data: st.DataObject
) -> None:
    """Models a few last digits apart and far from zero, where |x|^2 + |y|^2 - 2xy is noise."""
    f = data.draw(st.integers(0, (len(rows) - 3) // 2))
    near = [[far + value * 2.0**-160 for value in row] for row in rows]
    for each in (rows, near):
        scores = reference.krum_scores([exact(row) for row in each], f)
        assume(all(a == b or abs(a - b) > a / 2**44 for a in scores for b in scores))
        best = min(range(len(each)), key=lambda index: (scores[index], index))
        assert coefficients(get("krum", f=f), ListGroup(each))[best] == 1


@few
@given(models(_WHOLE, least=3), st.data())
def test_bulyan_is_krum_again_and_again_then_a_mean_around_the_median(
    rows: list[Model], data: st.DataObject
) -> None:
    f = data.draw(st.integers(0, (len(rows) - 3) // 4))
    wanted = reference.bulyan([exact(row) for row in rows], f)
    assert close(merged(get("bulyan", f=f), rows), wanted)


@few
@given(models(_WHOLE), st.data())
def test_faba_drops_the_farthest_from_the_mean(rows: list[Model], data: st.DataObject) -> None:
    f = data.draw(st.integers(0, (len(rows) - 1) // 2))
    kept = reference.faba([exact(row) for row in rows], f)
    found = coefficients(get("faba", f=f), ListGroup(rows))
    assert [index for index, each in enumerate(found) if each] == kept


@few
@given(models(_WHOLE), st.data())
def test_minimum_diameter_is_minimal(rows: list[Model], data: st.DataObject) -> None:
    f = data.draw(st.integers(0, (len(rows) - 1) // 2))
    found = coefficients(get("minimum-diameter", f=f), ListGroup(rows))
    chosen = [exact(row) for row, each in zip(rows, found, strict=True) if each]
    assert len(chosen) == len(rows) - f
    assert reference.minimum_diameter(chosen, 0) == reference.minimum_diameter(
        [exact(row) for row in rows], f
    )


@few
@given(models(_WHOLE), st.data())
def test_comparative_elimination_keeps_the_nearest_to_the_base(
    rows: list[Model], data: st.DataObject
) -> None:
    f = data.draw(st.integers(0, (len(rows) - 1) // 2))
    base = [1.0] * len(rows[0])
    order = sorted(
        range(len(rows)), key=lambda i: (reference.squared(exact(rows[i]), exact(base)), i)
    )
    found = coefficients(get("comparative-elimination", f=f), ListGroup(rows, base))
    keep = len(rows) - f
    assert found == [Fraction(1, keep) if i in order[:keep] else 0 for i in range(len(rows))]


_MODERATE = st.floats(-100, 100, width=32, allow_subnormal=False)


@few
@given(models(_MODERATE, least=3))
@example([[0.0, 0.0], [0.0, 0.0], [2.0, 0.0], [10.0, 1.0]])  # the optimum is two of the models
@example([[0.0, 0.0], [0.0, 1.0], [12.0, 0.0], [13.0, 0.0]])  # the optimum is between two, on one
@example([[0.0, 0.0, 0.0], [0.0, 0.0, -13.0], [0.0, 42.0, 17.0]])  # the optimum is beside one
def test_the_geometric_median_has_no_better_point(rows: list[Model]) -> None:
    found = coefficients(get("geometric-median"), ListGroup(rows))
    assert sum(found) == 1
    assert min(found) >= 0
    point = merged(get("geometric-median"), rows)
    before = [exact(row) for row in rows]
    centre = [median(column) for column in zip(*before, strict=True)]

    def total(at: Exact) -> float:
        return sum(sqrt(reference.squared(row, at)) for row in before)

    best = total(point)
    steps = [[p + (x - p) / 1024 for p, x in zip(point, row, strict=True)] for row in before]
    for other in [*before, *steps, centre, reference.mean_of(before)]:
        assert best <= total(other) * (1 + 1e-5)


@few
@given(models(_MODERATE), st.integers(1, 4), st.sampled_from(["auto", 0.5, 7, 1e9]))
def test_clipping_is_its_definition(rows: list[Model], steps: int, tau: float | str) -> None:
    base = [0.5] * len(rows[0])
    radius = None if tau == "auto" else Fraction(tau)
    wanted = reference.clipped([exact(row) for row in rows], exact(base), radius, steps)
    found = merged(get("centered-clipping", tau=tau, iterations=steps), rows, base)
    size = max(abs(x) for row in rows for x in row) + 1
    # a square root of a difference that cancels has half the digits
    assert all(abs(float(a) - float(b)) <= 1e-6 * size for a, b in zip(found, wanted, strict=True))
    if tau == 1e9:
        assert found == reference.mean_of([exact(row) for row in rows])
    if steps == 1:
        assert found == merged(get("norm-clipped-mean", tau=tau), rows, base)


@few
@given(models(_WHOLE, least=3), st.data())
def test_mixing_is_means_of_neighbours_and_then_the_method(
    rows: list[Model], data: st.DataObject
) -> None:
    f = data.draw(st.integers(0, (len(rows) - 3) // 2))
    before = [exact(row) for row in rows]
    mixed = []
    for i, row in enumerate(before):
        order = sorted(
            range(len(rows)), key=lambda j: (reference.squared(row, before[j]), j != i, j)
        )
        mixed.append(reference.mean_of([before[j] for j in order[: len(rows) - f]]))
    found = merged(get("nearest-neighbour-mixing", of="trimmed-mean", f=f), rows)
    wanted = [reference.trimmed(column, f) for column in zip(*mixed, strict=True)]
    assert all(abs(a - b) < Fraction(1, 2**48) for a, b in zip(found, wanted, strict=True))
    assert merged(get("nearest-neighbour-mixing", of="mean", f=f), rows) == reference.mean_of(mixed)
    picked = merged(get("nearest-neighbour-mixing", of="krum", f=f), rows)
    scores = reference.krum_scores(mixed, f)  # of exact means; the code's are rounded
    assert scores[mixed.index(picked)] <= min(scores) + Fraction(1, 2**40)


@few
@given(models(_WHOLE), st.integers(1, 4))
def test_every_input_is_in_one_bucket(rows: list[Model], size: int) -> None:
    found = merged(get("bucketing", of="mean", s=size), rows)
    if len(rows) % size == 0:
        assert found == reference.mean_of([exact(row) for row in rows])
    found = coefficients(get("bucketing", of="mean", s=size), ListGroup(rows))
    assert sum(found) == 1
    assert min(found) > 0

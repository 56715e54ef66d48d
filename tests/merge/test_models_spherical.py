"""SLERP, its like and model stock against the formulas, and what they promise."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p.errors import MergeError
from sbp2p.merge.method import LinearMethod, get
from sbp2p.merge.models.spherical import karcher_mean
from tests.merge.model_samples import ListGroup, fine_tunes, noise, run


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    return math.acos(float(a @ b / (a.norm() * b.norm())))


def factors(name: str, group: ListGroup, **options: object) -> list[Fraction | float]:
    method = get(name, **options)
    assert isinstance(method, LinearMethod)
    return list(method.coefficients(group))


@pytest.mark.parametrize("weights", [[1, 1], [1, 3], [9, 1]])
def test_slerp(weights: list[int]) -> None:
    a, b = noise(1, 50), noise(2, 50) * 2
    share = weights[1] / sum(weights)
    theta = angle(a, b)
    expected = a * math.sin((1 - share) * theta) + b * math.sin(share * theta)
    got = run(get("slerp"), ListGroup([a, b], weights=weights))
    torch.testing.assert_close(got, expected / math.sin(theta), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["slerp", "multi-slerp", "karcher"])
def test_the_middle_of_two_directions_has_half_the_angle_to_each(name: str) -> None:
    a, b = noise(1, 50), noise(2, 50)
    b *= a.norm() / b.norm()
    got = run(get(name), ListGroup([a, b]))
    assert math.isclose(angle(a, got), angle(a, b) / 2, rel_tol=1e-12)
    assert math.isclose(float(got.norm()), float(a.norm()), rel_tol=1e-12)


@settings(max_examples=25)
@given(st.floats(-0.99, 0.9999), st.integers(1, 9), st.integers(1, 9))
def test_multi_slerp_of_two_is_slerp(cos: float, left: int, right: int) -> None:
    a = torch.tensor([2.0, 0.0], dtype=torch.float64)
    b = torch.tensor([3 * cos, 3 * math.sqrt(1 - cos * cos)], dtype=torch.float64)
    group = ListGroup([a, b], weights=[left, right])
    pair = factors("slerp", group)
    assert factors("multi-slerp", group) == pytest.approx(pair, rel=1e-9)


@pytest.mark.parametrize("weights", [[1, 1, 1, 1], [1, 2, 3, 4]])
def test_the_karcher_mean_is_where_no_arc_pulls(weights: list[int]) -> None:
    common = noise(9, 30)
    inputs = [common + noise(index, 30) for index in range(4)]
    group = ListGroup(inputs, weights=weights)
    merged = run(get("karcher"), group)
    lengths = sum(float(w) * float(x.norm()) for w, x in zip(group.weights, inputs, strict=True))
    assert math.isclose(float(merged.norm()), lengths, rel_tol=1e-12)
    mean = merged / merged.norm()
    pull = torch.zeros_like(mean)
    for weight, each in zip(group.weights, inputs, strict=True):
        unit = each / each.norm()
        arc = angle(unit, mean)
        pull += float(weight) * arc / math.sin(arc) * (unit - math.cos(arc) * mean)
    assert float(pull.norm()) < 1e-13


@pytest.mark.parametrize("name", ["slerp", "multi-slerp", "karcher"])
def test_where_there_is_no_arc_the_result_is_the_weighted_mean(name: str) -> None:
    a, zero = noise(1, 20), torch.zeros(20)
    for pair in ([a, a], [a, a * 4], [a, zero], [zero, zero], [a, -a], [a, a * (1 + 1e-12)]):
        group = ListGroup(pair, weights=[1, 2])
        assert factors(name, group) == [Fraction(1, 3), Fraction(2, 3)]


def test_a_straight_arc_is_as_good_as_the_mean() -> None:
    a, side = noise(1, 50), noise(2, 50)
    side -= a * (a @ side) / (a @ a)
    for tilt in (1e-3, 1e-4, 3e-5):  # cosines of 1 - 5e-7 to 1 - 5e-10
        b = a + tilt * side
        group = ListGroup([a, b], weights=[1, 2])
        mean = (a + 2 * b) / 3
        assert factors("slerp", group) != list(group.weights)
        error = float((run(get("slerp"), group) - mean).norm() / mean.norm())
        assert error < angle(a, b) ** 2


def test_others_threshold_is_an_option() -> None:
    a = noise(1, 50)
    group = ListGroup([a, a + 0.01 * noise(2, 50)])
    assert factors("slerp", group, parallel=0.9995) == [Fraction(1, 2)] * 2


@pytest.mark.parametrize("name", ["slerp", "multi-slerp", "karcher"])
def test_around_the_base(name: str) -> None:
    base, inputs = fine_tunes(2, 80)
    group = ListGroup(inputs, base, [1, 2])
    found = factors(name, group, origin="base")
    assert sum(Fraction(each) for each in found) == 1
    moved = ListGroup([each - base for each in inputs], weights=[1, 2])
    assert found[:2] == pytest.approx(factors(name, moved), rel=1e-12)


def test_slerp_takes_two() -> None:
    with pytest.raises(MergeError, match="two models, not 3"):
        factors("slerp", ListGroup([noise(1, 4)] * 3))
    with pytest.raises(MergeError, match="origin is 'sun'"):
        get("slerp", origin="sun")


def test_directions_that_cancel_have_no_mean() -> None:
    turn = -0.5  # three directions, 120 degrees apart
    cosines = [[1.0 if i == j else turn for j in range(3)] for i in range(3)]
    assert karcher_mean([1 / 3] * 3, cosines) is None


# ---- model stock


def test_model_stock() -> None:
    base, inputs = fine_tunes(4, 300)
    deltas = [each - base for each in inputs]
    cos = sum(math.cos(angle(a, b)) for a, b in combinations(deltas, 2)) / 6
    ratio = 4 * cos / (1 + 3 * cos)
    expected = base + ratio * sum(deltas, torch.zeros_like(base)) / 4
    got = run(get("model-stock"), ListGroup(inputs, base))
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-14)


def test_model_stock_of_the_same_is_the_same_and_of_the_unrelated_the_base() -> None:
    base, (model,) = fine_tunes(1, 30)
    thirds = [Fraction(1, 3)] * 3
    assert factors("model-stock", ListGroup([model] * 3, base)) == [*thirds, 0]
    across = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])]
    assert factors("model-stock", ListGroup(across, torch.zeros(2))) == [0, 0, 1]


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6, 1e-30])
def test_model_stock_sees_angles_however_small_the_steps(size: float) -> None:
    steps = [torch.tensor([size, 0.0], dtype=torch.float64), torch.tensor([size, size])]
    ratio = 2 * math.sqrt(0.5) / (1 + math.sqrt(0.5))
    found = factors("model-stock", ListGroup(steps, torch.zeros(2)))
    assert found == pytest.approx([ratio / 2, ratio / 2, 1 - ratio], rel=1e-6)


@pytest.mark.parametrize("cos", [-0.1, -0.5, -1.0])
def test_model_stock_never_steps_away_from_its_inputs(cos: float) -> None:
    a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    b = torch.tensor([cos, math.sqrt(1 - cos * cos)], dtype=torch.float64)
    assert factors("model-stock", ListGroup([a, b], torch.zeros(2))) == [0, 0, 1]


def test_model_stock_counts_an_input_that_did_not_move_as_unrelated() -> None:
    base, inputs = fine_tunes(2, 30)
    found = factors("model-stock", ListGroup([*inputs, base], base))
    cos = math.cos(angle(inputs[0] - base, inputs[1] - base)) / 3
    ratio = 3 * cos / (1 + 2 * cos)
    assert found == pytest.approx([ratio / 3] * 3 + [1 - ratio], rel=1e-12)
    assert factors("model-stock", ListGroup([base, base], base)) == [0, 0, 1]

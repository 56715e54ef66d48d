"""Robust methods hold against f hostile inputs, and say so when there are too few honest ones."""

from __future__ import annotations

from fractions import Fraction
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbp2p.errors import MergeError
from sbp2p.merge.method import get
from tests.merge.robust_attacks import ATTACKS, CARRIES_THE_MEAN_AWAY
from tests.merge.robust_reference import (
    Exact,
    ListGroup,
    Model,
    coefficients,
    exact,
    mean_of,
    merged,
    squared,
)

HOSTILE = 3
HONEST = 12

METHODS: dict[str, dict[str, object]] = {
    "median": {},
    "trimmed-mean": {"f": HOSTILE},
    "mean-around-median": {"f": HOSTILE},
    "phocas": {"f": HOSTILE},
    "krum": {"f": HOSTILE},
    "multi-krum": {"f": HOSTILE},
    "bulyan": {"f": HOSTILE},
    "geometric-median": {},
    "centered-clipping": {},
    "norm-clipped-mean": {},
    "minimum-diameter": {"f": HOSTILE},
    "faba": {"f": HOSTILE},
    "comparative-elimination": {"f": HOSTILE},
    "nearest-neighbour-mixing": {"of": "krum", "f": HOSTILE},
    "bucketing": {"of": "median"},
}


def scene() -> tuple[np.ndarray, np.ndarray]:
    """Return honest models a step from a base, and the base: 12 models of 60 weights."""
    rng = np.random.default_rng(11)
    base = rng.normal(size=60)
    step = rng.normal(size=60)
    return base + step + 0.2 * rng.normal(size=(HONEST, 60)), base


def away(point: Exact, honest: list[Model]) -> float:
    """Return how far a point is from the honest mean, in radii of the honest models."""
    models = [exact(model) for model in honest]
    centre = mean_of(models)
    radius = max(squared(model, centre) for model in models)
    ratio = squared(point, centre) / radius
    return sqrt(ratio) if ratio < 2**1000 else inf


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", METHODS)
def test_the_result_stays_with_the_honest_models(name: str, attack: str) -> None:
    honest, base = scene()
    models = [*ATTACKS[attack](honest, base, HOSTILE).tolist(), *honest.tolist()]
    found = merged(get(name, **METHODS[name]), models, base.tolist())
    assert away(found, honest.tolist()) < 2


@pytest.mark.parametrize("attack", CARRIES_THE_MEAN_AWAY)
def test_the_mean_does_not(attack: str) -> None:
    honest, base = scene()
    models = [*honest.tolist(), *ATTACKS[attack](honest, base, HOSTILE).tolist()]
    assert away(merged(get("mean"), models), honest.tolist()) > 1


@pytest.mark.parametrize("name", sorted({*METHODS} - {"norm-clipped-mean", "centered-clipping"}))
def test_without_hostile_inputs_nothing_is_far_either(name: str) -> None:
    honest, base = scene()
    options = METHODS[name] if name != "bulyan" else {"f": 2}  # 15 inputs, for 3
    found = merged(get(name, **options), honest.tolist(), base.tolist())
    assert away(found, honest.tolist()) < 1


# -- for any hostile values at all: the bounds that can be proven

_HONEST = st.floats(-8, 8, width=32)
_HOSTILE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-16, 16, width=32),
    st.sampled_from([1.7e308, -1.7e308, 1e200, -1e30, 0.0]),
)
few = settings(max_examples=40)


@st.composite
def crowds(draw: st.DrawFn, inputs: int, f: int) -> tuple[list[Model], list[Model], list[Model]]:
    """Return honest models of two weights, hostile ones, and all of them in some order."""
    honest = draw(
        st.lists(
            st.lists(_HONEST, min_size=2, max_size=2), min_size=inputs - f, max_size=inputs - f
        )
    )
    hostile = draw(st.lists(st.lists(_HOSTILE, min_size=2, max_size=2), min_size=f, max_size=f))
    return honest, hostile, draw(st.permutations([*honest, *hostile]))


def columns(models: list[Model]) -> list[tuple[float, ...]]:
    """Return the values of each weight."""
    return list(zip(*models, strict=True))


def radius_of(honest: list[Model]) -> tuple[Exact, float]:
    """Return the honest mean, and the distance of the farthest honest model from it."""
    models = [exact(model) for model in honest]
    centre = mean_of(models)
    return centre, sqrt(max(squared(model, centre) for model in models))


@pytest.mark.parametrize(("name", "options"), [("median", {}), ("trimmed-mean", {"f": 3})])
@few
@given(crowd=crowds(7, 3))
def test_coordinatewise_results_lie_between_honest_values(
    name: str, options: dict[str, object], crowd: tuple[list[Model], list[Model], list[Model]]
) -> None:
    honest, _, models = crowd
    for value, column in zip(merged(get(name, **options), models), columns(honest), strict=True):
        assert min(column) <= value <= max(column)


@pytest.mark.parametrize("name", ["mean-around-median", "phocas"])
@few
@given(crowd=crowds(7, 3))
def test_means_of_near_values_lie_within_twice_the_honest_spread(
    name: str, crowd: tuple[list[Model], list[Model], list[Model]]
) -> None:
    honest, _, models = crowd
    for value, column in zip(merged(get(name, f=3), models), columns(honest), strict=True):
        low, high = Fraction(min(column)), Fraction(max(column))
        spread = high - low
        assert low - spread <= value <= high + spread


@few
@given(crowd=crowds(9, 3))
def test_krum_is_near_some_honest_model(
    crowd: tuple[list[Model], list[Model], list[Model]],
) -> None:
    """A selected model has an honest one among its n - f - 2 neighbours, and a score as good."""
    honest, _, models = crowd
    point = merged(get("krum", f=3), models)
    rows = [exact(model) for model in honest]
    diameter = max(squared(a, b) for a in rows for b in rows)
    nearest = min(squared(point, row) for row in rows)
    assert nearest <= (9 - 3 - 2) * diameter * Fraction(1 + 2**-40)


@few
@given(crowd=crowds(7, 3))
@example(([[0.0, 0.0]] * 4, [], [[0.0, 0.0]] * 5 + [[0.0, 1.0], [0.0, 2000001.0]]))
def test_the_geometric_median_is_within_its_bound(
    crowd: tuple[list[Model], list[Model], list[Model]],
) -> None:
    """Minsker 2015, lemma 2.1: 2(n - f)/(n - 2f) radii, here 8."""
    honest, _, models = crowd
    centre, radius = radius_of(honest)
    found = merged(get("geometric-median"), models)
    assert sqrt(squared(found, centre)) <= 8.001 * radius + 1e-9


@few
@given(crowd=crowds(7, 3))
def test_minimum_diameter_is_within_its_bound(
    crowd: tuple[list[Model], list[Model], list[Model]],
) -> None:
    """What is kept has an honest model in it, and no greater diameter than the honest ones."""
    honest, _, models = crowd
    centre, radius = radius_of(honest)
    found = merged(get("minimum-diameter", f=3), models)
    assert sqrt(squared(found, centre)) <= 3.001 * radius


@few
@given(crowd=crowds(7, 3))
def test_faba_is_within_its_bound(crowd: tuple[list[Model], list[Model], list[Model]]) -> None:
    """An honest model only goes while every hostile one is within n/(n - 2f) radii, here 7."""
    honest, _, models = crowd
    centre, radius = radius_of(honest)
    found = merged(get("faba", f=3), models)
    assert sqrt(squared(found, centre)) <= 7.001 * radius


@pytest.mark.parametrize(
    ("name", "steps", "bound"),
    [
        ("norm-clipped-mean", {}, 1),
        ("centered-clipping", {"iterations": 3}, 7),
        ("comparative-elimination", {"f": 3}, 1),
    ],
)
@few
@given(crowd=crowds(7, 3))
def test_what_starts_from_a_base_stays_near_it(
    name: str,
    steps: dict[str, object],
    bound: int,
    crowd: tuple[list[Model], list[Model], list[Model]],
) -> None:
    """No step is longer than the greatest distance of an honest model from where it begins."""
    honest, _, models = crowd
    base = [0.25, -0.5]
    found = merged(get(name, **steps), models, base)
    reach = sqrt(max(squared(exact(model), exact(base)) for model in honest))
    assert sqrt(squared(found, exact(base))) <= bound * reach * (1 + 1e-9)


@few
@given(crowd=crowds(7, 3), tau=st.floats(0.125, 4))
def test_a_hostile_input_moves_a_clipped_mean_by_its_share_of_tau(
    crowd: tuple[list[Model], list[Model], list[Model]], tau: float
) -> None:
    honest, hostile, _ = crowd
    base = [0.0, 0.0]
    with_all = merged(get("norm-clipped-mean", tau=tau), [*honest, *hostile], base)
    harmless = merged(get("norm-clipped-mean", tau=tau), [*honest, *([base] * 3)], base)
    assert sqrt(squared(with_all, harmless)) <= 3 / 7 * tau * (1 + 1e-9)


# -- too few inputs

_BOUNDS = {
    "trimmed-mean": ("n >= 2f + 1", 7),
    "mean-around-median": ("n >= 2f + 1", 7),
    "phocas": ("n >= 2f + 1", 7),
    "minimum-diameter": ("n >= 2f + 1", 7),
    "faba": ("n >= 2f + 1", 7),
    "comparative-elimination": ("n >= 2f + 1", 7),
    "krum": ("n >= 2f + 3", 9),
    "multi-krum": ("n >= 2f + 3", 9),
    "bulyan": ("n >= 4f + 3", 15),
}


@pytest.mark.parametrize("name", _BOUNDS)
def test_too_few_inputs_are_an_error_that_names_the_bound(name: str) -> None:
    bound, needed = _BOUNDS[name]
    models = [[float(index)] for index in range(needed)]
    assert merged(get(name, f=3), models, [0.0])
    with pytest.raises(MergeError) as caught:
        merged(get(name, f=3), models[1:], [0.0])
    assert f"f = 3 hostile inputs if {bound}: that is {needed} inputs" in str(caught.value)
    assert f"there are {needed - 1}" in str(caught.value)
    assert caught.value.hint


def test_one_hostile_input_too_many_carries_any_method_away() -> None:
    honest, base = scene()
    far = [(1e6 + honest[0]).tolist()] * (HOSTILE + 1)
    models = [*honest.tolist(), *far]
    for name in ("trimmed-mean", "faba", "minimum-diameter", "mean-around-median"):
        few_expected = merged(get(name, f=HOSTILE), models, base.tolist())
        enough = merged(get(name, f=HOSTILE + 1), models, base.tolist())
        assert away(few_expected, honest.tolist()) > 1000, name
        assert away(enough, honest.tolist()) < 1, name


def test_by_default_as_many_hostile_inputs_are_borne_as_can_be() -> None:
    models = [[0.0]] * 6 + [[1.0]] * 5
    for name in ("mean-around-median", "phocas", "minimum-diameter", "faba"):
        assert merged(get(name), models) == [0], name
    assert merged(get("krum"), [[0.0]] * 7 + [[1.0]] * 4) == [0]
    assert merged(get("bulyan"), [[0.0]] * 9 + [[1.0]] * 2) == [0]


def test_a_share_follows_the_number_of_inputs() -> None:
    assert (
        coefficients(get("faba", share=0.25), ListGroup([[0.0]] * 7 + [[9.0]])).count(
            Fraction(1, 6)
        )
        == 6
    )
    assert coefficients(get("faba", share="1/4"), ListGroup([[0.0]] * 3)) == [Fraction(1, 3)] * 3


def test_a_decimal_share_is_the_decimal() -> None:
    """0.29 of 100 is 29, though 0.29 * 100 is 28.999999999999996 in float64."""
    models = [[0.0]] * 71 + [[1000.0]] * 29
    assert merged(get("trimmed-mean", beta=0.29), models) == [0]


def test_a_trimmed_mean_that_trims_nobody_is_an_error() -> None:
    with pytest.raises(
        MergeError, match="leaves nobody out of 4 inputs: it needs n >= 1/beta, which is 5"
    ):
        merged(get("trimmed-mean", beta=0.2), [[0.0]] * 4)
    assert merged(get("trimmed-mean", beta=0), [[0.0], [1.0]]) == [Fraction(1, 2)]


@pytest.mark.parametrize(("count", "trimmed"), [(1, 0), (2, 0), (3, 1), (7, 1), (8, 2), (40, 10)])
def test_a_trimmed_mean_trims_a_quarter_by_default(count: int, trimmed: int) -> None:
    models = [[0.0]] * (count - trimmed) + [[1000.0]] * trimmed
    assert merged(get("trimmed-mean"), models) == [0]


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("krum", {"f": 1}, {"f": "1"}),
        ("multi-krum", {"share": 0.2, "m": 3}, {"share": "1/5", "m": "3"}),
        ("trimmed-mean", {"beta": 0.2}, {"beta": "0.2"}),
        ("geometric-median", {"smoothing": 0.001}, {"smoothing": "1e-3", "weighted": "False"}),
        ("centered-clipping", {"tau": 0.5, "iterations": 2}, {"tau": "0.5", "iterations": "2"}),
        ("bucketing", {"of": "krum", "f": 1, "s": 1}, {"of": "krum", "f": "1", "s": "1"}),
    ],
)
def test_options_may_be_text(
    name: str, options: dict[str, object], text: dict[str, object]
) -> None:
    honest, base = scene()
    models = [*(honest[:5] + 0.5).tolist(), *honest.tolist()]
    numbers = merged(get(name, **options), models, base.tolist())
    assert numbers == merged(get(name, **text), models, base.tolist())


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("krum", {"f": 1, "share": 0.25}, "say the same thing"),
        ("trimmed-mean", {"f": 1, "beta": 0.25}, "f and beta say the same thing"),
        ("krum", {"f": -1}, "at least 0"),
        ("krum", {"f": 1.5}, "whole number"),
        ("krum", {"f": "many"}, "finite number"),
        ("faba", {"share": 0.5}, "not in"),
        ("faba", {"share": float("nan")}, "finite number"),
        ("multi-krum", {"m": 0}, "at least 1"),
        ("geometric-median", {"smoothing": 0}, "not in"),
        ("geometric-median", {"weighted": "perhaps"}, "neither true nor false"),
        ("centered-clipping", {"tau": 0}, "not positive"),
        ("centered-clipping", {"iterations": 21}, "more than 20"),
        ("bucketing", {"s": 0}, "at least 1"),
        ("nearest-neighbour-mixing", {"of": "magic"}, "no merge method is called"),
    ],
)
def test_options_that_mean_nothing_are_errors(
    name: str, options: dict[str, object], says: str
) -> None:
    with pytest.raises(MergeError, match=says):
        get(name, **options)


def test_multi_krum_does_not_take_more_than_the_honest_ones() -> None:
    with pytest.raises(MergeError, match="m <= n - f"):
        merged(get("multi-krum", f=1, m=5), [[0.0]] * 5)


def test_too_many_subsets_are_an_error() -> None:
    with pytest.raises(MergeError, match="145422675 subsets"):
        merged(get("minimum-diameter", f=14), [[0.0]] * 30)


def test_buckets_that_are_too_few_are_an_error_that_says_buckets() -> None:
    with pytest.raises(MergeError, match=r"krum of buckets .* there are 6"):
        merged(get("bucketing", of="krum", f=2), [[0.0]] * 11)


def test_mixing_tells_the_method_that_follows_how_many_are_hostile() -> None:
    honest, base = scene()
    far = (honest[:HOSTILE] + 1e6).tolist()
    for of in ("trimmed-mean", "multi-krum", "bulyan", "faba", "phocas"):
        method = get("nearest-neighbour-mixing", of=of, share=0.2)
        found = merged(method, [*far, *honest.tolist()], base.tolist())
        assert away(found, honest.tolist()) < 1, of


def test_weights_count_only_if_told_to() -> None:
    models, weights = [[0.0], [1.0], [9.0]], (Fraction(1, 10), Fraction(1, 10), Fraction(8, 10))
    group = ListGroup(models, [0.0], weights=weights)
    assert coefficients(get("geometric-median"), group) == [0, 1, 0]
    assert coefficients(get("geometric-median", weighted=True), group) == [0, 0, 1]
    even = coefficients(get("norm-clipped-mean", tau=100), group)
    assert even == [Fraction(1, 3)] * 3 + [0]
    weighted = coefficients(get("norm-clipped-mean", tau=100, weighted="true"), group)
    assert weighted == [*weights, 0]


def test_inputs_that_no_float64_can_tell_apart_are_an_error_not_a_crash() -> None:
    with pytest.raises(MergeError, match="range of float64"):
        merged(get("geometric-median"), [[1e300], [-1e300]])

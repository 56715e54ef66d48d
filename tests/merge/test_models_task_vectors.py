"""TIES, DARE, breadcrumbs and task arithmetic against slow references, and what they promise."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p.errors import MergeError
from sbp2p.merge.method import Place, Scope, get
from sbp2p.merge.models import selection
from sbp2p.merge.models.dare import dropped
from sbp2p.merge.tensors import TensorSpec
from tests.merge.model_samples import ListGroup, fine_tunes, key_of, noise, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAMES = ["task-arithmetic", "ties", "dare", "dare-ties", "breadcrumbs"]


def trim(delta: torch.Tensor, kept: int) -> torch.Tensor:
    """Keep the largest magnitudes, by sorting."""
    smallest = delta.abs().sort(descending=True).values[kept - 1]
    return torch.where(delta.abs() >= smallest, delta, 0.0)


def vote(rows: torch.Tensor, weights: Sequence[float]) -> torch.Tensor:
    """Elect and merge, an element at a time."""
    result = []
    for column in rows.T.tolist():
        mass = sum(w * x for w, x in zip(weights, column, strict=True))
        sign = (mass > 0) - (mass < 0)
        chosen = [(w, x) for w, x in zip(weights, column, strict=True) if x * sign > 0]
        total = sum(w for w, _ in chosen)
        result.append(sum(w * x for w, x in chosen) / total if chosen else 0.0)
    return torch.tensor(result, dtype=torch.float64)


def assert_near(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("weights", [[1, 1, 1], [1, 2, 4]])
@pytest.mark.parametrize("density", ["0.2", "0.5", 1])
def test_ties(weights: list[int], density: str | float) -> None:
    base, inputs = fine_tunes(3, 700)
    kept = int(Fraction(density) * 700)
    rows = torch.stack([trim(each - base, kept) for each in inputs])
    expected = base + 0.5 * vote(rows, weights)
    method = get("ties", density=density, scale=0.5)
    assert_near(run(method, ListGroup(inputs, base, weights, chunk=100)), expected)


def test_ties_over_the_whole_model_is_a_choice() -> None:
    assert get("ties").scope is Scope.TENSOR
    assert get("ties", whole_model=True).scope is Scope.MODEL


def test_ties_without_a_winner_keeps_the_base() -> None:
    base = torch.tensor([5.0, 5.0, 5.0])
    inputs = [torch.tensor([6.0, 7.0, 5.0]), torch.tensor([4.0, 4.0, 5.0])]
    merged = run(get("ties", density=1), ListGroup(inputs, base))
    assert merged.tolist() == [5.0, 7.0, 5.0]


def test_ties_keeps_everything_as_large_as_the_smallest_that_stays() -> None:
    base = torch.zeros(6)
    values = torch.tensor([1.0, -1.0, 1.0, 0.5, 0.25, 2.0])
    merged = run(get("ties", density="1/3"), ListGroup([values], base))
    assert merged.tolist() == [1.0, -1.0, 1.0, 0.0, 0.0, 2.0]


def test_a_density_is_the_number_that_was_written() -> None:
    values = torch.arange(1.0, 101.0)
    merged = run(get("ties", density=0.29), ListGroup([values], torch.zeros(100)))
    assert int((merged != 0).sum()) == 29  # int(0.29 * 100) is 28


@pytest.mark.parametrize(("density", "outliers"), [("0.9", "0.01"), ("0.5", "0.1"), (1, 0)])
def test_breadcrumbs(density: str | float, outliers: str | float) -> None:
    base, inputs = fine_tunes(3, 500)
    kept, above = int(Fraction(density) * 500), int(Fraction(outliers) * 500)
    total = torch.zeros_like(base)
    for each, weight in zip(inputs, [0.5, 0.5, 2.0], strict=True):
        delta = each - base
        order = delta.abs().argsort(descending=True)
        masked = torch.zeros_like(delta)
        masked[order[above : above + kept]] = delta[order[above : above + kept]]
        total += weight * masked
    method = get("breadcrumbs", density=density, outliers=outliers, scale="0.3")
    group = ListGroup(inputs, base, [1, 1, 4], chunk=64)
    assert_near(run(method, group), base + 0.3 * total)


def test_breadcrumbs_leaves_few_outliers_rather_than_a_lower_density() -> None:
    values = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0])
    merged = run(
        get("breadcrumbs", density="0.6", outliers="0.4"), ListGroup([values], torch.zeros(5))
    )
    assert merged.tolist() == [0.0, 0.0, 2.0, 1.0, 0.0]


def test_task_arithmetic_adds_or_averages() -> None:
    base, inputs = fine_tunes(3, 100)
    total = sum((each - base for each in inputs), torch.zeros_like(base))
    group = ListGroup(inputs, base)
    assert_near(run(get("task-arithmetic", scale="0.4"), group), base + 0.4 * total)
    assert_near(run(get("task-arithmetic", average=True), group), base + total / 3)


def test_task_arithmetic_is_exact_in_its_coefficients() -> None:
    group = ListGroup([torch.zeros(1)] * 3, torch.zeros(1), [1, 2, 4])
    method = get("task-arithmetic", scale="0.3")
    assert method.coefficients(group) == [  # type: ignore[union-attr]
        Fraction(3, 10) * Fraction(3, 7),
        Fraction(3, 10) * Fraction(6, 7),
        Fraction(3, 10) * Fraction(12, 7),
        Fraction(1, 10),
    ]


# ---- what DARE drops


def split_mix(seed: int, key: bytes, name: str, index: int) -> int:
    """Return a draw as the paper's C code does, with unsigned arithmetic."""
    mask = 2**64 - 1
    digest = blake3(b"sbp2p dare\0%d\0" % seed + key + name.encode()).digest(length=8)
    z = (int.from_bytes(digest, "little") + (index + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@settings(max_examples=30)
@given(st.integers(-5, 2**70), st.text(max_size=5), st.integers(0, 2**40), st.integers(1, 40))
def test_the_generator_is_split_mix(seed: int, name: str, start: int, count: int) -> None:
    key = key_of(7)
    place = Place(TensorSpec(name, "F32", (2**50,)), start, start + count)
    (mask,) = dropped(seed, [key], place, Fraction(3, 8))
    # the sign bit turns the unsigned order into the signed one that the mask compares in
    expected = [
        (split_mix(seed, key, name, index) ^ 2**63) >= 3 * 2**61
        for index in range(start, start + count)
    ]
    assert mask.tolist() == expected


@pytest.mark.parametrize("density", [0.1, 0.5, 0.9])
def test_the_share_that_is_dropped(density: float) -> None:
    place = Place(TensorSpec("t", "F32", (100_000,)), 0, 100_000)
    kept = int((~dropped(3, [key_of(1)], place, density)).sum())
    deviation = (100_000 * density * (1 - density)) ** 0.5
    assert abs(kept - 100_000 * density) < 4 * deviation


def test_what_is_dropped_differs_by_seed_input_and_tensor() -> None:
    spec = TensorSpec("t", "F32", (64,))
    masks = {
        tuple(dropped(seed, [key_of(index)], Place(of, 0, 64), 0.5)[0].tolist())
        for seed, index, of in [
            (0, 0, spec),
            (1, 0, spec),
            (0, 1, spec),
            (0, 0, TensorSpec("u", "F32", (64,))),
        ]
    }
    assert len(masks) == 4


@pytest.mark.parametrize(("name", "mix"), [("dare", "sum"), ("dare-ties", "vote")])
def test_dare(name: str, mix: str) -> None:
    base, inputs = fine_tunes(2, 300)
    place = Place(TensorSpec("t", "F64", (300,)), 0, 300)
    drop = dropped(5, [key_of(0), key_of(1)], place, "0.25")
    rows = torch.where(drop, 0.0, (torch.stack(inputs) - base) / 0.25)
    mixed = rows.sum(0) if mix == "sum" else vote(rows, [1, 1])
    got = run(get(name, density="0.25", seed=5), ListGroup(inputs, base, chunk=77))
    assert_near(got, base + mixed)


def test_dare_has_the_whole_task_vector_as_its_mean() -> None:
    base, (model,) = fine_tunes(1, 50)
    runs = [run(get("dare", density="0.5", seed=n), ListGroup([model], base)) for n in range(200)]
    mean = torch.stack(runs).mean(0)
    assert float(((mean - model) / (model - base)).abs().max()) < 4.5 / 200**0.5


def test_dare_of_the_largest_float16_is_a_number() -> None:
    base = torch.zeros(1000, dtype=torch.float16)
    model = torch.full((1000,), 65504.0, dtype=torch.float16)
    merged = run(get("dare", density="0.01"), ListGroup([model], base))
    assert merged.isfinite().all()
    assert set(merged.tolist()) == {0.0, 65504.0 / 0.01}


# ---- what all of them promise


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6)
@given(chunk=st.integers(1, 150), seed=st.integers(0, 1000))
def test_pieces_change_no_bit(name: str, chunk: int, seed: int) -> None:
    base, inputs = fine_tunes(3, 130, seed=seed)
    whole = run(get(name), ListGroup(inputs, base, [1, 1, 3]))
    pieces = run(get(name), ListGroup(inputs, base, [1, 1, 3], chunk=chunk))
    assert torch.equal(whole, pieces)


@pytest.mark.parametrize("name", NAMES)
def test_a_power_of_two_scales_and_a_sign_turns_every_bit(name: str) -> None:
    zero = torch.zeros(400, dtype=torch.float64)
    inputs = [noise(index, 400) for index in range(4)]
    merged = run(get(name), ListGroup(inputs, zero))
    scaled = run(get(name), ListGroup([each * -8 for each in inputs], zero))
    assert torch.equal(merged * -8, scaled)


@pytest.mark.parametrize("name", NAMES[1:])  # the engine's exact sums see to the first
def test_inputs_that_are_the_base_give_the_base(name: str) -> None:
    base, _ = fine_tunes(0, 100)
    base[:3] = torch.tensor([0.0, -0.0, 5e-324])
    for scale in (1, -1):
        merged = run(get(name, scale=scale), ListGroup([base.clone()] * 3, base))
        assert torch.equal(merged.view(torch.int64), base.view(torch.int64))


@pytest.mark.parametrize(
    "method",
    [
        lambda: get("ties", density=1),
        lambda: get("dare", density=1),
        lambda: get("dare-ties", density=1),
        lambda: get("breadcrumbs", density=1, outliers=0),
        lambda: get("task-arithmetic"),
    ],
    ids=["ties", "dare", "dare-ties", "breadcrumbs", "task-arithmetic"],
)
@given(st.lists(st.tuples(st.floats(-9, 9, width=32), st.floats(-9, 9, width=32)), min_size=1))
def test_one_input_that_loses_nothing_is_itself(
    method: Callable[[], object], pairs: list[tuple[float, float]]
) -> None:
    base = torch.tensor([each[0] for each in pairs], dtype=torch.float64)
    model = torch.tensor([each[1] for each in pairs], dtype=torch.float64)
    got = run(method(), ListGroup([model], base))  # type: ignore[arg-type]
    # float64 has 29 bits more than float32; what cancels may use them up
    torch.testing.assert_close(got, model, rtol=0, atol=9 * 2.0**-52)


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("shape", [(0,), (), (3, 0)])
def test_empty_and_single_numbers(name: str, shape: tuple[int, ...]) -> None:
    base = torch.zeros(shape, dtype=torch.float64)
    inputs = [base + 1, base + 2]
    group = ListGroup(inputs, base)
    method = get(name, density=1, **({"outliers": 0} if name == "breadcrumbs" else {}))
    method.survey(group)  # type: ignore[union-attr]
    if base.numel():
        assert run(method, group).tolist() in ([1.5], [3.0])


def test_thresholds_do_not_depend_on_what_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    base, inputs = fine_tunes(2, 3000)
    usual = run(get("breadcrumbs"), ListGroup(inputs, base))
    monkeypatch.setattr(selection, "DIRECT_MAX", 10)
    monkeypatch.setattr(selection, "GATHER_MAX", 10)
    assert torch.equal(run(get("breadcrumbs"), ListGroup(inputs, base, chunk=999)), usual)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("ties", {"density": 0}, "density is 0, not above 0, up to 1"),
        ("ties", {"density": 1.5}, "density is 1.5"),
        ("ties", {"density": "much"}, "'much', which is not a number"),
        ("ties", {"density": float("nan")}, "not a number"),
        ("dare", {"density": "1/0"}, "not a number"),
        ("breadcrumbs", {"density": 0.9, "outliers": 0.2}, "more than 1 together"),
        ("breadcrumbs", {"outliers": -0.1}, "from 0 to 1"),
        ("task-arithmetic", {"scale": "inf"}, "not a number"),
    ],
)
def test_options_that_mean_nothing(name: str, options: dict[str, object], reason: str) -> None:
    with pytest.raises(MergeError, match=reason):
        get(name, **options)


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(MergeError, match="ties has no option 'densty'") as caught:
        get("ties", densty=0.5)
    assert caught.value.hint == "it has density, scale, whole_model"
    with pytest.raises(MergeError, match="mean has no option 'f'") as caught:
        get("mean", f=1)
    assert caught.value.hint == "it has none"

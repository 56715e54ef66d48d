"""Outer optimisers against torch's own, and against the papers' algorithms where torch has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from sbp2p.errors import MergeError
from sbp2p.merge.method import get
from sbp2p.merge.outer.outer import Outer
from tests.merge.model_samples import ListGroup, noise, run

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 12
SIZE = 90


def outer(name: str, **options: object) -> Outer:
    method = get(name, **options)
    assert isinstance(method, Outer)
    return method


def group_of(base: torch.Tensor, round_number: int, chunk: int = SIZE) -> ListGroup:
    """Return what two peers make of the base in a round."""
    seed = 100 * round_number
    inputs = [base + noise(seed + index, SIZE, scale=0.1) for index in range(2)]
    return ListGroup(inputs, base, [1, 3], chunk=chunk)


def gradient_of(group: ListGroup) -> torch.Tensor:
    return group.base_values() - (group.inputs[0] + 3 * group.inputs[1]) / 4


def trained(method: Outer, chunk: int = 40) -> torch.Tensor:
    model = noise(1, SIZE)
    for round_number in range(1, ROUNDS + 1):
        model = run(method, group_of(model, round_number, chunk=chunk))
    return model


def trained_by_torch(
    make: Callable[[list[torch.Tensor]], torch.optim.Optimizer],
) -> torch.Tensor:
    model = noise(1, SIZE).requires_grad_()
    optimizer = make([model])
    for round_number in range(1, ROUNDS + 1):
        model.grad = gradient_of(group_of(model.detach().clone(), round_number))
        optimizer.step()
    return model.detach()


PAIRS: list[
    tuple[str, dict[str, object], Callable[[list[torch.Tensor]], torch.optim.Optimizer]]
] = [
    (
        "fedavgm",
        {"rate": 0.5, "momentum": 0.8},
        lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.8),
    ),
    (
        "diloco",
        {},
        lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9, nesterov=True),
    ),
    (
        "fedadam",
        {"rate": 0.1, "beta2": 0.95, "tau": 1e-4, "bias_correction": True},
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 0.95), eps=1e-4),
    ),
    (
        "fedadagrad",
        {"rate": 0.1, "tau": 1e-3},
        lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-3, initial_accumulator_value=1e-6),
    ),
]


@pytest.mark.parametrize(("name", "options", "make"), PAIRS, ids=[pair[0] for pair in PAIRS])
def test_the_same_as_torch(
    name: str,
    options: dict[str, object],
    make: Callable[[list[torch.Tensor]], torch.optim.Optimizer],
) -> None:
    expected = trained_by_torch(make)
    exact = trained(outer(name, precision="F64", **options))
    torch.testing.assert_close(exact, expected, rtol=1e-12, atol=1e-12)
    rounded = trained(outer(name, **options))
    torch.testing.assert_close(rounded, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_the_algorithm_of_the_paper(name: str) -> None:
    rate, beta1, beta2, tau = 0.05, 0.7, 0.9, 0.01
    model = noise(1, SIZE)
    m, v = torch.zeros(SIZE).double(), torch.full((SIZE,), tau**2, dtype=torch.float64)
    for round_number in range(1, ROUNDS + 1):
        d = -gradient_of(group_of(model, round_number))
        m = beta1 * m + (1 - beta1) * d
        if name == "fedadagrad":
            v = v + d**2
        elif name == "fedadam":
            v = beta2 * v + (1 - beta2) * d**2
        else:
            v = v - (1 - beta2) * d**2 * torch.sign(v - d**2)
        model = model + rate * m / (v.sqrt() + tau)
    options = {} if name == "fedadagrad" else {"beta2": beta2}
    method = outer(name, rate=rate, beta1=beta1, tau=tau, precision="F64", **options)
    torch.testing.assert_close(trained(method), model, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["fedavgm", "diloco", "fedadagrad", "fedadam", "fedyogi"])
def test_pieces_change_no_bit(name: str) -> None:
    assert torch.equal(trained(outer(name), chunk=SIZE), trained(outer(name), chunk=7))


@pytest.mark.parametrize("name", ["fedavgm", "diloco", "fedadagrad", "fedadam", "fedyogi"])
def test_a_state_that_was_saved_goes_on(name: str) -> None:
    first, second = outer(name), outer(name)
    model = run(first, group_of(noise(1, SIZE), 1))
    second.load_state(first.state())
    assert first.state().keys() == second.state().keys()
    ahead = run(first, group_of(model, 2))
    assert torch.equal(run(second, group_of(model, 2)), ahead)
    fresh = run(outer(name), group_of(model, 2))
    assert not torch.equal(fresh, ahead)


def test_a_state_is_kept_for_each_tensor() -> None:
    method = outer("fedadam")
    run(method, ListGroup([noise(1, 3, 4)], noise(2, 3, 4), name="layer.weight"))
    run(method, ListGroup([noise(1, 3, 4)], noise(2, 3, 4), name="layer.weight"))
    run(method, ListGroup([noise(1, 2)], noise(2, 2), name="layer/bias"))
    state = method.state()
    assert sorted(state) == [
        "momentum/layer.weight",
        "momentum/layer/bias",
        "second/layer.weight",
        "second/layer/bias",
        "step/layer.weight",
        "step/layer/bias",
    ]
    assert state["momentum/layer.weight"].shape == (3, 4)
    assert state["second/layer/bias"].dtype == torch.float32
    assert int(state["step/layer.weight"]) == 2
    assert int(state["step/layer/bias"]) == 1


def test_a_merge_that_failed_is_forgotten() -> None:
    method, other = outer("diloco"), outer("diloco")
    model = run(method, group_of(noise(1, SIZE), 1))
    run(other, group_of(noise(1, SIZE), 1))
    before = method.state()

    def failing() -> None:
        with method.merging():
            group = group_of(model, 5)
            survey = method.survey(group)
            place = next(iter(group.places()))
            values = torch.stack(group.inputs)[:, place.start : place.stop]
            base = group.base_values()[place.start : place.stop]
            method.combine(values, base, torch.ones(2), survey, place)
            raise MergeError("the disk is full")

    with pytest.raises(MergeError, match="disk"):
        failing()
    assert all(torch.equal(method.state()[name], value) for name, value in before.items())
    assert torch.equal(run(method, group_of(model, 2)), run(other, group_of(model, 2)))


@pytest.mark.parametrize("name", ["fedavgm", "diloco", "fedadagrad", "fedadam", "fedyogi"])
def test_peers_that_all_stayed_where_they_were_stay(name: str) -> None:
    base = noise(1, SIZE)
    base[:2] = torch.tensor([0.0, -0.0])
    group = ListGroup([base] * 3, base)
    for rate in (1, -1):
        merged = run(outer(name, rate=rate), group)
        assert torch.equal(merged.view(torch.int64), base.view(torch.int64))


def test_without_momentum_and_with_rate_one_the_result_is_the_merged_model() -> None:
    group = group_of(noise(1, SIZE), 1)
    merged = run(outer("fedavgm", momentum=0), group)
    torch.testing.assert_close(merged, group.base_values() - gradient_of(group), rtol=0, atol=1e-15)


def test_any_inner_method() -> None:
    base = noise(1, SIZE)
    inputs = [base + 1, base + 2, base + 300]
    group = ListGroup(inputs, base)
    merged = run(outer("fedavgm", inner="median", rate=0.5), group)
    torch.testing.assert_close(merged, base + 1, rtol=0, atol=1e-13)
    stock = outer("diloco", inner=get("model-stock"), rate=1, momentum=0)
    expected = run(get("model-stock"), group)
    torch.testing.assert_close(run(stock, group), expected, rtol=0, atol=1e-12)
    ties = outer("diloco", inner=get("ties", density="0.5"), rate=1, momentum=0)
    expected = run(get("ties", density="0.5"), group)
    torch.testing.assert_close(run(ties, group), expected, rtol=0, atol=1e-12)


def test_an_inner_method_whose_factors_are_not_one_in_sum() -> None:
    base, inputs = noise(1, SIZE), [noise(2, SIZE), noise(3, SIZE)]
    group = ListGroup(inputs, base)
    inner = get("slerp")
    expected = run(inner, group)
    method = outer("fedavgm", momentum=0, inner=inner)
    torch.testing.assert_close(run(method, group), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"third/t": torch.zeros(3)}, "third/t"),
        ({"momentum/t": torch.zeros(3, dtype=torch.int64)}, "momentum/t"),
        ({"step/t": torch.zeros(1, dtype=torch.int64)}, "step/t"),
        ({"momentum/u": torch.zeros(3)}, "'u' is not complete"),
        ({"step/u": torch.tensor(1)}, "'u' is not complete"),
    ],
)
def test_a_state_of_something_else(changes: dict[str, torch.Tensor], reason: str) -> None:
    method = outer("fedadam")
    run(method, ListGroup([noise(1, 3)], noise(2, 3)))
    before = method.state()
    with pytest.raises(MergeError, match=reason):
        method.load_state({**before, **changes})
    assert method.state().keys() == before.keys()


def test_a_state_of_another_shape_is_refused_when_it_is_used() -> None:
    method = outer("diloco")
    run(method, ListGroup([noise(1, 3)], noise(2, 3)))
    with pytest.raises(MergeError, match=r"state of t is not of shape \(4,\)"):
        run(method, ListGroup([noise(1, 4)], noise(2, 4)))


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("fedavgm", {"momentum": 1}, "momentum is 1"),
        ("fedadam", {"tau": 0}, "tau is 0"),
        ("fedadam", {"beta2": -1}, "beta2 is -1"),
        ("diloco", {"inner": "diloco"}, "one is enough"),
        ("diloco", {"inner": "meen"}, "no merge method"),
        ("diloco", {"precision": "F16"}, "precision is 'F16'"),
        ("diloco", {"rate": "fast"}, "not a number"),
    ],
)
def test_options_that_mean_nothing(name: str, options: dict[str, object], reason: str) -> None:
    with pytest.raises(MergeError, match=reason):
        get(name, **options)

"""The proximal term: its value, its gradient, and that it keeps training near the start."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from sbp2p.errors import MergeError
from sbp2p.merge.method import LinearMethod, get
from sbp2p.merge.outer.fedprox import ProximalTerm
from tests.merge.model_samples import ListGroup, noise


def module() -> torch.nn.Linear:
    made = torch.nn.Linear(3, 2).double()
    with torch.no_grad():
        made.weight.copy_(noise(1, 2, 3))
        made.bias.copy_(noise(2, 2))
    return made


def value_of(term: ProximalTerm, model: torch.nn.Module) -> float:
    with torch.no_grad():
        return float(term(model.named_parameters()))


def test_value_and_gradient() -> None:
    model = module()
    term = ProximalTerm(model.named_parameters(), mu=0.5)
    assert value_of(term, model) == 0.0
    with torch.no_grad():
        model.weight.add_(2.0)
    value = term(model.named_parameters())
    assert isinstance(value, torch.Tensor)
    assert float(value.detach()) == pytest.approx(0.25 * 6 * 4)
    value.backward()  # type: ignore[no-untyped-call]
    assert model.weight.grad is not None
    assert torch.allclose(model.weight.grad, torch.full((2, 3), 1.0).double())


def test_adding_gradients_is_adding_the_term() -> None:
    model = module()
    term = ProximalTerm(model.named_parameters(), mu=0.3)
    with torch.no_grad():
        model.weight.mul_(1.5)
    data = noise(3, 5, 3)
    (model(data).square().sum() + term(model.named_parameters())).backward()
    expected = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    model.zero_grad()
    model(data).square().sum().backward()
    term.add_gradients(model.named_parameters())
    for each, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(each.grad, gradient)


def test_training_stays_nearer_with_a_stronger_term() -> None:
    def distance(mu: float) -> float:
        model = module()
        start = model.weight.detach().clone()
        term = ProximalTerm(model.named_parameters(), mu)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(25):
            optimizer.zero_grad()
            (model(noise(3, 5, 3)) - 7).square().mean().backward()
            term.add_gradients(model.named_parameters())
            optimizer.step()
        return float((model.weight.detach() - start).norm())

    distances = [distance(mu) for mu in (0.0, 0.1, 1.0, 10.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 2 * distances[-1]


def test_what_is_frozen_or_got_no_gradient_is_left_alone() -> None:
    model = module()
    model.bias.requires_grad_(False)
    term = ProximalTerm(model.named_parameters(), mu=1)
    with torch.no_grad():
        model.bias.add_(5)
        model.weight.add_(1)
    assert value_of(term, model) == 3.0
    term.add_gradients(model.named_parameters())
    assert model.weight.grad is None


def test_another_model_is_refused() -> None:
    model = module()
    term = ProximalTerm(model.named_parameters(), mu=1)
    with pytest.raises(MergeError, match=r"'0\.weight' was not there"):
        term(torch.nn.Sequential(model).named_parameters())
    with pytest.raises(MergeError, match="another shape"):
        term([("weight", torch.zeros(1, requires_grad=True))])
    with pytest.raises(ValueError, match="negative"):
        ProximalTerm([], mu=-1)
    assert term([]) == 0.0


def test_merging_is_that_of_the_mean() -> None:
    method = get("fedprox")
    assert isinstance(method, LinearMethod)
    group = ListGroup([noise(1, 3)] * 2, weights=[1, 3])
    assert list(method.coefficients(group)) == [Fraction(1, 4), Fraction(3, 4)]

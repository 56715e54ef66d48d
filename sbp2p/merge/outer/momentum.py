"""Outer steps with momentum: FedAvgM and DiLoCo.

Both are stochastic gradient descent on the pseudo-gradient g = base - merged:
v <- momentum * v + g, and base - rate * v, or with Nesterov's look-ahead
base - rate * (g + momentum * v). Without momentum and with rate 1 that is the merged model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p.merge.method import MethodDoc, register
from sbp2p.merge.models.numbers import Number, exact
from sbp2p.merge.outer.outer import BREAKDOWN, Outer

if TYPE_CHECKING:
    import torch

    from sbp2p.merge.method import Method
    from sbp2p.merge.outer.state import Precision


@register
class FedAvgM(Outer):
    """Server momentum."""

    name = "fedavgm"
    doc = MethodDoc(
        paper="Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for "
        "Federated Visual Classification, 2019, arXiv:1909.06335",
        assumes="a base that all inputs were trained from in this round",
        breakdown=BREAKDOWN,
    )
    _nesterov = False

    def __init__(
        self,
        rate: Number = 1,
        momentum: Number = "0.9",
        *,
        inner: Method | str = "mean",
        precision: Precision = "F32",
    ) -> None:
        """Step with a learning rate and momentum in [0, 1) along what `inner` merges."""
        super().__init__(inner, {"momentum": 0.0}, precision)
        self._rate = float(exact(rate, "rate"))
        self._momentum = decay(momentum, "momentum")

    def step(
        self, gradient: torch.Tensor, slots: dict[str, torch.Tensor], step: int
    ) -> torch.Tensor:
        """Return rate * v, or what looks ahead."""
        velocity = slots["momentum"].mul_(self._momentum).add_(gradient)
        if self._nesterov:
            return gradient.add_(velocity * self._momentum).mul_(self._rate)
        return velocity * self._rate


@register
class DiLoCo(FedAvgM):
    """Nesterov momentum over many local steps; what is sent is sent once in hundreds of steps."""

    name = "diloco"
    doc = MethodDoc(
        paper="Douillard et al., DiLoCo: Distributed Low-Communication Training of Language "
        "Models, 2023, arXiv:2311.08105",
        assumes="a base that all inputs were trained from, AdamW inside, some 500 steps a round",
        breakdown=BREAKDOWN,
    )
    _nesterov = True

    def __init__(
        self,
        rate: Number = "0.7",
        momentum: Number = "0.9",
        *,
        inner: Method | str = "mean",
        precision: Precision = "F32",
    ) -> None:
        """Step with the paper's learning rate and momentum along what `inner` merges."""
        super().__init__(rate, momentum, inner=inner, precision=precision)


def decay(value: Number, name: str) -> float:
    """Return a factor in [0, 1) by which something fades; raises ValueError."""
    number = exact(value, name)
    if not 0 <= number < 1:
        raise ValueError(f"{name} is {value}, not from 0 up to, not including, 1")
    return float(number)

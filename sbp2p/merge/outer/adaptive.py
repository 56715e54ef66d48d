"""Adaptive outer steps: FedAdagrad, FedAdam, FedYogi (Reddi et al. 2021, algorithm 2).

With d = merged - base: m <- beta1 m + (1 - beta1) d; v grows by the rule below; the result is
base + rate * m / (sqrt(v) + tau).

| method | v becomes |
|---|---|
| fedadagrad | v + d^2 |
| fedadam | beta2 v + (1 - beta2) d^2 |
| fedyogi | v - (1 - beta2) d^2 sign(v - d^2) |

As in the paper v begins with tau^2 and nothing is corrected for the bias of the first steps.
`bias_correction` (fedadam) divides m by 1 - beta1^t and v by 1 - beta2^t as Adam does (Kingma and
Ba 2015), and then v begins with 0. An update moves each parameter by about `rate`, however small d
is, once d is above tau.
"""

from __future__ import annotations

from abc import abstractmethod
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Final

from sbp2p.merge.method import MethodDoc, register
from sbp2p.merge.models.numbers import Number, exact
from sbp2p.merge.outer.momentum import decay
from sbp2p.merge.outer.outer import BREAKDOWN, Outer

if TYPE_CHECKING:
    import torch

    from sbp2p.merge.method import Method
    from sbp2p.merge.outer.state import Precision

_PAPER: Final = "Reddi et al., Adaptive Federated Optimization, 2021, arXiv:2003.00295"
_ASSUMES: Final = "a base that all inputs were trained from in this round; a tuned rate"


class _Adaptive(Outer):
    """m and v; the methods differ in how v grows."""

    _beta2 = 0.0
    _correct = False

    def __init__(
        self, rate: Number, beta1: Number, tau: Number, inner: Method | str, precision: Precision
    ) -> None:
        self._tau = float(exact(tau, "tau"))
        if not self._tau > 0:
            raise ValueError(f"tau is {tau}, and must be above 0")
        start = 0.0 if self._correct else self._tau * self._tau
        super().__init__(inner, {"momentum": 0.0, "second": start}, precision)
        self._rate = float(exact(rate, "rate"))
        self._beta1 = decay(beta1, "beta1")

    @abstractmethod
    def _grown(self, second: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """Return the next v; both arguments may be overwritten."""

    def step(
        self, gradient: torch.Tensor, slots: dict[str, torch.Tensor], step: int
    ) -> torch.Tensor:
        """Return what is taken off the base; m and v keep the signs of a gradient."""
        momentum = slots["momentum"].mul_(self._beta1).add_(gradient * (1 - self._beta1))
        second = slots["second"] = self._grown(slots["second"], gradient.mul_(gradient))
        if self._correct:
            momentum = momentum / _unbiased(self._beta1, step)
            second = second / _unbiased(self._beta2, step)
        return (momentum * self._rate).div_(second.sqrt().add_(self._tau))


@register
class FedAdagrad(_Adaptive):
    """Steps that shrink with all squares so far."""

    name = "fedadagrad"
    doc = MethodDoc(paper=_PAPER, assumes=_ASSUMES, breakdown=BREAKDOWN)

    def __init__(
        self,
        rate: Number = "0.1",
        beta1: Number = 0,
        tau: Number = "0.001",
        *,
        inner: Method | str = "mean",
        precision: Precision = "F32",
    ) -> None:
        """Step with a learning rate, momentum beta1 and the degree of adaptivity tau."""
        super().__init__(rate, beta1, tau, inner, precision)

    def _grown(self, second: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        return second.add_(square)


@register
class FedAdam(_Adaptive):
    """Steps over a fading mean of squares."""

    name = "fedadam"
    doc = MethodDoc(paper=_PAPER, assumes=_ASSUMES, breakdown=BREAKDOWN)

    def __init__(
        self,
        rate: Number = "0.01",
        beta1: Number = "0.9",
        beta2: Number = "0.99",
        tau: Number = "0.001",
        *,
        bias_correction: bool = False,
        inner: Method | str = "mean",
        precision: Precision = "F32",
    ) -> None:
        """Step with a learning rate, the two decays, and the degree of adaptivity tau."""
        self._beta2 = decay(beta2, "beta2")
        self._correct = bias_correction
        super().__init__(rate, beta1, tau, inner, precision)

    def _grown(self, second: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        return second.mul_(self._beta2).add_(square.mul_(1 - self._beta2))


@register
class FedYogi(FedAdam):
    """Steps over squares that grow and fade by bounded amounts."""

    name = "fedyogi"

    def _grown(self, second: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        sign = (second - square).sign_()
        return second.sub_(square.mul_(1 - self._beta2).mul_(sign))


def _unbiased(beta: float, step: int) -> float:
    """Return 1 - beta^step. Not by the C library's pow, whose last bit differs between systems."""
    return float(1 - Context(prec=50).power(Decimal(beta), step))

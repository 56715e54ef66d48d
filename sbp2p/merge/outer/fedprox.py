"""FedProx: a term that keeps local training near the model that the round began with.

Its two halves. Where a peer trains, `ProximalTerm` is added to the loss (or its gradient to the
parameters' gradients). Where models are merged, FedProx does nothing new: "fedprox" is the mean
weighted by samples, and is here so that a round's record can say what its members agreed on.
No torch is imported here: the term computes with the tensors that it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p.errors import MergeError
from sbp2p.merge.method import LinearMethod, MethodDoc, register

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from fractions import Fraction

    import torch

    from sbp2p.merge.method import Group


@register
class FedProx(LinearMethod):
    """The weighted mean of models that were trained with a proximal term."""

    name = "fedprox"
    doc = MethodDoc(
        paper="Li et al., Federated Optimization in Heterogeneous Networks, 2020, arXiv:1812.06127",
        assumes="peers that add a proximal term to their loss, and differ in data or in speed",
        breakdown="0: one arbitrary input moves the result arbitrarily far",
    )

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return the weights, as FedAvg does."""
        return group.weights


class ProximalTerm:
    """mu / 2 * |w - w_0|^2 over the parameters w, for those w_0 that a round begins with."""

    def __init__(self, parameters: Iterable[tuple[str, torch.Tensor]], mu: float) -> None:
        """Copy what `module.named_parameters()` gives now as w_0.

        Args:
            parameters: name and tensor; what needs no gradient is left out.
            mu: strength, not negative; Li et al. tune it over 0.001, 0.01, 0.1 and 1.
        """
        if not mu >= 0:
            raise ValueError(f"mu is {mu}, and must not be negative")
        self.mu = mu
        self._start = {
            name: tensor.detach().clone() for name, tensor in parameters if tensor.requires_grad
        }

    def __call__(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> torch.Tensor | float:
        """Return the term, to be added to the loss: a 0-dim tensor that has a gradient.

        0.0 without parameters. Raises MergeError for a parameter that was not there at the start.
        """
        total: torch.Tensor | float = 0.0
        for start, tensor in self._pairs(parameters):
            total = total + (tensor - start).square().sum()
        return total * (self.mu / 2)

    def add_gradients(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Add mu * (w - w_0) to each parameter's gradient, after `backward` and before `step`.

        The same as adding the term to the loss, without a graph for it. A parameter that got no
        gradient is left as it is. Raises MergeError like calling the term.
        """
        for start, tensor in self._pairs(parameters):
            if tensor.grad is not None:
                tensor.grad.add_(tensor.detach() - start, alpha=self.mu)

    def _pairs(
        self, parameters: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        for name, tensor in parameters:
            if not tensor.requires_grad:
                continue
            if (start := self._start.get(name)) is None or start.shape != tensor.shape:
                raise MergeError(
                    f"parameter {name!r} was not there, or had another shape, when the round began",
                    hint="make a new ProximalTerm whenever the model's parameters change",
                )
            yield start, tensor

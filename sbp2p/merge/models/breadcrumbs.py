"""Breadcrumbs: task vectors without their largest and their smallest magnitudes, added up.

Of each input's task vector x_i - base, tensor by tensor, the `outliers` largest magnitudes are
taken away, then of the others the largest ones stay that make up `density` of all. Magnitudes that
equal the largest or the smallest one that stays, stay, too. The result is
base + scale * sum_i v_i masked_i, where n equal weights v_i are 1 each, as in task arithmetic.

Computed in float64 and rounded once; sums run in the inputs' canonical order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, cast

import torch

from sbp2p.merge.method import ElementwiseMethod, MethodDoc, Scope, register
from sbp2p.merge.models.numbers import Number, exact, share, whole_weights
from sbp2p.merge.models.selection import order_statistics
from sbp2p.merge.models.ties import moved, trimmed

if TYPE_CHECKING:
    from sbp2p.merge.method import Group, Place


@dataclass(frozen=True, slots=True)
class _Kept:
    """What stays of one input's task vector, and how much it counts."""

    smallest: float
    largest: float
    weight: float


@register
class Breadcrumbs(ElementwiseMethod):
    """Add up task vectors whose tails on both sides are masked."""

    name = "breadcrumbs"
    doc = MethodDoc(
        paper="Davari and Belilovsky, Model Breadcrumbs: Scaling Multi-Task Model Merging with "
        "Sparse Masks, 2023, arXiv:2312.06795",
        assumes="inputs fine-tuned from the base; outliers and small changes of each are noise",
        breakdown="0: one arbitrary input moves the result arbitrarily far",
    )
    scope = Scope.TENSOR
    needs_base = True

    def __init__(
        self, density: Number = "0.9", outliers: Number = "0.01", scale: Number = 1
    ) -> None:
        """Keep `density` of each task vector, without its `outliers` largest elements."""
        self._density = share(density, "density")
        self._outliers = share(outliers, "outliers", zero=True)
        if self._density + self._outliers > 1:
            raise ValueError("density and outliers are more than 1 together")
        self._scale = float(exact(scale, "scale"))

    def survey(self, group: Group) -> object:
        """Return for each input which magnitudes stay, and its weight."""
        elements = group.tensors[0].elements
        weights = [float(weight) for weight in whole_weights(group)]
        kept = max(1, int(self._density * elements))
        above = min(int(self._outliers * elements), max(0, elements - kept))
        if kept >= elements:
            return [_Kept(0.0, inf, weight) for weight in weights]
        ranks = [elements - above - kept, elements - above - 1]
        return [
            _Kept(smallest, largest, weight)
            for which, weight in enumerate(weights)
            for smallest, largest in [order_statistics(group, which, ranks)]
        ]

    def combine(
        self,
        values: torch.Tensor,
        base: torch.Tensor | None,
        weights: torch.Tensor,
        survey: object,
        place: Place,
    ) -> torch.Tensor:
        """Return base + scale * sum of the weighted masked task vectors."""
        base = cast("torch.Tensor", base)  # the engine keeps needs_base
        total = torch.zeros_like(base)
        for row, kept in zip(values, cast("list[_Kept]", survey), strict=True):
            masked = trimmed(row.sub_(base), kept.smallest)
            if kept.largest < inf:
                masked.masked_fill_(masked.abs() > kept.largest, 0.0)
            total.add_(masked.mul_(kept.weight))
        return moved(base, total.mul_(self._scale))

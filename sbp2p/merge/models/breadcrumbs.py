"""Breadcrumbs: task vectors without their largest and their smallest magnitudes, added up.

Of each input's task vector x_i - base, tensor by tensor, the `outliers` largest magnitudes are
taken away, then of the others the largest ones stay that make up `density` of all. Magnitudes that
equal the largest or the smallest one that stays, stay, too. The result is
base + scale * sum_i v_i masked_i, where n equal weights v_i are 1 each, as in task arithmetic.

Computed in float64 and rounded once; sums run in an order fixed by the inputs' keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, cast

import torch

from sbp2p.merge.method import ElementwiseMethod, MethodDoc, Scope, register
from sbp2p.merge.models.numbers import Number, exact, share, whole_weights
from sbp2p.merge.models.selection import numbers_in, order_statistics
from sbp2p.merge.models.ties import fold_rows, moved, trim

if TYPE_CHECKING:
    from sbp2p.merge.method import Group, Place


@dataclass(frozen=True, slots=True)
class _Kept:
    """Which magnitudes stay of each input's task vector, and how much it counts."""

    smallest: list[float]
    largest: list[float]
    weights: torch.Tensor
    """(n, 1) float64."""


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
        """Return which magnitudes of each input stay, and its weight."""
        elements = numbers_in(group)
        shares = [[float(weight)] for weight in whole_weights(group)]
        weights = torch.tensor(shares, dtype=torch.float64)
        kept = max(1, int(self._density * elements))
        above = min(int(self._outliers * elements), max(0, elements - kept))
        if kept >= elements:
            return _Kept([0.0] * group.count, [inf] * group.count, weights)
        ranks = [elements - above - kept, elements - above - 1]
        bounds = [order_statistics(group, which, ranks) for which in range(group.count)]
        return _Kept([low for low, _ in bounds], [high for _, high in bounds], weights)

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
        kept = cast("_Kept", survey)
        values.sub_(base)
        trim(values, kept.smallest)
        for row, largest in zip(values, kept.largest, strict=True):
            if largest < inf:
                row.masked_fill_(row.abs() > largest, 0.0)
        total = fold_rows(values.mul_(kept.weights))
        return moved(base, total.mul_(self._scale))

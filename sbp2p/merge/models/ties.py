"""TIES: trim each task vector, elect a sign for each element, average those that have it.

1. Trim: of each input's task vector x_i - base, the `density` largest magnitudes of a tensor stay,
   the others become 0. With `whole_model` the magnitudes of all tensors compete, as in the paper;
   tensor by tensor is what mergekit does. What equals the smallest magnitude that stays, stays,
   too: no choice depends on positions, and a few more than `density` may stay.
2. Elect: for each element the sign with the larger sum of weighted magnitudes. When both are the
   same there is no winner, and the element stays that of the base.
3. Merge: the weighted mean of the elements that have this sign, times `scale`, is added to the
   base.

Computed in float64 and rounded once; sums run in the inputs' canonical order.
"""

from __future__ import annotations

from math import nextafter
from typing import TYPE_CHECKING, cast

import torch

from sbp2p.merge.method import ElementwiseMethod, MethodDoc, Scope, register
from sbp2p.merge.models.numbers import Number, exact, share
from sbp2p.merge.models.selection import order_statistics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sbp2p.merge.method import Group, Place


@register
class Ties(ElementwiseMethod):
    """Trim, elect sign and merge."""

    name = "ties"
    doc = MethodDoc(
        paper="Yadav et al., TIES-Merging: Resolving Interference When Merging Models, 2023, "
        "arXiv:2306.01708",
        assumes="inputs fine-tuned from the base; few large changes carry what each one learned",
        breakdown="0: one arbitrary input wins every vote that its magnitudes are large enough for",
    )
    needs_base = True

    def __init__(
        self, density: Number = "0.2", scale: Number = 1, *, whole_model: bool = False
    ) -> None:
        """Keep a share of each task vector, of every tensor or of the model; scale the result."""
        self._density = share(density, "density")
        self._scale = float(exact(scale, "scale"))
        self.scope = Scope.MODEL if whole_model else Scope.TENSOR

    def survey(self, group: Group) -> object:
        """Return for each input the magnitude below which elements are trimmed."""
        elements = sum(spec.elements for spec in group.tensors)
        kept = max(1, int(self._density * elements))
        if kept >= elements:
            return [0.0] * group.count
        rank = elements - kept
        return [order_statistics(group, which, [rank])[0] for which in range(group.count)]

    def combine(
        self,
        values: torch.Tensor,
        base: torch.Tensor | None,
        weights: torch.Tensor,
        survey: object,
        place: Place,
    ) -> torch.Tensor:
        """Return base + scale * disjoint mean of the trimmed task vectors."""
        base = cast("torch.Tensor", base)  # the engine keeps needs_base
        rows = []
        for row, smallest in zip(values, cast("list[float]", survey), strict=True):
            row.sub_(base)
            rows.append(trimmed(row, smallest))
        return moved(base, disjoint_mean(rows, weights.tolist()).mul_(self._scale))


def moved(base: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """Return base + update, and the very bits of the base where the update is 0.

    A base of -0.0 plus 0.0 were 0.0, so 0.0 is subtracted instead, whatever sign the update has.
    """
    return base - (0.0 - update)


def trimmed(row: torch.Tensor, smallest: float) -> torch.Tensor:
    """Return a task vector with 0 where its magnitude is below `smallest`."""
    if smallest == 0:
        return row
    # torch's hardshrink keeps what is larger than its bound: one pass instead of three
    return torch.nn.functional.hardshrink(row, nextafter(smallest, 0.0))


def disjoint_mean(rows: Iterable[torch.Tensor], weights: list[float]) -> torch.Tensor:
    """Elect the sign of each element, and return the weighted mean of the elements that have it.

    Args:
        rows: sparse task vectors, each (m,) float64, which are overwritten; 0 has no vote.
        weights: of the rows, not negative.

    Returns:
        (m,) float64; 0 where no sign wins.
    """
    # add with alpha, addcmul and lerp round once in a vector and twice in its scalar tail, so the
    # bits would depend on the chunk: products and sums are separate operations here
    equal = len(set(weights)) == 1
    sums: list[torch.Tensor] = []
    for row, weight in zip(rows, weights, strict=True):
        up = row.clamp(min=0)
        down = row.sub_(up)
        votes_up, votes_down = up.sign(), down.sign()
        if not equal:
            for each in (up, down, votes_up, votes_down):
                each.mul_(weight)
        parts = [up, down, votes_up, votes_down]
        sums = [a.add_(b) for a, b in zip(sums, parts, strict=True)] if sums else parts
    up, down, votes_up, votes_down = sums
    mass = up + down
    up.div_(votes_up)
    down.div_(votes_down).neg_()
    return torch.where(mass > 0, up, torch.where(mass < 0, down, torch.zeros_like(mass)))

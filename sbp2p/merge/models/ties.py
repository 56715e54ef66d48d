"""TIES: trim each task vector, elect a sign for each element, average those that have it.

1. Trim: of each input's task vector x_i - base, the `density` largest magnitudes of a tensor stay,
   the others become 0. With `whole_model` the magnitudes of all tensors compete, as in the paper;
   tensor by tensor is what mergekit does. What equals the smallest magnitude that stays, stays,
   too: no choice depends on positions, and a few more than `density` may stay.
2. Elect: for each element the sign with the larger sum of weighted magnitudes. When both are the
   same there is no winner, and the element stays that of the base.
3. Merge: the weighted mean of the elements that have this sign, times `scale`, is added to the
   base.

Computed in float64 and rounded once; sums run in an order fixed by the inputs' keys.
"""

from __future__ import annotations

from math import nextafter
from typing import TYPE_CHECKING, cast

import torch

from sbp2p.merge.method import ElementwiseMethod, MethodDoc, Scope, register
from sbp2p.merge.models.numbers import Number, exact, share
from sbp2p.merge.models.selection import numbers_in, order_statistics

if TYPE_CHECKING:
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
        elements = numbers_in(group)
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
        values.sub_(base)
        trim(values, cast("list[float]", survey))
        return moved(base, disjoint_mean(values, weights).mul_(self._scale))


def moved(base: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """Return base + update, and the very bits of the base where the update is 0.

    A base of -0.0 plus 0.0 were 0.0, so 0.0 is subtracted instead, whatever sign the update has.
    """
    return base - (0.0 - update)


def trim(rows: torch.Tensor, smallest: list[float]) -> None:
    """Set to 0 what is smaller in magnitude than its row's bound, in (n, m) float64."""
    for row, bound in zip(rows, smallest, strict=True):
        if bound > 0:
            # keeps what is larger than its bound: one pass, where comparing and filling take three
            torch.hardshrink(row, nextafter(bound, 0.0), out=row)


def disjoint_mean(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Elect the sign of each element, and return the weighted mean of the elements that have it.

    Args:
        rows: (n, m) float64, sparse task vectors, which are overwritten; 0 has no vote.
        weights: (n,) float64, not negative.

    Returns:
        (m,) float64; 0 where no sign wins.
    """
    sides = torch.empty((len(rows), 2, rows.shape[1]), dtype=torch.float64)
    torch.clamp(rows, min=0, out=sides[:, 0])
    torch.sub(rows, sides[:, 0], out=sides[:, 1])
    votes = sides.sign()
    if bool((weights != weights[0]).any()):
        sides.mul_(weights[:, None, None])
        votes.mul_(weights[:, None, None])
    total = fold_rows(sides)
    mass = total[0] + total[1]
    up, down = total.div_(fold_rows(votes))
    # the votes against are negative, and so is their sum: the mean has lost its sign
    return torch.where(mass > 0, up, torch.where(mass < 0, -down, 0.0))


def fold_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum over the first dimension, by halves; `rows` is used up.

    Fewer and longer operations than a row at a time, and as fixed an order.
    """
    count = len(rows)
    while count > 1:
        half = (count + 1) // 2
        rows[: count - half].add_(rows[half:count])
        count = half
    return rows[0]

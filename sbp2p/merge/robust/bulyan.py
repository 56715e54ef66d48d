"""Bulyan: Krum again and again, then a mean around the median. El Mhamdi et al. 2018.

Theory of operation (arXiv:1802.07927, section 4): Krum alone bounds how far the result is from the
honest models as a whole, which in a million dimensions leaves room to move one weight by a thousand
times their spread. So Krum selects theta = n - 2f models, one at a time, each from those that are
left; then each weight is the mean of the beta = theta - 2f selected values nearest to the median of
the selected ones. The median is one of the values: of two in the middle, the lower.

n >= 4f + 3, so that the selected ones outnumber the hostile ones among them even after trimming.
The last two rounds of selection see fewer than 2f + 3 models; they count at least one neighbour.

Error cases: fewer than 4f + 3 inputs are a MergeError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbp2p.merge.method import ElementwiseMethod, MethodDoc, Scope, register
from sbp2p.merge.robust.geometry import squared_distances
from sbp2p.merge.robust.hostile import Bound, Hostile, Share
from sbp2p.merge.robust.krum import krum_order
from sbp2p.merge.robust.order import mean_of_nearest, restore_zeros, sort_rows

if TYPE_CHECKING:
    import torch

    from sbp2p.merge.method import Group, Place
    from sbp2p.merge.robust.geometry import Matrix

BULYAN: Final = Bound("n >= 4f + 3", lambda f: 4 * f + 3)


def select(distances: Matrix, count: int, f: int) -> tuple[int, ...]:
    """Return the theta = n - 2f inputs that Krum takes, one round after the other, ascending."""
    left = set(range(count))
    selected = []
    for _ in range(count - 2 * f):
        best = krum_order(distances, left, f)[0]
        left.remove(best)
        selected.append(best)
    return tuple(sorted(selected))


@register
class Bulyan(ElementwiseMethod):
    """The mean of the values nearest to the median, of the models that Krum selects.

    Args:
        f: how many inputs may be hostile; as many as the bound allows if neither is given.
        share: instead, which share of the inputs, rounded down.
    """

    name = "bulyan"
    doc = MethodDoc(
        paper="El Mhamdi et al. 2018, The hidden vulnerability of distributed learning in "
        "Byzantium, arXiv:1802.07927",
        assumes="at most f hostile inputs; honest models close together",
        breakdown="f <= (n - 3)/4",
    )
    scope = Scope.MODEL
    bound = BULYAN

    def __init__(self, f: int | str | None = None, share: Share | None = None) -> None:
        self.hostile = Hostile.parse(f, share)

    def survey(self, group: Group) -> object:
        """Return the selected inputs; raises MergeError for too few of them."""
        f = self.hostile.among(group.count, self.bound, self.name)
        return select(squared_distances(group), group.count, f)

    def combine(
        self,
        values: torch.Tensor,
        base: torch.Tensor | None,
        weights: torch.Tensor,
        survey: object,
        place: Place,
    ) -> torch.Tensor:
        """Return one value for each column."""
        if not isinstance(survey, tuple):
            raise TypeError(f"bulyan surveys a selection, and got {survey!r}")
        chosen = [values[each] for each in survey]
        theta = len(survey)
        f = (values.shape[0] - theta) // 2
        ordered = sort_rows(chosen)
        near = mean_of_nearest(ordered, ordered[(theta - 1) // 2], theta - 2 * f)
        return restore_zeros(near, chosen)

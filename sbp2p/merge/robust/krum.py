"""Krum and Multi-Krum: the models in the middle of the closest crowd. Blanchard et al. 2017.

Theory of operation: the score of a model is the sum of its squared distances to its n - f - 2
nearest others (arXiv:1703.02757, section 4). Hostile models cannot have a good score without
standing among the honest ones, because n - f - 2 neighbours include honest ones if n >= 2f + 3.
Krum takes the model with the best score, Multi-Krum the mean of the best m. The sum of the squared
distances to *all* others, which is sometimes called Krum, is least near the mean: one model that is
far off decides which of the others that is.

Equal scores are decided by the content key, so every peer selects the same models. What is selected
is a linear combination, and the engine computes it exactly: Krum returns one input bit for bit.

Error cases: fewer than 2f + 3 inputs, or an `m` that would have to take hostile ones, are a
MergeError.
"""

from __future__ import annotations

from fractions import Fraction
from math import fsum
from typing import TYPE_CHECKING, Final

from sbp2p.errors import MergeError
from sbp2p.merge.method import LinearMethod, MethodDoc, Scope, register
from sbp2p.merge.robust.geometry import squared_distances
from sbp2p.merge.robust.hostile import Bound, Hostile, Share, whole_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sbp2p.merge.method import Group
    from sbp2p.merge.robust.geometry import Matrix

KRUM: Final = Bound("n >= 2f + 3", lambda f: 2 * f + 3)


def krum_order(distances: Matrix, among: Iterable[int], f: int) -> list[int]:
    """Return the inputs by Krum score, best first, equal ones in canonical order.

    Args:
        distances: squared ones, of all inputs.
        among: the inputs to look at, and to count as neighbours.
        f: how many of them may be hostile. Where so few are left that n - f - 2 is no neighbour at
            all, which only Bulyan's last rounds come to, one neighbour counts.
    """
    inputs = sorted(among)
    neighbours = max(1, len(inputs) - f - 2)
    scores = {}
    for each in inputs:
        others = sorted(distances[each][other] for other in inputs if other != each)
        scores[each] = fsum(others[:neighbours])
    return sorted(inputs, key=lambda each: (scores[each], each))


def selection(count: int, selected: Sequence[int]) -> list[Fraction]:
    """Return the coefficients of the mean of the selected inputs."""
    share = Fraction(1, len(selected))
    return [share if each in selected else Fraction() for each in range(count)]


@register
class Krum(LinearMethod):
    """The one model with the smallest sum of squared distances to its n - f - 2 nearest others.

    Args:
        f: how many inputs may be hostile; as many as the bound allows if neither is given.
        share: instead, which share of the inputs, rounded down.
    """

    name = "krum"
    doc = MethodDoc(
        paper="Blanchard et al. 2017, Machine learning with adversaries, arXiv:1703.02757",
        assumes="at most f hostile inputs; honest models close together: one of them is the result",
        breakdown="f <= (n - 3)/2",
    )
    scope = Scope.MODEL
    bound = KRUM

    def __init__(self, f: int | str | None = None, share: Share | None = None) -> None:
        self.hostile = Hostile.parse(f, share)

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return 1 for the selected model; raises MergeError for too few inputs."""
        f = self.hostile.among(group.count, self.bound, self.name)
        best = krum_order(squared_distances(group), range(group.count), f)[:1]
        return selection(group.count, best)


@register
class MultiKrum(LinearMethod):
    """The mean of the m models with the best Krum scores.

    Args:
        f: how many inputs may be hostile; as many as the bound allows if neither is given.
        share: instead, which share of the inputs, rounded down.
        m: how many models to take, at most n - f; n - f - 2 if not given.
    """

    name = "multi-krum"
    doc = MethodDoc(
        paper="Blanchard et al. 2017, Machine learning with adversaries, arXiv:1703.02757",
        assumes="at most f hostile inputs; honest models close together",
        breakdown="f <= (n - 3)/2",
    )
    scope = Scope.MODEL
    bound = KRUM

    def __init__(
        self, f: int | str | None = None, share: Share | None = None, m: int | str | None = None
    ) -> None:
        self.hostile = Hostile.parse(f, share)
        self._m = None if m is None else whole_of(m, "m", 1)

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return 1/m for the selected models; raises MergeError for too few inputs."""
        f = self.hostile.among(group.count, self.bound, self.name)
        m = group.count - f - 2 if self._m is None else self._m
        if m > group.count - f:
            raise MergeError(
                f"multi-krum cannot take m = {m} of {group.count} inputs, f = {f} of which may be "
                "hostile: m <= n - f",
                hint=f"take at most {group.count - f}",
            )
        best = krum_order(squared_distances(group), range(group.count), f)[:m]
        return selection(group.count, best)

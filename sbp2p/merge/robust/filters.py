"""Methods that leave f models out and take the mean of the others.

* `minimum-diameter`: the n - f models whose greatest distance to each other is least. El Mhamdi et
  al. 2021, after Rousseeuw 1985.
* `faba`: f times, the model farthest from the mean of those that are left goes. Xia et al. 2019.
* `comparative-elimination`: the f models farthest from the base go. Gupta et al. 2020 (CGE).

All from squared distances. The distance of a model to a mean follows from its distances to the
models in it: |S| ||x - mean(S)||^2 is the sum of its squared distances to S, up to a term that is
the same for each x in S. Equal distances are decided by the content key: the later goes.

Error cases: more hostile inputs than the bound allows are a MergeError, and so are more subsets
than `minimum-diameter` can look at.
"""

from __future__ import annotations

from itertools import combinations
from math import comb, fsum, isfinite
from typing import TYPE_CHECKING, Final

from sbp2p.errors import MergeError
from sbp2p.merge.method import LinearMethod, MethodDoc, Scope, register
from sbp2p.merge.robust.coordinatewise import MAJORITY
from sbp2p.merge.robust.geometry import squared_distances
from sbp2p.merge.robust.hostile import Hostile, Share
from sbp2p.merge.robust.krum import selection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from sbp2p.merge.method import Group
    from sbp2p.merge.robust.geometry import Matrix

SUBSETS_MAX: Final = 50_000
"""Subsets to look at, about a second: 18 inputs of which 8 may be hostile, or 60 of which 3."""


def minimum_diameter(distances: Matrix, keep: int) -> tuple[int, ...]:
    """Return the `keep` inputs of least diameter; of several such sets, the closest together.

    Closest is by the sorted pairwise distances, greatest first; then the first in canonical order.
    """

    def spread(chosen: tuple[int, ...]) -> list[float]:
        return sorted((distances[a][b] for a, b in combinations(chosen, 2)), reverse=True)

    return min(combinations(range(len(distances)), keep), key=lambda each: (spread(each), each))


def nearest_the_mean(distances: Matrix, keep: int) -> tuple[int, ...]:
    """Return what is left of all inputs when the farthest from the mean goes, one at a time."""
    left = list(range(len(distances)))

    def farness(each: int) -> tuple[int, float, int]:
        here = [distances[each][other] for other in left]
        finite = [distance for distance in here if isfinite(distance)]
        return len(here) - len(finite), fsum(finite), each

    while len(left) > keep:
        left.remove(max(left, key=farness))
    return tuple(left)


class _Filter(LinearMethod):
    """The mean of those inputs that a rule keeps."""

    scope = Scope.MODEL
    bound = MAJORITY

    def __init__(self, f: int | str | None = None, share: Share | None = None) -> None:
        self.hostile = Hostile.parse(f, share)

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return equal coefficients for what is kept; raises MergeError for too few inputs."""
        f = self.hostile.among(group.count, self.bound, self.name)
        return selection(group.count, self._kept(group, group.count - f))

    def _kept(self, group: Group, keep: int) -> Sequence[int]:
        raise AssertionError("a filter keeps something")


@register
class MinimumDiameter(_Filter):
    """The mean of the n - f models that are closest together; looks at every subset.

    Args:
        f: how many inputs may be hostile; as many as the bound allows if neither is given.
        share: instead, which share of the inputs, rounded down.
    """

    name = "minimum-diameter"
    doc = MethodDoc(
        paper="El Mhamdi et al. 2021, Distributed momentum for Byzantine-resilient SGD, "
        "arXiv:2003.00010 (MDA)",
        assumes="at most f hostile inputs; few inputs, since every subset is looked at",
        breakdown="f < n/2, as chosen; by default the most",
    )

    def _kept(self, group: Group, keep: int) -> Sequence[int]:
        if (subsets := comb(group.count, keep)) > SUBSETS_MAX:
            raise MergeError(
                f"minimum-diameter would look at {subsets} subsets of {keep} of {group.count} "
                f"inputs, and stops at {SUBSETS_MAX}",
                hint="expect fewer hostile inputs, or take faba, which drops one at a time",
            )
        return minimum_diameter(squared_distances(group), keep)


@register
class Faba(_Filter):
    """The mean of what is left when f times the model farthest from the mean goes.

    Args:
        f: how many inputs may be hostile; as many as the bound allows if neither is given.
        share: instead, which share of the inputs, rounded down.
    """

    name = "faba"
    doc = MethodDoc(
        paper="Xia et al. 2019, FABA: fast aggregation against Byzantine attacks, "
        "doi:10.24963/ijcai.2019/670",
        assumes="at most f hostile inputs; honest models close together",
        breakdown="f < n/2, as chosen; by default the most",
    )

    def _kept(self, group: Group, keep: int) -> Sequence[int]:
        return nearest_the_mean(squared_distances(group), keep)


@register
class ComparativeElimination(_Filter):
    """The mean of the n - f models that are nearest to the base.

    Args:
        f: how many inputs may be hostile; as many as the bound allows if neither is given.
        share: instead, which share of the inputs, rounded down.
    """

    name = "comparative-elimination"
    doc = MethodDoc(
        paper="Gupta et al. 2020, Byzantine fault-tolerant distributed machine learning using SGD "
        "and norm-based comparative gradient elimination, arXiv:2008.04699 (CGE)",
        assumes="a base near the honest inputs; hostile ones that need length to do harm",
        breakdown="f < n/2, as chosen; by default the most",
    )
    needs_base = True

    def _kept(self, group: Group, keep: int) -> Sequence[int]:
        distances = squared_distances(group, base=True)[-1]
        return sorted(range(group.count), key=lambda each: (distances[each], each))[:keep]

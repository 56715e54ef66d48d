"""Methods that look at each coordinate alone: the values of n models for one weight, in order.

* `median`: the one in the middle. Yin et al. 2018.
* `trimmed-mean`: the mean without the f least and the f greatest. Yin et al. 2018.
* `mean-around-median`: the mean of the n - f nearest to the median. Xie et al. 2018 ("MeaMed").
* `phocas`: the mean of the n - f nearest to the trimmed mean. Xie et al. 2018.

Each value of a result lies between the least and the greatest honest value of its coordinate for
the first two, and within a factor of their spread for the others. That is a box around the honest
models, not their hull: in a model of d weights the result may still be sqrt(d) times their spread
away from all of them. Values are right to about one rounding of float64 before the one to the
dtype of the result; identical inputs come out as they are.

Error cases: more hostile inputs than the bound allows, and a share that would trim nobody, are a
MergeError.
"""

from __future__ import annotations

from abc import abstractmethod
from math import ceil
from typing import TYPE_CHECKING, Final

from sbp2p.errors import MergeError
from sbp2p.merge.method import ElementwiseMethod, MethodDoc, register
from sbp2p.merge.robust.hostile import Bound, Hostile, Share
from sbp2p.merge.robust.means import mean_rows
from sbp2p.merge.robust.order import mean_of_nearest, median_of, restore_zeros, sort_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from sbp2p.merge.method import Group, Place

MAJORITY: Final = Bound("n >= 2f + 1", lambda f: 2 * f + 1)
"""More honest inputs than hostile ones."""


class _Ordered(ElementwiseMethod):
    """Reads its result off the values in order, f of which may be hostile."""

    by_rows = True

    def survey(self, group: Group) -> object:
        """Return f; raises MergeError when there are too few inputs for it."""
        return self._hostile_among(group.count)

    def combine(
        self,
        values: torch.Tensor,
        base: torch.Tensor | None,
        weights: torch.Tensor,
        survey: object,
        place: Place,
    ) -> torch.Tensor:
        """Return one value for each column."""
        if not isinstance(survey, int):
            raise TypeError(f"{self.name} surveys a number, and got {survey!r}")
        rows = values.unbind(0)
        return restore_zeros(self._read(rows, survey), rows)

    @abstractmethod
    def _hostile_among(self, count: int) -> int:
        """Return f for so many inputs."""

    @abstractmethod
    def _read(self, values: Sequence[torch.Tensor], f: int) -> torch.Tensor:
        """Return the result; what is 0 in it may have either sign."""


@register
class Median(_Ordered):
    """The coordinate-wise median; of an even number of inputs, the mean of the middle two."""

    name = "median"
    doc = MethodDoc(
        paper="Yin et al. 2018, Byzantine-robust distributed learning, arXiv:1803.01498",
        assumes="honest values of each weight spread evenly around what is right",
        breakdown="f < n/2",
    )

    def _hostile_among(self, count: int) -> int:
        return (count - 1) // 2

    def _read(self, values: Sequence[torch.Tensor], f: int) -> torch.Tensor:
        return median_of(values)


@register
class TrimmedMean(_Ordered):
    """The coordinate-wise mean without the f least and the f greatest values.

    Args:
        f: how many to leave out at each end.
        beta: instead, which share of the inputs, rounded down. If neither is given, a quarter, as
            most papers test with, but at least one of three.
    """

    name = "trimmed-mean"
    doc = MethodDoc(
        paper="Yin et al. 2018, Byzantine-robust distributed learning, arXiv:1803.01498",
        assumes="at most f hostile inputs, where f of each end are left out",
        breakdown="f < n/2, as chosen; by default a quarter",
    )

    bound = MAJORITY

    def __init__(self, f: int | str | None = None, beta: Share | None = None) -> None:
        self.hostile = Hostile.parse(f, beta, "beta")

    def _hostile_among(self, count: int) -> int:
        if self.hostile.count(count) is None:
            return max(count // 4, min(1, (count - 1) // 2))
        f = self.hostile.among(count, self.bound, self.name)
        if self.hostile.share and not f:
            raise MergeError(
                f"trimmed-mean with beta = {float(self.hostile.share)} leaves nobody out of "
                f"{count} inputs: it needs n >= 1/beta, which is {ceil(1 / self.hostile.share)}",
                hint="give f, the number to leave out at each end, or take the median",
            )
        return f

    def _read(self, values: Sequence[torch.Tensor], f: int) -> torch.Tensor:
        return mean_rows(sort_rows(values, f, len(values) - f))


class _Nearest(_Ordered):
    """The mean of the n - f values nearest to a centre."""

    bound = MAJORITY

    def __init__(self, f: int | str | None = None, share: Share | None = None) -> None:
        self.hostile = Hostile.parse(f, share)

    def _hostile_among(self, count: int) -> int:
        return self.hostile.among(count, self.bound, self.name)

    def _read(self, values: Sequence[torch.Tensor], f: int) -> torch.Tensor:
        ordered = sort_rows(values)
        return mean_of_nearest(ordered, self._centre(ordered, f), len(ordered) - f)

    @abstractmethod
    def _centre(self, ordered: list[torch.Tensor], f: int) -> torch.Tensor:
        """Return what the values shall be near to."""


@register
class MeanAroundMedian(_Nearest):
    """The coordinate-wise mean of the n - f values nearest to the median.

    Args:
        f: how many inputs may be hostile; as many as the bound allows if neither is given.
        share: instead, which share of the inputs, rounded down.
    """

    name = "mean-around-median"
    doc = MethodDoc(
        paper="Xie et al. 2018, Generalized Byzantine-tolerant SGD, arXiv:1802.10116 (MeaMed)",
        assumes="at most f hostile inputs; honest values of each weight close together",
        breakdown="f < n/2, as chosen; by default the most",
    )

    def _centre(self, ordered: list[torch.Tensor], f: int) -> torch.Tensor:
        count = len(ordered)
        return mean_rows(ordered[(count - 1) // 2 : count // 2 + 1])


@register
class Phocas(_Nearest):
    """The coordinate-wise mean of the n - f values nearest to the trimmed mean.

    Args:
        f: how many inputs may be hostile; as many as the bound allows if neither is given.
        share: instead, which share of the inputs, rounded down.
    """

    name = "phocas"
    doc = MethodDoc(
        paper="Xie et al. 2018, Phocas: dimensional Byzantine-resilient SGD, arXiv:1805.09682",
        assumes="at most f hostile values of each weight, which may be other inputs each time",
        breakdown="f < n/2, as chosen; by default the most",
    )

    def _centre(self, ordered: list[torch.Tensor], f: int) -> torch.Tensor:
        return mean_rows(ordered[f : len(ordered) - f])

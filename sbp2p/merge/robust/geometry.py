"""Squared distances and inner products between whole models, streamed, without cancellation.

Theory of operation: ||x - y||^2 as ||x||^2 + ||y||^2 - 2<x, y> loses all digits when models are
close together and far from zero, which is what trained copies of one model are. So distances are
sums of squared differences, and inner products are taken of differences to a centre among the
inputs: the coordinate-wise median, which hostile inputs cannot carry away, or the base model.

Rules:
1. Pieces are summed by `tree_sum`, pieces are added as exact rationals, and the total is rounded
   once. A squared distance is right to 2^-48, relative; an inner product to 2^-48 of the product of
   the two norms. Both have the same bits on every processor.
2. Two equal inputs have distance 0.0, and distances are symmetric, exactly: what is a tie is a tie.
3. Inputs come in step (see `Group.pieces`): one pass over all inputs, one piece of each in memory.
4. A squared distance above 2^960, which only F64 models can reach, is infinity, so that no sum of
   squared distances overflows. Callers take such an input for one that is infinitely far away.
"""

from __future__ import annotations

from fractions import Fraction
from math import inf, isfinite
from typing import TYPE_CHECKING, Final, Literal, Protocol, runtime_checkable

from sbp2p.merge.method import BASE
from sbp2p.merge.robust.order import median_of
from sbp2p.merge.robust.sums import tree_sum

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from sbp2p.merge.method import Group

_FAR: Final = 2.0**960
"""A squared distance above this is infinite: weights of 1e144, which no model has."""

Matrix = list[list[float]]
Centre = Literal["median", "base", "zero"]


@runtime_checkable
class Stacked(Protocol):
    """A group that gives the pieces of all inputs at once, cheaper than one by one."""

    def stacks(self, *, base: bool) -> Iterator[torch.Tensor]:
        """Stream (count, m) pieces, with the base as a last row if asked for."""


def stacks(group: Group, *, base: bool = False) -> Iterator[torch.Tensor]:
    """Stream all inputs in step, as float64 of shape (count, m), the base last if asked for."""
    if isinstance(group, Stacked):
        yield from group.stacks(base=base)
        return
    inputs = [group.pieces(which) for which in range(group.count)]
    if base:
        inputs.append(group.pieces(BASE))
    for pieces in zip(*inputs, strict=True):
        first = pieces[0][1]
        stack = first.new_empty((len(pieces), first.shape[0]))
        for row, (_, values) in enumerate(pieces):
            stack[row] = values
        yield stack


def squared_distances(group: Group, *, base: bool = False) -> Matrix:
    """Return ||x_i - x_j||^2 for all inputs, and for the base as a last one if asked for."""
    size = group.count + base
    totals = [_Sums(size - first - 1) for first in range(size)]
    for stack in stacks(group, base=base):
        for first in range(size - 1):
            difference = stack[first + 1 :] - stack[first]
            difference *= difference
            totals[first].add(tree_sum(difference).tolist())
    result = [[0.0] * size for _ in range(size)]
    for first, sums in enumerate(totals):
        for second, value in enumerate(sums.rounded(), first + 1):
            result[first][second] = result[second][first] = value
    return result


def inner_products(group: Group, *, centre: Centre) -> Matrix:
    """Return <x_i - c, x_j - c> for all inputs, about the coordinate-wise median, the base, or 0.

    About 0, the base is the last row and column, if there is one. Where the squared norm of an
    input is above 2^960, its place on the diagonal is infinity, and its row and column may be.
    """
    size = group.count + (group.base and centre == "zero")
    totals = [_Sums(size - first) for first in range(size)]
    for stack in stacks(group, base=centre == "base" or size > group.count):
        if centre == "base":
            rows = stack[:-1] - stack[-1]
        elif centre == "median":
            rows = stack - median_of(stack)
        else:
            rows = stack
        for first in range(size):
            totals[first].add(tree_sum(rows[first:] * rows[first]).tolist())
    result = [[0.0] * size for _ in range(size)]
    for first, sums in enumerate(totals):
        for second, value in enumerate(sums.rounded(), first):
            result[first][second] = result[second][first] = value
    return result


class _Sums:
    """Exact sums of floats, several at once."""

    __slots__ = ("_lost", "_totals")

    def __init__(self, count: int) -> None:
        self._totals = [Fraction()] * count
        self._lost = [0.0] * count
        """What cannot be a rational: infinity, or NaN when there were both."""

    def add(self, values: Iterable[float]) -> None:
        """Add one value to each."""
        for index, value in enumerate(values):
            if isfinite(value):
                self._totals[index] += Fraction(value)
            else:
                self._lost[index] += value

    def rounded(self) -> list[float]:
        """Return each sum, rounded once."""
        return [
            _rounded(total) if lost == 0 else lost
            for total, lost in zip(self._totals, self._lost, strict=True)
        ]


def _rounded(total: Fraction) -> float:
    if abs(total) > _FAR:
        return inf if total > 0 else -inf
    return float(total)

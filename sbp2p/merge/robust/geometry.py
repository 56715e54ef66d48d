"""Squared distances and inner products between whole models, streamed, without cancellation.

Theory of operation: ||x - y||^2 as ||x||^2 + ||y||^2 - 2<x, y> loses all digits when models are
close together and far from zero, which is what trained copies of one model are. So distances are
sums of squared differences, and inner products are taken of differences to a centre among the
inputs: the coordinate-wise median, which hostile inputs cannot carry away, or the base model.

Rules:
1. Pieces are summed by `fold_sum`, their sums are added as exact rationals, and the total is
   rounded once. A squared distance is right to 2^-48, relative; an inner product to 2^-48 of the
   product of the two norms. Both have the same bits on every processor.
2. Two equal inputs have distance 0.0, and distances are symmetric, exactly: what is a tie is a tie.
3. Inputs come in step (see `Group.pieces`): one pass over all inputs, one piece of each in memory.
4. A squared distance above 2^960, which only F64 models can reach, is infinity, so that no sum of
   squared distances overflows. Callers take such an input for one that is infinitely far away.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, combinations_with_replacement
from math import inf, isfinite
from typing import TYPE_CHECKING, Final, Literal, Protocol, runtime_checkable

from sbp2p.merge.method import BASE
from sbp2p.merge.robust.order import median_of
from sbp2p.merge.sums import fold_sum

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from sbp2p.merge.method import Group

_FAR: Final = 2.0**960
"""A squared distance above this is infinite: weights of 1e144, which no model has."""

_ZERO: Final = Fraction()

Matrix = list[list[float]]
Centre = Literal["median", "base", "zero"]


@runtime_checkable
class InStep(Protocol):
    """A group that gives the pieces of all inputs at once, cheaper than one by one."""

    def in_step(self, *, base: bool) -> Iterator[list[torch.Tensor]]:
        """Stream a piece of each input, and of the base last if asked for; the caller's to keep."""


def in_step(group: Group, *, base: bool = False) -> Iterator[list[torch.Tensor]]:
    """Stream a piece of each input, and of the base last if asked for, as 1-D float64."""
    if isinstance(group, InStep):
        yield from group.in_step(base=base)
        return
    inputs = [group.pieces(which) for which in range(group.count)]
    if base:
        inputs.append(group.pieces(BASE))
    for pieces in zip(*inputs, strict=True):
        yield [values for _, values in pieces]


def squared_distances(group: Group, *, base: bool = False) -> Matrix:
    """Return ||x_i - x_j||^2 for all inputs, and for the base as a last one if asked for."""
    totals = _Sums(group.count + base)
    for rows in in_step(group, base=base):
        for i, j in combinations(range(len(rows)), 2):
            difference = rows[i] - rows[j]
            difference *= difference
            totals.add(i, j, _sum_of(difference))
    return totals.rounded()


def inner_products(group: Group, *, centre: Centre) -> Matrix:
    """Return <x_i - c, x_j - c> for all inputs, about the coordinate-wise median, the base, or 0.

    About 0, the base is the last row and column, if there is one. Where the squared norm of an
    input is above 2^960, its place on the diagonal is infinity, and its row and column may be.
    """
    base_counts = group.base and centre == "zero"
    totals = _Sums(group.count + base_counts)
    for pieces in in_step(group, base=centre == "base" or base_counts):
        if centre == "zero":
            rows = pieces
        else:
            middle = pieces.pop() if centre == "base" else median_of(pieces)
            rows = [row - middle for row in pieces]
        for i, j in combinations_with_replacement(range(len(rows)), 2):
            totals.add(i, j, _sum_of(rows[i] * rows[j]))
    return totals.rounded()


def _sum_of(values: torch.Tensor) -> float:
    """Return a sum, infinite or NaN where it is too large; uses up `values`."""
    try:
        return fold_sum(values)
    except (OverflowError, ValueError):  # from math.fsum: too large, or infinities of both signs
        return inf


class _Sums:
    """A symmetric matrix of exact sums of floats."""

    __slots__ = ("_lost", "_size", "_totals")

    def __init__(self, size: int) -> None:
        self._size = size
        self._totals: dict[tuple[int, int], Fraction] = {}
        self._lost: dict[tuple[int, int], float] = {}
        """What cannot be a rational: infinity, or NaN when there were both."""

    def add(self, i: int, j: int, value: float) -> None:
        """Add to the sum at (i, j), i <= j."""
        if isfinite(value):
            self._totals[i, j] = self._totals.get((i, j), _ZERO) + Fraction(value)
        else:
            self._lost[i, j] = self._lost.get((i, j), 0.0) + value

    def rounded(self) -> Matrix:
        """Return each sum, rounded once; what is too large is infinite."""
        matrix = [[0.0] * self._size for _ in range(self._size)]
        for (i, j), total in self._totals.items():
            far = inf if total > 0 else -inf
            matrix[i][j] = matrix[j][i] = float(total) if abs(total) <= _FAR else far
        for (i, j), value in self._lost.items():
            matrix[i][j] = matrix[j][i] = value
        return matrix

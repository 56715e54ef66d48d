"""The values of each column in order, and what can be read off it. The same bits everywhere.

Theory of operation: rows are sorted by Batcher's odd-even merge network, whose steps are
elementwise minima and maxima of two rows: ten times faster than sorting each column of few rows,
and every step is fixed by IEEE 754 but for one thing: which of -0.0 and 0.0 is the lesser. So zeros
are made positive first, and a zero of the result is negative only where all inputs have -0.0.

Values are finite; the engine sets inputs with NaN or infinity aside.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from sbp2p.merge.robust.means import mean_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@lru_cache(maxsize=64)
def network(count: int) -> tuple[tuple[int, int], ...]:
    """Return the comparisons (lower row, higher row) that sort `count` rows: Batcher 1968."""
    steps: list[tuple[int, int]] = []
    block = 1
    while block < count:
        reach = block
        while reach:
            for start in range(reach % block, count - reach, 2 * reach):
                lows = range(start, min(start + reach, count - reach))
                same = (low for low in lows if low // (2 * block) == (low + reach) // (2 * block))
                steps.extend((low, low + reach) for low in same)
            reach //= 2
        block *= 2
    return tuple(steps)


@lru_cache(maxsize=256)
def selection(count: int, first: int, last: int) -> tuple[tuple[int, int, bool, bool], ...]:
    """Return what of a network the rows from `first` up to `last` need.

    A step is (lower row, higher row, whether the lesser value is needed, whether the greater is).
    """
    needed = set(range(first, last))
    steps = []
    for low, high in reversed(network(count)):
        lesser, greater = low in needed, high in needed
        if lesser or greater:
            steps.append((low, high, lesser, greater))
            needed |= {low, high}
    return tuple(reversed(steps))


def sort_rows(
    values: Sequence[torch.Tensor], first: int = 0, last: int | None = None
) -> list[torch.Tensor]:
    """Return rows `first` up to `last` of all rows when each column is made to ascend.

    Values are finite, rows of one length; -0.0 becomes 0.0.
    """
    rows = [row + 0.0 for row in values]
    end = len(rows) if last is None else last
    for low, high, lesser, greater in selection(len(rows), first, end):
        a, b = rows[low], rows[high]
        if lesser:
            rows[low] = a.minimum(b)
        if greater:
            rows[high] = a.maximum(b)
    return rows[first:end]


def median_of(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the median of each column: of two in the middle, their mean; without -0.0."""
    count = len(values)
    return mean_rows(sort_rows(values, (count - 1) // 2, count // 2 + 1))


def mean_of_nearest(
    ordered: Sequence[torch.Tensor], centre: torch.Tensor, keep: int
) -> torch.Tensor:
    """Return the mean of the `keep` values nearest to `centre`; of two as near, the lower.

    The nearest ones of a sorted column stand side by side, so the farther end is dropped until
    `keep` are left.
    """
    import torch

    rows = torch.stack(list(ordered))
    first = (centre * 0).long()  # of the values that are left, by column
    for left in range(len(ordered), keep, -1):
        low = rows.gather(0, first[None])[0]
        high = rows.gather(0, first[None] + (left - 1))[0]
        first += (centre - low) > (high - centre)
    return mean_rows([rows.gather(0, first[None] + offset)[0] for offset in range(keep)])


def restore_zeros(result: torch.Tensor, values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the result with -0.0 where every input has it."""
    negative = result == 0
    if not bool(negative.any()):
        return result
    for row in values:
        negative &= row.signbit()
    return result.where(~negative, -result)

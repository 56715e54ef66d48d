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

from sbp2p.merge.robust.sums import mean_rows

if TYPE_CHECKING:
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


def sort_rows(values: torch.Tensor) -> torch.Tensor:
    """Return (count, m) finite values with each column ascending, and without -0.0."""
    import torch

    rows = [row + 0.0 for row in values.unbind(0)]
    for low, high in network(len(rows)):
        rows[low], rows[high] = rows[low].minimum(rows[high]), rows[low].maximum(rows[high])
    return torch.stack(rows)


def median_rows(ordered: torch.Tensor) -> torch.Tensor:
    """Return the median of (count, m) rows in order: of two in the middle, their mean."""
    count = ordered.shape[0]
    if count % 2:
        return ordered[count // 2]
    return mean_rows([ordered[count // 2 - 1], ordered[count // 2]])


def mean_of_nearest(ordered: torch.Tensor, centre: torch.Tensor, keep: int) -> torch.Tensor:
    """Return the mean of the `keep` values nearest to `centre`; of two as near, the lower.

    The nearest ones of a sorted column stand side by side, so the farther end is dropped until
    `keep` are left.
    """
    count = ordered.shape[0]
    first = (centre * 0).long()  # of the values that are left, by column
    for left in range(count, keep, -1):
        low = ordered.gather(0, first[None])[0]
        high = ordered.gather(0, first[None] + (left - 1))[0]
        first += (centre - low) > (high - centre)
    return mean_rows([ordered.gather(0, first[None] + offset)[0] for offset in range(keep)])


def restore_zeros(result: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the result with -0.0 where every one of (count, m) inputs has it."""
    zero = result == 0
    if not bool(zero.any()):
        return result
    return result.where(~(zero & values.signbit().all(0)), -result)

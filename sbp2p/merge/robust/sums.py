"""Sums of float64 values that are the same on every processor, and close to exact.

What torch's own `sum`, `dot` and `matmul` return depends on the width of the processor's vectors
and on the number of threads, because these decide the order of the additions. Here every addition
is an elementwise one, in an order that is written down, and IEEE 754 fixes what each of them gives.

* `tree_sum` adds neighbours pairwise: for values of one sign within log2(n) + 1 roundings.
* `mean_rows` carries the error of each addition along (Knuth's TwoSum), so that the mean of the
  rows is right to about one rounding of float64 whatever cancels, lies between the least and the
  greatest row, and is the row itself when all are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

_LARGE: Final = 2.0**900
"""Columns with larger values are scaled down while they are added, so that no sum overflows."""

_SMALLER: Final = 2.0**-20
"""By which: enough for a million rows."""


def tree_sum(values: torch.Tensor) -> torch.Tensor:
    """Return the sums over the last dimension, and use up `values`; 0 over an empty one."""
    width = values.shape[-1]
    if width == 0:
        return values.sum(-1)
    while width > 1:
        half = width // 2
        low = values[..., :half]
        low += values[..., half : 2 * half]
        if width % 2:
            low[..., 0] += values[..., 2 * half]
        values, width = low, half
    return values[..., 0]


def mean_rows(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean of float64 rows of one shape; the order of the rows may matter.

    Callers sort the rows first, by value or by key, which makes the order one of content.
    """
    low = high = rows[0]
    for row in rows[1:]:
        low, high = low.minimum(row), high.maximum(row)
    large = low.abs().maximum(high.abs()) > _LARGE
    if bool(large.any()):
        scale = large.to(low.dtype) * (_SMALLER - 1) + 1
        mean = _mean([row * scale for row in rows]) / scale
    else:
        mean = _mean(rows)
    return mean.where(mean >= low, low).where(mean <= high, high)


def _mean(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    total = rows[0]
    lost = total * 0
    for row in rows[1:]:
        added = total + row
        back = added - total
        lost += (total - (added - back)) + (row - back)
        total = added
    # where nothing was lost, adding 0.0 would make 0.0 of -0.0
    return total.where(lost == 0, total + lost) / len(rows)

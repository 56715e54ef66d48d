"""The mean of a few values for each weight, close to exact, and the same on every processor.

Every operation is an elementwise one, in an order that is written down, and IEEE 754 fixes what
each of them gives (see `sbp2p.merge.sums`). The error of each addition is carried along (Knuth's
TwoSum), so that a mean is right to about one rounding of float64 whatever cancels, lies between the
least and the greatest value, and is the value itself when all are the same.
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

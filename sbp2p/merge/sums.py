"""Sums whose bits depend on nothing but the numbers and their order.

torch.sum, norm, dot, mean and matmul add in an order that depends on the vector unit of the
machine, on strides and on threads. Elementwise add, subtract, multiply, divide and sqrt are the
same everywhere, so sums are folded out of those. (`alpha=`, addcmul and lerp may fuse a multiply
with an add, in the vectorised part only; exp, log and pow differ between libraries. A method that
must give the same bits on every peer uses none of them.)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

_LEAVES: Final = 64
"""Folding stops at so few elements; math.fsum, which is exact, does the rest."""


def fold_sum(values: torch.Tensor) -> float:
    """Return the sum of a 1-D float64 tensor; it is used up.

    Error: at most log2(n) * 2**-53 times the sum of magnitudes.
    """
    count = values.numel()
    while count > _LEAVES:
        half = (count + 1) // 2
        values[: count - half].add_(values[half:count])
        count = half
    return math.fsum(values[:count].tolist())


def fold_dot(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the inner product of two 1-D float64 tensors of at most `method.CHUNK` elements."""
    return fold_sum(left * right)


def sum_rows(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of each column of an (n, m) tensor, n >= 1, added from the first row on."""
    total = values[0].clone()
    for row in values[1:]:
        total.add_(row)
    return total

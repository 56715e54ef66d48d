"""Sums in pairs of float64: what single ones cannot tell apart, at a fraction of exact arithmetic.

The sum is kept as s + e, the rounded sum and the sum of what its additions rounded off (Ogita, Rump
and Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26, 2005), and what the additions
of e round off is kept as a magnitude, f. When f is 0, s + e is the sum. In any case it is off by
less than t**2 * 2**-104 times the sum of magnitudes of its t terms. It is divided with a remainder
(Dekker's product), which is off by a factor of less than 2**-99. So a result that is at least that
far from a midpoint is proven: float64 tensors, and coefficients such as 0.1 that are nearly, but
not quite, simple fractions, whose results are nearly ties.

Bounds hold where nothing overflows (`distill.fits`) and nothing underflows: a column whose quotient
is below 2**-800 is not proven here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from sbp2p.merge.distill import distill
from sbp2p.merge.rounding import on_grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.merge.coefficients import Coefficients
    from sbp2p.merge.dtypes import FloatFormat

_SPLIT: Final = 2.0**27 + 1
_TINY: Final = 2.0**-800


def round_pairs(
    terms: Sequence[torch.Tensor], coefficients: Coefficients, target: FloatFormat
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each column's sum of exact terms, divided by the denominator, to the target's grid.

    Returns:
        (k,) float64 on the grid, and (k,) bool: which are proven. A sum of nothing but zeros may
        have either sign.
    """
    total, error, lost, size = _add(terms)
    denominator = float(coefficients.denominator)
    rest = float(coefficients.denominator - int(denominator))
    slack = size * (len(terms) ** 2 * 2.0**-104 / denominator)
    head = total / denominator
    product, low = _multiply(head, denominator)
    tail = ((total - product) - low + error - head * rest) / denominator
    slack += head.abs() * 2.0**-99
    high = head + tail
    low = tail - (high - head)
    exact = lost == 0
    nothing = exact & (total == 0) & (error == 0)
    safe = (high.abs() > _TINY) | nothing
    if coefficients.shift is None or coefficients.shift > 100:
        exact = torch.zeros_like(exact)
    if target.dtype == "F64":
        down, up = high + (low - slack), high + (low + slack)
        # the denominator is a power of two: adding both halves of an exact sum rounds it once
        plain = (total + error) * (1.0 / denominator)
        result, proven = torch.where(exact, plain, down), (down == up) | exact
        left = ((lost == 0) & safe & ~proven).nonzero().view(-1)
        if left.numel() and coefficients.denominator < 1 << 53:
            halves = (total[left], error[left])
            result[left], proven[left] = _nearer(*halves, denominator, down[left], up[left])
        return result.masked_fill_(nothing, 0.0), safe & (proven | nothing)
    # so that the real sum has one of these two as its neighbour
    safe &= (slack < high.abs() * 2.0**-52) | nothing
    wiggle = high.abs() * 2.0**-51
    down, up = on_grid(high - wiggle, target), on_grid(high + wiggle, target)
    middle = (down + up) * 0.5
    side = (high - middle) + low
    result = torch.where(side > 0, up, down)
    proven = (down == up) | (side.abs() * (1 - 2.0**-50) > slack)
    tie = exact & (error == 0)
    result = torch.where(tie, on_grid(total * (1.0 / denominator), target), result)
    return result.copysign_(high), safe & (proven | tie | nothing)


def _nearer(
    total: torch.Tensor,
    error: torch.Tensor,
    denominator: float,
    down: torch.Tensor,
    up: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which of two float64 neighbours is nearer to an exact sum divided; and if they are."""
    terms = [total * 2.0, error * 2.0]
    for each in (down, up):
        terms += [-part for part in _multiply(each, denominator)]
    side = distill(torch.stack(terms))
    even = torch.where((down.view(torch.int64) & 1) == 0, down, up)
    result = torch.where(side > 0, up, torch.where(side < 0, down, even))
    return result, (up.view(torch.int64) - down.view(torch.int64)).abs() == 1


def _add(
    terms: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the sum, its error, what the error may lack, and the sum of magnitudes."""
    total = terms[0].clone()
    error, lost = torch.zeros_like(total), torch.zeros_like(total)
    size = total.abs()
    for term in terms[1:]:
        total, off = _two_sum(total, term)
        error, off = _two_sum(error, off)
        lost += off.abs_()
        size += term.abs()
    return total, error, lost, size


def _two_sum(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a + b and what it was rounded by, exactly (Knuth)."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)).add_(b - shadow)


def _multiply(a: torch.Tensor, b: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a * b and what it was rounded by, exactly (Dekker, with Veltkamp's halves)."""
    scaled = a * _SPLIT
    a_high = scaled - (scaled - a)
    a_low = a - a_high
    whole = b * _SPLIT
    b_high = whole - (whole - b)
    b_low = b - b_high
    product = a * b
    error = a_high * b_high - product
    return product, error + a_high * b_low + a_low * b_high + a_low * b_low

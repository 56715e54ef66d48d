"""Single elements of an exact sum, which no error bound could decide: stages 3 to 5 of `exact`."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

import torch

from sbp2p.merge import distill
from sbp2p.merge.method import CHUNK
from sbp2p.merge.pairs import round_pairs
from sbp2p.merge.rounding import nearest, on_grid, store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.merge.coefficients import Coefficients
    from sbp2p.merge.dtypes import FloatFormat

CEIL: Final = 1.0 + 2.0**-30
"""Makes a bound that was computed with a few roundings an upper one."""
_MAGNITUDE: Final = 0x7FFF_FFFF_FFFF_FFFF
_SMALLEST: Final = -0x8000_0000_0000_0000


class Settlement:
    """Decides elements one way or the other; may be used by several threads."""

    def __init__(self, given: Coefficients, precision: int, target: FloatFormat) -> None:
        """Take coefficients, none of them 0, for inputs of at most this precision."""
        self._given = given
        self._precision = precision
        self._target = target
        widest = max((each.bit_length() for each in given.numerators), default=0)
        shift = given.shift
        dyadic = shift is not None and shift < 400
        limit = 53 if target.precision == 53 else 52 - target.precision
        divides = dyadic or given.denominator < 1 << limit
        self.plain = divides and widest + precision <= 53
        """Whether exact sums of numerators times inputs, below 2**`room` quanta, can be divided
        and rounded: a numerator times an input is exact in float64, and the denominator is small
        enough for the second of two roundings to be harmless (see `exact`)."""
        self.room = 53 if dyadic else 52

    def settle(
        self,
        rows: Sequence[torch.Tensor],
        peaks: Sequence[float],
        which: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Compute the elements `which` of the chunk, a batch at a time."""
        if not rows:
            out.zero_()
            return
        batch = max(1, CHUNK // (len(rows) + 1))
        for start in range(0, which.numel(), batch):
            part = which[start : start + batch]
            values = torch.stack([row.index_select(0, part).double() for row in rows])
            result = self._narrow(values, peaks)
            left = torch.isnan(result)
            if bool(left.any()):
                columns = left.nonzero().view(-1)
                result[columns] = self._wide(values[:, columns], max(peaks))
            rounded = torch.empty(part.numel(), dtype=out.dtype)
            store(result, self._target, rounded)
            out[part] = rounded

    def divide(self, total: torch.Tensor) -> torch.Tensor:
        """Divide by the denominator, in place."""
        shift = self._given.shift
        if shift is not None:
            return total.mul_(2.0**-shift)
        return total.div_(float(self._given.denominator))

    def _narrow(self, values: torch.Tensor, peaks: Sequence[float]) -> torch.Tensor:
        """Return each column's result on the target's grid, NaN where float64 does not prove it."""
        given = self._given
        unknown = torch.full((values.shape[1],), torch.nan, dtype=torch.float64)
        if not self.plain:
            return unknown
        numerators = torch.tensor([float(k) for k in given.numerators], dtype=torch.float64)
        span = sum(abs(k) * peak for k, peak in zip(given.numerators, peaks, strict=True)) * CEIL
        # x is a multiple of 2**(1 - precision) of its binade, so of more than |x| 2**-precision
        exact = _smallest(values) >= span * 2.0 ** (self._precision - self.room)
        total = (values * numerators.unsqueeze(1)).sum(0)
        zero = total == 0
        if bool(zero.any()):
            total[zero] = self._zeros(values[:, zero])
        return torch.where(exact, on_grid(self.divide(total), self._target), unknown)

    def _wide(self, values: torch.Tensor, peak: float) -> torch.Tensor:
        """Return each column's result on the target's grid."""
        given, target = self._given, self._target
        if not distill.fits(peak, given):
            result = torch.zeros(values.shape[1], dtype=torch.float64)
            left = torch.arange(values.shape[1])
        else:
            terms = list(distill.products(values, given.numerators, self._precision))
            result, proven = round_pairs(terms, given, target)
            zero = values.abs().amax(0) == 0
            if bool(zero.any()):
                result[zero] = self._zeros(values[:, zero])
            left = (~proven).nonzero().view(-1)
            if left.numel():
                result[left], settled = distill.nearest_columns(values[:, left], given, target)
                left = left[~settled]
        for column in left.tolist():
            result[column] = self._rational(values[:, column].tolist())
        return result

    def _zeros(self, values: torch.Tensor) -> torch.Tensor:
        """Return zeros, negative ones for columns of nothing but negative terms of zero."""
        negative = distill.negative_zeros(values, self._given)
        return torch.zeros(values.shape[1], dtype=torch.float64).masked_fill_(negative, -0.0)

    def _rational(self, values: list[float]) -> float:
        given = self._given
        total = sum(
            (Fraction(x) * k for x, k in zip(values, given.numerators, strict=True)), Fraction(0)
        )
        if not total:
            column = torch.tensor(values, dtype=torch.float64).unsqueeze(1)
            return -0.0 if bool(distill.negative_zeros(column, given)) else 0.0
        rounded = nearest(total / given.denominator, self._target)
        return -0.0 if not rounded and total < 0 else rounded


def _smallest(values: torch.Tensor) -> torch.Tensor:
    """Return the smallest magnitude in each column that is not zero; infinite when all are."""
    bits = values.view(torch.int64) & _MAGNITUDE
    # zero becomes the largest of all, everything else stays in order
    low = (bits.sub_(1).bitwise_xor_(_SMALLEST).amin(0) ^ _SMALLEST) + 1
    return torch.where(low == 0, torch.inf, low.view(torch.float64))

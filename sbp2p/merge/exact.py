"""The exact sum of c_i x_i, correctly rounded, at the speed of the memory.

Theory of operation. c_i = K_i / D are rationals. The result of an element is defined without any
reference to an algorithm: the number of the output dtype that is nearest to the real sum, ties to
even. So whatever computes it, in whatever order, gives the same bits. Four stages, each with only
what the one before could not prove:

1. *fast*: the sum r in float64 (float32 for 16-bit dtypes) with an error bound e, from the largest
   magnitude of each input in the chunk. When r - e and r + e round to the same number, so does the
   real sum (Ziv's test).
2. *narrow*: the numerators' sum N = sum K_i x_i in float64, when it provably has no rounding at
   all: every term is a multiple of one quantum, and all of them together are below 2**53 of it. For
   D = 2**j it is the result. Else N is compared with D times the midpoint of the two candidates,
   also exactly. This is where ties end up: with two inputs, a quarter of all elements.
3. *wide*: `distill`, for cancellation, wide ranges of magnitude, and all of float64.
4. *rational*: Python's fractions, for what float64 cannot hold as a term.

Bounds. With u = 2**-53 and S = sum |c_i| max |x_i|, each of n coefficients, products and additions
is off by a factor 1 + d, |d| <= u: |r - sum| <= ((1 + u)**(n + 2) - 1) S < (n + 3) u S, whether or
not multiply and add are fused. Adding e to r costs u (|r| + e) <= 2 u S more. What underflows is
below 2**-1074 for each term, and far below 2**-1000. The same with u = 2**-24 and 2**-149.

The sign of a zero: that of the real sum when it is not zero; of nothing but negative zeros it is
negative; of other zeros, positive: what IEEE 754 would give if it could add exactly.

Error cases: none; who calls has checked that every input is finite.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

import torch

from sbp2p.merge import distill
from sbp2p.merge.method import CHUNK
from sbp2p.merge.rounding import nearest, on_grid, store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.merge.coefficients import Coefficients
    from sbp2p.merge.dtypes import FloatFormat

_CEIL: Final = 1.0 + 2.0**-30
"""Makes a bound that was computed with a few roundings an upper one."""
_SINGLE_INPUTS_MAX: Final = 1024
_SIGNED: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def peak_of(row: torch.Tensor) -> float:
    """Return the largest magnitude of a chunk; NaN or infinite if anything in it is."""
    low, high = torch.aminmax(row)
    return max(-low.item(), high.item())


class Workspace:
    """What one thread computes in, for chunks of up to CHUNK elements."""

    def __init__(self) -> None:
        self.double = tuple(torch.empty(CHUNK, dtype=torch.float64) for _ in range(3))
        self.single = tuple(torch.empty(CHUNK, dtype=torch.float32) for _ in range(2))
        self.bytes = torch.empty(CHUNK * 8, dtype=torch.uint8)
        self.flags = torch.empty(CHUNK, dtype=torch.bool)


class LinearSum:
    """The sum for one tensor; `compute` may be called from several threads, each with its space."""

    def __init__(
        self, coefficients: Coefficients, sources: Sequence[FloatFormat], target: FloatFormat
    ) -> None:
        """Prepare for inputs of these formats, one for each coefficient."""
        self._all = coefficients
        self._target = target
        self._used = [i for i, each in enumerate(coefficients.numerators) if each]
        self._given = coefficients.without_zeros()
        self._precision = max((sources[i].precision for i in self._used), default=1)
        sizes = self._given.approximate
        self._single = (
            sizes is not None
            and len(sizes) <= _SINGLE_INPUTS_MAX
            and self._precision <= 11
            and target.dtype in ("BF16", "F16")
            and all(2.0**-40 < abs(each) < 2.0**40 for each in sizes)
        )
        self._widths = [each.bit_length() for each in self._given.numerators]

    def compute(
        self,
        rows: Sequence[torch.Tensor],
        peaks: Sequence[float],
        out: torch.Tensor,
        space: Workspace,
    ) -> None:
        """Compute a chunk.

        Args:
            rows: for each coefficient (m,) numbers, m <= CHUNK, as floats of their own dtype.
            peaks: the largest magnitude in each row.
            out: (m,) of the target's dtype.
            space: this thread's.
        """
        rows = [rows[i] for i in self._used]
        peaks = [peaks[i] for i in self._used]
        if (only := self._given.only) is not None:
            if rows[only].dtype == out.dtype:
                out.copy_(rows[only])
            else:
                store(rows[only].double(), self._target, out)
        elif not any(peaks) or self._given.approximate is None or self._target.dtype == "F64":
            self._settle(rows, peaks, torch.arange(out.numel()), out)
        else:
            doubtful = self._fast(rows, peaks, out, space)
            if bool(doubtful.any()):
                self._settle(rows, peaks, doubtful.nonzero().view(-1), out)

    # -- stage 1 ----------------------------------------------------------------------------------

    def _fast(
        self,
        rows: Sequence[torch.Tensor],
        peaks: Sequence[float],
        out: torch.Tensor,
        space: Workspace,
    ) -> torch.Tensor:
        """Fill `out`, and return which elements are not proven."""
        sizes = self._given.approximate or ()
        span = sum(abs(c) * peak for c, peak in zip(sizes, peaks, strict=True)) * _CEIL
        size = out.numel()
        if self._single and span < 2.0**100:
            total, other = (each[:size] for each in space.single)
            bound = ((len(sizes) + 8) * 2.0**-24 * span + 2.0**-130 * 2.0**-10) * _CEIL
        else:
            total, other = (each[:size] for each in space.double[:2])
            bound = ((len(sizes) + 6) * 2.0**-53 * span + 2.0**-1000) * _CEIL
        total.copy_(rows[0]).mul_(sizes[0])
        for row, factor in zip(rows[1:], sizes[1:], strict=True):
            other.copy_(row)
            total.add_(other, alpha=factor)
        high = space.bytes[: size * out.dtype.itemsize].view(out.dtype)
        self._round(torch.add(total, bound, out=other), high)
        self._round(torch.sub(total, bound, out=other), out)
        bits = _SIGNED[out.dtype.itemsize]
        return torch.ne(out.view(bits), high.view(bits), out=space.flags[:size])

    def _round(self, values: torch.Tensor, out: torch.Tensor) -> None:
        if values.dtype == torch.float32:
            out.copy_(values)
        else:
            store(values, self._target, out)

    # -- stages 2 to 4 ----------------------------------------------------------------------------

    def _settle(
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

    def _narrow(self, values: torch.Tensor, peaks: Sequence[float]) -> torch.Tensor:
        """Return each column's result on the target's grid, NaN where float64 does not prove it."""
        given, target = self._given, self._target
        unknown = torch.full((values.shape[1],), torch.nan, dtype=torch.float64)
        if max(self._widths) + self._precision > 53:
            return unknown
        numerators = torch.tensor([float(k) for k in given.numerators], dtype=torch.float64)
        span = sum(abs(k) * peak for k, peak in zip(given.numerators, peaks, strict=True)) * _CEIL
        sizes = values.abs()
        # x is a multiple of 2**(1 - precision) of its binade, so of more than |x| 2**-precision
        exact = ((sizes >= span * 2.0 ** (self._precision - 53)) | (sizes == 0)).all(0)
        total = (values * numerators.unsqueeze(1)).sum(0)
        total.masked_fill_(total == 0, 0.0).masked_fill_(
            distill.negative_zeros(values, given), -0.0
        )
        if (shift := given.shift) is not None and shift < 400:
            result = on_grid(total * 2.0**-shift, target)
        elif given.denominator < 1 << 28 and target.precision <= 24:
            result, close = self._compared(total)
            exact &= close
        else:
            return unknown
        return torch.where(exact, result, unknown)

    def _compared(self, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what total / D rounds to, for exact totals; and where that is certain."""
        denominator = float(self._given.denominator)
        ratio = total / denominator
        slack = ratio.abs() * 2.0**-50
        low, high = on_grid(ratio - slack, self._target), on_grid(ratio + slack, self._target)
        middle = (low + high) * 0.5
        side = total - middle * denominator
        result = torch.where(
            side > 0, high, torch.where(side < 0, low, on_grid(middle, self._target))
        )
        return result.copysign_(total), ratio.abs() < 2.0**900

    def _wide(self, values: torch.Tensor, peak: float) -> torch.Tensor:
        """Return each column's result on the target's grid."""
        if distill.fits(peak, self._given):
            result, settled = distill.nearest_columns(values, self._given, self._target)
        else:
            result = torch.zeros(values.shape[1], dtype=torch.float64)
            settled = torch.zeros(values.shape[1], dtype=torch.bool)
        for column in (~settled).nonzero().view(-1).tolist():
            result[column] = self._rational(values[:, column].tolist())
        return result

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

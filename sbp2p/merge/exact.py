"""The exact sum of c_i x_i, correctly rounded, at the speed of the memory.

Theory of operation. c_i = K_i / D are rationals. The result of an element is defined without any
reference to an algorithm: the number of the output dtype that is nearest to the real sum, ties to
even. So whatever computes it, in whatever order, gives the same bits. Each stage gets only what
those before could not prove:

1. *plain*: the numerators' sum N = sum K_i x_i in float64, when it provably has no rounding at
   all: every term is a multiple of one quantum q, which the smallest magnitude in the chunk tells,
   and all of them together are below 2**53 q. Models' weights nearly always are like that. Then
   N / D is rounded to float64, and that to the output dtype.
2. *fast*: the sum r in float64 (float32 for 16-bit dtypes) with an error bound e, from the largest
   magnitude of each input in the chunk. When r - e and r + e round to the same number, so does the
   real sum (Ziv's test).
3. *narrow*: as 1, for single elements that 2 has not proven. Mostly exact ties, which no error
   bound can decide: with two inputs, they are a quarter of all elements.
4. *wide*: sums in pairs of float64 (`pairs`), and for what cancels even more, `distill`. All of
   float64 comes here.
5. *rational*: Python's fractions, for what float64 cannot hold as a term.

Bounds. With u = 2**-53 and S = sum |c_i| max |x_i|, each of n coefficients, products and additions
is off by a factor 1 + d, |d| <= u: |r - sum| <= ((1 + u)**(n + 2) - 1) S < (n + 3) u S, whether or
not multiply and add are fused. Adding e to r costs u (|r| + e) <= 2 u S more. What underflows is
below 2**-1074 for each term, and far below 2**-1000. The same with u = 2**-24 and 2**-149.

Rounding N / D twice is harmless. For D = 2**j the first time does nothing. Else let m be a midpoint
of two neighbours of the output dtype, of precision p, with half their distance h. N is a multiple
of q and m D one of h, so if N / D is not m itself it is at least min(q, h) / D away. That is more
than the half ulp, 2**-53 |N / D| at most, that the first rounding may move it: q / D is when all
terms together are below 2**52 q, and h / D when D < 2**(52 - p), as |N / D| < 2**(p + 1) h. So the
first rounding neither reaches nor crosses m, and where N / D is m, it is exact.

The sign of a zero: that of the real sum when it is not zero; of nothing but negative zeros it is
negative; of other zeros, positive: what IEEE 754 would give if it could add exactly.

Error cases: none; who calls has checked that every input is finite.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

from sbp2p.merge.extent import SIGNED
from sbp2p.merge.rounding import store
from sbp2p.merge.settle import CEIL, Settlement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.merge.coefficients import Coefficients
    from sbp2p.merge.dtypes import FloatFormat
    from sbp2p.merge.extent import Extent, Workspace

_SINGLE_INPUTS_MAX: Final = 1024


class LinearSum:
    """The sum for one tensor; `compute` may be called from several threads, each with its space."""

    def __init__(
        self, coefficients: Coefficients, sources: Sequence[FloatFormat], target: FloatFormat
    ) -> None:
        """Prepare for inputs of these formats, one for each coefficient."""
        self._target = target
        self._used = [i for i, each in enumerate(coefficients.numerators) if each]
        self._given = given = coefficients.without_zeros()
        self._precision = max((sources[i].precision for i in self._used), default=1)
        self._settlement = Settlement(given, self._precision, target)
        sizes = given.approximate
        self._single = (
            sizes is not None
            and len(sizes) <= _SINGLE_INPUTS_MAX
            and self._precision <= 11
            and target.dtype in ("BF16", "F16")
            and all(2.0**-40 < abs(each) < 2.0**40 for each in sizes)
        )

    def compute(
        self,
        rows: Sequence[torch.Tensor],
        extents: Sequence[Extent],
        out: torch.Tensor,
        space: Workspace,
    ) -> None:
        """Compute a chunk.

        Args:
            rows: for each coefficient (m,) numbers, m <= CHUNK, as floats of their own dtype.
            extents: how large the numbers in each row are.
            out: (m,) of the target's dtype.
            space: this thread's.
        """
        rows, extents = [rows[i] for i in self._used], [extents[i] for i in self._used]
        if (only := self._given.only) is not None:
            if rows[only].dtype == out.dtype:
                out.copy_(rows[only])
            else:
                store(rows[only].double(), self._target, out)
            return
        peaks = [each.peak for each in extents]
        if self._is_plain(extents):
            self._add(rows, out, space)
        elif self._given.approximate is None or self._target.dtype == "F64":
            self._settlement.settle(rows, peaks, torch.arange(out.numel()), out)
        else:
            doubtful = self._fast(rows, peaks, out, space)
            if doubtful.numel():
                self._settlement.settle(rows, peaks, doubtful, out)

    def takes(self, dtypes: Sequence[torch.dtype]) -> bool:
        """Return whether `compute_block` may be tried on inputs of these dtypes."""
        return (
            set(dtypes) == {torch.float32}
            and self._target.torch is torch.float32
            and len(self._used) == len(dtypes) > 1
            and self._settlement.plain
        )

    def compute_block(self, block: torch.Tensor, out: torch.Tensor, space: Workspace) -> bool:
        """Compute any number of columns if all are plain; else leave them to `compute`.

        Stage 1 with a tenth of the calls: threads that ask for the interpreter lock every 15 us
        spend more time on that than on sums. One extent serves all rows.

        Args:
            block: (n, m) float32, one row for each coefficient, none of which is 0.
            out: (m,) float32.
            space: this thread's.

        Returns:
            whether it was done; False if anything is not finite.
        """
        extent = space.block_extent(block)
        if not math.isfinite(extent.peak) or not self._is_plain([extent] * len(block)):
            return False
        total, other = space.block_double(out.numel())
        total.copy_(block[0])
        if (first := self._given.numerators[0]) != 1:
            total.mul_(first)
        for row, factor in zip(block[1:], self._given.numerators[1:], strict=True):
            total.add_(other.copy_(row), alpha=factor)
        out.copy_(self._settlement.divide(total))
        return True

    # -- stage 1 ----------------------------------------------------------------------------------

    def _is_plain(self, extents: Sequence[Extent]) -> bool:
        """Return whether float64 adds the numerators' terms without rounding, in any order."""
        if not self._settlement.plain:
            return False
        low = min((each.low for each in extents), default=math.inf)
        if low == math.inf:
            return True
        weighted = zip(self._given.numerators, extents, strict=True)
        span = sum(abs(k) * each.peak for k, each in weighted) * CEIL
        exponent = math.frexp(low)[1] - self._precision  # of the quantum
        return span <= math.ldexp(1.0, self._settlement.room + exponent)

    def _add(self, rows: Sequence[torch.Tensor], out: torch.Tensor, space: Workspace) -> None:
        """Add exactly, divide, and round once."""
        size = out.numel()
        total, other = (each[:size] for each in space.double)
        if not rows:
            out.zero_()
            return
        space.widen(rows[0], total)
        if (first := self._given.numerators[0]) != 1:
            total.mul_(first)
        for row, factor in zip(rows[1:], self._given.numerators[1:], strict=True):
            total.add_(space.widen(row, other), alpha=factor)
        store(self._settlement.divide(total), self._target, out)

    # -- stage 2 ----------------------------------------------------------------------------------

    def _fast(
        self,
        rows: Sequence[torch.Tensor],
        peaks: Sequence[float],
        out: torch.Tensor,
        space: Workspace,
    ) -> torch.Tensor:
        """Fill `out`, and return which elements are not proven."""
        sizes = self._given.approximate or ()
        span = sum(abs(c) * peak for c, peak in zip(sizes, peaks, strict=True)) * CEIL
        size = out.numel()
        if self._single and span < 2.0**100:
            total, other = (each[:size] for each in space.single)
            bound = ((len(sizes) + 8) * 2.0**-24 * span + 2.0**-140) * CEIL
        else:
            total, other = (each[:size] for each in space.double)
            bound = ((len(sizes) + 6) * 2.0**-53 * span + 2.0**-1000) * CEIL
        total.copy_(rows[0]).mul_(sizes[0])
        for row, factor in zip(rows[1:], sizes[1:], strict=True):
            total.add_(other.copy_(row), alpha=factor)
        high = space.bytes[: size * out.dtype.itemsize].view(out.dtype)
        self._round(torch.add(total, bound, out=other), high)
        self._round(torch.sub(total, bound, out=other), out)
        return _differing(out, high, space)

    def _round(self, values: torch.Tensor, out: torch.Tensor) -> None:
        if values.dtype == torch.float32:
            out.copy_(values)
        else:
            store(values, self._target, out)


def _differing(one: torch.Tensor, other: torch.Tensor, space: Workspace) -> torch.Tensor:
    """Return where two chunks do not have the same bits."""
    bits = SIGNED[one.dtype.itemsize]
    flags = torch.ne(one.view(bits), other.view(bits), out=space.flags[: one.numel()])
    return flags.nonzero().view(-1)

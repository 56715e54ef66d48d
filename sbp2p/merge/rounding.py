"""From float64 to every floating dtype, rounded once, to nearest, ties to even.

torch converts float64 to bfloat16, float16 and 8-bit floats by way of float32, so it rounds twice:
1 + 2**-8 + 2**-40 becomes 1 as bfloat16, and should become 1 + 2**-7. Here a value is first put on
the grid of the target, in float64: adding and taking away 1.5 * 2**52 quanta rounds to a multiple
of the quantum, exactly as IEEE 754 says. What lies on the grid then converts without rounding.

What is too large, as IEEE 754 decides it (largest plus half a quantum or more), becomes infinite
where the dtype has infinities, and the largest number where it has none. Zero keeps its sign where
the dtype has one.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from sbp2p.merge.dtypes import FloatFormat

_EXPONENT: Final = 0x7FF0_0000_0000_0000
_HUGE: Final = 2.0**900
_HARDWARE: Final = frozenset({"F64", "F32"})
"""float64 converts to these correctly."""


def binade(values: torch.Tensor) -> torch.Tensor:
    """Return, for float64 values, the largest power of two that is not above; 0 for subnormals."""
    return (values.view(torch.int64) & _EXPONENT).view(torch.float64)


def quantum(values: torch.Tensor, target: FloatFormat) -> torch.Tensor:
    """Return the distance of neighbours in the target at float64 values, away from zero."""
    return binade(values).clamp_min_(2.0**target.exponent_min).mul_(2.0 ** (1 - target.precision))


def on_grid(values: torch.Tensor, target: FloatFormat) -> torch.Tensor:
    """Return float64 values rounded to the target's precision and quanta, of any magnitude.

    Values below 2**1000 only; for F64 they are returned as they are.
    """
    if target.dtype == "F64":
        return values
    magic = binade(values).clamp_min_(2.0**target.exponent_min)
    magic.mul_(1.5 * 2.0 ** (53 - target.precision))
    return ((values + magic) - magic).copysign_(values)


def store(values: torch.Tensor, target: FloatFormat, out: torch.Tensor) -> None:
    """Round float64 values into `out`, a tensor of the target's dtype; NaN is not expected."""
    if target.dtype not in _HARDWARE:
        values = on_grid(values.clamp(-_HUGE, _HUGE), target)
        if not target.infinite:
            values.clamp_(-target.largest, target.largest)
        if not target.signed_zero:
            values.add_(0.0)  # -0.0 would be NaN
    # what lies on the grid and above the largest number is infinite to torch, too
    out.copy_(values)


def nearest(value: Fraction, target: FloatFormat) -> float:
    """Return what `value` rounds to in the target's precision, for any magnitude below 2**1024."""
    size = abs(value)
    if not size:
        return 0.0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < _power(exponent):
        exponent -= 1
    step = _power(max(exponent, target.exponent_min) - target.precision + 1)
    steps = round(size / step)  # of a fraction: exact, half to even
    try:
        rounded = float(steps * step)
    except OverflowError:
        rounded = float("inf")
    return -rounded if value < 0 else rounded


def _power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent

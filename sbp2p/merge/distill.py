"""Sums of floats of any cancellation, exactly: the last resort before rational numbers.

`distill` takes columns of float64 terms and returns their sums with a relative error below 2**-46:
in particular 0 if and only if the sum is 0, and always the right sign. It splits, as Rump, Ogita
and Oishi do in "Accurate floating-point summation" (SIAM J. Sci. Comput. 31, 2008), the leading
bits off all terms at once: with sigma a power of two that is large enough, (p + sigma) - sigma are
the leading bits of p, their sum is exact, and so are the remainders. That repeats, with the sum
carried along, until what remains cannot change more than the last bits.

`nearest_columns` finds the number on the target's grid that is nearest to sum K_i x_i / D: it
rounds the distilled sum, and asks with exact signs whether the midpoints to both neighbours are on
the right sides. All terms are products that float64 holds exactly: integers in limbs, x in halves.

Error cases: columns whose terms float64 might not hold (2**1000 and more) are the caller's: `fits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from sbp2p.merge.rounding import binade, on_grid, quantum

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sbp2p.merge.coefficients import Coefficients
    from sbp2p.merge.dtypes import FloatFormat

_LIMB: Final = 26
"""Bits of an integer per term: 26 and the 27 of half a float64 make 53."""
_LONG_LIMB: Final = 29
"""The same for whole values of up to 24 bits."""
_LOW_HALF: Final = ~((1 << 27) - 1)
_SURE: Final = 64.0
"""A carried sum so many times larger than all that remains can be is as good as final."""
_STEPS: Final = 8
"""The first guess is a few numbers away from the nearest one at most, and nearly always it."""
_INPUTS_MAX: Final = 1024
"""So that there are few enough terms for what is said above of errors."""


def fits(peak: float, coefficients: Coefficients) -> bool:
    """Return whether no term can leave the range of float64; `peak` is the largest |x|."""
    if len(coefficients.numerators) > _INPUTS_MAX:
        return False
    bits = max(each.bit_length() for each in (*coefficients.numerators, coefficients.denominator))
    return bits < 200 and peak * 2.0 ** min(bits, 1000) < 2.0**950


def nearest_columns(
    values: torch.Tensor, coefficients: Coefficients, target: FloatFormat
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each column's sum of K_i x_i / D to the target's grid.

    Args:
        values: (n, k) float64, finite, and `fits`.
        coefficients: the n rationals; none of their numerators is 0.
        target: what the numbers are rounded for; too large ones are not yet made infinite.

    Returns:
        (k,) float64 on the grid, and (k,) bool: which are proven; the others are not settled.
    """
    doubled = [2 * each for each in coefficients.numerators]
    terms = torch.stack(list(products(values, doubled)))
    total = distill(terms)
    sign = torch.where(total < 0, -1.0, 1.0).to(torch.float64)
    terms.mul_(sign)
    guess = on_grid(total.abs_() / float(2 * coefficients.denominator), target)
    settled = torch.zeros_like(guess, dtype=torch.bool)
    for _ in range(_STEPS):
        up, down = quantum(guess, target), _below(guess, target)
        odd = torch.fmod(guess / up, 2.0) == 1.0
        over = _against(terms, guess, up, coefficients.denominator)
        under = _against(terms, guess, -down, coefficients.denominator)
        rise = (over > 0) | ((over == 0) & odd)
        fall = ((under < 0) | ((under == 0) & odd)) & (guess > 0)
        settled = ~(rise | fall)
        if bool(settled.all()):
            break
        guess = torch.where(rise, guess + up, torch.where(fall, guess - down, guess))
    guess.mul_(sign)
    return torch.where(negative_zeros(values, coefficients), -0.0, guess), settled


def negative_zeros(values: torch.Tensor, coefficients: Coefficients) -> torch.Tensor:
    """Return which columns have nothing but negative zeros as terms: their sum is one, too."""
    signs = [1.0 if each > 0 else -1.0 for each in coefficients.numerators]
    terms = values * torch.tensor(signs, dtype=torch.float64).unsqueeze(1)
    return ((terms == 0) & torch.signbit(terms)).all(0)


def _below(guess: torch.Tensor, target: FloatFormat) -> torch.Tensor:
    """Return the distance to the next smaller number of the grid."""
    step = quantum(guess, target)
    first = (guess == binade(guess)) & (guess > 2.0**target.exponent_min)
    return torch.where(first, step * 0.5, step)


def _against(
    terms: torch.Tensor, guess: torch.Tensor, step: torch.Tensor, denominator: int
) -> torch.Tensor:
    """Return numbers with the sign of: the sum, minus the midpoint of guess and guess + step.

    All is twice as large, as half of the smallest number would underflow.
    """
    x = torch.stack((guess, step))
    middle = products(x, [-2 * denominator, -denominator])
    return distill(torch.cat((terms, torch.stack(list(middle)))))


def products(
    values: torch.Tensor, integers: Sequence[int], precision: int = 53
) -> Iterator[torch.Tensor]:
    """Yield rows that sum to sum_i integers[i] * values[i], each of them exact.

    `precision` is the bits that the values have at most.
    """
    bits = _LIMB if precision > 53 - _LONG_LIMB else _LONG_LIMB
    for row, integer in zip(values, integers, strict=True):
        sign, size = (-1.0, -integer) if integer < 0 else (1.0, integer)
        trailing = (size & -size).bit_length() - 1
        if size == 1 << trailing:
            yield row * (sign * 2.0**trailing)
            continue
        halves = [row]
        if bits == _LIMB:
            high = (row.view(torch.int64) & _LOW_HALF).view(torch.float64)
            halves = [high, row - high]
        scale = sign
        while size:
            if limb := size & ((1 << bits) - 1):
                yield from (half * (limb * scale) for half in halves)
            size >>= bits
            scale *= 2.0**bits


def distill(terms: torch.Tensor) -> torch.Tensor:
    """Return the sum of each column of (t, k) terms, all below 2**1000, to within 2**-46 of it."""
    count = terms.shape[0] + 1
    room = 2.0 ** (count.bit_length() + 3)
    result = torch.zeros(terms.shape[1], dtype=torch.float64)
    where = torch.arange(terms.shape[1])
    rest, carry = terms.clone(), torch.zeros_like(result)
    unit = torch.ones_like(result)
    while True:
        peak = rest.abs().amax(0)
        done = (carry.abs() >= peak * (_SURE * count)) & ((carry != 0) | (peak == 0))
        result[where[done]] = (carry[done] + rest[:, done].sum(0)) * unit[done]
        if bool(done.all()):
            return result
        going = ~done
        where, rest, carry, unit = where[going], rest[:, going], carry[going], unit[going]
        top = torch.maximum(peak[going], carry.abs())
        # the last bits of sigma must not be coarser than the smallest number
        lift = torch.ones_like(top).masked_fill_(top < 2.0**-500, 2.0**500)
        rest, carry, unit = rest * lift, carry * lift, unit / lift
        sigma = binade(top * lift).mul_(room)
        leading = (rest + sigma).sub_(sigma)
        rest = rest.sub_(leading)
        carry = carry + leading.sum(0)

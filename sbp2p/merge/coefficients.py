"""The coefficients of a linear method as exact rationals over one denominator. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


def as_shown(value: Fraction | float | str) -> Fraction:
    """Return a number as people mean it: 0.1 is a tenth, not the float64 that is nearest to one.

    Raises ValueError, OverflowError or ZeroDivisionError for what is no finite number.
    """
    return Fraction(float.__repr__(value) if isinstance(value, float) else value)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """c_i = numerators[i] / denominator, in lowest terms."""

    numerators: tuple[int, ...]
    denominator: int
    approximate: tuple[float, ...] | None
    """Each c_i, correctly rounded; None when one of them is out of the range of float64."""

    @classmethod
    def of(cls, values: Sequence[Fraction | float]) -> Self:
        """Take finite numbers, each exactly as it is; raises ValueError."""
        for value in values:
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"a coefficient is {value}")
        exact = [Fraction(value) for value in values]
        denominator = math.lcm(*(each.denominator for each in exact))
        numerators = [each.numerator * (denominator // each.denominator) for each in exact]
        try:
            approximate = tuple(float(each) for each in exact)
        except OverflowError:
            approximate = None
        if approximate and any(each and not 2.0**-900 < abs(each) < 2.0**900 for each in exact):
            approximate = None
        return cls(tuple(numerators), denominator, approximate)

    def without_zeros(self) -> Self:
        """Return these without those that are 0."""
        keep = [i for i, each in enumerate(self.numerators) if each]
        rough = self.approximate
        return type(self)(
            tuple(self.numerators[i] for i in keep),
            self.denominator,
            None if rough is None else tuple(rough[i] for i in keep),
        )

    @property
    def shift(self) -> int | None:
        """Return j when the denominator is 2**j, else None."""
        power = self.denominator.bit_length() - 1
        return power if self.denominator == 1 << power else None

    @property
    def only(self) -> int | None:
        """Return i when the sum is x_i itself."""
        used = [i for i, each in enumerate(self.numerators) if each]
        if len(used) == 1 and self.numerators[used[0]] == self.denominator:
            return used[0]
        return None

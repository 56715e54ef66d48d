"""Options and weights as exact numbers, so that 0.29 of 100 elements are 29."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbp2p.merge.method import Group

Number = Fraction | float | str
"""A number as a user or a round's record gives it: 0.2, "0.2", "1/5"."""


def exact(value: Number, name: str) -> Fraction:
    """Return a number as it is written in decimal; raises ValueError."""
    try:
        return value if isinstance(value, Fraction) else Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{name} is {value!r}, which is not a number") from error


def share(value: Number, name: str, *, zero: bool = False) -> Fraction:
    """Return a number in (0, 1], or in [0, 1] if `zero`; raises ValueError."""
    number = exact(value, name)
    if not (0 < number <= 1 or (zero and number == 0)):
        raise ValueError(f"{name} is {value}, not {'from 0 ' if zero else 'above 0, up '}to 1")
    return number


def whole_weights(group: Group) -> list[Fraction]:
    """Return the weights scaled so that they are 1 on average.

    Methods that add up task vectors count each of n equal ones whole, not as a n-th.
    """
    return [weight * group.count for weight in group.weights]

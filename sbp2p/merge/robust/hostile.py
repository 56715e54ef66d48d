"""How many of the inputs may be hostile, and what is said when that is too many.

Every robust method has a bound: below it n inputs outvote f hostile ones, beyond it nothing holds.
A method that goes on beyond its bound is worse than a mean, because it is trusted. So the number
is checked when the inputs are known, after those with NaN or infinity have been set aside.

Error cases: more hostile inputs than the method withstands is a MergeError that names the bound; a
number or share that cannot mean anything is a ValueError when the method is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sbp2p.errors import MergeError

if TYPE_CHECKING:
    from collections.abc import Callable

Share = int | float | str | Fraction
"""A number as a user writes it. 0.29 means 29/100, not the float64 next to it."""


def share_of(value: Share, name: str) -> Fraction:
    """Return a share as written; raises ValueError unless it is at least 0 and below 1/2."""
    share = number_of(value, name)
    if not 0 <= share < Fraction(1, 2):
        raise ValueError(f"{name} is {value}, which is not in [0, 1/2)")
    return share


def number_of(value: Share, name: str) -> Fraction:
    """Return a finite number as written; raises ValueError for anything else."""
    try:
        return Fraction(repr(value) if isinstance(value, float) else value)
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{name} is {value!r}, which is not a finite number") from error


def whole_of(value: int | str, name: str, least: int) -> int:
    """Return a whole number as written; raises ValueError when it is not, or below `least`."""
    number = number_of(value, name)
    if number.denominator != 1 or number < least:
        raise ValueError(f"{name} is {value}, which is not a whole number of at least {least}")
    return int(number)


def flag_of(value: bool | str, name: str) -> bool:
    """Return a yes or no as written; raises ValueError for anything else."""
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name} is {value!r}, which is neither true nor false")
    return text == "true"


@dataclass(frozen=True, slots=True)
class Bound:
    """What a method withstands, as its paper says it."""

    text: str
    """As a user reads it: "n >= 2f + 3"."""
    needed: Callable[[int], int]
    """How many inputs there must be for f hostile ones; grows with f."""

    def most(self, count: int) -> int:
        """Return the most hostile ones among `count` inputs, or -1 when not even none will do."""
        f = -1
        while f + 1 <= count and self.needed(f + 1) <= count:
            f += 1
        return f


@dataclass(frozen=True, slots=True)
class Hostile:
    """How many inputs may be hostile: `f` of them, a share of them, or as many as can be borne."""

    f: int | None = None
    share: Fraction | None = None

    @classmethod
    def parse(cls, f: int | str | None, share: Share | None, name: str = "share") -> Hostile:
        """Read the options `f` and `share`; raises ValueError for both, or for a wrong one."""
        if f is not None and share is not None:
            raise ValueError(f"f and {name} say the same thing: give one of them")
        return cls(
            None if f is None else whole_of(f, "f", 0),
            None if share is None else share_of(share, name),
        )

    def count(self, inputs: int) -> int | None:
        """Return f for so many inputs, or None if it is as many as can be borne."""
        if self.share is not None:
            return int(self.share * inputs)  # whole ones: 0.25 of 7 inputs is 1
        return self.f

    def among(self, count: int, bound: Bound, method: str) -> int:
        """Return f for `count` inputs; raises MergeError when the bound does not allow it."""
        f = self.count(count)
        if f is None:
            f = max(bound.most(count), 0)
        if (needed := bound.needed(f)) > count:
            raise MergeError(
                f"{method} withstands f = {f} hostile inputs if {bound.text}: "
                f"that is {needed} inputs, and there are {count}",
                hint="wait for more inputs, expect fewer hostile ones, or take another method",
            )
        return f


@runtime_checkable
class Tolerant(Protocol):
    """A method that is told how many of its inputs may be hostile."""

    name: str
    bound: Bound
    hostile: Hostile

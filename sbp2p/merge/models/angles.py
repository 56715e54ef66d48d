"""Angles that are the same on every machine.

The C library's sin and acos differ in the last bit from one system to the next, and peers have to
arrive at the same bytes. These use only what IEEE 754 rounds correctly: + - * / and the root.
Absolute errors are below 2e-15, which the tests hold them to. No torch here.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt, sqrt
from typing import Final

PI: Final = 3.141592653589793

_HALVINGS: Final = 3
"""Each halves the argument of a series; after 3 it is below 0.4, and 14 terms are enough."""

_TERMS: Final = 14


def cosine(dot: float, square_a: float, square_b: float) -> float:
    """Return a.b / (|a| |b|) in [-1, 1] from a.b, a.a and b.b; 0 if one of them is no direction.

    Rounded once, so parallel vectors, whose products are exact multiples, give 1 or -1 exactly.
    """
    if square_a <= 0 or square_b <= 0:
        return 0.0
    product = Fraction(square_a) * Fraction(square_b)
    # scaled by a power of 4, the root keeps 128 bits whatever the exponents are
    shift = 256 + product.denominator.bit_length() - product.numerator.bit_length()
    shift += shift % 2
    scaled = product * Fraction(2) ** shift
    root = Fraction(isqrt(int(scaled)), 1) / Fraction(2) ** (shift // 2)
    return max(-1.0, min(1.0, float(Fraction(dot) / root)))


def sine(angle: float) -> float:
    """Return the sine of an angle in [0, pi], radians."""
    part = angle / 2**_HALVINGS
    square = part * part
    sin = cos = 0.0
    for term in range(2 * _TERMS, 0, -2):  # Horner, from the smallest term
        sin = (1.0 - sin) * square / (term * (term + 1))
        cos = (1.0 - cos) * square / (term * (term - 1))
    sin, cos = part * (1.0 - sin), 1.0 - cos
    for _ in range(_HALVINGS):
        sin, cos = 2.0 * sin * cos, (cos - sin) * (cos + sin)
    return sin


def arc_cosine(cos: float) -> float:
    """Return the angle in [0, pi], radians, whose cosine is `cos` in [-1, 1]."""
    # the half angle's sine is exact to the last bit or two at both ends, where acos is not
    if cos < 0:
        return PI - arc_cosine(-cos)
    return 2.0 * _arc_sine(sqrt((1.0 - cos) / 2.0))


def _arc_sine(sin: float) -> float:
    """Return arcsin for [0, sqrt(1/2)]."""
    for _ in range(_HALVINGS):
        sin = sin / sqrt(2.0 * (1.0 + sqrt((1.0 - sin) * (1.0 + sin))))
    square = sin * sin
    total, factor = 0.0, 1.0
    coefficients = []
    for term in range(_TERMS):
        coefficients.append(factor / (2 * term + 1))
        factor *= (2 * term + 1) / (2 * term + 2)
    for coefficient in reversed(coefficients):
        total = total * square + coefficient
    return 2.0**_HALVINGS * sin * total

"""What a floating dtype is and what a real number rounds to in it, worked out without torch."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Oracle:
    """A format by its bits: sign, exponent, mantissa."""

    dtype: str
    bits: int
    mantissa: int
    bias: int
    largest: int
    """The code of the largest finite number."""
    infinity: int | None
    signed_zero: bool = True

    def magnitude(self, code: int) -> Fraction:
        """Decode a code without its sign bit."""
        exponent, fraction = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
        if exponent == 0:
            return Fraction(fraction) * Fraction(2) ** (1 - self.bias - self.mantissa)
        whole = (1 << self.mantissa) + fraction
        return Fraction(whole) * Fraction(2) ** (exponent - self.bias - self.mantissa)

    def code(self, value: Fraction, *, negative_zero: bool = False) -> int:
        """Return the code of what a real number rounds to, to nearest, ties to even."""
        size = abs(value)
        low, high = 0, self.largest + 1  # the largest code whose magnitude is not above
        while high - low > 1:
            middle = (low + high) // 2
            if self.magnitude(middle) <= size:
                low = middle
            else:
                high = middle
        below, above = size - self.magnitude(low), self.magnitude(low + 1) - size
        if above < below or (above == below and low % 2 == 1):
            low += 1
        if low > self.largest:
            low = self.largest if self.infinity is None else self.infinity
        negative = value < 0 or (value == 0 and negative_zero)
        if low == 0 and not self.signed_zero:
            negative = False
        return low | (negative << (self.bits - 1))

    def value(self, code: int) -> Fraction:
        """Decode a finite code."""
        size = self.magnitude(code & ((1 << (self.bits - 1)) - 1))
        return -size if code >> (self.bits - 1) else size

    def is_finite(self, code: int) -> bool:
        """Return whether a code is a number."""
        if not self.signed_zero and code == 1 << (self.bits - 1):
            return False
        return code & ((1 << (self.bits - 1)) - 1) <= self.largest

    def pack(self, codes: list[int]) -> bytes:
        """Return codes as little-endian bytes."""
        return b"".join(code.to_bytes(self.bits // 8, "little") for code in codes)

    def unpack(self, data: bytes | memoryview) -> list[int]:
        """Return the codes in little-endian bytes."""
        size = self.bits // 8
        return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]


ORACLES = {
    each.dtype: each
    for each in (
        Oracle("F64", 64, 52, 1023, 0x7FEF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000),
        Oracle("F32", 32, 23, 127, 0x7F7F_FFFF, 0x7F80_0000),
        Oracle("BF16", 16, 7, 127, 0x7F7F, 0x7F80),
        Oracle("F16", 16, 10, 15, 0x7BFF, 0x7C00),
        Oracle("F8_E4M3", 8, 3, 7, 0x7E, None),
        Oracle("F8_E5M2", 8, 2, 15, 0x7B, 0x7C),
        Oracle("F8_E4M3FNUZ", 8, 3, 8, 0x7F, None, signed_zero=False),
        Oracle("F8_E5M2FNUZ", 8, 2, 16, 0x7F, None, signed_zero=False),
    )
}


def exact_sum(
    oracle: Oracle, columns: list[int], coefficients: list[Fraction], target: Oracle
) -> int:
    """Return the code of the correctly rounded sum of one column of codes."""
    terms = [
        (oracle.value(code) * c, bool(code >> (oracle.bits - 1)) != (c < 0))
        for code, c in zip(columns, coefficients, strict=True)
        if c
    ]
    negative_zero = bool(terms) and all(not value and negative for value, negative in terms)
    return target.code(sum((value for value, _ in terms), Fraction(0)), negative_zero=negative_zero)


def float_of(code: int) -> float:
    """Return the float64 with these bits."""
    value: float = struct.unpack("<d", code.to_bytes(8, "little"))[0]
    return value

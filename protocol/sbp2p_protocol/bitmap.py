"""One bit per unique block of a version: who has what, what is wanted, what is on disk.

Theory of operation: bit i lies in byte i // 8 with value 1 << (i % 8), so that the bytes read as a
little-endian integer are the set, and whole-set operations run on one Python integer. The number
of set bits is kept as bits change, because the exchange asks for it after every block.

Error cases: `from_bytes` reads a peer's bytes and raises RemoteProtocolError when the length is
wrong or a padding bit is set; an index outside the bitmap is a caller's bug (IndexError).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from sbp2p_protocol.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_SET_BITS: Final = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))


def bitmap_size(length: int) -> int:
    """Return the bytes that `length` bits take on the wire."""
    return (length + 7) // 8


def set_bits(at: int, bits: int, size: int) -> list[int]:
    """Return the numbers of the set bits of an integer of `size` bytes; bit 0 is `8 * at`."""
    if not bits:
        return []
    base = 8 * at
    found: list[int] = []
    for byte in bits.to_bytes(size, "little"):
        if byte:
            for bit in _SET_BITS[byte]:
                found.append(base + bit)  # noqa: PERF401
        base += 8
    return found


class Bitmap:
    """A set of block indices below `length`; iterates over the set ones in ascending order."""

    __slots__ = ("_bytes", "_count", "_length")

    def __init__(self, length: int, indices: Iterable[int] = ()) -> None:
        if length < 0:
            raise ValueError("a bitmap has no negative length")
        self._length = length
        self._bytes = bytearray(bitmap_size(length))
        self._count = 0
        for index in indices:
            self.set(index)

    @classmethod
    def full(cls, length: int) -> Self:
        """Return a bitmap with every bit set."""
        return cls._from_int(length, (1 << length) - 1)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, length: int) -> Self:
        """Read `length` bits; raises RemoteProtocolError on a wrong size or a set padding bit."""
        if len(data) != bitmap_size(length):
            raise RemoteProtocolError(
                f"bitmap of {len(data)} bytes, {bitmap_size(length)} needed for {length} blocks"
            )
        if length % 8 and data[-1] >> length % 8:
            raise RemoteProtocolError("bitmap with padding bits set")
        bitmap = cls(0)
        bitmap._length = length
        bitmap._bytes = bytearray(data)
        bitmap._count = int.from_bytes(data, "little").bit_count()
        return bitmap

    @classmethod
    def _from_int(cls, length: int, value: int) -> Self:
        return cls.from_bytes(value.to_bytes(bitmap_size(length), "little"), length)

    def to_bytes(self) -> bytes:
        """Return the wire form: ceil(length / 8) bytes."""
        return bytes(self._bytes)

    def __len__(self) -> int:
        return self._length

    def _check(self, index: int) -> None:
        if not 0 <= index < self._length:
            raise IndexError(f"block {index} of {self._length}")

    def get(self, index: int) -> bool:
        """Return whether bit `index` is set."""
        self._check(index)
        return bool(self._bytes[index >> 3] >> (index & 7) & 1)

    __getitem__ = get
    __contains__ = get

    def set(self, index: int) -> bool:
        """Set bit `index`; returns whether that changed it."""
        if self.get(index):
            return False
        self._bytes[index >> 3] |= 1 << (index & 7)
        self._count += 1
        return True

    def clear(self, index: int) -> bool:
        """Clear bit `index`; returns whether that changed it."""
        if not self.get(index):
            return False
        self._bytes[index >> 3] &= ~(1 << (index & 7))
        self._count -= 1
        return True

    def count(self) -> int:
        """Return how many bits are set."""
        return self._count

    def any(self) -> bool:
        """Return whether any bit is set."""
        return self._count > 0

    def all(self) -> bool:
        """Return whether every bit is set."""
        return self._count == self._length

    def copy(self) -> Self:
        """Return an independent bitmap with the same bits."""
        return self.from_bytes(self._bytes, self._length)

    def and_not(self, other: Bitmap) -> Self:
        """Return the bits set here and not in `other`."""
        return self._from_int(self._length, self._int() & ~self._same_length(other))

    def __and__(self, other: Bitmap) -> Self:
        return self._from_int(self._length, self._int() & self._same_length(other))

    def __or__(self, other: Bitmap) -> Self:
        return self._from_int(self._length, self._int() | self._same_length(other))

    def _int(self) -> int:
        return int.from_bytes(self._bytes, "little")

    def _same_length(self, other: Bitmap) -> int:
        if other._length != self._length:
            raise ValueError(f"bitmaps of {self._length} and {other._length} blocks")
        return other._int()

    def iter(self, start: int = 0) -> Iterator[int]:
        """Yield the set indices from `start` up; bits changed meanwhile may or may not be seen."""
        at = start >> 3
        skip = start & 7
        for byte in memoryview(bytes(self._bytes[at:])):
            if byte:
                for bit in range(skip, 8):
                    if byte >> bit & 1:
                        yield at * 8 + bit
            at += 1
            skip = 0

    def __iter__(self) -> Iterator[int]:
        return self.iter()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bitmap):
            return NotImplemented
        return self._length == other._length and self._bytes == other._bytes

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"<Bitmap {self._count}/{self._length}>"

"""How large the numbers of a chunk are: what error bounds, and the search for NaN, rest on."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from sbp2p.merge.method import CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable

SIGNED: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of an element: the integers that have its bits."""


class Extent(NamedTuple):
    """The magnitudes in a chunk."""

    low: float
    """The smallest that is not zero; infinite when all are."""
    peak: float
    """The largest; NaN or infinite when anything in the chunk is."""


def peak_of(row: torch.Tensor) -> float:
    """Return the largest magnitude of a chunk; NaN or infinite if anything in it is."""
    low, high = torch.aminmax(row)
    return max(-low.item(), high.item())


class Workspace:
    """What one thread computes in, for chunks of up to CHUNK elements."""

    def __init__(self) -> None:
        self.double = tuple(torch.empty(CHUNK, dtype=torch.float64) for _ in range(2))
        self.single = tuple(torch.empty(CHUNK, dtype=torch.float32) for _ in range(2))
        self.bytes = torch.empty(CHUNK * 8, dtype=torch.uint8)
        self.flags = torch.zeros(CHUNK, dtype=torch.bool)
        self._block = torch.empty(0, dtype=torch.int32)
        self._wide = torch.empty((2, 0), dtype=torch.float64)
        self._sizes = {
            dtype: self.bytes[: CHUNK * dtype.itemsize].view(dtype) for dtype in _DECODED
        }
        self._bits = {
            dtype: sizes.view(SIGNED[dtype.itemsize]) for dtype, sizes in self._sizes.items()
        }

    def block_extent(self, block: torch.Tensor) -> Extent:
        """Measure several rows of F32 together."""
        count, size = block.shape
        if self._block.numel() < count * size:
            self._block = torch.empty(count * size, dtype=torch.int32)
        bits = self._block[: count * size].view(count, size)
        torch.bitwise_and(block.view(torch.int32), 0x7FFF_FFFF, out=bits)
        return _extent_of(bits, _DECODED[torch.float32])

    def block_double(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return room for two rows of float64, of any length; kept, so its pages are there."""
        if self._wide[0].numel() < size:
            self._wide = torch.empty((2, size), dtype=torch.float64)
        return self._wide[0][:size], self._wide[1][:size]

    def extent(self, row: torch.Tensor) -> Extent:
        """Measure a chunk of F64, F32, F16 or BF16: their bits are ordered as their magnitudes."""
        dtype = row.dtype
        sizes, bits = self._sizes[dtype], self._bits[dtype]
        if (count := row.numel()) < CHUNK:
            sizes, bits = sizes[:count], bits[:count]
        torch.abs(row, out=sizes)
        return _extent_of(bits, _DECODED[dtype])

    def widen(self, row: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Copy a chunk into a float64 one: float16 by way of float32, which is quicker."""
        if row.dtype == torch.float16:
            row = self.single[0][: row.numel()].copy_(row)
        return out.copy_(row)


def _extent_of(bits: torch.Tensor, decode: Callable[[int], float]) -> Extent:
    """Return the extent of magnitudes by their bits, which are used up."""
    least, most = torch.aminmax(bits)
    low, high = int(least.item()), int(most.item())
    if not low:
        # zero becomes the largest of all, everything else stays in order
        smallest = torch.iinfo(bits.dtype).min
        low = int(bits.sub_(1).bitwise_xor_(smallest).amin().item()) - smallest + 1
        if low > torch.iinfo(bits.dtype).max:
            return Extent(math.inf, decode(high))
    return Extent(decode(low), decode(high))


def _as(code: str, integer: str, shift: int = 0) -> Callable[[int], float]:
    """Return what decodes the bits of a number that is not negative."""
    real, whole = struct.Struct(f"<{code}"), struct.Struct(f"<{integer}")

    def decode(bits: int) -> float:
        value: float = real.unpack(whole.pack(bits << shift))[0]
        return value

    return decode


_DECODED: Final = {
    torch.float64: _as("d", "q"),
    torch.float32: _as("f", "i"),
    torch.float16: _as("e", "h"),
    torch.bfloat16: _as("f", "i", 16),
}
"""By dtype, what a number is whose bits are an integer."""

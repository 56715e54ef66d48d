"""How large the numbers of a chunk are: what error bounds, and the search for NaN, rest on."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch

from sbp2p.merge.method import CHUNK

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

    def extent(self, row: torch.Tensor) -> Extent:
        """Measure a chunk of F64, F32, F16 or BF16: their bits are ordered as their magnitudes."""
        sizes = self.bytes[: row.numel() * row.dtype.itemsize].view(row.dtype)
        signed = SIGNED[row.dtype.itemsize]
        bits = torch.abs(row, out=sizes).view(signed)
        low, high = torch.aminmax(bits)
        if not low.item():
            # zero becomes the largest of all, everything else stays in order
            smallest = torch.iinfo(signed).min
            low = (bits.sub_(1).bitwise_xor_(smallest).amin() ^ smallest) + 1
            if not low.item():
                return Extent(math.inf, high.view(row.dtype).item())
        return Extent(low.view(row.dtype).item(), high.view(row.dtype).item())

"""Large buffers that are used again once nobody looks at them.

Why: at a gigabyte a second, a fresh buffer for every batch of ciphertext or plaintext costs more
than encrypting it. The interpreter zeroes it, and the C library gives the pages back to the system
and faults them in again: 25 % of the time of a transfer, measured.

How: the pool keeps its buffers and looks at their reference counts. Every view of a buffer, and
every slice of a view, holds a reference to it; so a buffer that only the pool refers to is one that
nobody can read or write any more. Nothing is ever given back, so nothing can be given back too
early. Interpreters without reference counts get a new buffer every time.

What it costs: at most `buffers_max` buffers stay allocated. A small slice can hold a large buffer,
so what a slow consumer can pin is bounded by the pool as well: when all buffers are in use, and
for sizes the pool does not serve, memory is allocated to measure.
"""

from __future__ import annotations

import sys
from typing import Final

from .limits import KIB, MIB

POOLED_SIZE: Final = 1 * MIB + 64 * KIB
"""Bytes in a pooled buffer: a full read of 1 MiB, or a slice to send with its framing."""

POOLED_MIN: Final = 64 * KIB
"""Bytes below which a buffer of its own costs next to nothing."""

_HAS_COUNTS: Final = hasattr(sys, "getrefcount")


class BufferPool:
    """Buffers for one event loop; may be shared by its connections. Not thread-safe.

    Args:
        buffers_max: buffers kept; each has `POOLED_SIZE` bytes.
    """

    __slots__ = ("_buffers", "_buffers_max", "_idle_count")

    def __init__(self, *, buffers_max: int = 8) -> None:
        self._buffers: list[bytearray] = []
        self._buffers_max = buffers_max if _HAS_COUNTS else 0
        self._idle_count = self._count_of_idle()

    def take(self, size: int) -> memoryview:
        """Return `size` writable bytes of unknown content that nobody else can see."""
        if POOLED_MIN <= size <= POOLED_SIZE and self._buffers_max:
            for buffer in self._buffers:
                if sys.getrefcount(buffer) == self._idle_count:
                    return memoryview(buffer)[:size]
            if len(self._buffers) < self._buffers_max:
                self._buffers.append(bytearray(POOLED_SIZE))
                return memoryview(self._buffers[-1])[:size]
        return memoryview(bytearray(size))

    def _count_of_idle(self) -> int:
        """Return the count that the loop in `take` sees for a buffer in nobody's use."""
        count = 0
        for buffer in [bytearray()] if _HAS_COUNTS else []:
            count = sys.getrefcount(buffer)
        return count

"""The ways to cut files that know nothing of tensors: fixed blocks, and content-defined chunks.

Content-defined chunking cuts where a rolling hash of the last bytes falls below a threshold, so an
insertion moves the cuts along with the content. This is the gear hash with FastCDC's rules (Xia et
al., USENIX ATC 2016): no cut before a minimum, a rarer condition before the normal size, a more
frequent one after it, and always a cut at the maximum. The sizes give 64 KiB on average, which the
benchmark measures and prints.

The hash h[i] = sum of gear[data[i - k]] << k for k < 32 is computed for all positions at once by
doubling its window five times; a byte-by-byte loop in Python would take minutes.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

FIXED: Final = 1024 * 1024
WINDOW: Final = 32
PIECE: Final = 64 * 1024
"""Bytes hashed at once: the arrays stay in the second-level cache."""
MIN_SIZE: Final = 16 * 1024
NORMAL_SIZE: Final = 52 * 1024
MAX_SIZE: Final = 256 * 1024
RARE: Final = 1 << 14  # one position in 2**18
FREQUENT: Final = 1 << 18  # one position in 2**14
GEAR: Final = np.random.default_rng(2016).integers(0, 1 << 32, 256, dtype=np.uint32)


def gear_hashes(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the hash of the WINDOW bytes that end at each position; fewer at the start."""
    hashes: NDArray[np.uint32] = GEAR[data]
    for width in (1, 2, 4, 8, 16):
        hashes[width:] += hashes[:-width] << np.uint32(width)
    return hashes


def _candidates(data: NDArray[np.uint8]) -> tuple[list[int], list[int]]:
    """Return where a chunk may end by the rare and by the frequent condition."""
    ends, values = [], []
    for start in range(0, len(data), PIECE):
        before = min(start, WINDOW - 1)
        hashes = gear_hashes(data[start - before : start + PIECE])[before:]
        found = np.flatnonzero(hashes < FREQUENT)
        ends.append(found + (start + 1))
        values.append(hashes[found])
    frequent = np.concatenate(ends) if ends else np.empty(0, np.int64)
    rare = frequent[np.concatenate(values) < RARE] if values else frequent
    return rare.tolist(), frequent.tolist()


def content_defined_lengths(data: NDArray[np.uint8]) -> Iterator[int]:
    """Yield the lengths of the content-defined chunks of `data`, in order."""
    rare, frequent = _candidates(data)
    size = len(data)
    start = 0
    while start < size:
        end = min(start + MAX_SIZE, size)
        for ends, first, last in (
            (rare, start + MIN_SIZE, start + NORMAL_SIZE - 1),
            (frequent, start + NORMAL_SIZE, end),
        ):
            at = bisect_left(ends, first)
            if at < len(ends) and ends[at] <= min(last, end):
                end = ends[at]
                break
        yield end - start
        start = end


def fixed_lengths(data: NDArray[np.uint8]) -> Iterator[int]:
    """Yield the lengths of blocks of FIXED bytes; the last one is what is left."""
    for start in range(0, len(data), FIXED):
        yield min(FIXED, len(data) - start)

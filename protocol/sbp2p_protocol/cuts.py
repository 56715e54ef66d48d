"""Where a file is cut into blocks: at its tensors, and the same way by every publisher.

Theory of operation: the file is read as a row of pieces (header, tensors, gaps between them,
trailer) and cut so that a tensor that did not change is the same blocks in every version, shard
layout and file name:

1. Header (all before the first tensor) and trailer (all after the last) never share a block with
   a tensor, and are cut every 1 MiB from their start: editing metadata changes only those blocks.
2. A tensor or a gap of 64 KiB or more is alone: it begins a block, is cut every 1 MiB from its
   start, and the piece after it begins a block.
3. Smaller pieces that follow each other share blocks: a block takes pieces while it stays within
   1 MiB; the piece that does not fit begins the next block.

Zero-length tensors have no bytes and are no pieces. Spans that are out of order, overlap, or
leave the file do not describe it: the file is then cut every 1 MiB, like one without spans.
A file of zero bytes has no blocks. Normative text: protocol/data-model.md section 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbp2p_protocol.limits import BLOCK_MAX, KIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ALONE_MIN: Final = 64 * KIB
"""Bytes from which a tensor has blocks of its own. Part of the format: never change it."""


def cut_lengths(size: int, spans: Iterable[tuple[int, int]] | None) -> Iterator[int]:
    """Yield the block lengths of a file of `size` bytes, in order; each is 1 to BLOCK_MAX.

    Args:
        size: bytes in the file.
        spans: (offset, length) of each tensor in bytes, in file order; None for an opaque file.
    """
    tensors = _usable_spans(size, spans)
    if not tensors:
        yield from _every_block(size)
        return
    yield from _every_block(tensors[0][0])
    shared = 0  # bytes of small pieces gathered for the next block
    for length in _pieces(tensors):
        if length >= ALONE_MIN:
            if shared:
                yield shared
                shared = 0
            yield from _every_block(length)
        elif shared + length > BLOCK_MAX:
            yield shared
            shared = length
        else:
            shared += length
    if shared:
        yield shared
    last_offset, last_length = tensors[-1]
    yield from _every_block(size - last_offset - last_length)


def _usable_spans(size: int, spans: Iterable[tuple[int, int]] | None) -> list[tuple[int, int]]:
    """Return the non-empty spans, or nothing when they do not describe a file of this size."""
    usable = []
    end = 0
    for offset, length in spans or ():
        if length < 0 or offset < end:
            return []
        end = offset + length
        if length:
            usable.append((offset, length))
    return usable if end <= size else []


def _pieces(tensors: list[tuple[int, int]]) -> Iterator[int]:
    """Yield the lengths of the tensors and of the gaps between them, in file order."""
    end = tensors[0][0]
    for offset, length in tensors:
        if offset > end:
            yield offset - end
        yield length
        end = offset + length


def _every_block(size: int) -> Iterator[int]:
    for _ in range(size // BLOCK_MAX):
        yield BLOCK_MAX
    if size % BLOCK_MAX:
        yield size % BLOCK_MAX

"""Bits that differ: which elements, and their bytes plane by plane, each entropy-coded.

Theory of operation: after a small step most elements of a tensor have the bits that they had, and
those of the others that changed are low bits of the mantissa. So the exclusive or with the parent
is split in three kinds of bytes that each have few different values:

* **which elements differ**: a bitmap, or the gaps between them (LEB128), whichever is shorter, or
  nothing if all or none do;
* **the bytes of their differences, plane by plane**: all lowest bytes, all second lowest, ...;
* each of these in a frame: left out if all zero, as it is if its bytes are too evenly spread to
  gain anything, else deflated (RFC 1951), by run lengths if nearly all bytes are one, by Huffman
  codes alone if not: strings that repeat are rare in weights, and looking for them takes most of
  the time.

Without a parent the bits themselves are coded so; of weights, the byte with the exponent shrinks to
a third (Hershcovitch and others, ZipNN, 2024).

CHUNK elements at a time, so that what is needed besides stays small and near the processor: a third
faster for large tensors than all at once.

    payload = chunk...
    chunk   = kind (1 byte), then by kind
              NONE: nothing; no element differs
              ALL: a frame for each plane
              BITMAP: count (4, little-endian), frame of the bitmap, a frame for each plane
              GAPS: count (4), bytes of the gaps (4), their frame, a frame for each plane
    frame   = word (4): bit 31 set: the length of bytes that follow as they are;
              0: all bytes are zero; else the length of the deflated bytes that follow

Error cases: unpacking raises CheckpointError whatever the bytes. Every frame is inflated to its
known length at most.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import torch

from sbp2p.errors import CheckpointError
from sbp2p.merge.compress.arrays import data_of, flat_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK: Final = 1024 * 1024
"""Elements that are coded together."""

_STORED: Final = 1 << 31
_NONE, _ALL, _BITMAP, _GAPS = range(4)
_GAP_BYTES: Final = 3
"""Bytes of one gap at most: 2**21 elements, more than a chunk has."""

_POSITIONAL: Final = 0.9
"""Share of differing elements from which on all are written: a bitmap would save less."""

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SAMPLE: Final = 16 * 1024
"""Bytes whose distribution stands for a frame's."""


# -- frames ----------------------------------------------------------------------------------------


def pack_frame(values: torch.Tensor) -> Iterator[bytes]:
    """Yield the parts of a frame of bytes, a 1-D U8 tensor."""
    if not bool(values.any()):
        yield bytes(4)
        return
    data = bytes(data_of(values))
    small = _deflated(values, data)
    if small is not None and len(small) < len(data):
        yield len(small).to_bytes(4, "little")
        yield small
    else:
        yield (len(data) | _STORED).to_bytes(4, "little")
        yield data


def _deflated(piece: torch.Tensor, data: bytes) -> bytes | None:
    """Return the bytes deflated, or None if that is not worth trying."""
    sample = piece if piece.numel() <= _SAMPLE else piece[:: piece.numel() // _SAMPLE]
    share = torch.bincount(sample, minlength=256).double() / sample.numel()
    if float(share.max()) > 0.9:
        strategy = zlib.Z_RLE
    else:
        entropy = -float((share * share.clamp_min(1e-12).log2()).sum())
        if entropy > 7.6:
            return None
        strategy = zlib.Z_HUFFMAN_ONLY
    deflate = zlib.compressobj(1, zlib.DEFLATED, -15, 9, strategy)
    return deflate.compress(data) + deflate.flush()


class _Frames:
    """A position in a payload."""

    __slots__ = ("at", "data")

    def __init__(self, data: memoryview, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, size: int) -> memoryview:
        if size > self.data.nbytes - self.at:
            raise CheckpointError("a malformed update: the bits of a tensor are cut off")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def read(self, size: int) -> torch.Tensor:
        """Return `size` bytes out of the next frame."""
        word = self.number()
        if word == 0:
            return torch.zeros(size, dtype=torch.uint8)
        data = self.take(word & ~_STORED)
        if word & _STORED == 0:
            data = _inflated(data, size)
        if data.nbytes != size:
            raise CheckpointError("a malformed update: a frame of another length")
        return flat_bytes(data)


def _inflated(data: memoryview, size: int) -> memoryview:
    inflate = zlib.decompressobj(-15)
    try:
        found = inflate.decompress(data, size + 1)
    except zlib.error as error:
        raise CheckpointError(f"a malformed update: {error}") from error
    if len(found) != size or not inflate.eof or inflate.unused_data:
        raise CheckpointError("a malformed update: a frame of another length")
    return memoryview(found)


# -- which elements --------------------------------------------------------------------------------


def _pack_bitmap(differs: torch.Tensor) -> torch.Tensor:
    """Return one bit for each element, the lowest first."""
    count = differs.numel()
    padded = torch.zeros((count + 7) // 8 * 8, dtype=torch.bool)
    padded[:count] = differs
    # bytes of 0 or 1 times this number: byte i lands on bit 56 + i, and no two sums meet
    gathered = padded.view(torch.uint8).view(torch.int64) * 0x0102040810204080
    return (gathered >> 56 & 0xFF).to(torch.uint8)


def _read_bitmap(bitmap: torch.Tensor, count: int) -> torch.Tensor:
    bits = (torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1
    spread = bits.to(torch.uint8).view(torch.int64).view(-1)
    return spread[bitmap.to(torch.int32)].view(torch.bool)[:count].nonzero().view(-1)


def _pack_gaps(where: torch.Tensor) -> torch.Tensor:
    """Return the numbers of elements left out before each one, in LEB128."""
    gaps = where.clone()
    gaps[1:] -= where[:-1] + 1
    lengths = torch.ones_like(gaps)
    for each in range(1, _GAP_BYTES):
        lengths += gaps >= 1 << 7 * each
    starts = lengths.cumsum(0) - lengths
    out = torch.zeros(int(lengths.sum()), dtype=torch.uint8)
    for each in range(int(lengths.max())):
        has = lengths > each
        byte = (gaps[has] >> 7 * each) & 0x7F
        more = (lengths[has] > each + 1).to(torch.int64) << 7
        out[starts[has] + each] = (byte | more).to(torch.uint8)
    return out


def _read_gaps(data: torch.Tensor, count: int, elements: int) -> torch.Tensor:
    ends = data < 128
    if int(ends.sum()) != count or not bool(ends[-1]):
        raise CheckpointError("a malformed update: gaps that are not as many as it says")
    stops = ends.nonzero().view(-1)
    starts = torch.zeros_like(stops)
    starts[1:] = stops[:-1] + 1
    lengths = stops - starts + 1
    if int(lengths.max()) > _GAP_BYTES:
        raise CheckpointError("a malformed update: a gap beyond every tensor")
    gaps = torch.zeros(count, dtype=torch.int64)
    for each in range(int(lengths.max())):
        has = lengths > each
        gaps[has] |= (data[starts[has] + each].to(torch.int64) & 0x7F) << 7 * each
    if int(gaps.sum()) + count > elements:
        raise CheckpointError("a malformed update: elements beyond the tensor")
    return (gaps + 1).cumsum(0) - 1


# -- tensors ---------------------------------------------------------------------------------------


def pack_bits(new: torch.Tensor, old: torch.Tensor | None, width: int) -> bytes:
    """Return the payload for the bits of a tensor.

    Args:
        new: its bytes, 1-D U8.
        old: the parent's, as many; None packs the bits themselves.
        width: bytes of an element, 1, 2, 4 or 8; divides their number.
    """
    parts: list[bytes] = []
    integers = new.view(_INTEGERS[width])
    before = None if old is None else old.view(_INTEGERS[width])
    for start in range(0, integers.numel(), CHUNK):
        bits = integers[start : start + CHUNK]
        parts += _pack_chunk(
            bits if before is None else bits ^ before[start : start + CHUNK], width
        )
    return b"".join(parts)


def _pack_chunk(bits: torch.Tensor, width: int) -> Iterator[bytes]:
    elements = bits.numel()
    differs = bits != 0
    where = differs.nonzero().view(-1)
    count = where.numel()
    if count == 0:
        yield bytes((_NONE,))
        return
    if count >= _POSITIONAL * elements:
        yield bytes((_ALL,))
        rows = bits
    else:
        which = _pack_gaps(where) if count < elements // 8 else None
        if which is not None and which.numel() < (elements + 7) // 8:
            sizes = count.to_bytes(4, "little") + which.numel().to_bytes(4, "little")
            yield bytes((_GAPS,)) + sizes
        else:
            which = _pack_bitmap(differs)
            yield bytes((_BITMAP,)) + count.to_bytes(4, "little")
        yield from pack_frame(which)
        rows = bits[where]
    for plane in rows.view(torch.uint8).view(-1, width).t():
        yield from pack_frame(plane.contiguous())


def unpack_bits(
    payload: memoryview, old: torch.Tensor | None, size: int, width: int
) -> torch.Tensor:
    """Return the bytes of a tensor, 1-D U8.

    Args:
        payload: what `pack_bits` made.
        old: the parent's bytes if it was given one; not changed.
        size: bytes of the tensor, a multiple of `width`.
        width: bytes of an element.

    Raises:
        CheckpointError: it is not the payload of a tensor of this size.
    """
    frames = _Frames(payload, 0)
    result = torch.zeros(size, dtype=torch.uint8) if old is None else old.clone()
    integers = result.view(_INTEGERS[width])
    for start in range(0, integers.numel(), CHUNK):
        _unpack_chunk(frames, integers[start : start + CHUNK], width)
    if frames.at != payload.nbytes:
        raise CheckpointError("a malformed update: bytes after the bits of a tensor")
    return result


def _unpack_chunk(frames: _Frames, bits: torch.Tensor, width: int) -> None:
    """Change the bits of a chunk that differ, in place."""
    kind = frames.take(1)[0]
    if kind == _NONE:
        return
    if kind > _GAPS:
        raise CheckpointError("a malformed update: bits of a kind that is unknown here")
    elements = bits.numel()
    where = None if kind == _ALL else _read_which(frames, kind, elements)
    rows = elements if where is None else where.numel()
    planes = [frames.read(rows) for _ in range(width)]
    differences = torch.stack(planes, 1).view(-1).view(bits.dtype)
    if where is None:
        bits ^= differences
    else:
        bits[where] ^= differences


def _read_which(frames: _Frames, kind: int, elements: int) -> torch.Tensor:
    count = frames.number()
    if not 0 < count <= elements:
        raise CheckpointError("a malformed update: bits of another tensor")
    if kind == _BITMAP:
        where = _read_bitmap(frames.read((elements + 7) // 8), elements)
        if where.numel() != count:
            raise CheckpointError("a malformed update: a bitmap of another number of elements")
        return where
    size = frames.number()
    if not count <= size <= _GAP_BYTES * count:
        raise CheckpointError("a malformed update: gaps that are not as many as it says")
    return _read_gaps(frames.read(size), count, elements)

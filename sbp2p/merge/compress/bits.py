"""Bits that differ: which elements, and their bytes plane by plane, each entropy-coded.

Theory of operation: after a small step most elements of a tensor have the bits that they had, and
those of the others that changed are low bits of the mantissa. So the exclusive or with the parent
is split in three kinds of bytes that each have few different values:

* **which elements differ**: a bitmap, or the gaps between them (LEB128), whichever is shorter, or
  nothing if nearly all do;
* **the bytes of their differences, plane by plane**: all lowest bytes, all second lowest, ...;
* each of these in frames of at most 1 MiB: left out if all zero, as it is if its bytes are too
  evenly spread to gain anything, else deflated (RFC 1951), by run lengths if nearly all bytes are
  one, by Huffman codes alone if not: strings that repeat are rare in weights, and looking for them
  takes most of the time.

Without a parent the bits themselves are coded so; of weights, the byte with the exponent shrinks to
a third (Hershcovitch and others, ZipNN, 2024).

    payload = kind (1 byte), elements that differ (8), frames of which, frames of each plane
    frame   = word (4, little-endian): bit 31 set: the length of bytes that follow as they are;
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

FRAME: Final = 1024 * 1024
"""Bytes that a frame stands for at most."""

_STORED: Final = 1 << 31
_ALL, _BITMAP, _GAPS = 0, 1, 2
_HEAD: Final = 9
_GAP_BYTES: Final = 6
"""Bytes of one gap at most: 2**42 elements."""

_INDEX_MAX: Final = 2**41
_POSITIONAL: Final = 0.9
"""Share of differing elements from which on all are written: a bitmap would save less."""

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SAMPLE: Final = 64 * 1024
"""Bytes whose distribution stands for a frame's."""


# -- frames ----------------------------------------------------------------------------------------


def pack_frames(values: torch.Tensor) -> Iterator[bytes]:
    """Yield bytes, a 1-D U8 tensor, as frames."""
    for start in range(0, max(values.numel(), 1), FRAME):
        piece = values[start : start + FRAME]
        if not bool(piece.any()):
            yield bytes(4)
            continue
        data = bytes(data_of(piece))
        small = _deflated(piece, data)
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

    def read(self, size: int) -> torch.Tensor:
        """Return `size` bytes out of the next frames."""
        values = torch.zeros(size, dtype=torch.uint8)
        for start in range(0, max(size, 1), FRAME):
            piece = values[start : start + FRAME]
            word = int.from_bytes(self.take(4), "little")
            if word == 0:
                continue
            data = self.take(word & ~_STORED)
            if word & _STORED == 0:
                data = _inflated(data, piece.numel())
            if data.nbytes != piece.numel():
                raise CheckpointError("a malformed update: a frame of another length")
            piece.copy_(flat_bytes(data))
        return values


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
    # as floats first: a sum of hostile gaps could pass 64 bits
    if float(gaps.double().sum()) + count > elements:
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
    bits = (new if old is None else new ^ old).view(_INTEGERS[width])
    differs = bits != 0
    elements = bits.numel()
    where = differs.nonzero().view(-1)
    count = where.numel()
    kind, which, rows = _ALL, torch.empty(0, dtype=torch.uint8), bits
    if count < _POSITIONAL * elements and elements < _INDEX_MAX:
        kind, which, rows = _BITMAP, which, bits[where]
        if 0 < count < elements // 8:
            kind, which = _GAPS, _pack_gaps(where)
        if kind == _BITMAP or which.numel() >= (elements + 7) // 8:
            kind, which = _BITMAP, _pack_bitmap(differs)
    parts = [bytes((kind,)), count.to_bytes(8, "little")]
    if kind == _GAPS:
        parts.append(which.numel().to_bytes(8, "little"))
    if kind != _ALL:
        parts += pack_frames(which)
    for plane in rows.view(torch.uint8).view(-1, width).t():
        parts += pack_frames(plane.contiguous())
    return b"".join(parts)


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
    elements = size // width
    frames = _Frames(payload, 0)
    head = frames.take(_HEAD)
    kind, count = head[0], int.from_bytes(head[1:], "little")
    if kind > _GAPS or count > elements:
        raise CheckpointError("a malformed update: bits of another tensor")
    where = _read_which(frames, kind, count, elements)
    rows = elements if where is None else count
    planes = [frames.read(rows) for _ in range(width)]
    if frames.at != payload.nbytes:
        raise CheckpointError("a malformed update: bytes after the bits of a tensor")
    # one copy of planes into elements, then one pass over those that differ
    integers = _INTEGERS[width]
    differences = torch.stack(planes, 1).view(-1).view(integers)
    if where is None:
        bits = differences
        return (bits if old is None else bits ^ old.view(integers)).view(torch.uint8)
    base = torch.zeros(size, dtype=torch.uint8) if old is None else old
    result = base.view(integers).clone()
    result[where] ^= differences
    return result.view(torch.uint8)


def _read_which(frames: _Frames, kind: int, count: int, elements: int) -> torch.Tensor | None:
    if kind == _ALL:
        return None
    if kind == _BITMAP:
        where = _read_bitmap(frames.read((elements + 7) // 8), elements)
        if where.numel() != count:
            raise CheckpointError("a malformed update: a bitmap of another number of elements")
        return where
    size = int.from_bytes(frames.take(8), "little")
    if not count <= size <= _GAP_BYTES * count or not count:
        raise CheckpointError("a malformed update: gaps that are not as many as it says")
    return _read_gaps(frames.read(size), count, elements)

"""GGUF version 2 and 3, little-endian: metadata skipped, tensor descriptions read.

Layout of a file: `GGUF`, u32 version, u64 tensors, u64 metadata pairs; the pairs; the tensor
descriptions (name, dimensions innermost first, type, offset in the data section); padding up to
`general.alignment` (32 unless the metadata says otherwise); the data section.

Rules. Everything before the data section is at most 100 MB. Metadata arrays are not nested (the
reference reader refuses them too). Offsets are multiples of the alignment and lie in the file; no
two tensors that have elements share one. For cutting, a tensor reaches to the start of the next, so
boundaries do not depend on the table of quantised types below. The tensor index holds the exact
length where the type is known, and otherwise that reach, padding included.

Version 1 and big-endian files are opaque bytes here.
"""

from __future__ import annotations

import struct
from typing import Final

from sbp2p.checkpoint.formats.layout import ByteSource, Layout, MalformedError, TensorSpan, shown
from sbp2p_protocol.limits import TENSORS_PER_FILE_MAX

FORMAT: Final = "gguf"

HEADER_MAX: Final = 100_000_000
"""Bytes before the data section. A 256k-token vocabulary with its merges takes about 15 MB."""
NAME_MAX: Final = 65_535
"""Bytes of a metadata key or a tensor name (the specification's cap on keys)."""
DIMENSIONS_MAX: Final = 8
"""The reference reader allows 4."""

GGML_TYPES: Final = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
    27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}  # fmt: skip
"""type number -> (name, elements per group, bytes per group)."""

_SCALAR_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32: Final = 4
_STRING: Final = 8
_ARRAY: Final = 9
_WINDOW: Final = 1 << 20
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class _Cursor:
    """A forward reader over a window of the file, never past HEADER_MAX."""

    __slots__ = ("_at", "_source", "_start", "_window")

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._start = 0
        self._window = b""
        self._at = 0

    @property
    def position(self) -> int:
        return self._start + self._at

    def take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._window):
            self._refill(length)
            end = self._at + length
        data = self._window[self._at : end]
        self._at = end
        return data

    def skip(self, length: int) -> None:
        self._at += length
        if self.position > min(HEADER_MAX, self._source.size):
            raise MalformedError("metadata runs past the end of the file, or past the limit")

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def text(self) -> bytes:
        length = self.u64()
        if length > NAME_MAX:
            raise MalformedError(f"a name of {length} bytes")
        return self.take(length)

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings; vocabularies make this the one loop that must be quick."""
        unpack = _U64.unpack_from
        while count:
            window, at, last = self._window, self._at, len(self._window) - 8
            while count and at <= last:
                at += 8 + unpack(window, at)[0]
                count -= 1
            self._at = at
            self.skip(0)
            if count:
                self._refill(8)

    def _refill(self, need: int) -> None:
        start = self.position
        have = min(HEADER_MAX, self._source.size) - start
        if need > have:
            raise MalformedError("metadata runs past the end of the file, or past the limit")
        self._window = self._source.read(start, min(max(need, _WINDOW), have))
        self._start, self._at = start, 0


def parse(source: ByteSource) -> Layout | None:
    """Return the layout of a GGUF file, or None when it does not carry the magic."""
    if source.size < 24 or source.read(0, 4) != b"GGUF":
        return None
    cursor = _Cursor(source)
    cursor.skip(4)
    version = cursor.u32()
    if version not in (2, 3):
        raise MalformedError(f"GGUF version {version:#x} (or big-endian), not 2 or 3")
    count, pairs = cursor.u64(), cursor.u64()
    if count > TENSORS_PER_FILE_MAX:
        raise MalformedError(f"more than {TENSORS_PER_FILE_MAX} tensors")
    alignment = _metadata(cursor, pairs)
    infos = [_info(cursor) for _ in range(count)]
    start = -(-cursor.position // alignment) * alignment
    return _layout(infos, start, source.size, alignment)


def _metadata(cursor: _Cursor, pairs: int) -> int:
    """Step over the metadata and return the alignment it sets, or 32."""
    alignment: int | None = None
    for _ in range(pairs):
        key = cursor.text()
        kind = cursor.u32()
        if key == b"general.alignment":
            if kind != _UINT32 or alignment is not None:
                raise MalformedError("general.alignment is not one uint32")
            alignment = cursor.u32()
            if not alignment or alignment % 8:
                raise MalformedError(f"general.alignment of {alignment}")
        elif kind == _ARRAY:
            kind, count = cursor.u32(), cursor.u64()
            if kind == _STRING:
                cursor.skip_strings(count)
            else:
                cursor.skip(_scalar(kind) * count)
        elif kind == _STRING:
            cursor.skip(cursor.u64())
        else:
            cursor.skip(_scalar(kind))
    return 32 if alignment is None else alignment


def _scalar(kind: int) -> int:
    size = _SCALAR_SIZES.get(kind)
    if size is None:
        raise MalformedError(f"metadata of type {kind}")
    return size


def _info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Read one tensor description: name, row-major shape, type, offset in the data section."""
    try:
        name = cursor.text().decode()
    except UnicodeDecodeError as error:
        raise MalformedError("a tensor name is not UTF-8") from error
    dimensions = cursor.u32()
    if dimensions > DIMENSIONS_MAX:
        raise MalformedError(f"tensor {shown(name)} has {dimensions} dimensions")
    shape = tuple(cursor.u64() for _ in range(dimensions))
    if any(size >= 1 << 63 for size in shape):
        raise MalformedError(f"tensor {shown(name)} has a dimension of 2^63 or more")
    return name, shape[::-1], cursor.u32(), cursor.u64()


def _layout(
    infos: list[tuple[str, tuple[int, ...], int, int]], start: int, size: int, alignment: int
) -> Layout:
    if len({info[0] for info in infos}) != len(infos):
        raise MalformedError("a tensor name occurs twice")
    # empty tensors sort before the one that starts at the same place
    ordered = sorted(infos, key=lambda info: (info[3], 0 not in info[1]))
    spans: list[tuple[int, int]] = []
    tensors: list[TensorSpan] = []
    end = size
    note = ""
    for name, shape, kind, relative in reversed(ordered):
        offset = start + relative
        if relative % alignment or offset > size:
            raise MalformedError(f"tensor {shown(name)} starts at a bad offset")
        reach = 0
        if 0 not in shape:
            reach, end = end - offset, offset
            if reach <= 0:
                raise MalformedError(f"tensor {shown(name)} shares its place with another")
            spans.append((offset, reach))
        dtype, length = _length(shape, kind, reach)
        if not 0 <= length <= reach:
            note = f"tensor {shown(name)}: {dtype} {shape} does not fit its {reach} bytes"
        tensors.append(TensorSpan(name, dtype, shape, offset, length))
    return Layout(FORMAT, tuple(spans[::-1]), None if note else tuple(tensors[::-1]), note)


def _length(shape: tuple[int, ...], kind: int, reach: int) -> tuple[str, int]:
    """Return the dtype's name and the tensor's exact length, or -1 when the shape cannot be."""
    known = GGML_TYPES.get(kind)
    if known is None:
        return f"GGML_{kind}", reach
    name, group, width = known
    elements = 1
    for size in shape:
        elements *= size
    if (shape and shape[-1] % group) or (not shape and group > 1):
        return name, -1
    return name, elements // group * width

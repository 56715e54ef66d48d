"""The safetensors header: an 8-byte little-endian length, then that many bytes of JSON.

Rules (the format's own, held to the letter because what is accepted decides block boundaries):

* the header is at most 100 MB, is UTF-8, starts with `{` and is followed only by JSON white space;
* each member is `"name": {"dtype": string, "shape": [integers], "data_offsets": [begin, end]}` with
  exactly these three keys in any order, or `"__metadata__": {string: string}`;
* no tensor name occurs twice, none holds a lone surrogate;
* in order of offset the tensors cover the rest of the file: no hole, no overlap, no excess byte.

The JSON is scanned member by member, not parsed into a tree: memory stays proportional to the
number of tensors, and nesting cannot reach the recursion limit (which depends on the caller's stack
and would make acceptance depend on it too).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from sbp2p.checkpoint.formats.layout import ByteSource, Layout, MalformedError, TensorSpan, shown
from sbp2p_protocol.limits import (
    TENSOR_DIMENSIONS_MAX,
    TENSORS_PER_FILE_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT: Final = "safetensors"

HEADER_MAX: Final = 100_000_000
"""Bytes of JSON; the reference implementation's own cap."""

DTYPE_BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Bits per element. A dtype that is not here is carried as opaque bytes of whatever length."""

_WS: Final = r"[ \t\n\r]*"
_NOT_SPACE: Final = re.compile(r"[^ \t\n\r]")
_MEMBER: Final = re.compile(
    rf'{_WS}"(dtype|shape|data_offsets)"{_WS}:{_WS}'
    rf'(?:"([^"\\\x00-\x1f]{{0,64}})"|\[([0-9, \t\n\r]{{0,2048}})\]){_WS}([,}}])'
)
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_decode_string: Final = json.JSONDecoder(strict=True).raw_decode


def parse(source: ByteSource) -> Layout | None:
    """Return the layout of a safetensors file, or None when it does not look like one at all."""
    if source.size < 10:
        return None
    head = source.read(0, 9)
    length = int.from_bytes(head[:8], "little")
    if head[8:] != b"{" or length > source.size - 8:
        return None
    if length > HEADER_MAX:
        raise MalformedError(f"header of {length} bytes, more than the format's {HEADER_MAX}")
    try:
        text = source.read(8, length).decode()
    except UnicodeDecodeError as error:
        raise MalformedError("header is not UTF-8") from error
    start = 8 + length
    tensors = sorted(_tensors(text, start), key=lambda t: (t.offset, t.length))
    position = start
    for tensor in tensors:
        if tensor.offset != position:
            raise MalformedError(f"hole or overlap before tensor {shown(tensor.name)}")
        position += tensor.length
    if position != source.size:
        raise MalformedError(f"tensors end at byte {position} of {source.size}")
    spans = tuple((t.offset, t.length) for t in tensors if t.length)
    for tensor in tensors:
        if not _fits(tensor):
            note = f"tensor {shown(tensor.name)}: {tensor.dtype} {tensor.shape} is not its length"
            return Layout(FORMAT, spans, None, note)
    return Layout(FORMAT, spans, tuple(tensors))


def _fits(tensor: TensorSpan) -> bool:
    bits = DTYPE_BITS.get(tensor.dtype)
    if bits is None:
        return True
    for size in tensor.shape:
        bits *= size
    return bits == tensor.length * 8


def _tensors(text: str, start: int) -> Iterator[TensorSpan]:
    """Yield every tensor that the header names, with offsets from the start of the file."""
    seen: set[str] = set()
    position = _skip(text, 1)
    if text[position : position + 1] == "}":
        position += 1
    else:
        while True:
            name, position = _string(text, position)
            position = _expect(text, position, ":")
            if name in seen:
                raise MalformedError(f"name {shown(name)} occurs twice")
            seen.add(name)
            if name == "__metadata__":
                position = _skip_metadata(text, position)
            else:
                if len(seen) > TENSORS_PER_FILE_MAX:
                    raise MalformedError(f"more than {TENSORS_PER_FILE_MAX} tensors")
                tensor, position = _tensor(text, position, name, start)
                yield tensor
            position = _skip(text, position)
            if text[position : position + 1] == "}":
                position += 1
                break
            position = _expect(text, position, ",")
    if _skip(text, position) != len(text):
        raise MalformedError("something follows the header's closing brace")


def _tensor(text: str, position: int, name: str, start: int) -> tuple[TensorSpan, int]:
    position = _expect(text, position, "{")
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    extent: tuple[int, ...] | None = None
    for _ in range(3):
        match = _MEMBER.match(text, position)
        if match is None:
            break
        key, string, numbers, after = match.groups()
        position = match.end()
        if key == "dtype" and string is not None and dtype is None:
            dtype = string
        elif key == "shape" and numbers is not None and shape is None:
            shape = _integers(numbers, name)
        elif key == "data_offsets" and numbers is not None and extent is None:
            extent = _integers(numbers, name)
        else:
            break
        if after == "}":
            if dtype is None or shape is None or extent is None or len(extent) != 2:
                break
            if extent[1] < extent[0]:
                raise MalformedError(f"tensor {shown(name)} ends before it begins")
            span = TensorSpan(name, dtype, shape, start + extent[0], extent[1] - extent[0])
            return span, position
    raise MalformedError(f"tensor {shown(name)} is not described by dtype, shape and data_offsets")


def _integers(text: str, name: str) -> tuple[int, ...]:
    if not (text := text.strip()):
        return ()
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > TENSOR_DIMENSIONS_MAX or not all(map(_INTEGER.fullmatch, parts)):
        raise MalformedError(f"tensor {shown(name)} has a bad list of integers")
    return tuple(map(int, parts))


def _skip_metadata(text: str, position: int) -> int:
    """Step over an object whose values are all strings."""
    position = _skip(text, _expect(text, position, "{"))
    if text[position : position + 1] == "}":
        return position + 1
    while True:
        _, position = _string(text, position)
        _, position = _string(text, _expect(text, position, ":"))
        position = _skip(text, position)
        if text[position : position + 1] == "}":
            return position + 1
        position = _expect(text, position, ",")


def _string(text: str, position: int) -> tuple[str, int]:
    position = _skip(text, position)
    if text[position : position + 1] != '"':
        raise MalformedError(f"header character {position} should begin a string")
    try:
        value, position = _decode_string(text, position)
        if not value.isascii():
            value.encode()  # a lone surrogate can be written as an escape, but not as UTF-8
    except ValueError as error:
        raise MalformedError(f"header character {position} begins a bad string") from error
    return value, position


def _skip(text: str, position: int) -> int:
    match = _NOT_SPACE.search(text, position)
    return len(text) if match is None else match.start()


def _expect(text: str, position: int, character: str) -> int:
    position = _skip(text, position)
    if text[position : position + 1] != character:
        raise MalformedError(f"header character {position} should be {character!r}")
    return position + 1

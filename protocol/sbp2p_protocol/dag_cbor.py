"""Strict dag-cbor: one value has one encoding, and every other encoding is refused.

Theory of operation: whatever is hashed or signed must have one byte form, or two honest nodes
disagree about a name. The decoder therefore checks each rule where it reads: shortest integers and
lengths, definite lengths, text keys unique and ordered shorter first then bytewise, 64-bit finite
floats, tag 42 only, valid UTF-8, one top-level item. `encode(decode(data)) == data` holds for
everything that decodes. Depth and size are bounded before anything is allocated.

Error cases: `decode` raises RemoteProtocolError whatever the bytes; `encode` raises
LocalProtocolError for a value that has no dag-cbor form.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from sbp2p_protocol.cid import Cid
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import CBOR_DEPTH_MAX, NODE_BLOCK_MAX

CborValue: TypeAlias = (
    "bool | int | float | str | bytes | Cid | list[CborValue] | dict[str, CborValue] | None"
)
"""What `decode` returns."""

_UNSIGNED: Final = 0
_NEGATIVE: Final = 1
_BYTES: Final = 2
_TEXT: Final = 3
_ARRAY: Final = 4
_MAP: Final = 5
_TAG: Final = 6

_CID_TAG: Final = b"\xd8\x2a"
_INT_MAX: Final = 2**64 - 1
_DOUBLE: Final = struct.Struct(">d")
_WIDTHS: Final = {24: (1, 24), 25: (2, 1 << 8), 26: (4, 1 << 16), 27: (8, 1 << 32)}
"""Additional information to (bytes of argument, least value that needs them)."""


def encode(value: object) -> bytes:
    """Encode None, bool, int, float, str, bytes, Cid, sequences and text-keyed mappings.

    Raises:
        LocalProtocolError: the value has no dag-cbor form (type, NaN, range, depth, surrogates).
    """
    out = bytearray()
    _encode(out, value, 0)
    return bytes(out)


def _encode(out: bytearray, value: object, depth: int) -> None:
    if depth > CBOR_DEPTH_MAX:
        raise LocalProtocolError(f"dag-cbor deeper than {CBOR_DEPTH_MAX} levels")
    if value is None:
        out.append(0xF6)
    elif isinstance(value, bool):
        out.append(0xF5 if value else 0xF4)
    elif isinstance(value, int):
        _encode_int(out, value)
    elif isinstance(value, str):
        _encode_sized(out, _TEXT, _utf8(value))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        _encode_sized(out, _BYTES, bytes(value))
    elif isinstance(value, Cid):
        out += _CID_TAG
        _encode_sized(out, _BYTES, b"\x00" + value.to_bytes())
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise LocalProtocolError("dag-cbor has no NaN and no infinity")
        out.append(0xFB)
        out += _DOUBLE.pack(value)
    elif isinstance(value, Mapping):
        _encode_map(out, value, depth)
    elif isinstance(value, Sequence):
        _encode_head(out, _ARRAY, len(value))
        for item in value:
            _encode(out, item, depth + 1)
    else:
        raise LocalProtocolError(f"dag-cbor has no form for {type(value).__name__}")


def _encode_map(out: bytearray, value: Mapping[object, object], depth: int) -> None:
    items: list[tuple[bytes, object]] = []
    for key, item in value.items():
        if not isinstance(key, str):
            raise LocalProtocolError(f"dag-cbor keys are text, not {type(key).__name__}")
        items.append((_utf8(key), item))
    items.sort(key=lambda pair: (len(pair[0]), pair[0]))
    _encode_head(out, _MAP, len(items))
    for raw, item in items:
        _encode_sized(out, _TEXT, raw)
        _encode(out, item, depth + 1)


def _encode_int(out: bytearray, value: int) -> None:
    if value >= 0:
        _encode_head(out, _UNSIGNED, value)
    else:
        _encode_head(out, _NEGATIVE, -1 - value)


def _encode_sized(out: bytearray, major: int, data: bytes) -> None:
    _encode_head(out, major, len(data))
    out += data


def _encode_head(out: bytearray, major: int, argument: int) -> None:
    if argument < 24:
        out.append(major << 5 | argument)
        return
    if argument > _INT_MAX:
        raise LocalProtocolError("dag-cbor integers have at most 64 bits and a sign")
    for info, (width, _) in _WIDTHS.items():
        if argument >> (8 * width) == 0:
            out.append(major << 5 | info)
            out += argument.to_bytes(width, "big")
            return


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise LocalProtocolError("text with a lone surrogate has no UTF-8 form") from error


def decode(data: bytes, *, max_size: int = NODE_BLOCK_MAX) -> CborValue:
    """Decode exactly one item that fills `data`.

    Raises:
        RemoteProtocolError: not canonical dag-cbor, deeper than CBOR_DEPTH_MAX, or over `max_size`.
    """
    if len(data) > max_size:
        raise RemoteProtocolError(f"dag-cbor of {len(data)} bytes (at most {max_size})")
    reader = _Reader(data)
    value = reader.item(0)
    if reader.at != len(data):
        raise RemoteProtocolError(f"{len(data) - reader.at} bytes after the dag-cbor item")
    return value


class _Reader:
    """A position in the bytes; every method advances it or raises RemoteProtocolError."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def item(self, depth: int) -> CborValue:
        if depth > CBOR_DEPTH_MAX:
            raise RemoteProtocolError(f"dag-cbor deeper than {CBOR_DEPTH_MAX} levels")
        first = self._byte()
        major, info = first >> 5, first & 31
        if major == 7:
            return self._simple(info)
        argument = self._argument(info)
        if major == _UNSIGNED:
            return argument
        if major == _TEXT:
            return self._text(self._take(argument))
        if major == _ARRAY:
            self._check_count(argument, 1)
            return [self.item(depth + 1) for _ in range(argument)]
        if major == _MAP:
            return self._map(argument, depth)
        if major == _BYTES:
            return self._take(argument)
        if major == _NEGATIVE:
            return -1 - argument
        return self._cid(argument)

    def _byte(self) -> int:
        if self.at >= len(self.data):
            raise RemoteProtocolError("truncated dag-cbor")
        byte = self.data[self.at]
        self.at += 1
        return byte

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise RemoteProtocolError("truncated dag-cbor")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def _sized(self, major: int, what: str) -> bytes:
        first = self._byte()
        if first >> 5 != major:
            raise RemoteProtocolError(what)
        return self._take(self._argument(first & 31))

    def _argument(self, info: int) -> int:
        if info < 24:
            return info
        if info not in _WIDTHS:
            raise RemoteProtocolError("dag-cbor has no indefinite lengths")
        width, least = _WIDTHS[info]
        argument = int.from_bytes(self._take(width), "big")
        if argument < least:
            raise RemoteProtocolError(f"dag-cbor integer {argument} in more bytes than it needs")
        return argument

    def _check_count(self, count: int, least_size: int) -> None:
        # before anything is allocated: each item takes at least this many bytes
        if count * least_size > len(self.data) - self.at:
            raise RemoteProtocolError("dag-cbor announces more items than its bytes can hold")

    def _text(self, data: bytes) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("dag-cbor text is not UTF-8") from error

    def _map(self, count: int, depth: int) -> dict[str, CborValue]:
        self._check_count(count, 2)
        result: dict[str, CborValue] = {}
        previous = (-1, b"")
        for _ in range(count):
            raw = self._sized(_TEXT, "dag-cbor keys are text")
            order = (len(raw), raw)
            if order <= previous:
                raise RemoteProtocolError(f"dag-cbor key {raw[:40]!r} is out of order or repeated")
            previous = order
            result[self._text(raw)] = self.item(depth + 1)
        return result

    def _cid(self, tag: int) -> Cid:
        if tag != 42:
            raise RemoteProtocolError(f"dag-cbor allows tag 42 only, not {tag}")
        value = self._sized(_BYTES, "a dag-cbor link is a byte string")
        if value[:1] != b"\x00":
            raise RemoteProtocolError("a dag-cbor link begins with 00")
        return Cid.from_bytes(value[1:])

    def _simple(self, info: int) -> CborValue:
        if info == 22:
            return None
        if info in (20, 21):
            return info == 21
        if info != 27:
            raise RemoteProtocolError("dag-cbor allows false, true, null and 64-bit floats only")
        value: float = _DOUBLE.unpack(self._take(8))[0]
        if not math.isfinite(value):
            raise RemoteProtocolError("dag-cbor has no NaN and no infinity")
        return value

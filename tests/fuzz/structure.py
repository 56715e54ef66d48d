"""Mutations that know a format: change one part, keep the rest well formed.

Each raises ValueError when the bytes are not of its format; the engine then falls back to `havoc`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sbp2p_keys.errors import KeysError
from sbp2p_keys.multi import decode_uvarint
from sbp2p_protocol import dag_cbor
from sbp2p_protocol.cid import Cid
from sbp2p_protocol.errors import ProtocolError

from .mutate import edge, havoc, varint

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from .mutate import Mutation

_TEXTS = ("", "a", "/", "..", "a/b", "CON", "\x00", "\u202e", "e\u0301", "\udc80", "x" * 300, "*")

# -- trees of values: dag-cbor and JSON ------------------------------------------------------------


def cbor(rng: Random, data: bytes) -> bytes:
    """Change a part of a dag-cbor item and encode it canonically again."""
    try:
        value = dag_cbor.decode(data)
        return dag_cbor.encode(_change(rng, value, _cbor_leaf))
    except (ProtocolError, RecursionError) as error:
        raise ValueError("not dag-cbor") from error


def json_text(rng: Random, data: bytes) -> bytes:
    """Change a part of a JSON text."""
    try:
        value = json.loads(data)
        changed = _change(rng, value, _json_leaf)
        text = json.dumps(changed, ensure_ascii=rng.random() < 0.5)
    except RecursionError as error:
        raise ValueError("nested too deep to change") from error
    return text.encode("utf-8", "surrogatepass")


def _cbor_leaf(rng: Random) -> object:
    kind = rng.randrange(7)
    if kind == 0:
        return Cid(1, edge(rng) >> 1, edge(rng) >> 1, rng.randbytes(rng.choice((0, 32, 32, 33))))
    if kind == 1:
        return rng.randbytes(rng.choice((0, 1, 32, 32, 38, 200)))
    return _json_leaf(rng)


def _json_leaf(rng: Random) -> object:
    number = edge(rng)
    choices: tuple[object, ...] = (
        *(None, True, False, number, -1 - number, 0.5, 1e300),
        *(rng.choice(_TEXTS), [], {}, [[]]),
    )
    return rng.choice(choices)


def _change(rng: Random, value: Any, leaf: Callable[[Random], object]) -> Any:
    """Return a copy of a tree with one node, picked on the way down, changed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        return _change_map(rng, dict(value), leaf)
    if isinstance(value, list) and value and rng.random() < 0.85:
        return _change_list(rng, list(value), leaf)
    if isinstance(value, bool) or rng.random() < 0.3:
        return leaf(rng)
    if isinstance(value, int):
        return value + rng.choice((-1, 1, edge(rng), -edge(rng), value))
    if isinstance(value, str):
        return _change_text(rng, value)
    if isinstance(value, bytes):
        return havoc(rng, value, (), ())
    return [value] if rng.random() < 0.5 else leaf(rng)


def _change_map(rng: Random, value: dict[str, Any], leaf: Callable[[Random], object]) -> Any:
    key = rng.choice(list(value))
    kind = rng.randrange(12)
    if kind == 0:
        del value[key]
    elif kind == 1:
        value[_change_text(rng, key)] = value.pop(key)
    elif kind == 2:
        value[rng.choice(_TEXTS)] = leaf(rng)
    elif kind == 3:
        value[_change_text(rng, key)] = value[key]
    else:
        value[key] = _change(rng, value[key], leaf)
    return value


def _change_list(rng: Random, value: list[Any], leaf: Callable[[Random], object]) -> Any:
    at = rng.randrange(len(value))
    kind = rng.randrange(12)
    if kind == 0:
        del value[at]
    elif kind == 1:
        value.insert(at, value[at])
    elif kind == 2:
        value.insert(at, leaf(rng))
    elif kind == 3:
        rng.shuffle(value)
    elif kind == 4:
        value[at:at] = [value[at]] * int(100 ** rng.random())
    else:
        value[at] = _change(rng, value[at], leaf)
    return value


def _change_text(rng: Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(_TEXTS)
    if kind == 1:
        return text[:at]
    if kind == 2:
        return text[:at] + rng.choice(_TEXTS) + text[at:]
    if kind == 3:
        return text[:at] + chr(rng.choice((rng.randrange(128), rng.randrange(0x3000)))) + text[at:]
    return text[:at] + text[at + 1 :]


# -- protobuf --------------------------------------------------------------------------------------

_Field = tuple[int, int, int | bytes]
"""Number, wire type, value: an integer for wire type 0, bytes for 1, 2 and 5."""


def protobuf(rng: Random, data: bytes) -> bytes:
    """Change, drop, double or reorder a field, at any depth, with every length made right."""
    fields = _parse_fields(data)
    if not fields:
        raise ValueError("no fields")
    at = rng.randrange(len(fields))
    number, kind, value = fields[at]
    match rng.randrange(8):
        case 0:
            del fields[at]
        case 1:
            fields.insert(rng.randrange(len(fields) + 1), fields[at])
        case 2:
            rng.shuffle(fields)
        case 3:
            fields.insert(at, (rng.randrange(1, 20), 0, edge(rng)))
        case 4:
            fields[at:at] = [fields[at]] * int(100 ** rng.random())
        case _:
            fields[at] = (number, kind, _change_value(rng, value))
    return b"".join(map(_encode_field, fields))


def _change_value(rng: Random, value: int | bytes) -> int | bytes:
    if isinstance(value, int):
        return edge(rng)
    try:
        return protobuf(rng, value) if rng.random() < 0.6 else havoc(rng, value, (), ())
    except ValueError:
        return havoc(rng, value, (), ())


def _parse_fields(data: bytes) -> list[_Field]:
    fields: list[_Field] = []
    at = 0
    while at < len(data):
        key, at = decode_uvarint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = decode_uvarint(data, at)
            fields.append((number, kind, value))
            continue
        if kind == 2:
            size, at = decode_uvarint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind, -1)
        if number == 0 or size < 0 or at + size > len(data):
            raise ValueError("not a protobuf message")
        fields.append((number, kind, data[at : at + size]))
        at += size
    return fields


def _encode_field(field: _Field) -> bytes:
    number, kind, value = field
    key = varint(number << 3 | kind)
    if isinstance(value, int):
        return key + varint(value)
    # a changed value of a fixed-width field has another size: it goes out as bytes
    if kind != 2 and len(value) == {1: 8, 5: 4}[kind]:
        return key + value
    return varint(number << 3 | 2) + varint(len(value)) + value


# -- frames ----------------------------------------------------------------------------------------


def frames(inner: Mutation) -> Mutation:
    """Return a mutation of a stream of length-prefixed frames, whose bodies `inner` changes."""

    def change(rng: Random, data: bytes) -> bytes:
        parts = _cut_frames(data)
        if not parts:
            raise ValueError("no frames")
        at = rng.randrange(len(parts))
        match rng.randrange(8):
            case 0:
                del parts[at]
            case 1:
                parts.insert(rng.randrange(len(parts) + 1), parts[at])
            case 2:
                rng.shuffle(parts)
            case 3:
                parts[at:at] = [parts[at]] * int(40 ** rng.random())
            case _:
                parts[at] = inner(rng, parts[at])
        return b"".join(varint(len(part)) + part for part in parts)

    return change


def _cut_frames(data: bytes) -> list[bytes]:
    """Return the frames at the start of a stream; what follows the last whole one is dropped."""
    parts = []
    at = 0
    while at < len(data):
        try:
            size, start = decode_uvarint(data, at)
        except KeysError:
            break
        if start + size > len(data):
            break
        parts.append(data[start : start + size])
        at = start + size
    return parts


def records(size: int) -> Mutation:
    """Return a mutation of a row of fixed-size records: yamux headers, steps of a script."""

    def change(rng: Random, data: bytes) -> bytes:
        rows = [data[at : at + size] for at in range(0, len(data), size)]
        if not rows:
            raise ValueError("no records")
        at = rng.randrange(len(rows))
        match rng.randrange(6):
            case 0:
                del rows[at]
            case 1:
                rows.insert(rng.randrange(len(rows) + 1), rows[at])
            case 2:
                first, second = rng.randrange(len(rows)), rng.randrange(len(rows))
                rows[first], rows[second] = rows[second], rows[first]
            case 3:
                rows[at:at] = [rows[at]] * int(40 ** rng.random())
            case _:
                row = bytearray(rows[at])
                where = rng.randrange(len(row))
                width = min(rng.choice((1, 1, 2, 4)), len(row) - where)
                value = edge(rng) & (1 << 8 * width) - 1
                row[where : where + width] = value.to_bytes(width, "big")
                rows[at] = bytes(row)
        return b"".join(rows)

    return change


def blind(rng: Random, data: bytes) -> bytes:
    """Change bytes that have no structure worth keeping; for the inside of frames."""
    return havoc(rng, data, (), ())

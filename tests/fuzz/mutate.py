"""Mutations: how valid bytes become bytes that are nearly valid.

Theory of operation. A mutation takes a random generator and bytes, and returns other bytes. `havoc`
knows nothing of any format: it flips, cuts, repeats and splices, and writes numbers that lie beside
the bounds people choose. The mutations of `structure.py` know one format each and repair lengths
and order, so that a change deep inside is not refused at the first byte.

Everything is a function of the generator, which is seeded: a run can be repeated.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeAlias

Mutation: TypeAlias = Callable[[Random, bytes], bytes]
"""Returns changed bytes; may raise ValueError when the bytes are not of the format it knows."""

_Edit: TypeAlias = Callable[[Random, bytearray], None]

_EDGES: Final = (
    0, 1, 2, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 42, 63, 64, 65, 127, 128, 129, 255, 256,
    257, 511, 1023, 1024, 1025, 4095, 4096, 8191, 8192, 65519, 65535, 65536, 2**18, 2**20 - 1,
    2**20, 2**20 + 1, 2**22, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 - 1, 2**53, 2**62,
    2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
"""Values on both sides of what fields and limits can hold."""

_BYTES: Final = b"\x00\x01\x7f\x80\xff\xfe\x20\x22\x2f\x5b\x5d\x7b\x7d"
_INTEGERS: Final = tuple(struct.Struct(order + kind) for order in "<>" for kind in "BHIQ")


def edge(rng: Random) -> int:
    """Return an integer that code often gets wrong, of up to 64 bits."""
    value = rng.choice(_EDGES) + rng.choice((0, 0, 0, -1, 1))
    return min(max(value, 0), 2**64 - 1)


def varint(value: int) -> bytes:
    """Return the shortest LEB128 form of a value of any size."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def havoc(rng: Random, data: bytes, pool: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    """Return `data` after one to eight blind edits; parts of `pool` and `tokens` may get in."""
    out = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        kind = rng.randrange(10)
        if kind == 0 and pool:
            _splice(rng, out, rng.choice(pool))
        elif kind == 1 and tokens:
            _put(rng, out, rng.choice(tokens))
        else:
            rng.choice(_EDITS)(rng, out)
    return bytes(out)


def _span(rng: Random, size: int, most: int = 64) -> tuple[int, int]:
    """Return a random range within `size`, short ones more often."""
    length = min(size, 1 + int(most ** rng.random()))
    start = rng.randrange(size - length + 1)
    return start, start + length


def _put(rng: Random, out: bytearray, piece: bytes) -> None:
    """Insert a piece, or write over what is there."""
    at = rng.randrange(len(out) + 1)
    out[at : at + rng.choice((0, len(piece)))] = piece


def _splice(rng: Random, out: bytearray, other: bytes) -> None:
    if not other:
        return
    if rng.random() < 0.3:
        out[rng.randrange(len(out) + 1) :] = other[rng.randrange(len(other)) :]
        return
    start, end = _span(rng, len(other), 512)
    _put(rng, out, other[start:end])


def _flip_bit(rng: Random, out: bytearray) -> None:
    if out:
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)


def _set_byte(rng: Random, out: bytearray) -> None:
    if out:
        out[rng.randrange(len(out))] = rng.choice((rng.randrange(256), rng.choice(_BYTES)))


def _add(rng: Random, out: bytearray) -> None:
    if out:
        at = rng.randrange(len(out))
        out[at] = (out[at] + rng.randint(-16, 16)) & 0xFF


def _write_integer(rng: Random, out: bytearray) -> None:
    if rng.random() < 0.3:
        _put(rng, out, varint(edge(rng)))
        return
    form = rng.choice(_INTEGERS)
    value = edge(rng) & (1 << 8 * form.size) - 1
    at = rng.randrange(len(out) + 1)
    out[at : at + rng.choice((0, form.size, form.size))] = form.pack(value)


def _delete(rng: Random, out: bytearray) -> None:
    if out:
        start, end = _span(rng, len(out))
        del out[start:end]


def _truncate(rng: Random, out: bytearray) -> None:
    if out:
        del out[rng.randrange(len(out)) :]


def _insert_noise(rng: Random, out: bytearray) -> None:
    at = rng.randrange(len(out) + 1)
    out[at:at] = rng.randbytes(1 + int(32 ** rng.random()))


def _repeat(rng: Random, out: bytearray) -> None:
    if out:
        start, end = _span(rng, len(out))
        out[end:end] = bytes(out[start:end]) * (1 + int(64 ** rng.random() ** 3))


def _move(rng: Random, out: bytearray) -> None:
    if out:
        start, end = _span(rng, len(out))
        piece = bytes(out[start:end])
        del out[start:end]
        at = rng.randrange(len(out) + 1)
        out[at:at] = piece


_EDITS: Final[tuple[_Edit, ...]] = (
    _flip_bit,
    _flip_bit,
    _set_byte,
    _add,
    _write_integer,
    _write_integer,
    _delete,
    _truncate,
    _insert_noise,
    _repeat,
    _move,
)

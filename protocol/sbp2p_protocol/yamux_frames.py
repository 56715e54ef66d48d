"""The yamux frame header: 12 bytes, big endian.

    version u8 = 0 | type u8 | flags u16 | stream id u32 | length u32

`length` counts the payload that follows a Data frame; a WindowUpdate carries credit there (or an
error code, with RST), a Ping an opaque value, a GoAway a code. Only Data frames have a payload.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER_SIZE: Final = 12
PROTOCOL_ID: Final = "/yamux/1.0.0"

# plain ints: an IntEnum member costs a look-up and a slower comparison on every frame
DATA: Final = 0
WINDOW_UPDATE: Final = 1
PING: Final = 2
GO_AWAY: Final = 3

SYN: Final = 1
ACK: Final = 2
FIN: Final = 4
RST: Final = 8

STREAM_ID_MAX: Final = 0xFFFF_FFFF
WINDOW_LIMIT: Final = 0xFFFF_FFFF
"""Most credit that one side of a stream can hold: what the field can say."""

_HEADER = Struct(">BBHII")
unpack_header: Callable[[bytes | bytearray | memoryview, int], tuple[int, int, int, int, int]]
unpack_header = _HEADER.unpack_from
"""`unpack_header(buffer, offset) -> (version, type, flags, stream_id, length)`."""


def pack_header(frame_type: int, flags: int, stream_id: int, length: int) -> bytes:
    """Return the header of one frame; a Data frame's payload follows it directly."""
    return _HEADER.pack(0, frame_type, flags, stream_id, length)

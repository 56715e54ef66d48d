"""Cuts an exchange stream into control frames and the raw payload that follows some of them.

Theory of operation: most bytes of a stream are payload, so they are never copied here: a chunk
that lies inside a payload is kept as it came (a slice where it straddles a boundary) and the
payload is handed over as the list of its chunks. Only a frame that is cut by the end of a chunk is
collected in a buffer, which holds at most one frame.

Use: `feed` one chunk, then call `next_frame` / `take_payload` until they say more is needed, then
feed the next. The chunk's memory belongs to the reader from then on.

Error cases: a length that is malformed or above EXCHANGE_FRAME_MAX raises RemoteProtocolError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from sbp2p_keys.errors import BadEncodingError, TruncatedError
from sbp2p_keys.multi import decode_uvarint, encode_uvarint

from .errors import LocalProtocolError, RemoteProtocolError
from .limits import EXCHANGE_FRAME_MAX, EXCHANGE_SLICE_BYTES, EXCHANGE_SLICE_FRAMES

if TYPE_CHECKING:
    from typing_extensions import Buffer

Payload: TypeAlias = "list[bytearray | memoryview]"
"""The parts of one payload, in order."""

_PREFIX_MAX: Final = len(encode_uvarint(EXCHANGE_FRAME_MAX))

_SMALL_PART: Final = 4096
"""Bytes below which a part is copied together with its neighbours. A view costs 200 bytes, so a
peer that sends single bytes would otherwise make a 1 MiB block cost 200 MiB."""


class FrameSplitter:
    """Frames and payloads of one direction of one stream."""

    __slots__ = ("_at", "_chunk", "_held", "_missing", "_parts")

    def __init__(self) -> None:
        self._chunk = memoryview(b"")
        self._at = 0
        self._held = bytearray()
        self._parts: Payload = []
        self._missing = 0

    def feed(self, data: Buffer) -> None:
        """Take the next chunk; the one before must have been used up."""
        if not self.used_up:
            raise LocalProtocolError("fed before the last chunk was used up")
        chunk = memoryview(data)
        self._chunk = chunk if chunk.format == "B" else chunk.cast("B")
        self._at = 0

    def discard(self) -> None:
        """Drop the rest of the chunk."""
        self._at = len(self._chunk)

    @property
    def used_up(self) -> bool:
        """Whether the next chunk can be fed."""
        return self._at == len(self._chunk)

    @property
    def mid_message(self) -> bool:
        """Whether the stream may not end here: inside a frame or a payload."""
        return bool(self._held) or self._missing > 0

    def next_frame(self) -> bytes | None:
        """Return the next whole frame's body, or None when the chunk is used up.

        Raises:
            RemoteProtocolError: the length is malformed or too large.
        """
        if self._held:
            return self._continue_frame()
        chunk, at = self._chunk, self._at
        if at == len(chunk):
            return None
        header = _read_prefix(bytes(chunk[at : at + _PREFIX_MAX]))
        if header is not None:
            length, size = header
            start = at + size
            if start + length <= len(chunk):
                self._at = start + length
                return bytes(chunk[start : self._at])
        self._held += chunk[at:]
        self._at = len(chunk)
        return None

    def _continue_frame(self) -> bytes | None:
        header = _read_prefix(bytes(self._held[:_PREFIX_MAX]))
        while header is None:
            if not self._hold(1):
                return None
            header = _read_prefix(bytes(self._held))
        length, size = header
        self._hold(size + length - len(self._held))
        if len(self._held) < size + length:
            return None
        frame = bytes(memoryview(self._held)[size:])
        self._held = bytearray()
        return frame

    def _hold(self, count: int) -> bool:
        taken = self._chunk[self._at : self._at + count]
        self._held += taken
        self._at += len(taken)
        return len(taken) > 0

    def begin_payload(self, length: int) -> None:
        """Say that the next `length` bytes are raw payload."""
        self._missing = length
        self._parts = []

    def take_payload(self) -> Payload | None:
        """Move payload out of the chunk; returns the payload's parts once it is complete."""
        at = self._at
        size = min(len(self._chunk) - at, self._missing)
        if size:
            self._at = at + size
            self._missing -= size
            self._keep(self._chunk[at : at + size])
        if self._missing:
            return None
        parts, self._parts = self._parts, []
        return parts

    def _keep(self, part: memoryview) -> None:
        if len(part) >= _SMALL_PART:
            self._parts.append(part)
        elif self._parts and isinstance(self._parts[-1], bytearray):
            self._parts[-1] += part
        else:
            self._parts.append(bytearray(part))


def _read_prefix(head: bytes) -> tuple[int, int] | None:
    """Return the frame's length and the size of its prefix, or None if cut short."""
    try:
        length, size = decode_uvarint(head)
    except TruncatedError:
        if len(head) >= _PREFIX_MAX:
            raise RemoteProtocolError(f"exchange frame above {EXCHANGE_FRAME_MAX} bytes") from None
        return None
    except BadEncodingError as error:
        raise RemoteProtocolError(f"bad exchange frame length: {error}") from None
    if length > EXCHANGE_FRAME_MAX:
        raise RemoteProtocolError(f"exchange frame of {length} bytes")
    return length, size


class SliceBudget:
    """How much of a chunk is taken before others get their turn; counts frames and their bytes."""

    __slots__ = ("_bytes", "_frames")

    def __init__(self) -> None:
        self._frames = EXCHANGE_SLICE_FRAMES
        self._bytes = EXCHANGE_SLICE_BYTES

    def spend(self, frame: bytes) -> bool:
        """Count one frame; returns whether there may be another."""
        self._frames -= 1
        self._bytes -= len(frame)
        return self._frames > 0 and self._bytes > 0

"""Frames with a varint length in front: how libp2p sends one message on a stream.

A frame is `uvarint(n)` and then `n` bytes. The length is a strict multiformats varint (minimal,
at most nine bytes) and is checked against the reader's bound before anything is kept, so a peer
can make this side hold one frame and what came with it, no more. An empty frame is legal.

Errors: a length that is not minimal, or above the bound, raises `RemoteProtocolError`; so does
the end of the stream inside a frame (`finish`). After an error the reader stays broken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p_keys.errors import BadEncodingError, TruncatedError
from sbp2p_keys.multi import decode_uvarint, encode_uvarint

from .errors import RemoteProtocolError

if TYPE_CHECKING:
    from typing_extensions import Buffer


def encode_length_prefixed(payload: bytes) -> bytes:
    """Return `payload` as one frame."""
    return encode_uvarint(len(payload)) + payload


class LengthPrefixedReader:
    """Cuts a byte stream into frames of at most `max_size` bytes.

    Call `feed` with whatever arrived, then `next` until it returns None.
    """

    __slots__ = ("_buffer", "_error", "_max_length_bytes", "_max_size", "_offset")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._max_length_bytes = len(encode_uvarint(max_size))
        self._buffer = bytearray()
        self._offset = 0
        self._error: str | None = None

    @property
    def buffered(self) -> int:
        """Bytes received that belong to no returned frame."""
        return len(self._buffer) - self._offset

    def feed(self, data: Buffer) -> None:
        """Take bytes of the stream, cut anywhere."""
        self._buffer += data

    def next(self) -> bytes | None:
        """Return the next whole frame, or None until more bytes come.

        Raises:
            RemoteProtocolError: The length is malformed or above the bound.
        """
        if self._error is not None:
            raise RemoteProtocolError(self._error)
        header = self._read_length()
        if header is None:
            return None
        length, start = header
        end = start + length
        if len(self._buffer) < end:
            return None
        frame = bytes(memoryview(self._buffer)[start:end])
        self._offset = end
        self._compact()
        return frame

    def finish(self) -> None:
        """Check that the stream may end here: not inside a frame."""
        if self._error is not None:
            raise RemoteProtocolError(self._error)
        if self.buffered:
            raise self._break("stream ended inside a length-prefixed frame")

    def take_rest(self) -> bytes:
        """Return, once, the bytes after the last returned frame: the reader is done."""
        rest = bytes(memoryview(self._buffer)[self._offset :])
        self._buffer.clear()
        self._offset = 0
        return rest

    def _read_length(self) -> tuple[int, int] | None:
        """The frame's length and where its payload starts, or None if not there yet."""
        head = bytes(self._buffer[self._offset : self._offset + self._max_length_bytes])
        try:
            length, size = decode_uvarint(head)
        except TruncatedError:
            if len(head) == self._max_length_bytes:
                raise self._break(f"frame length above {self._max_size}") from None
            return None
        except BadEncodingError as error:
            raise self._break(f"bad frame length: {error}") from None
        if length > self._max_size:
            raise self._break(f"frame of {length} bytes, above {self._max_size}")
        return length, self._offset + size

    def _compact(self) -> None:
        # Drop what was returned only when it is most of the buffer: linear in total, not quadratic.
        if self._offset * 2 >= len(self._buffer):
            del self._buffer[: self._offset]
            self._offset = 0

    def _break(self, message: str) -> RemoteProtocolError:
        self._error = message
        self._buffer.clear()
        self._offset = 0
        return RemoteProtocolError(message)

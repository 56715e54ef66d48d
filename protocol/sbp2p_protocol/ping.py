"""ping: 32 random bytes there and back, as often as wanted on one stream (`/ipfs/ping/1.0.0`).

The client sends a payload and measures until the same bytes are back; it closes when it has had
enough. The server echoes whole payloads and keeps no more than one. A wrong echo is a
`RemoteProtocolError`: nothing of what follows could be trusted to measure anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from typing_extensions import Buffer

PING_PROTOCOL: Final = "/ipfs/ping/1.0.0"
PING_SIZE: Final = 32


class PingClient:
    """Measures round trips, one at a time."""

    __slots__ = ("_echo", "_payload", "_sent_at")

    def __init__(self) -> None:
        self._payload: bytes | None = None
        self._sent_at = 0.0
        self._echo = bytearray()

    def start(self, payload: bytes, now: float) -> bytes:
        """Begin one round trip; returns the bytes to send.

        Args:
            payload: 32 random bytes.
            now: Monotonic seconds.
        """
        if self._payload is not None or len(payload) != PING_SIZE:
            raise LocalProtocolError(f"a ping is {PING_SIZE} bytes, one at a time")
        self._payload, self._sent_at = payload, now
        return payload

    def receive_data(self, data: Buffer, now: float) -> float | None:
        """Take bytes from the peer; returns the round trip in seconds once it is whole.

        Raises:
            RemoteProtocolError: They are not the payload.
        """
        self._echo += data
        if self._payload is None or not self._payload.startswith(bytes(self._echo)):
            raise RemoteProtocolError("ping came back with other bytes")
        if len(self._echo) < PING_SIZE:
            return None
        self._payload = None
        self._echo.clear()
        return now - self._sent_at


class PingServer:
    """Echoes payloads."""

    __slots__ = ("_partial",)

    def __init__(self) -> None:
        self._partial = bytearray()

    def receive_data(self, data: Buffer) -> bytes:
        """Take bytes from the peer; returns the bytes to send back, whole payloads only."""
        self._partial += data
        size = len(self._partial) // PING_SIZE * PING_SIZE
        echo = bytes(self._partial[:size])
        del self._partial[:size]
        return echo

"""Is the peer still there, and how far away is it: our side of yamux pings.

Rules:
1. At most one ping is on its way. It goes out when asked for, and `keepalive_s` after the last.
2. The peer is lost when nothing at all has arrived for `ping_timeout_s` after a ping. Data counts:
   a pong may wait behind it.
3. While our own output moves, the ping may still be queued behind it, so the wait starts anew.
   The driver takes output only when it has written what it took before, so taking MOVING bytes
   after the ping left says that it moves. Less says nothing: the kernel takes a question every few
   seconds for a peer that vanished, and buffers megabytes before it takes no more.
"""

from __future__ import annotations

from typing import Final

from .errors import CloseCode, RemoteProtocolError
from .limits import KIB
from .yamux_window import RoundTrip

MOVING: Final = 16 * KIB
"""Bytes taken within one wait that say that output moves: 1.6 kB/s, and more than questions."""


class Liveness:
    """Deadlines and round trips of one session. Times are in seconds on the caller's clock."""

    def __init__(self, *, keepalive_s: float, ping_timeout_s: float, now: float) -> None:
        self.path = RoundTrip()
        self._keepalive_s = keepalive_s
        self._ping_timeout_s = ping_timeout_s
        self._next_ping_at = now + keepalive_s
        self._waiting_since: float | None = None
        self._sent_at = now
        self._value = 0
        self._moved = -1
        """Bytes taken since the ping left, or since the wait began anew; -1 before it left."""

    def heard(self, now: float) -> None:
        """Note that bytes arrived."""
        if self._waiting_since is not None:
            self._waiting_since = now

    def output_taken(self, size: int) -> None:
        """Note that the driver took `size` bytes to write."""
        self._moved = 0 if self._moved < 0 else self._moved + size

    def ping(self, now: float) -> int | None:
        """Return the opaque value of the ping to send, or None while one is on its way."""
        if self._waiting_since is not None:
            return None
        self._value = (self._value + 1) & 0xFFFF_FFFF
        self._sent_at = self._waiting_since = now
        self._next_ping_at = now + self._keepalive_s
        self._moved = -1
        return self._value

    def pong(self, value: int, now: float) -> float | None:
        """Take an answer; return the round trip in seconds, or None if nobody asked."""
        if self._waiting_since is None or value != self._value:
            return None
        self._waiting_since = None
        rtt_s = max(0.0, now - self._sent_at)
        self.path.add(rtt_s)
        return rtt_s

    def next_deadline(self) -> float:
        """When `handle_timer` has something to do."""
        if self._waiting_since is None:
            return self._next_ping_at
        return self._waiting_since + self._ping_timeout_s

    def handle_timer(self, now: float) -> int | None:
        """Return the value of a ping that is due, if one is.

        Raises:
            RemoteProtocolError: the peer has been silent for too long (close code NORMAL).
        """
        if now < self.next_deadline():
            return None
        if self._waiting_since is None:
            return self.ping(now)
        if self._moved >= MOVING:
            self._moved = 0
            self._waiting_since = now
            return None
        raise RemoteProtocolError(
            f"the peer has sent nothing for {self._ping_timeout_s:g} s after a ping",
            close_code=CloseCode.NORMAL,
        )

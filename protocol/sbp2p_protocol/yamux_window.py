"""Receive windows: how much a peer may send, and when it may send more.

Theory of operation. Every stream starts with 256 KiB of credit. The bytes of a window are always
in one of three places:

    size == credit (the peer may still send it) + unread (the application has not taken it)
            + pending (taken, and not yet given back)

When `pending` reaches half the size it goes back in one WindowUpdate. If the window before that
went round in less than 4 round trips, then it, and not the path, sets the pace: it doubles, up to
16 MiB (go-yamux's rule). Growth comes out of one budget per session, so a peer with many fast
streams cannot make us buffer more than the budget; what is beyond the base 256 KiB is refused
when that is spent. A window never shrinks while its stream lives.
"""

from __future__ import annotations

from collections import deque

from .errors import LocalProtocolError

_TUNING_ROUND_TRIPS = 4
_RTT_SAMPLES = 8
_RTT_FLOOR_S = 0.001
"""Two event loops cost about this much a round; a shorter round trip says nothing of a path."""


class RoundTrip:
    """The round trip time of a path: the smallest of the last samples.

    The smallest, because a ping waits behind data that is queued and so measures our own buffers.
    """

    __slots__ = ("_samples", "seconds")

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_RTT_SAMPLES)
        self.seconds: float | None = None

    def add(self, sample_s: float) -> None:
        """Take one measurement, in seconds."""
        self._samples.append(max(sample_s, 0.0))
        self.seconds = min(self._samples)

    @property
    def tuning_s(self) -> float:
        """Within how many seconds a window must go round in order to grow; 0 before any ping."""
        if self.seconds is None:
            return 0.0
        return _TUNING_ROUND_TRIPS * max(self.seconds, _RTT_FLOOR_S)


class WindowBudget:
    """The sum of the receive windows of one session, and how far it may grow."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take_base(self, size: int) -> None:
        """Account for the window that a new stream has anyway, whether it fits or not."""
        self.used += size

    def grow(self, wanted: int) -> int:
        """Grant `wanted` bytes, or as many as are left."""
        granted = max(0, min(wanted, self.limit - self.used))
        self.used += granted
        return granted

    def release(self, size: int) -> None:
        """Give back the whole window of a stream that is gone."""
        self.used -= size


class ReceiveWindow:
    """The credit of one direction of one stream."""

    __slots__ = ("credit", "maximum", "pending", "size", "unread", "updated_at")

    def __init__(self, size: int, maximum: int) -> None:
        self.size = size
        self.maximum = maximum
        self.credit = size
        self.unread = 0
        self.pending = 0
        self.updated_at = float("-inf")
        """When credit last went back. The first round is not timed: the stream may have idled."""

    def consume(self, count: int, now: float, path: RoundTrip, budget: WindowBudget) -> int:
        """Account for `count` bytes that the application took; return the credit to announce.

        Raises:
            LocalProtocolError: more was taken than was ever delivered.
        """
        if not 0 <= count <= self.unread:
            raise LocalProtocolError(f"consumed {count} bytes of {self.unread}")
        self.unread -= count
        self.pending += count
        if self.pending * 2 < self.size:
            return 0
        delta = self.pending
        if self.size < self.maximum and now - self.updated_at < path.tuning_s:
            growth = budget.grow(min(self.size, self.maximum - self.size))
            self.size += growth
            delta += growth
        self.pending = 0
        self.credit += delta
        self.updated_at = now
        return delta

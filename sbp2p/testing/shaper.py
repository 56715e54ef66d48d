"""A line of limited rate that many flows share: deficit round robin, new flows first.

Theory of operation. The line serves one chunk at a time, which takes `size / bytes_per_s`. Flows
take turns and each may send one quantum a turn, so those that always have something get equal
shares, to within a chunk. A flow that had nothing for a whole round goes first with its first
quantum, as with fq_codel: a request does not wait behind every bulk transfer, but cannot starve
them either, since it then queues behind the others once before it counts as new again.

A chunk takes `CHUNK_S` at most, unless the line is very slow: what arrives while it is under way
waits that long. Longer chunks make a simulation cheaper, and its lines coarser.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from sbp2p_protocol.limits import KIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from .timeline import Timeline

CHUNK_MIN: Final = 4 * KIB
CHUNK_MAX: Final = 64 * KIB
CHUNK_S: Final = 0.01
"""Time that a chunk occupies the line for, between those sizes."""


class Flow:
    """One user of a line. `offer(limit)` returns the bytes to send now, 0 for none."""

    __slots__ = ("credit", "offer", "queued", "served")

    def __init__(self, offer: Callable[[int], int], served: Callable[[int], None]) -> None:
        self.offer = offer
        self.served = served
        """Told when the bytes have left the line."""
        self.credit = 0
        self.queued = False


class Shaper:
    """A line and the flows that wait for it."""

    def __init__(self, timeline: Timeline, bytes_per_s: float, *, chunk_s: float = CHUNK_S) -> None:
        self.bytes_per_s = bytes_per_s
        """May be changed at any time; the chunk under way keeps its pace."""
        self.bytes_served = 0
        self._timeline = timeline
        self._chunk_s = chunk_s
        self._fresh: deque[Flow] = deque()
        self._turns: deque[Flow] = deque()
        self._busy = False

    @property
    def chunk_bytes(self) -> int:
        """Most bytes served in one piece."""
        if self.bytes_per_s == math.inf:
            return CHUNK_MAX
        return max(CHUNK_MIN, min(CHUNK_MAX, int(self.bytes_per_s * self._chunk_s)))

    def wake(self, flow: Flow) -> None:
        """Say that `flow` may have something to send."""
        if not flow.queued:
            flow.queued = True
            flow.credit = self.chunk_bytes
            self._fresh.append(flow)
        if not self._busy:
            self._serve_next()

    def _serve_next(self) -> None:
        chunk = self.chunk_bytes
        while queue := self._fresh or self._turns:
            flow = queue.popleft()
            if flow.credit <= 0:
                flow.credit += chunk
                self._turns.append(flow)
            elif size := flow.offer(chunk):
                flow.credit -= size
                queue.appendleft(flow)
                self._busy = True
                self._timeline.after(size / self.bytes_per_s, self._served, flow, size)
                return
            elif queue is self._fresh:
                self._turns.append(flow)
            else:
                flow.queued = False

    def _served(self, flow: Flow, size: int) -> None:
        self._busy = False
        self.bytes_served += size
        flow.served(size)
        if not self._busy:
            self._serve_next()

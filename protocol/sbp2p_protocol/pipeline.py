"""How many bytes to have asked of one peer: enough to keep its link busy, and no more.

Theory of operation: a link is kept busy by one bandwidth-delay product of requests; twice that
also covers a peer that answers in bursts. Bandwidth is the best delivery rate of the last few
samples, a sample being at least one round trip long; delay is the shortest round trip seen plus a
fixed allowance for scheduling at both ends. While the window is what limits the rate, a sample
measures window / round trip, so the window doubles each round trip; once the link is the limit,
samples repeat and the window stays. Time in which nothing was owed is not measured.

Never below `floor` (two full blocks: one travelling, one next) and never above `cap`. A window
larger than needed costs twice: at the end of a download, where the last blocks hang on the slowest
queue, and when the peer stalls.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from .limits import BLOCK_MAX

FLOOR_BYTES: Final = 2 * BLOCK_MAX
_SAMPLES: Final = 8
"""Rate samples of which the best counts: rides out a pause of the peer without collapsing."""
_ALLOWANCE_S: Final = 0.030
"""Added to the round trip. At 1 GB/s on loopback the round trip is 0.1 ms but a thread hop, a
disk read and a batch of verification take some milliseconds on each side."""
_INITIAL_RTT_S: Final = 0.050


class Pipeline:
    """The window of one peer, in bytes; times are seconds of one monotonic clock."""

    __slots__ = (
        "_rates",
        "_sample_bytes",
        "_sample_start",
        "_shortest_rtt_s",
        "cap",
        "floor",
        "total_bytes",
        "window",
    )

    def __init__(self, cap: int, floor: int = FLOOR_BYTES) -> None:
        self.floor = min(floor, cap)
        self.cap = cap
        self.window = self.floor
        self._shortest_rtt_s = math.inf
        self.total_bytes = 0
        self._rates: deque[float] = deque(maxlen=_SAMPLES)
        self._sample_start: float | None = None
        self._sample_bytes = 0

    @property
    def rtt_s(self) -> float:
        """Seconds of the shortest round trip; a guess before the first."""
        return _INITIAL_RTT_S if math.isinf(self._shortest_rtt_s) else self._shortest_rtt_s

    @property
    def rate(self) -> float:
        """Bytes a second of the newest sample; 0 before the first."""
        return self._rates[-1] if self._rates else 0.0

    @property
    def best_rate(self) -> float:
        """Bytes a second of the best recent sample; 0 before the first."""
        return max(self._rates, default=0.0)

    def measured_rtt(self, rtt_s: float) -> None:
        """Take one round trip; the shortest ever counts, longer ones include queues."""
        if rtt_s >= 0:
            self._shortest_rtt_s = min(self._shortest_rtt_s, rtt_s)

    def started(self, now: float) -> None:
        """Say that the peer owes something after owing nothing."""
        self._sample_start = now
        self._sample_bytes = 0

    def delivered(self, size: int, now: float, *, idle: bool) -> None:
        """Take `size` bytes that arrived; `idle` when nothing more is owed."""
        self.total_bytes += size
        self._sample_bytes += size
        if self._sample_start is not None:
            elapsed = now - self._sample_start
            if elapsed >= self.rtt_s + _ALLOWANCE_S:
                self._sample(elapsed)
                self._sample_start = now
                self._sample_bytes = 0
        if idle:
            self._sample_start = None

    def _sample(self, elapsed: float) -> None:
        self._rates.append(self._sample_bytes / elapsed)
        product = max(self._rates) * (self.rtt_s + _ALLOWANCE_S)
        self.window = max(self.floor, min(self.cap, int(2 * product)))

"""One direction of a virtual connection, as TCP would carry it over two access lines.

Bytes pass through five stages, and since they keep their order each stage is one counter:

    written >= sent >= arrived >= delivered >= read
           |       |          |            |
      send buffer  latency   receiver's    receive buffer
      and uplink   of link   downlink

The writer waits while `send_buffer_bytes` are written and not sent. The uplink sends only what the
window allows: bytes sent and not read, plus one latency until the news of it is back. So a reader
that does not read stops its own connection and nobody else's, and what queues anywhere for one
connection is bounded by those two numbers.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

from .shaper import Flow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trio.lowlevel import ParkingLot

    from sbp2p.transport import Bytes

    from .shaper import Shaper
    from .timeline import Timeline


class Pipe:
    """Bytes from one host to another.

    Args:
        timeline: of the network.
        uplink: of the sender.
        downlink: of the receiver.
        latency_s: one way.
        send_buffer_bytes: written and not sent.
        window_bytes: sent and not known to be read.
        on_progress: told of every delivery, with its size.
        on_refused: told when bytes arrive that nobody will read.
    """

    def __init__(
        self,
        timeline: Timeline,
        uplink: Shaper,
        downlink: Shaper,
        *,
        latency_s: float,
        send_buffer_bytes: int,
        window_bytes: int,
        on_progress: Callable[[int], None],
        on_refused: Callable[[], None],
    ) -> None:
        self._timeline = timeline
        self._uplink = uplink
        self._downlink = downlink
        self._latency_s = latency_s
        self._send_buffer_bytes = send_buffer_bytes
        self._write_from_bytes = max(1, send_buffer_bytes // 3)
        """Room that a writer is woken for, as by Linux: a third of the buffer."""
        self._window_bytes = window_bytes
        self._on_progress = on_progress
        self._on_refused = on_refused
        self._up = Flow(self._offer_up, self._sent_some)
        self._down = Flow(self._offer_down, self._delivered_some)
        self._data: deque[memoryview] = deque()
        self._written = self._sent = self._arrived = self._delivered = self._read = 0
        self._credited = 0
        self._credits: deque[tuple[float, int]] = deque()
        self._starved = False
        self._held = False
        self._dropped = False
        self._ended = self._end_sent = self._end_arrived = False
        self._reader_error: str | None = None
        self._writer_error: str | None = None
        self._deaf = False
        self._readers: ParkingLot = trio.lowlevel.ParkingLot()
        self._writers: ParkingLot = trio.lowlevel.ParkingLot()

    # -- the two ends ---------------------------------------------------------------------------

    async def write(self, buffers: Sequence[Bytes]) -> int:
        """Wait for room in the send buffer, and return how many bytes went into it."""
        waited = False
        while True:
            if self._writer_error is not None or self._ended:
                raise trio.BrokenResourceError(self._writer_error or "this side ended the stream")
            room = self._send_buffer_bytes - (self._written - self._sent)
            if room >= self._write_from_bytes:
                if waited:
                    break
                await trio.lowlevel.checkpoint()
            else:
                await self._writers.park()
            waited = True
        taken = memoryview(_front(buffers, room))
        self._data.append(taken)
        self._written += len(taken)
        self._uplink.wake(self._up)
        return len(taken)

    async def read_into(self, buffer: memoryview) -> int:
        """Wait for bytes, and return how many went into `buffer`; 0 at the end."""
        waited = False
        while True:
            if self._reader_error is not None:
                raise trio.BrokenResourceError(self._reader_error)
            if self._delivered > self._read or self._is_over:
                if waited:
                    return self._take(buffer)
                await trio.lowlevel.checkpoint()
            else:
                await self._readers.park()
            waited = True

    def end(self) -> None:
        """End the stream behind what was written."""
        self._ended = True
        self._send_end()
        self._writers.unpark_all()

    def fail_reader(self, reason: str) -> None:
        """Have reading fail from now on."""
        self._reader_error = self._reader_error or reason
        self._data.clear()
        self._dropped = True
        self._readers.unpark_all()

    def fail_writer(self, reason: str) -> None:
        """Have writing fail from now on; nothing more is sent."""
        self._writer_error = self._writer_error or reason
        self._dropped = True
        self._writers.unpark_all()

    def close_reader(self) -> None:
        """Read no more: what still comes is refused."""
        self._deaf = True
        self._readers.unpark_all()
        if self._delivered > self._read:
            self._on_refused()

    @property
    def is_over(self) -> bool:
        """Whether nothing will pass any more."""
        return self._dropped or self._is_over

    @property
    def _is_over(self) -> bool:
        return self._end_arrived and self._delivered == self._written

    # -- the way between them -------------------------------------------------------------------

    def hold(self, held: bool) -> None:
        """Let nothing leave the sender, or let it again."""
        self._held = held
        if not held:
            self._send_end()
            self._uplink.wake(self._up)

    def drop(self) -> None:
        """Lose everything from now on, with nobody told."""
        self._dropped = True

    def _offer_up(self, limit: int) -> int:
        if self._held or self._dropped:
            return 0
        unsent = self._written - self._sent
        if not unsent:
            return 0
        now = self._timeline.now
        while self._credits and self._credits[0][0] <= now:
            self._credited += self._credits.popleft()[1]
        room = self._window_bytes - (self._sent - self._credited)
        if room <= 0:
            if not self._starved:
                self._starved = True
                self._wake_at_credit()
            return 0
        return min(limit, unsent, room)

    def _wake_at_credit(self) -> None:
        if self._credits:
            self._timeline.at(self._credits[0][0], self._credit_came)

    def _credit_came(self) -> None:
        self._starved = False
        self._uplink.wake(self._up)

    def _sent_some(self, count: int) -> None:
        self._sent += count
        if self._send_buffer_bytes - (self._written - self._sent) >= self._write_from_bytes:
            self._writers.unpark_all()
        self._timeline.after(self._latency_s, self._arrived_some, count)
        self._send_end()

    def _send_end(self) -> None:
        if self._ended and not self._end_sent and not self._held and self._sent == self._written:
            self._end_sent = True
            self._timeline.after(self._latency_s, self._end_came)

    def _end_came(self) -> None:
        if not self._dropped:
            self._end_arrived = True
            if self._is_over:
                self._readers.unpark_all()
                self._on_progress(0)

    def _arrived_some(self, count: int) -> None:
        if not self._dropped:
            self._arrived += count
            self._downlink.wake(self._down)

    def _offer_down(self, limit: int) -> int:
        return 0 if self._dropped else min(limit, self._arrived - self._delivered)

    def _delivered_some(self, count: int) -> None:
        if self._dropped:
            return
        self._delivered += count
        self._readers.unpark_all()
        self._on_progress(count)
        if self._deaf:
            self._on_refused()

    def _take(self, buffer: memoryview) -> int:
        wanted = min(len(buffer), self._delivered - self._read)
        taken = 0
        while taken < wanted:
            first = self._data[0]
            piece = first[: wanted - taken]
            buffer[taken : taken + len(piece)] = piece
            taken += len(piece)
            if len(piece) == len(first):
                self._data.popleft()
            else:
                self._data[0] = first[len(piece) :]
        if not taken:
            return 0
        self._read += taken
        self._credits.append((self._timeline.now + self._latency_s, taken))
        if self._starved and len(self._credits) == 1:
            self._wake_at_credit()
        return taken


def _front(buffers: Sequence[Bytes], count: int) -> bytes:
    """Return a copy of the first `count` bytes, or of all if they are fewer."""
    taken: list[Bytes] = []
    for buffer in buffers:
        if len(buffer) >= count:
            taken.append(memoryview(buffer)[:count])
            break
        taken.append(buffer)
        count -= len(buffer)
    return b"".join(taken)

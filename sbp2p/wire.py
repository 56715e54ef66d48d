"""The three tasks between a raw stream and the connection machine.

| task | does |
|---|---|
| reader | the raw stream into the machine's receive buffer |
| writer | the machine's output to the raw stream; then end of stream, once finishing |
| timer | sleeps until the machine's next deadline, or that of a reminder |

What is encrypted and not sent delays whatever is said next. So no more is queued than the link
takes in `_QUEUE_S`, as the last writes went, between `_QUEUE_MIN` and twice the configured high
water: a block in front of a link of 1 MB/s would delay a request by a second, and a fast link needs
all the queue it can get.

After each step the connection is called to act on what came of it. The reader never waits for
anything but bytes, and the writer for the peer at most `write_timeout_s`, so one slow stream cannot
stop the others, and a dead peer is noticed.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Protocol

import trio

from sbp2p_protocol.limits import KIB

from .transport import send_all_buffers

if TYPE_CHECKING:
    from sbp2p_protocol.connection import Connection as ConnectionMachine

    from .config import ConnectionConfig
    from .transport import RawStream


_QUEUE_S = 0.03
_QUEUE_MIN = 128 * KIB
_GATHER = 16 * KIB
"""Bytes of one Noise message that are left to gather on a slow link: a message is of no use before
it is whole, and a wakeup for each TCP segment of it costs as much as for all of it. Few enough that
a peer of 2 kB/s still shows within `ping_timeout_s` that it is alive."""
_UNSLOW = 64 * KIB
"""A read of more than this says that the link is faster than this side."""
_GATHER_S = 0.1
"""On a faster link, what arrives in this time."""


class WireUser(Protocol):
    """What the tasks call: a connection. None of it blocks."""

    def _on_progress(self) -> None:
        """The machine was moved and may have events."""

    def _on_output_taken(self) -> None:
        """There is room in the output queue."""

    def _on_broken(self, reason: Exception | str) -> None:
        """The raw stream is of no more use in one direction or both."""

    def _on_reminder(self, stream_id: int) -> None:
        """A reminder is due."""


class Wire:
    """A raw stream and a machine, and what moves bytes between them.

    Args:
        raw: owned and closed by the wire from now on.
        machine: shared with the connection.
        config: knobs.
        user: the connection.
    """

    def __init__(
        self,
        raw: RawStream,
        machine: ConnectionMachine,
        config: ConnectionConfig,
        user: WireUser,
    ) -> None:
        self.raw = raw
        self.queue_bytes = float(2 * _QUEUE_MIN)
        """Most bytes to have queued and in the writer's hands, give or take one write."""
        self.writing = 0
        """Bytes in the writer's hands."""
        self.bytes_sent = 0
        self.bytes_received = 0
        self._machine = machine
        self._config = config
        self._user = user
        self._writer = trio.lowlevel.ParkingLot()
        self._timer = trio.lowlevel.ParkingLot()
        self._timer_set_for = -math.inf
        self._reminders: deque[tuple[float, int]] = deque()
        self._finishing = False
        self._flushed = False
        self._written = trio.Event()
        self._read = trio.Event()

    def start(self, nursery: trio.Nursery) -> None:
        """Start the tasks; they end with the nursery."""
        nursery.start_soon(self._read_loop)
        nursery.start_soon(self._write_loop)
        nursery.start_soon(self._timer_loop)

    def wake(self) -> None:
        """See to what the machine wants by now; to be called whenever it was moved."""
        if self._machine.output_size:
            self._writer.unpark()
        if self._next_deadline() < self._timer_set_for:
            self._timer.unpark()

    def wake_writer(self) -> None:
        """As `wake`, when there is output for certain and no deadline can have changed."""
        self._writer.unpark()

    def remind(self, delay_s: float, stream_id: int) -> None:
        """Call `_on_reminder` after `delay_s`, which is the same each time."""
        self._reminders.append((trio.current_time() + delay_s, stream_id))
        self.wake()

    def finish(self) -> None:
        """End the stream behind what is queued."""
        self._finishing = True
        self._writer.unpark()

    async def wait_finished(self) -> None:
        """Wait until all is written and the peer has ended too, `close_timeout_s` at most."""
        with trio.move_on_after(self._config.close_timeout_s):
            await self._written.wait()
            await self._read.wait()
        if self._flushed:
            await self.raw.aclose()

    async def _read_loop(self) -> None:
        machine, raw = self._machine, self.raw
        enough, before = 1, trio.current_time()
        try:
            while True:
                count = await raw.receive_into(machine.receive_buffer(), enough)
                self.bytes_received += count
                now = trio.current_time()
                machine.bytes_received(count, now)
                self._user._on_progress()
                if not count:
                    break
                enough = self._enough(count, now - before)
                before = now
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._user._on_broken(error)
        self._read.set()

    def _enough(self, count: int, seconds: float) -> int:
        """Return for how many bytes to be woken next, after a read of `count`."""
        if count > _UNSLOW:  # a fast peer has filled the buffer by the time that it is read again
            return 1
        soon = int(count / seconds * _GATHER_S) if seconds > 0 else 0
        return max(1, min(self._machine.bytes_missing, max(_GATHER, soon)))

    async def _write_loop(self) -> None:
        machine, raw = self._machine, self.raw
        stall_timeout_s = self._config.write_timeout_s
        try:
            while True:
                if buffers := machine.take_output():
                    size = self.writing = sum(map(len, buffers))
                    began = trio.current_time()
                    self._user._on_output_taken()
                    await send_all_buffers(raw, buffers, stall_timeout_s=stall_timeout_s)
                    self.bytes_sent += size
                    self.writing = 0
                    self._written_in(trio.current_time() - began, size)
                    self._user._on_output_taken()
                elif self._finishing:
                    await raw.send_eof()
                    self._flushed = True
                    break
                else:
                    await self._writer.park()
        except trio.TooSlowError:
            self._user._on_broken(f"the peer took no byte for {stall_timeout_s:g} s")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._user._on_broken(error)
        self._written.set()

    def _written_in(self, seconds: float, size: int) -> None:
        """Learn from a write how much to have queued at most."""
        if size < _QUEUE_MIN // 2:
            return  # a short write says nothing: it went into the socket's own buffer
        wanted = size / seconds * _QUEUE_S if seconds > 0 else math.inf
        most = 2 * self._config.send_high_water_bytes
        # half way down, so that one slow write on a fast link costs little
        wanted = min(max(wanted, self.queue_bytes / 2), 2 * self.queue_bytes)
        self.queue_bytes = min(max(wanted, _QUEUE_MIN), most)

    async def _timer_loop(self) -> None:
        while True:
            self._timer_set_for = self._next_deadline()
            with trio.CancelScope(deadline=self._timer_set_for):
                await self._timer.park()
            now = trio.current_time()
            deadline = self._machine.next_deadline()
            if deadline is not None and deadline <= now:
                self._machine.handle_timer(now)
            while self._reminders and self._reminders[0][0] <= now:
                self._user._on_reminder(self._reminders.popleft()[1])
            self._user._on_progress()

    def _next_deadline(self) -> float:
        deadline = self._machine.next_deadline()
        reminder = self._reminders[0][0] if self._reminders else math.inf
        return reminder if deadline is None else min(deadline, reminder)

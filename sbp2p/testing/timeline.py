"""What happens when in a virtual network: calls at virtual times, in one order.

One task carries them all out, so that a network of thousands of links costs one sleeping task.
Calls due at the same moment run in the order in which they were asked for; nothing depends on how
trio schedules tasks.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.lowlevel import ParkingLot


class Timeline:
    """A queue of calls, each with its time in seconds on trio's clock.

    Args:
        resolution_s: calls due within the same such span are carried out together at its end, each
            as if at its own time. 0 for each on its own.
    """

    def __init__(self, resolution_s: float = 0.0) -> None:
        self._resolution_s = resolution_s
        self._calls: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0
        self._running_at: float | None = None
        self._asleep_until = -math.inf
        self._sleeper: ParkingLot = trio.lowlevel.ParkingLot()

    @property
    def now(self) -> float:
        """The time that the call being carried out was for; outside of one, the clock's.

        A chain of calls adds up exactly this way, whatever the clock rounds.
        """
        return trio.current_time() if self._running_at is None else self._running_at

    def at(self, when: float, call: Callable[..., object], *arguments: Any) -> None:
        """Have `call(*arguments)` carried out at `when`, or at once if that is past."""
        heapq.heappush(self._calls, (when, self._number, call, arguments))
        self._number += 1
        if when < self._asleep_until:
            self._sleeper.unpark()

    def after(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> None:
        """Have `call(*arguments)` carried out in `delay_s` seconds."""
        self.at(self.now + delay_s, call, *arguments)

    async def run(self) -> None:
        """Carry calls out for ever."""
        while True:
            self._run_due()
            self._asleep_until = self._wake_at(self._calls[0][0]) if self._calls else math.inf
            with trio.CancelScope(deadline=self._asleep_until):
                await self._sleeper.park()
            self._asleep_until = -math.inf

    def _wake_at(self, when: float) -> float:
        if not self._resolution_s:
            return when
        # never before `when`, to which the product may be rounded down
        return max(when, math.ceil(when / self._resolution_s) * self._resolution_s)

    def _run_due(self) -> None:
        calls, now = self._calls, trio.current_time()
        try:
            while calls and calls[0][0] <= now:
                self._running_at, _, call, arguments = heapq.heappop(calls)
                call(*arguments)
        finally:
            self._running_at = None

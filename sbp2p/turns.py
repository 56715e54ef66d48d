"""Whose bytes go out next: first come, first served.

Streams share one output queue. A sender waits here for its turn, puts at most one slice into the
queue, and passes the turn on; with more to send it goes to the back. So a control message waits for
one slice of each busy stream at most, however much the others have to send.

`pass_on` is called by whoever may have made room or left the queue: the writer after taking
output, a sender after its slice. A sender cancelled while it waits takes no turn with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable


class SendTurns:
    """A first-in first-out queue in front of a place that has room or not."""

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._queue = trio.lowlevel.ParkingLot()
        self._called = 0  # woken, and not running yet: nobody may slip in before them

    async def wait(self) -> None:
        """Return when it is this task's turn; at once when nobody waits and there is room."""
        if self._queue or self._called or not self._has_room():
            await self._queue.park()
            self._called -= 1
        else:
            # no schedule point: what a sender can do without one is bounded by the room
            await trio.lowlevel.checkpoint_if_cancelled()

    def pass_on(self) -> None:
        """Wake the next in the queue if there is room for it."""
        if self._queue and not self._called and self._has_room():
            self._called += 1
            self._queue.unpark()

    def wake_all(self) -> None:
        """Wake everybody: the place is gone."""
        self._called += len(self._queue)
        self._queue.unpark_all()

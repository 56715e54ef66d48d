"""A wake-up call between two tasks of one event loop."""

from __future__ import annotations

import trio


class Signal:
    """Fired by anyone, waited for by one task; fired before the wait counts too."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def fire(self) -> None:
        """Wake the waiting task, or the next that waits."""
        self._event.set()

    async def wait(self) -> None:
        """Return once fired since the last return."""
        await self._event.wait()
        self._event = trio.Event()

"""The roles that hold now, and who waits for others.

Theory of operation: `sbp2p.roles.Rules` decide; this keeps the rules of one node while it runs.
Whoever serves or asks looks at them each time, and those whose streams stay open wait for a change:
the swarm, which ends connections that are not to be, and the exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from sbp2p.roles import Rules


class Roles:
    """The rules of one node."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        """Those that hold now."""
        self._changed = trio.lowlevel.ParkingLot()

    def change(self, rules: Rules) -> None:
        """Go by other rules from now on, on streams that are open, too."""
        self.rules = rules
        self._changed.unpark_all()

    async def wait_changed(self, seen: Rules) -> Rules:
        """Return the rules once they are others than `seen`."""
        await trio.lowlevel.checkpoint()
        while self.rules is seen:
            await self._changed.park()
        return self.rules

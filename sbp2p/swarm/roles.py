"""The roles that hold now, and who waits for others.

Theory of operation: `sbp2p.roles.Rules` decide; this keeps the rules of one node while it runs.
Whoever serves or asks looks at them each time, and those whose streams stay open wait for a change:
the swarm, which ends connections that are not to be, and the exchange.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from sbp2p.roles import Role

if TYPE_CHECKING:
    from sbp2p.roles import Rules
    from sbp2p_keys.identity import PeerId


class Roles:
    """The rules of one node."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        """Those that hold now."""
        self._members: dict[PeerId, Role] = {}
        self._changed = trio.lowlevel.ParkingLot()

    def change(self, rules: Rules) -> None:
        """Go by other rules from now on, on streams that are open, too.

        What members of a private swarm may do stays as their certificates say.
        """
        self.rules = replace(rules, members=self._members) if self._members else rules
        self._changed.unpark_all()

    def limit(self, peer: PeerId, role: Role) -> None:
        """Let a peer do only what its certificate says, whatever the rules."""
        known = self._members.get(peer, Role.PEER)
        if known is not role:
            self._members = {**self._members, peer: role}
            if role is Role.PEER:
                del self._members[peer]
            self.rules = replace(self.rules, members=self._members)
            self._changed.unpark_all()

    async def wait_changed(self, seen: Rules) -> Rules:
        """Return the rules once they are others than `seen`."""
        await trio.lowlevel.checkpoint()
        while self.rules is seen:
            await self._changed.park()
        return self.rules

"""What ends connections that are in nobody's interest any more: tasks of a swarm, run for ever."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from .roles import Roles
    from .table import ConnectionTable


async def close_idle(table: ConnectionTable, limit_s: float) -> None:
    """Close connections that have had no stream for `limit_s`."""
    while True:
        oldest = min((each.idle_since for each in table), default=math.inf)
        now = trio.current_time()
        await trio.sleep_until(max(min(oldest, now) + limit_s, now + limit_s / 8))
        for connection in table:
            if trio.current_time() - connection.idle_since >= limit_s:
                connection.close()


async def keep_to_roles(table: ConnectionTable, roles: Roles) -> None:
    """Close the connections with peers to which this node has just become offline."""
    rules = roles.rules
    while True:
        rules = await roles.wait_changed(rules)
        for connection in table:
            peer_id = connection.peer_id
            if not (rules.sends_to(peer_id) or rules.receives_from(peer_id)):
                connection.close()

"""What members sent to this node and its application has not taken: first in, first out.

Each message stays within the window of the link that it came over, and a member whose messages wait
here beyond one window is not let in again: so a member occupies two windows at most.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import trio

from sbp2p_protocol.namespace_messages import MESSAGE_OVERHEAD

from .values import Message

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId

    from .links import Link


class Inbox:
    """The messages of all members in the order of their arrival."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Link, bytes]] = deque()
        self._bytes: Counter[PeerId] = Counter()
        self._arrived = trio.lowlevel.ParkingLot()
        self._closed = False

    def bytes_of(self, peer_id: PeerId) -> int:
        """Return how much of a member's waits, MESSAGE_OVERHEAD each included."""
        return self._bytes[peer_id]

    def put(self, link: Link, data: bytes) -> None:
        """Take a message in."""
        self._waiting.append((link, data))
        self._bytes[link.peer_id] += len(data) + MESSAGE_OVERHEAD
        self._arrived.unpark()

    async def take(self) -> Message:
        """Wait for a message; raises RuntimeError once the namespace is left and none waits."""
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._closed:
                raise RuntimeError("the namespace is not open any more")
            await self._arrived.park()
        link, data = self._waiting.popleft()
        self._bytes[link.peer_id] -= len(data) + MESSAGE_OVERHEAD
        if not self._bytes[link.peer_id]:
            del self._bytes[link.peer_id]
        link.taken(len(data))
        return Message(link.peer_id, data)

    def close(self) -> None:
        """Wake whoever waits."""
        self._closed = True
        self._arrived.unpark_all()

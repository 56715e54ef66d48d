"""What a swarm tells those who subscribe, and how they fall behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import trio

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.identify import IdentifyMessage

SUBSCRIBER_QUEUE = 1024
"""Events that wait for one subscriber; one that falls further behind is cut off."""


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """The first connection with a peer is open."""

    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class PeerIdentified:
    """A peer said what it speaks and where it listens: first time, or a change."""

    peer_id: PeerId
    message: IdentifyMessage


@dataclass(frozen=True, slots=True)
class PeerDisconnected:
    """The last connection with a peer is gone."""

    peer_id: PeerId
    reason: str


SwarmEvent: TypeAlias = PeerConnected | PeerIdentified | PeerDisconnected


class Subscribers:
    """The channels that events go to. Publishing never waits."""

    def __init__(self) -> None:
        self._channels: list[trio.MemorySendChannel[SwarmEvent]] = []

    def subscribe(self) -> trio.MemoryReceiveChannel[SwarmEvent]:
        """Return a new channel; closing it ends the subscription."""
        send, receive = trio.open_memory_channel[SwarmEvent](SUBSCRIBER_QUEUE)
        self._channels.append(send)
        return receive

    def publish(self, event: SwarmEvent) -> None:
        """Give `event` to everybody who still listens and keeps up."""
        for channel in list(self._channels):
            try:
                channel.send_nowait(event)
            except (trio.WouldBlock, trio.BrokenResourceError):
                # an event lost in silence would be worse than an end that can be seen
                channel.close()
                self._channels.remove(channel)

    def close(self) -> None:
        """End every channel behind the events it holds."""
        while self._channels:
            self._channels.pop().close()

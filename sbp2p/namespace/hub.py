"""The namespaces that one node is in, behind the one protocol that it serves for them.

Theory of operation. A stream that comes in names its namespace in HELLO; until then it belongs to
nobody. If the node is in that namespace, the link is the namespace's from there on; if not, the
peer is told so. The protocol is served while the node is in any namespace at all: `identify` tells
peers whom to ask. A peer may have a few streams more than there are namespaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbp2p.errors import ConfigError
from sbp2p_protocol.namespace_messages import PROTOCOL_ID, GoodbyeCode, Hello

from .links import Link

if TYPE_CHECKING:
    from sbp2p.config import NamespaceConfig
    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.namespace_peer import LinkEvent

    from .members import Members

_SPARE: Final = 3
"""Streams of one peer above the number of namespaces: old ones whose end is not known yet."""


class Hub:
    """Made once for a node; namespaces join and leave it."""

    def __init__(self, swarm: Swarm, config: NamespaceConfig) -> None:
        self._swarm = swarm
        self._config = config
        self._members: dict[str, Members] = {}
        self._streams: dict[PeerId, int] = {}

    def join(self, name: str, members: Members) -> None:
        """Let a namespace have its streams; raises ConfigError if the node is in it already."""
        if name in self._members:
            raise ConfigError(
                f"this node is in the namespace {name!r} already",
                hint="open it once, and share it",
            )
        self._members[name] = members
        if len(self._members) == 1:
            self._swarm.handle(PROTOCOL_ID, self._serve)

    def leave(self, name: str) -> None:
        """Take a namespace out again."""
        del self._members[name]
        if not self._members:
            self._swarm.withdraw(PROTOCOL_ID)

    async def _serve(self, stream: Stream) -> None:
        peer_id = stream.peer_id
        count = self._streams.get(peer_id, 0)
        if count >= len(self._members) + _SPARE:
            stream.reset()
            return
        self._streams[peer_id] = count + 1
        try:
            link = Link(stream, self._swarm, self._config)
            link.adopt(self._greeted)
            await link.run()
        finally:
            self._streams[peer_id] -= 1
            if not self._streams[peer_id]:
                del self._streams[peer_id]

    def _greeted(self, link: Link, event: LinkEvent) -> None:
        """Give a link that says what it is for to its namespace."""
        if not isinstance(event, Hello):
            return
        members = self._members.get(event.namespace)
        if members is None:
            link.leave(GoodbyeCode.UNKNOWN, "this node is not in that namespace")
        else:
            members.welcome(link, event)

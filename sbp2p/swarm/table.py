"""The connections of a swarm, by peer, and which of two is kept when both sides dialled.

One identity may run in several processes, so a peer may have several connections. Only when one
was dialled here and another there at the same time is one too many: both sides keep the one that
the smaller peer id dialled. The other is *retired*: it opens no new streams, and is closed once
those it carries have ended, so no request is cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sbp2p.connection import Connection
    from sbp2p_keys.identity import PeerId

SIMULTANEOUS_WINDOW_S = 2.0
"""Two connections established this close together were dialled at the same time.

The second dial began before the first was known about, so they are at most a handshake (four round
trips) apart; 2 s covers round trips of half a second. Above it both are kept, which costs a socket.
"""


class ConnectionTable:
    """Established connections, by peer."""

    def __init__(self, own_id: PeerId) -> None:
        self._own_id = own_id
        self._by_peer: dict[PeerId, list[Connection]] = {}
        self._retired: set[Connection] = set()

    def __len__(self) -> int:
        return sum(map(len, self._by_peer.values()))

    def __iter__(self) -> Iterator[Connection]:
        return iter([each for connections in self._by_peer.values() for each in connections])

    def peers(self) -> list[PeerId]:
        """Return the peers with at least one connection."""
        return list(self._by_peer)

    def of(self, peer_id: PeerId) -> list[Connection]:
        """Return all connections with a peer, oldest first."""
        return list(self._by_peer.get(peer_id, ()))

    def best(self, peer_id: PeerId) -> Connection | None:
        """Return the connection to open a stream on: the oldest usable one."""
        usable = [each for each in self.of(peer_id) if each.is_open]
        kept = [each for each in usable if each not in self._retired]
        return next(iter(kept or usable), None)

    def add(self, connection: Connection) -> Connection | None:
        """Add a connection; return the one that it makes superfluous, if any, now retired."""
        others = self.of(connection.peer_id)
        self._by_peer.setdefault(connection.peer_id, []).append(connection)
        for other in others:
            if other not in self._retired and self._are_twins(connection, other):
                loser = self._loser(connection, other)
                self._retired.add(loser)
                return loser
        return None

    def remove(self, connection: Connection) -> bool:
        """Remove a connection; return whether it was the peer's last."""
        connections = self._by_peer[connection.peer_id]
        connections.remove(connection)
        self._retired.discard(connection)
        if not connections:
            del self._by_peer[connection.peer_id]
        return not connections

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._by_peer.get(connection.peer_id, ())

    def _are_twins(self, one: Connection, other: Connection) -> bool:
        apart_s = abs(one.established_at - other.established_at)
        return one.initiator != other.initiator and apart_s <= SIMULTANEOUS_WINDOW_S

    def _loser(self, one: Connection, other: Connection) -> Connection:
        keep_outbound = self._own_id < one.peer_id
        return other if one.initiator == keep_outbound else one

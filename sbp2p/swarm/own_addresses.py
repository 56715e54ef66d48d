"""Where this node can be found: what it listens on, and what its peers see of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sbp2p_protocol.address_scope import announced
from sbp2p_protocol.observed_addresses import ObservedAddresses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.config import SwarmConfig
    from sbp2p.connection import Connection
    from sbp2p.transport import Listener
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.multiaddr import Address


class OwnAddresses:
    """The addresses of one node. `listeners` is the swarm's own list, which grows as it listens."""

    def __init__(self, peer_id: PeerId, config: SwarmConfig, listeners: list[Listener]) -> None:
        self.unreachable = False
        """Whether others failed to dial this node: then no public address is announced."""
        self.confirmed: tuple[Address, ...] = ()
        """Where enough peers agree to have seen it; no peer id."""
        self._peer_id = peer_id
        self._changes = trio.lowlevel.ParkingLot()
        self._listeners = listeners
        self._observed = ObservedAddresses(
            observers_min=config.observers_min, forget_s=config.observation_s
        )

    @property
    def listening(self) -> list[Address]:
        """Where this node listens, wildcards spelled out; no peer id."""
        return [address for each in self._listeners for address in each.addresses]

    def announced(self) -> tuple[Address, ...]:
        """Return what others may be told to dial, best first, each with the peer id.

        Listen addresses and those that enough peers have observed, the public ones first; not those
        of this machine, unless there are no others, and no public ones once this node was found to
        be unreachable.
        """
        found = announced(self.listening, self.confirmed, unreachable=self.unreachable)
        return self._named(found)

    def identified(self) -> tuple[Address, ...]:
        """Return what connected peers are told, each with the peer id."""
        return self._named([*self.listening, *self.confirmed])

    def changed(self) -> None:
        """Wake who waits for a change."""
        self._changes.unpark_all()

    async def wait_changed(self) -> None:
        """Wait until this node listens on something new, or is known to be somewhere else."""
        await self._changes.park()

    def connected(self, connection: Connection) -> None:
        """Note a connection, whose peer may say where it sees this node."""
        self._observed.connected(connection.peer_id, connection.remote_address)

    def seen(self) -> tuple[Address, ...]:
        """Return where anybody at all sees this node, to have it tried; no peer id."""
        return self._observed.seen()

    def disconnected(self, connection: Connection) -> None:
        """Note its end."""
        now = trio.current_time()
        self._observed.disconnected(connection.peer_id, connection.remote_address, now)

    def observed(self, connection: Connection, seen: Address) -> bool:
        """Count what a peer sees; return whether other addresses are confirmed now."""
        self._observed.observe(
            connection.peer_id,
            connection.remote_address,
            seen,
            dialled_by_us=connection.initiator,
            local=connection.local_address,
            listening=self.listening,
        )
        before, self.confirmed = self.confirmed, self._observed.confirmed(trio.current_time())
        return set(before) != set(self.confirmed)

    def _named(self, addresses: Sequence[Address]) -> tuple[Address, ...]:
        return tuple(address.with_peer(self._peer_id) for address in dict.fromkeys(addresses))

"""Peer exchange: peers that serve or fetch a root are told of each other, by signed records.

Theory of operation. A node that knows only one peer learns from it who else there is. What is
passed on is a peer's own signed record, as it came by identify, and only if this node has reason to
believe it: the peer is connected, follows the root or is asked for it, and one of the addresses in
its record is where it was dialled, or has the IP address that it is seen at. Nobody is told twice
over one stream, nobody is told of itself, and a rule of the node decides who may know of whom
(private swarms).

What the receiver makes of records: `records`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p_protocol.address_scope import host_of
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.limits import EXCHANGE_RECORD_MAX, EXCHANGE_RECORDS_BATCH
from sbp2p_protocol.peer_record import open_peer_record

from .records import readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid

    from .following import Following
    from .library import Library


class Gossip:
    """Records to pass on, and records that were passed on.

    Args:
        may_know: given two peers and a root, whether the first may be told of the second.
    """

    def __init__(
        self, swarm: Swarm, library: Library, may_know: Callable[[PeerId, PeerId, Cid], bool]
    ) -> None:
        self._library = library
        self._may_know = may_know
        self._believed = BelievedRecords(swarm)

    def news_for(self, following: Following) -> list[bytes]:
        """Return records that a follower was not given yet; they count as given."""
        mine, root = following.peer_id, following.root
        records: list[bytes] = []
        for peer in sorted(self._library.peers_of(root) - following.told_peers):
            if peer == mine or not self._may_know(mine, peer, root):
                continue
            record = self._believed.record_of(peer)
            if record is not None:
                following.told_peers.add(peer)
                records.append(record)
                if len(records) == EXCHANGE_RECORDS_BATCH:
                    break
        return records


class BelievedRecords:
    """The records of connected peers that may be passed on."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self._believed: dict[PeerId, tuple[bytes, bool]] = {}

    def record_of(self, peer: PeerId) -> bytes | None:
        """Return the record of a connected peer, if it is believed."""
        identified = self._swarm.identified(peer)
        record = identified.signed_peer_record if identified is not None else None
        if record is None or len(record) > EXCHANGE_RECORD_MAX:
            return None
        known = self._believed.get(peer)
        if known is None or known[0] != record:
            known = self._believed[peer] = record, self._is_believable(peer, record)
            for gone in [each for each in self._believed if not self._swarm.connections(each)]:
                del self._believed[gone]
        return record if known[1] else None

    def _is_believable(self, peer: PeerId, record: bytes) -> bool:
        try:
            addresses = readable(open_peer_record(record).addresses)
        except RemoteProtocolError:
            return False
        said = {address.without_peer() for address in addresses}
        hosts = {host_of(address) for address in said}
        for connection in self._swarm.connections(peer):
            seen = connection.remote_address.without_peer()
            if seen in said or (not connection.initiator and host_of(seen) in hosts):
                return True
        return False

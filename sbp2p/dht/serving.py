"""What peers ask of this node and say of themselves: the other end of everybody's lookups.

Requests are bounded by account (`KAD_REQUEST_BURST`, `KAD_REQUEST_RATE`) before anything is done
for them, ADD_PROVIDER by bounds of its own. What decides on an answer is `KadServer`; it asks here
who is near a key and where a peer is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from sbp2p_protocol.kad_keys import kad_id
from sbp2p_protocol.kad_messages import KadMessage, KadPeer, KadType
from sbp2p_protocol.kad_server import KadServer, Requester, RequestRefusedError, visible_to
from sbp2p_protocol.limits import KAD_REQUEST_BURST, KAD_REQUEST_RATE
from sbp2p_protocol.shares import Quota

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.kad_table import RoutingTable

    from .announce import Announcer
    from .contacts import Contacts
    from .network import KadNetwork
    from .records import DhtRecords


class Serving:
    """A `KadUser`: answers requests, and hands on who is a server.

    Args:
        network: where requests come from.
        table: who is near.
        contacts: told of servers.
        announcer: what this node provides itself.
        records: kept for others.
        rng: which of many providers are told.
        wall_clock: Unix time in seconds.
        public: whether only addresses that the requester can use are told.
    """

    def __init__(
        self,
        network: KadNetwork,
        table: RoutingTable,
        contacts: Contacts,
        announcer: Announcer,
        records: DhtRecords,
        *,
        rng: Random,
        wall_clock: Callable[[], float],
        public: bool,
    ) -> None:
        self.served = 0
        self.refused = 0
        self._network = network
        self._table = table
        self._contacts = contacts
        self._announcer = announcer
        self._wall_clock = wall_clock
        self._public = public
        self._quota = Quota(burst=KAD_REQUEST_BURST, rate=KAD_REQUEST_RATE)
        self._server = KadServer(
            network.peer_id,
            providers=records.providers,
            values=records.values,
            neighbours=self,
            rng=rng,
            public=public,
        )

    # -- for the network ----------------------------------------------------------------------

    def server_found(self, server: KadPeer) -> None:
        """See `KadUser`."""
        self._contacts.found(server)

    def server_lost(self, peer_id: PeerId) -> None:
        """See `KadUser`."""
        self._contacts.lost(peer_id)

    def answer(self, request: KadMessage, requester: Requester) -> KadMessage | None:
        """See `KadUser`."""
        now = self._wall_clock()
        adds = request.type is KadType.ADD_PROVIDER  # those have a quota of their own
        if not adds and not self._quota.take(requester.account, now):
            self.refused += 1
            raise RequestRefusedError("more requests than one peer may make")
        self._table.heard(requester.peer_id, trio.current_time())
        try:
            reply = self._server.answer(request, requester, now)
        except RequestRefusedError:
            self.refused += 1
            raise
        self.served += 1
        if reply is not None and request.type is KadType.GET_PROVIDERS:
            reply = self._with_own(reply, requester)
        return reply

    def _with_own(self, reply: KadMessage, requester: Requester) -> KadMessage:
        """Name this node among the providers: it may be the only server that there is."""
        if not self._announcer.provides(reply.key):
            return reply
        addresses = self._network.addresses()
        if self._public:
            addresses = visible_to(requester.address, addresses)
        own = KadPeer(self._network.peer_id, addresses)
        return replace(reply, providers=(own, *reply.providers))

    # -- for the server -----------------------------------------------------------------------

    def closest(self, key: bytes, count: int) -> list[KadPeer]:
        """Return the contacts nearest to a key."""
        return [each.as_peer for each in self._table.closest(kad_id(key), count)]

    def find(self, peer_id: PeerId) -> KadPeer | None:
        """Return a connected peer or a contact, if it is one."""
        connected = self._network.find(peer_id)
        if connected is not None:
            return connected
        contact = self._table.get(peer_id)
        return None if contact is None else contact.as_peer

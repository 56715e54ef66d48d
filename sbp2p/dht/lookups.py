"""Lookups, driven: the machine of `sbp2p_protocol.kad_lookup` over a network.

Every answer of a server puts it into the routing table, or renews it there; every failure counts
against it. Whom a peer tells of is dialled only at addresses that are of use here: of a scope no
narrower than the one in which the teller is seen, or a stranger in the world could have this node
dial what is in its own house.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import trio

from sbp2p.errors import Sbp2pError
from sbp2p_protocol.address_scope import Scope, scope_of
from sbp2p_protocol.kad_keys import kad_id
from sbp2p_protocol.kad_lookup import Lookup
from sbp2p_protocol.kad_messages import KadMessage, KadPeer, KadType
from sbp2p_protocol.kad_server import PUBLIC_NETWORK, visible_from
from sbp2p_protocol.kad_table import BUCKET_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sbp2p.config import DhtConfig
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.kad_keys import KadId
    from sbp2p_protocol.kad_table import RoutingTable
    from sbp2p_protocol.multiaddr import Address

    from .network import KadNetwork

    OnReply = Callable[[Lookup, KadPeer, KadMessage], None]

_IN_FLIGHT_MAX = 64
"""Answers that wait to be looked at; the machine has 30 requests out at most."""


def is_public(config: DhtConfig, name: str) -> bool:
    """Return whether only addresses that everybody can dial are of use in a network."""
    return name == PUBLIC_NETWORK if config.public is None else config.public


class Lookups:
    """Runs the lookups of one node.

    Args:
        network: to whom requests go.
        table: where answers and failures are noted.
        config: knobs.
        name: the network's; in the public one only public addresses are dialled.
    """

    def __init__(
        self, network: KadNetwork, table: RoutingTable, config: DhtConfig, name: str
    ) -> None:
        self.count = 0
        self.requests = 0
        self.requests_failed = 0
        self.remembered: tuple[KadPeer, ...] = ()
        """Servers of earlier days, to be tried while the table knows few."""
        self.on_doubt: Callable[[PeerId], None] = lambda peer_id: None
        """Told of contacts that have not answered by the end of a lookup."""
        self.on_alone: Callable[[], None] = lambda: None
        """Told when the last contact is lost."""
        self._network = network
        self._table = table
        self._config = config
        self._public = is_public(config, name)
        # many servers tell of the same peers, in the same words
        self._visible = lru_cache(maxsize=4096)(self._find_visible)

    async def request(self, peer: KadPeer, message: KadMessage) -> KadMessage:
        """Ask one server, and note how that went.

        Nothing is noted of a PUT_VALUE that fails: a server may refuse one, and ends the stream.

        Raises:
            PeerUnreachableError: no answer.
            PeerMisbehavedError: no answer to this.
        """
        self.requests += 1
        try:
            reply = await self._network.request(peer.peer_id, peer.addresses, message)
        except Sbp2pError:
            self.requests_failed += 1
            refusable = message.type is KadType.PUT_VALUE
            if not refusable and self._table.failed(peer.peer_id) and not len(self._table):
                self.on_alone()
            raise
        known = self._network.find(peer.peer_id) or peer
        self._table.add(peer.peer_id, known.addresses, trio.current_time())
        return reply

    async def run(
        self,
        message: KadMessage,
        *,
        paths: int = 1,
        whole: bool = False,
        on_reply: OnReply | None = None,
        extra: Iterable[KadPeer] = (),
    ) -> Lookup:
        """Send `message` to ever nearer servers of its key, until it is done or out of time.

        Args:
            message: the request, the same for all.
            paths: disjoint paths.
            whole: whether the k nearest must all answer.
            on_reply: told each answer before it is counted; may `stop` the lookup.
            extra: servers to begin with besides the table's.
        """
        self.count += 1
        place = kad_id(message.key)
        seeds = {peer.peer_id: peer for peer in [*self._seeds(place), *extra]}
        lookup = Lookup(place, self._network.peer_id, seeds.values(), paths=paths, whole=whole)
        with trio.move_on_after(self._config.lookup_timeout_s):
            await self._drive(lookup, message, on_reply)
        if lookup.answered:
            self._table.looked_up(place, trio.current_time())
        return lookup

    async def find_closest(
        self, key: bytes, *, paths: int = 1, extra: Iterable[KadPeer] = ()
    ) -> Lookup:
        """Look for the k servers nearest to a key; they are the lookup's `closest`."""
        message = KadMessage(KadType.FIND_NODE, key)
        return await self.run(message, paths=paths, whole=True, extra=extra)

    # -- inside -------------------------------------------------------------------------------

    def _seeds(self, place: KadId) -> list[KadPeer]:
        found = [each.as_peer for each in self._table.closest(place, BUCKET_SIZE, doubtful=True)]
        if len(found) < BUCKET_SIZE:
            found += [each for each in self.remembered if each.peer_id not in self._table]
        return found[: 2 * BUCKET_SIZE]

    async def _drive(self, lookup: Lookup, message: KadMessage, on_reply: OnReply | None) -> None:
        send, receive = trio.open_memory_channel[tuple[KadPeer, KadMessage | None]](_IN_FLIGHT_MAX)
        waiting: dict[PeerId, float] = {}  # since when
        slow: set[PeerId] = set()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    for peer in lookup.next_requests():
                        waiting[peer.peer_id] = trio.current_time()
                        nursery.start_soon(self._ask, peer, message, send)
                    if lookup.is_done:
                        break
                    # asked in order, so the first of them becomes slow first
                    oldest, since = next(iter(waiting.items()), (None, math.inf))
                    with trio.move_on_at(since + self._config.slow_s) as scope:
                        peer, reply = await receive.receive()
                        waiting.pop(peer.peer_id, None)
                        slow.discard(peer.peer_id)
                        self._take(lookup, peer, reply, on_reply)
                    if scope.cancelled_caught and oldest is not None:
                        del waiting[oldest]
                        slow.add(oldest)
                        lookup.on_slow(oldest)
                nursery.cancel_scope.cancel()
        finally:
            # the table must hear of servers that every lookup gives up on and none waits for
            for peer_id in slow:
                self.on_doubt(peer_id)

    async def _ask(
        self,
        peer: KadPeer,
        message: KadMessage,
        send: trio.MemorySendChannel[tuple[KadPeer, KadMessage | None]],
    ) -> None:
        reply: KadMessage | None
        try:
            reply = await self.request(peer, message)
        except Sbp2pError:
            reply = None
        await send.send((peer, reply))

    def _take(
        self, lookup: Lookup, peer: KadPeer, reply: KadMessage | None, on_reply: OnReply | None
    ) -> None:
        if reply is None:
            lookup.on_failure(peer.peer_id)
            return
        if on_reply is not None:
            on_reply(lookup, peer, reply)
        lookup.on_reply(peer.peer_id, self.usable(peer.peer_id, reply.closer))

    def usable(self, teller: PeerId, peers: Iterable[KadPeer]) -> list[KadPeer]:
        """Return those peers that can be asked, with the addresses that are of use here."""
        seen_at = self._network.seen_at(teller)  # None if it is gone already
        scope = Scope.PUBLIC if seen_at is None else scope_of(seen_at)
        found = []
        for peer in peers:
            addresses = self._visible(peer.addresses, scope)
            if len(addresses) == len(peer.addresses) > 0:
                found.append(peer)
            elif addresses:
                found.append(KadPeer(peer.peer_id, addresses))
            elif (connected := self._network.find(peer.peer_id)) is not None:
                found.append(connected)
        return found

    def _find_visible(self, addresses: tuple[Address, ...], teller: Scope) -> tuple[Address, ...]:
        able = visible_from(teller, filter(self._network.can_reach, addresses))
        if self._public:
            able = tuple(each for each in able if scope_of(each) in (Scope.PUBLIC, Scope.NAMED))
        return able

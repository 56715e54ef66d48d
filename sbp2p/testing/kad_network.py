"""Thousands of DHT nodes in one process: requests as calls, with latency but without connections.

    fabric = KadFabric(random.Random(1))
    async with open_dht(fabric.add(), config=config, rng=fabric.rng) as dht:
        ...

The code of the DHT is the real one; what is left out is streams, Noise and the codec. What costs
time in the world costs time here: dialling takes three round trips, a request one, a peer that is
gone either refuses at once or is silent until the request times out. Who has talked lately is
connected, and connected peers know of each other what identify would tell.

Under trio's mock clock a run takes as long as its computation, and its seed repeats it
(`run_repeatably`). A node that misbehaves is a `KadUser` of its own in place of a `Dht`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NoReturn

import trio

from sbp2p.errors import PeerUnreachableError
from sbp2p_keys.identity import PeerId
from sbp2p_keys.multi import SHA2_256, multihash_encode
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.kad_keys import KAD_BITS, KadId, kad_id_of
from sbp2p_protocol.kad_messages import KadMessage, KadPeer
from sbp2p_protocol.kad_server import Requester
from sbp2p_protocol.multiaddr import Address, parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from sbp2p.dht import Dht, KadUser

DIAL_ROUND_TRIPS = 3
"""TCP, Noise, and negotiation."""


class KadFabric:
    """The nodes, and how far apart they are.

    Args:
        rng: of ids, addresses, latencies and fates.
        latency_s: least and most that a node's own line adds to a way.
        request_timeout_s: what a silent peer costs.
        silent: share of those that are gone that do not refuse a dial but say nothing.
        connected_s: how long peers that have talked stay connected.
    """

    def __init__(
        self,
        rng: Random,
        *,
        latency_s: tuple[float, float] = (0.005, 0.05),
        request_timeout_s: float = 10.0,
        silent: float = 0.5,
        connected_s: float = 30.0,
    ) -> None:
        self.rng = rng
        self.nodes: dict[PeerId, VirtualKadNetwork] = {}
        self.request_timeout_s = request_timeout_s
        self.connected_s = connected_s
        self.dials = 0
        self.dials_failed = 0
        self.requests = 0
        self.records = 0
        self._latency_s = latency_s
        self._silent = silent

    def add(
        self, peer_id: PeerId | None = None, addresses: Sequence[Address] | None = None
    ) -> VirtualKadNetwork:
        """Return the network as a new node sees it; a random id and public address if None."""
        peer_id = peer_id or PeerId(multihash_encode(SHA2_256, self.rng.randbytes(32)))
        addresses = [self.address()] if addresses is None else addresses
        node = VirtualKadNetwork(self, peer_id, addresses, self.rng.uniform(*self._latency_s))
        self.nodes[peer_id] = node
        return node

    def address(self) -> Address:
        """Return a random public address."""
        first = self.rng.choice((5, 23, 45, 62, 77, 88, 99, 130, 151, 185, 213))
        rest = ".".join(str(self.rng.randrange(256)) for _ in range(3))
        return parse_address(f"/ip4/{first}.{rest}/tcp/4001")

    def is_silent(self) -> bool:
        """Decide what a dial of a node that is gone meets."""
        return self.rng.random() < self._silent


class VirtualKadNetwork:
    """A `KadNetwork` of one virtual node. Made by `KadFabric.add`."""

    def __init__(
        self, fabric: KadFabric, peer_id: PeerId, addresses: Sequence[Address], latency_s: float
    ) -> None:
        self.fabric = fabric
        self.is_stalled = False
        """Whether requests arrive and are never answered."""
        self.is_serving = False
        self._peer_id = peer_id
        self._addresses = tuple(addresses)
        self._latency_s = latency_s
        self._user: KadUser | None = None
        self._connected: dict[PeerId, float] = {}

    @property
    def peer_id(self) -> PeerId:
        """Who this node is."""
        return self._peer_id

    @property
    def as_peer(self) -> KadPeer:
        """What others may be told of this node."""
        return KadPeer(self._peer_id, self._addresses)

    @property
    def bootstrap_address(self) -> Address:
        """What a new node may begin with."""
        return self._addresses[0].with_peer(self._peer_id)

    @property
    def is_there(self) -> bool:
        """Whether the node has not vanished."""
        return self.fabric.nodes.get(self._peer_id) is self

    def vanish(self) -> None:
        """Be gone without a word."""
        self.fabric.nodes.pop(self._peer_id, None)

    def addresses(self) -> tuple[Address, ...]:
        """Return where this node is."""
        return self._addresses

    def looks_reachable(self) -> bool:
        """Return that it is."""
        return True

    def can_reach(self, address: Address) -> bool:
        """Return that everything may be dialled."""
        return bool(address.data)

    def find(self, peer_id: PeerId) -> KadPeer | None:
        """Return what a connected peer said of itself."""
        other = self._connection(peer_id)
        return None if other is None else other.as_peer

    def seen_at(self, peer_id: PeerId) -> Address | None:
        """Return where a connected peer is."""
        other = self._connection(peer_id)
        return other._addresses[0] if other is not None and other._addresses else None

    async def dial(self, address: Address) -> PeerId:
        """Connect to the peer that an address names."""
        peer_id = address.peer_id
        if peer_id is None:
            raise PeerUnreachableError(f"{address.text} names nobody")
        other, dial_s = await self._reach(peer_id, [address.without_peer()])
        await trio.sleep(dial_s)
        self._connect(other)
        return peer_id

    async def request(
        self, peer_id: PeerId, addresses: Sequence[Address], message: KadMessage
    ) -> KadMessage:
        """Have a node answer, if it is there."""
        self.fabric.requests += 1
        other, dial_s = await self._reach(peer_id, addresses)
        await trio.sleep(dial_s + 2 * self._way_s(other))
        if other.is_stalled or not other.is_there:
            await trio.sleep(self.fabric.request_timeout_s)
            raise PeerUnreachableError(f"peer {peer_id} does not answer")
        self._connect(other)
        reply = other._take(message, self)
        if reply is None:
            raise PeerUnreachableError(f"peer {peer_id} ended the stream")
        return reply

    async def send(
        self, peer_id: PeerId, addresses: Sequence[Address], messages: Sequence[KadMessage]
    ) -> None:
        """Have a node take records, one round trip for all of them."""
        self.fabric.records += len(messages)
        other, dial_s = await self._reach(peer_id, addresses)
        await trio.sleep(dial_s + 2 * self._way_s(other))
        if not other.is_there:
            raise PeerUnreachableError(f"peer {peer_id} is gone")
        self._connect(other)
        for message in messages:
            other._take_record(message, self)

    def serve(self, *, on: bool) -> None:
        """Take requests, and say so to who is connected."""
        self.is_serving = on
        for peer_id in list(self._connected):
            other = self._connection(peer_id)
            if other is not None:
                self._introduce_to(other)

    def attach(self, user: KadUser) -> None:
        """Work for a DHT, or for something that pretends to be one."""
        self._user = user

    async def run(self) -> None:
        """Be there, until cancelled."""
        try:
            await trio.sleep_forever()
        finally:
            self.vanish()

    # -- inside -------------------------------------------------------------------------------

    def _connection(self, peer_id: PeerId) -> VirtualKadNetwork | None:
        until = self._connected.get(peer_id)
        if until is None:
            return None
        other = self.fabric.nodes.get(peer_id)
        if other is None or until < trio.current_time():
            del self._connected[peer_id]
            return None
        return other

    def _way_s(self, other: VirtualKadNetwork) -> float:
        return (self._latency_s + other._latency_s) * self.fabric.rng.uniform(1.0, 1.2)

    async def _reach(
        self, peer_id: PeerId, addresses: Sequence[Address]
    ) -> tuple[VirtualKadNetwork, float]:
        """Return a node and how long it takes to be connected to it."""
        other = self._connection(peer_id)
        if other is not None:
            return other, 0.0
        self.fabric.dials += 1
        other = self.fabric.nodes.get(peer_id)
        if other is None or not set(other._addresses).intersection(addresses):
            await self._find_nobody(peer_id)
        return other, 2 * DIAL_ROUND_TRIPS * self._way_s(other)

    async def _find_nobody(self, peer_id: PeerId) -> NoReturn:
        self.fabric.dials_failed += 1
        if self.fabric.is_silent():
            await trio.sleep(self.fabric.request_timeout_s)
        else:
            await trio.sleep(4 * self._latency_s)
        raise PeerUnreachableError(f"nobody answers for {peer_id}")

    def _connect(self, other: VirtualKadNetwork) -> None:
        """Be connected with a node for a while, and have identify done if that is new."""
        until = trio.current_time() + self.fabric.connected_s
        for near, far in ((self, other), (other, self)):
            known = far._peer_id in near._connected
            near._connected[far._peer_id] = until
            if not known:
                far._introduce_to(near)

    def _introduce_to(self, other: VirtualKadNetwork) -> None:
        """Do what identify does."""
        if other._user is None:
            return
        if self.is_serving:
            other._user.server_found(self.as_peer)
        else:
            other._user.server_lost(self._peer_id)

    def _take(self, message: KadMessage, sender: VirtualKadNetwork) -> KadMessage | None:
        """Return the reply; None where a stream would end without one."""
        try:
            return self._answer(message, sender)
        except (RemoteProtocolError, trio.BrokenResourceError):
            return None

    def _take_record(self, message: KadMessage, sender: VirtualKadNetwork) -> None:
        try:
            self._answer(message, sender)
        except (RemoteProtocolError, trio.BrokenResourceError) as error:
            raise PeerUnreachableError(f"peer {self._peer_id} took no record: {error}") from error

    def _answer(self, message: KadMessage, sender: VirtualKadNetwork) -> KadMessage | None:
        if self._user is None or not self.is_serving:
            raise trio.BrokenResourceError("it serves no requests")
        seen_at = sender._addresses[0] if sender._addresses else None
        return self._user.answer(message, Requester(sender._peer_id, seen_at))


def acquaint(dhts: Sequence[Dht], networks: Sequence[VirtualKadNetwork], rng: Random) -> None:
    """Fill the tables of all nodes with each other, as days of lookups would have done.

    Every bucket gets as many of those that belong there as it holds, chosen at random.
    """
    by_place = sorted((kad_id_of(each.peer_id), each.as_peer) for each in networks)
    places = [place for place, _ in by_place]
    now = trio.current_time()
    for dht in dhts:
        own = dht.table.own_place
        for bucket in range(KAD_BITS):
            start, end = _region(places, own, bucket)
            if end - start <= 1:
                break  # nobody but this node has so long a prefix in common with it
            start, end = _region(places, KadId(own ^ (1 << (KAD_BITS - 1 - bucket))), bucket + 1)
            for number in rng.sample(range(start, end), min(end - start, dht.table.bucket_size)):
                peer = by_place[number][1]
                dht.table.add(peer.peer_id, peer.addresses, now)
            dht.table.looked_up(KadId(own ^ (1 << (KAD_BITS - 1 - bucket))), now)
        dht._contacts.filled()


def _region(places: list[KadId], place: KadId, bits: int) -> tuple[int, int]:
    """Return where the places that share `bits` with `place` lie in a sorted list."""
    first = (place >> (KAD_BITS - bits)) << (KAD_BITS - bits)
    last = first + (1 << (KAD_BITS - bits))
    return bisect_left(places, first), bisect_left(places, last)

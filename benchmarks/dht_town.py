"""A town of virtual DHT nodes that come, know each other, and vanish."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import trio

from sbp2p.config import DhtConfig
from sbp2p.dht import open_dht
from sbp2p.testing.kad_network import KadFabric, acquaint
from sbp2p_keys.identity import PeerId
from sbp2p_keys.multi import SHA2_256, multihash_encode
from sbp2p_protocol.kad_keys import kad_id, kad_id_of
from sbp2p_protocol.kad_messages import KadMessage, KadType

if TYPE_CHECKING:
    from random import Random

    from sbp2p.dht import Dht
    from sbp2p.testing.kad_network import VirtualKadNetwork
    from sbp2p_protocol.kad_messages import KadPeer
    from sbp2p_protocol.kad_server import Requester

EPOCH: Final = 1.8e9
CONFIG: Final = DhtConfig(mode="server", refresh_s=3600.0)
"""No scenario lasts for an hour: what keeps tables true in them is traffic and newcomers alone."""


def virtual_date() -> float:
    """Return Unix time in a world that began at EPOCH."""
    return EPOCH + trio.current_time()


def random_key(rng: Random) -> bytes:
    """Return a multihash of nothing in particular."""
    return multihash_encode(SHA2_256, rng.randbytes(32))


class Resident:
    """One node."""

    def __init__(self, network: VirtualKadNetwork, dht: Dht, scope: trio.CancelScope) -> None:
        self.network = network
        self.dht = dht
        self._scope = scope

    def vanish(self) -> None:
        """Be gone without a word."""
        self.network.vanish()
        self._scope.cancel()


class Town:
    """All nodes of one run.

    Args:
        nursery: where nodes live.
        rng: of everything random.
    """

    def __init__(self, nursery: trio.Nursery, rng: Random) -> None:
        self.rng = rng
        self.fabric = KadFabric(rng)
        self.residents: list[Resident] = []
        self.crowd: list[Sybil] = []
        self._nursery = nursery

    async def settle(self, count: int) -> None:
        """Add nodes that have been there for long."""
        for _ in range(count):
            self.residents.append(await self.add())
        self.acquaint()

    def acquaint(self) -> None:
        """Let everybody know whom days of lookups would have made known."""
        networks = [each.network for each in self.residents]
        networks += [each.network for each in self.crowd]
        acquaint([each.dht for each in self.residents], networks, self.rng)

    async def add(self, paths: int = CONFIG.disjoint_paths) -> Resident:
        """Add a node that knows nobody, whose lookups for records have so many paths."""
        send, receive = trio.open_memory_channel[Resident](1)
        self._nursery.start_soon(self._live, replace(CONFIG, disjoint_paths=paths), send)
        return await receive.receive()

    async def join(self) -> None:
        """Have somebody new find its way in, by one node that is there."""
        known = self.rng.choice(self.residents).network.bootstrap_address
        newcomer = await self.add()
        await newcomer.dht.bootstrap([known])
        self.residents.append(newcomer)

    def leave(self, resident: Resident) -> None:
        """Take a node out without a word."""
        self.residents.remove(resident)
        resident.vanish()

    def nearest(self, key: bytes, asking: Resident) -> list[KadPeer]:
        """Return the 20 nodes nearest to a key, without the one that asks."""
        place = kad_id(key)
        others = [each.network for each in self.residents if each is not asking]
        nearest = heapq.nsmallest(20, others, key=lambda each: kad_id_of(each.peer_id) ^ place)
        return [each.as_peer for each in nearest]

    def add_sybils(self, key: bytes, share: float) -> None:
        """Put sybils around a key: that share of everybody among the nearest 40 honest ones."""
        place = kad_id(key)
        honest = sorted(kad_id_of(each.network.peer_id) ^ place for each in self.residents)
        radius = honest[min(40, len(honest)) - 1]
        wanted = round(min(40, len(honest)) * share / (1 - share))
        mine: list[Sybil] = []
        while len(mine) < wanted:
            peer_id = PeerId(multihash_encode(SHA2_256, self.rng.randbytes(32)))
            if kad_id_of(peer_id) ^ place < radius:
                mine.append(Sybil(self.fabric.add(peer_id), mine))
        self.crowd += mine

    async def _live(self, config: DhtConfig, ready: trio.MemorySendChannel[Resident]) -> None:
        network = self.fabric.add()
        with trio.CancelScope() as scope:
            async with open_dht(
                network, config=config, rng=self.rng, wall_clock=virtual_date
            ) as dht:
                ready.send_nowait(Resident(network, dht, scope))
                await trio.sleep_forever()


class Sybil:
    """One of many that name only each other and drop what they are told."""

    def __init__(self, network: VirtualKadNetwork, crowd: list[Sybil]) -> None:
        self.network = network
        self._crowd = crowd
        network.attach(self)
        network.serve(on=True)

    def server_found(self, server: KadPeer) -> None:
        """Take no interest."""

    def server_lost(self, peer_id: PeerId) -> None:
        """Take no interest."""

    def answer(self, request: KadMessage, requester: Requester) -> KadMessage | None:
        """Name the others of the crowd."""
        if request.type is KadType.ADD_PROVIDER:
            return None
        others = tuple(each.network.as_peer for each in self._crowd[:20] if each is not self)
        return KadMessage(request.type, request.key, closer=others)

"""A swarm with attackers in it: they cost time, and nothing else, and no honest peer is banned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from sbp2p.config import DhtConfig, DiscoveryConfig, NodeConfig
from sbp2p.errors import PeerUnreachableError, Sbp2pError
from sbp2p.testing import VirtualNetwork, chosen_seeds, make_sample, run_virtual
from sbp2p_protocol.exchange_messages import PROTOCOL_ID
from tests.runtime.exchange_lab import BadSeed, Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbp2p.stream import Stream
    from sbp2p.testing import Sample, VirtualNode

RATE = 2e6
BLOCKS = 24
CONFIG = NodeConfig(dht=DhtConfig(enabled=False), discovery=DiscoveryConfig(enabled=False))
OPTIONS: dict[str, Any] = {"resolution_s": 0.005, "limit_s": 300.0}


def every(blocks: int) -> frozenset[int]:
    return frozenset(range(blocks + 1))


SERVERS: dict[str, Callable[[Version], BadSeed]] = {
    "sends wrong bytes": lambda version: BadSeed(version, corrupt=every(BLOCKS)),
    "sends some wrong bytes": lambda version: BadSeed(version, corrupt=frozenset(range(9))),
    "has nothing of what it says": lambda version: BadSeed(version, lacks=every(BLOCKS)),
    "stalls at once": lambda version: BadSeed(version, silent_after=0),
    "stalls in the middle": lambda version: BadSeed(version, silent_after=5),
    "takes its time": lambda version: BadSeed(version, delay_s=5.0),
    "leaves all the time": lambda version: BadSeed(version, leaves_after=1),
    "sends a wrong tree": lambda version: BadSeed(version, corrupt_nodes=True),
}
LIARS = {"sends wrong bytes", "sends some wrong bytes", "sends a wrong tree"}
"""Who proves by what it sends that it is none of the honest."""


class Siege:
    """An honest seeder and honest leechers, who know each other and every attacker."""

    def __init__(self, network: VirtualNetwork) -> None:
        self.network = network
        self.sample: Sample = make_sample(network.random("model"), blocks=BLOCKS)
        self.version = Version(
            self.sample.document,
            self.sample.manifest,
            self.sample.table,
            list(self.sample.nodes),
            self.sample.files,
        )
        self.honest: list[VirtualNode] = []
        self.attackers: dict[str, VirtualNode] = {}
        self.seconds: dict[str, float] = {}

    async def node(self, name: str) -> VirtualNode:
        return await self.network.add_node(name, up=RATE, down=RATE, config=CONFIG)

    async def gather(self, leechers: int = 3) -> None:
        self.honest = [await self.node(f"honest{number}") for number in range(leechers + 1)]
        self.sample.give_to(self.honest[0])

    async def attack_by_serving(self, kind: str) -> BadSeed:
        """Have a node of the swarm serve the version in some wrong way."""
        attacker = self.attackers[kind] = await self.node(kind.replace(" ", "-"))
        attacker.swarm.withdraw(PROTOCOL_ID)
        bad = SERVERS[kind](self.version)
        attacker.swarm.handle(PROTOCOL_ID, bad.handle)
        return bad

    async def fetch_all(self) -> None:
        everybody = [*self.honest, *self.attackers.values()]
        began = trio.current_time()

        async def fetch(node: VirtualNode) -> None:
            known = [each for each in everybody if each is not node]
            await node.fetch(self.sample.link(*known), to=node.home / "out")
            self.seconds[node.name] = trio.current_time() - began
            assert self.sample.is_at(node.home / "out")

        async with trio.open_nursery() as nursery:
            for node in self.honest[1:]:
                nursery.start_soon(fetch, node)

    async def banned_by(self, name: str) -> set[str]:
        """Return the honest nodes that do not let a node in any more."""
        node = self.attackers.get(name) or self.network.nodes[name]
        found = set()
        for each in self.honest:
            if each is not node:
                try:
                    await each.swarm.connect([], node.peer_id)
                except PeerUnreachableError as error:
                    if "banned" in str(error):
                        found.add(each.name)
        return found

    async def check_that_the_honest_trust_each_other(self) -> None:
        for each in self.honest:
            assert await self.banned_by(each.name) == set(), each


@pytest.mark.parametrize("kind", SERVERS)
def test_one_that_serves_wrongly(kind: str) -> None:
    async def main(network: VirtualNetwork) -> None:
        siege = Siege(network)
        await siege.gather()
        await siege.attack_by_serving(kind)
        await siege.fetch_all()
        await siege.check_that_the_honest_trust_each_other()
        assert bool(await siege.banned_by(kind)) == (kind in LIARS)
        # a stall is waited for 10 s, and what a lone seed shows of what the slow one has, as long
        assert max(siege.seconds.values()) < 25

    run_virtual(main, seed=1, **OPTIONS)


@pytest.mark.parametrize("seed", chosen_seeds(1))
def test_all_of_them_at_once(seed: int) -> None:
    async def main(network: VirtualNetwork) -> None:
        siege = Siege(network)
        await siege.gather()
        for kind in SERVERS:
            await siege.attack_by_serving(kind)
        await siege.fetch_all()
        await siege.check_that_the_honest_trust_each_other()
        assert max(siege.seconds.values()) < 45

    run_virtual(main, seed=seed, **OPTIONS)


@pytest.mark.parametrize("what", ["garbage", "silence", "streams"])
def test_one_that_asks_wrongly(what: str) -> None:
    """Nobody waits longer for a seeder that somebody floods, or holds streams open at."""

    async def flood(attacker: VirtualNode, victim: VirtualNode) -> None:
        await attacker.swarm.connect([], victim.peer_id)
        streams: list[Stream] = []
        while True:
            try:
                if what != "streams" or len(streams) < 200:
                    streams.append(await attacker.swarm.open_stream(victim.peer_id, [PROTOCOL_ID]))
                if what == "garbage":
                    await streams[-1].send_all(attacker.name.encode() * 1000)
            except (Sbp2pError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            await trio.sleep(0.05)

    async def main(network: VirtualNetwork) -> None:
        siege = Siege(network)
        await siege.gather()
        attacker = await siege.node("attacker")
        for victim in siege.honest:
            await attacker.connect(victim.address)
            attacker.start_soon(flood, attacker, victim)
        await trio.sleep(1)
        await siege.fetch_all()
        await siege.check_that_the_honest_trust_each_other()
        assert max(siege.seconds.values()) < 15

    run_virtual(main, seed=1, **OPTIONS)

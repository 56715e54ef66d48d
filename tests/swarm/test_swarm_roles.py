"""Roles in a whole swarm, told by what passes over the lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from sbp2p.config import DhtConfig, DiscoveryConfig, NodeConfig
from sbp2p.errors import Sbp2pError
from sbp2p.roles import Role, Rules
from sbp2p.testing import VirtualNetwork, make_sample, run_virtual

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sbp2p.testing import Sample, VirtualNode

RATE = 2e6
OPTIONS: dict[str, Any] = {"resolution_s": 0.005, "limit_s": 300.0}


def config(role: Role = Role.PEER, **rules: Any) -> NodeConfig:
    return NodeConfig(
        roles=Rules(node=role, **rules),
        dht=DhtConfig(enabled=False),
        discovery=DiscoveryConfig(enabled=False),
    )


class Swarm:
    """One version, a seeder, and nodes with roles."""

    def __init__(self, network: VirtualNetwork, blocks: int = 24) -> None:
        self.network = network
        self.sample: Sample = make_sample(network.random("model"), blocks=blocks)
        self.received: dict[str, dict[str, int]] = {}

    async def seeder(self, name: str = "seed", role: Role = Role.PEER) -> VirtualNode:
        node = await self.node(name, role)
        self.sample.give_to(node)
        return node

    async def node(self, name: str, role: Role = Role.PEER, **rules: Any) -> VirtualNode:
        return await self.network.add_node(name, up=RATE, down=RATE, config=config(role, **rules))

    async def fetch(self, node: VirtualNode, others: Iterable[VirtualNode]) -> None:
        known = [each for each in others if each is not node]
        result = await node.fetch(self.sample.link(*known), to=node.home / "out")
        assert self.sample.is_at(node.home / "out")
        names = {each.peer_id: each.name for each in known}
        self.received[node.name] = {names[peer]: count for peer, count in result.peers}

    async def fetch_all(self, nodes: list[VirtualNode], *others: VirtualNode) -> None:
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(self.fetch, node, [*nodes, *others])

    def sent_by(self, name: str) -> int:
        return sum(each.get(name, 0) for each in self.received.values())


def test_peers_share_and_leeches_only_take() -> None:
    async def main(network: VirtualNetwork) -> None:
        swarm = Swarm(network)
        seeder = await swarm.seeder()
        peers = [await swarm.node(f"peer{number}") for number in range(3)]
        leeches = [await swarm.node(f"leech{number}", Role.LEECH) for number in range(2)]
        await swarm.fetch_all([*peers, *leeches], seeder)
        assert all(swarm.sent_by(each.name) > 0 for each in peers)
        assert all(swarm.sent_by(each.name) == 0 for each in leeches)
        assert all(each.wire.up < 0.1 * swarm.sample.size for each in leeches)

    run_virtual(main, seed=1, **OPTIONS)


def test_a_seed_gives_and_never_asks() -> None:
    async def main(network: VirtualNetwork) -> None:
        swarm = Swarm(network)
        seeder = await swarm.seeder(role=Role.SEED)
        other = await swarm.seeder("other")
        peer = await swarm.node("peer")
        await swarm.fetch_all([peer], seeder, other)
        assert swarm.sent_by("seed") > 0
        with pytest.raises(Sbp2pError):
            await seeder.fetch(make_sample(network.rng, blocks=1).link(other), to=seeder.home / "x")
        assert seeder.wire.down < 0.1 * swarm.sample.size

    run_virtual(main, seed=2, **OPTIONS)


def test_who_is_offline_to_one_peer_is_there_for_the_others() -> None:
    async def main(network: VirtualNetwork) -> None:
        swarm = Swarm(network)
        seeder = await swarm.seeder()
        shunned = await swarm.node("shunned")
        shy = await swarm.node("shy", peers={shunned.peer_id: Role.OFFLINE})
        friend = await swarm.node("friend")
        await swarm.fetch_all([shunned, shy, friend], seeder)
        assert "shy" not in swarm.received["shunned"]
        assert "shunned" not in swarm.received["shy"]
        assert swarm.sent_by("shy") > 0

    run_virtual(main, seed=3, **OPTIONS)


def test_a_swarm_of_leeches_takes_as_long_as_the_seeder_needs_for_each() -> None:
    async def main(network: VirtualNetwork, role: Role) -> float:
        swarm = Swarm(network)
        seeder = await swarm.seeder()
        nodes = [await swarm.node(f"node{number}", role) for number in range(4)]
        began = trio.current_time()
        await swarm.fetch_all(nodes, seeder)
        return (trio.current_time() - began) / (swarm.sample.size / RATE)

    alone = run_virtual(lambda network: main(network, Role.LEECH), seed=4, **OPTIONS)
    together = run_virtual(lambda network: main(network, Role.PEER), seed=4, **OPTIONS)
    assert 4.0 < alone < 4.6
    assert together < 0.6 * alone

"""Training while nodes are killed, cut off and replaced: no round hangs, and who is there agrees.

Each seed draws who is killed when, with a reset or without a word, and when the network is split.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.errors import NotFoundError
from sbp2p.testing import VirtualNetwork, VirtualNode, chosen_seeds, run_virtual
from sbp2p_protocol.rounds import RoundSettings
from tests.swarm.namespace_lab import ALONE, bits_of, model

if TYPE_CHECKING:
    from sbp2p.namespace import Namespace, RoundResult
    from sbp2p.plugins.plugin import Snapshot

DEADLINE_S = 4.0
CHURN_S = 12.0
NODES = 4
BUSY_S, IDLE_S = (0.5, 1.0), (15.0, 20.0)
"""Between two rounds."""


class Town:
    """Nodes that train all the time, in random trouble."""

    def __init__(self, network: VirtualNetwork) -> None:
        self.network = network
        self.rng = network.random("town")
        self.results: list[tuple[str, RoundResult]] = []
        self.models: dict[str, tuple[int, dict[str, bytes]]] = {}
        self.made = 0
        self.pause_s = BUSY_S

    def alive(self) -> list[VirtualNode]:
        return [each for each in self.network.nodes.values() if each.is_running]

    async def add(self) -> None:
        name = f"n{self.made}"
        self.made += 1
        peers = [each.address for each in self.alive()[:2]]
        node = await self.network.add_node(name, config=ALONE)
        node.start_soon(self.train, node, peers)

    async def train(self, node: VirtualNode, peers: list[str]) -> None:
        settings = RoundSettings(deadline_s=DEADLINE_S)
        async with node.namespace("digits", peers=peers, rounds=settings) as namespace:
            plugin = model(self.rng.gauss(0, 1))
            if peers:
                plugin = await self.begin(namespace, plugin)
            while True:
                await trio.sleep(self.rng.uniform(*self.pause_s))
                await namespace.publish(plugin)
                result = await namespace.merge(plugin)
                self.results.append((node.name, result))
                self.models[node.name] = result.round, bits_of(plugin)

    async def begin(self, namespace: Namespace, plugin: Snapshot) -> Snapshot:
        with suppress(NotFoundError):  # those that it knows may have been killed meanwhile
            await namespace.bootstrap(plugin, timeout_s=2 * DEADLINE_S)
        return plugin

    async def trouble(self) -> None:
        await trio.sleep(self.rng.uniform(2, 4))
        alive = self.alive()
        match self.rng.randrange(3):
            case 0:
                names = [each.name for each in alive]
                self.network.partition([names[:2], names[2:]])
                await trio.sleep(self.rng.uniform(1, 6))
                self.network.heal()
            case kind:
                # whom the others were told of first stays: somebody has to be known
                await self.rng.choice(alive[1:]).kill(silently=kind == 1)
                await self.add()


@pytest.mark.parametrize("seed", chosen_seeds(1))
def test_no_round_hangs_and_who_is_left_agrees(seed: int) -> None:
    async def main(network: VirtualNetwork) -> None:
        town = Town(network)
        for _ in range(NODES):
            await town.add()
        while trio.current_time() < CHURN_S:
            await town.trouble()
        assert max(each.seconds for _, each in town.results) <= 1.1 * DEADLINE_S
        # those who were killed without a word are missed after 40 s at most
        town.pause_s = IDLE_S
        await trio.sleep(60)
        town.pause_s = BUSY_S
        await trio.sleep(IDLE_S[1])
        del town.results[:]
        await trio.sleep(3)
        alive = {each.name for each in town.alive()}
        assert {name for name, _ in town.results} == alive
        newest = dict(town.results)
        assert len({each.round for each in newest.values()}) <= 2
        assert all(len(each.merged) == len(alive) for each in newest.values())
        number = min(each.round for each in newest.values())
        agreed = {
            tuple(bits.items()) for reached, bits in town.models.values() if reached == number
        }
        assert len(agreed) <= 1

    run_virtual(main, seed=seed)

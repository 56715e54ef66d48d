"""A small swarm in random trouble, once for each seed: who stays finishes, with the right bytes.

Each seed draws a scenario: rates and delays, one or two seeders, some leechers (one of them perhaps
behind a router), and what goes wrong while they fetch: a partition, resets, a leecher that is
killed and comes back, one that is killed for good, a seeder that leaves although others need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.config import DhtConfig, DiscoveryConfig, NodeConfig
from sbp2p.errors import NotFoundError, PeerUnreachableError
from sbp2p.testing import VirtualNetwork, chosen_seeds, make_sample, run_virtual

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from sbp2p.testing import VirtualNode

LIMIT_S = 300.0
"""Virtual seconds. The lines alone need 20 s at most, the longest partition lasts 8 s."""
GIVE_UPS = 2
"""How often a fetch may give up and be run again, as a user would: it keeps what it has."""
EXCHANGE_ALONE = NodeConfig(dht=DhtConfig(enabled=False), discovery=DiscoveryConfig(enabled=False))
"""Most seeds run with it: a node with everything takes twice the time."""
WITH_EVERYTHING = 10
"""Of so many seeds one runs with the defaults."""


def rate(rng: random.Random) -> float:
    """Bytes per second: slow ADSL to fibre, for samples of about 1 MiB."""
    return 10 ** rng.uniform(5.5, 7)


class Scenario:
    """One swarm and its trouble."""

    def __init__(self, network: VirtualNetwork, config: NodeConfig) -> None:
        self.network = network
        self.config = config
        self.rng = network.rng
        self.sample = make_sample(network.random("model"), blocks=self.rng.randint(8, 20))
        leechers = [f"leech{number}" for number in range(self.rng.randint(2, 3))]
        self.finished = {name: trio.Event() for name in leechers}
        """Who is to finish, and whether they have."""
        self.hidden = self.rng.choice([*leechers, "nobody"])

    async def run(self) -> None:
        network, rng = self.network, self.rng
        for number in range(rng.randint(1, 2)):
            seeder = await self.start(f"seed{number}")
            self.sample.give_to(seeder)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.trouble)
            for name in self.finished:
                nursery.start_soon(self.join, name, rng.uniform(0, 1))
            for event in self.finished.values():
                await event.wait()
            nursery.cancel_scope.cancel()
        for name in self.finished:
            assert self.sample.is_at(network.nodes[name].home / "out"), name

    async def join(self, name: str, delay_s: float) -> None:
        await trio.sleep(delay_s)
        node = await self.start(name)
        node.start_soon(self.fetch, node)

    async def start(self, name: str) -> VirtualNode:
        up, down = rate(self.rng), rate(self.rng)
        return await self.network.add_node(
            name, up=up, down=down, reachable=name != self.hidden, config=self.config
        )

    async def fetch(self, node: VirtualNode) -> None:
        for _ in range(GIVE_UPS):
            try:
                await self.fetch_once(node)
            except (NotFoundError, PeerUnreachableError):
                await trio.sleep(1)
            else:
                return
        await self.fetch_once(node)

    async def fetch_once(self, node: VirtualNode) -> None:
        """Fetch by a link that knows all seeders, and the leechers that are there already."""
        others = [each for each in self.network.nodes.values() if each is not node]
        await node.fetch(self.sample.link(*others), to=node.home / "out")
        if node.name in self.finished:
            self.finished[node.name].set()

    # -- trouble ----------------------------------------------------------------------------------

    async def trouble(self) -> None:
        """Some of it, at random times."""
        kinds = (self.part, self.reset, self.restart, self.lose_a_leecher, self.lose_a_seeder)
        async with trio.open_nursery() as nursery:
            for kind in kinds:
                if self.rng.random() < 0.5:
                    nursery.start_soon(self.later, kind)

    async def later(self, kind: Callable[[], Awaitable[None]]) -> None:
        await trio.sleep(self.rng.expovariate(0.5))
        await kind()

    async def part(self) -> None:
        """Two groups that do not hear each other for a while."""
        names = sorted(self.network.nodes)
        self.rng.shuffle(names)
        half = len(names) // 2
        self.network.partition([names[:half], names[half:]])
        await trio.sleep(self.rng.uniform(0.5, 8))
        self.network.heal()

    async def reset(self) -> None:
        """A network that loses connections, for a while."""
        with trio.move_on_after(self.rng.uniform(1, 5)):
            await self.network.reset_at_random(0.5)

    async def restart(self) -> None:
        """A leecher that is killed in the middle, and started again."""
        node = self.network.nodes.get(self.rng.choice(list(self.finished)))
        if node is not None and node.is_running and not self.finished[node.name].is_set():
            await node.kill(silently=self.rng.random() < 0.5)
            await self.join(node.name, self.rng.uniform(0.1, 3))

    async def lose_a_leecher(self) -> None:
        """One more leecher, killed in the middle for good."""
        node = await self.start("doomed")
        node.start_soon(self.fetch, node)
        await trio.sleep(self.rng.expovariate(0.5))
        await node.kill(silently=self.rng.random() < 0.5)

    async def lose_a_seeder(self) -> None:
        """One seeder of two, gone for good."""
        if node := self.network.nodes.get("seed1"):
            if self.rng.random() < 0.5:
                await node.leave()
            else:
                await node.kill(silently=self.rng.random() < 0.5)


@pytest.mark.parametrize("seed", chosen_seeds(100))
def test_who_stays_finishes(seed: int) -> None:
    async def main(network: VirtualNetwork) -> None:
        config = EXCHANGE_ALONE if seed % WITH_EVERYTHING else NodeConfig()
        await Scenario(network, config).run()

    run_virtual(main, seed=seed, limit_s=LIMIT_S, resolution_s=0.005)

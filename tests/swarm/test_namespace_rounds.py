"""Rounds of training over a virtual network: what is merged, by whom, and how long it takes."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.config import DhtConfig, DiscoveryConfig, NodeConfig
from sbp2p.testing import VirtualNetwork, run_virtual
from sbp2p_protocol.rounds import RoundSettings
from tests.runtime.namespace_models import bits_of, model, values_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sbp2p.namespace import Namespace, RoundResult
    from sbp2p.plugins.plugin import Snapshot

ALONE = NodeConfig(dht=DhtConfig(enabled=False), discovery=DiscoveryConfig(enabled=False))
SETTINGS = RoundSettings(deadline_s=20.0)


@asynccontextmanager
async def swarm(
    network: VirtualNetwork, count: int, **options: object
) -> AsyncIterator[list[Namespace]]:
    """Nodes in one namespace that know each other."""
    nodes = [await network.add_node(f"n{number}", config=ALONE) for number in range(count)]
    async with AsyncExitStack() as stack:
        found = []
        for node in nodes:
            context = node.namespace(
                "digits",
                peers=[nodes[0].address],
                **{"rounds": SETTINGS, **options},  # type: ignore[arg-type]
            )
            found.append(await stack.enter_async_context(context))
        for namespace in found:
            await namespace.wait_for_peers(count - 1, timeout_s=60)
        yield found


async def step(
    namespaces: list[Namespace], models: list[Snapshot], **options: object
) -> list[RoundResult]:
    """One round of all at once."""
    results: dict[int, RoundResult] = {}

    async def one(index: int) -> None:
        await namespaces[index].publish(models[index])
        results[index] = await namespaces[index].merge(models[index], **options)  # type: ignore[arg-type]

    async with trio.open_nursery() as nursery:
        for index in range(len(namespaces)):
            nursery.start_soon(one, index)
    return [results[index] for index in range(len(namespaces))]


@pytest.mark.parametrize("seed", range(1))
def test_eight_nodes_of_a_full_graph_end_with_the_same_bits(seed: int) -> None:
    async def main(network: VirtualNetwork) -> None:
        async with swarm(network, 8) as namespaces:
            rng = network.random("models")
            models = [model(*(rng.gauss(0, 1) for _ in range(50))) for _ in namespaces]
            for number in (1, 2):
                results = await step(namespaces, models)
                assert {each.round for each in results} == {number}
                assert all(len(each.merged) == 8 for each in results)
                assert not any(each.timed_out or each.rejected or each.missing for each in results)
                assert len({tuple(bits_of(each).items()) for each in models}) == 1
                models = [
                    model(*(value + rng.gauss(0, 1) for value in values_of(each)))
                    for each in models
                ]
            assert {each.round for each in namespaces} == {3}

    run_virtual(main, seed=seed)

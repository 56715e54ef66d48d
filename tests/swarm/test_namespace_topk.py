"""Peers that say a tenth of what they learn in each round lose none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p.testing import VirtualNetwork, run_virtual
from tests.swarm.namespace_lab import model, open_swarm, step, values_of

if TYPE_CHECKING:
    from sbp2p.plugins.plugin import Snapshot

SIZE = 500
ROUNDS = 14


def test_what_is_left_out_of_a_round_is_said_in_a_later_one() -> None:
    async def main(network: VirtualNetwork) -> None:
        rng = network.random("learning")
        learned = [[rng.gauss(0, 1) for _ in range(SIZE)] for _ in range(3)]
        async with open_swarm(network, 3, codec="topk:0.1") as namespaces:
            models: list[Snapshot] = [model(*[0.0] * SIZE) for _ in namespaces]
            received = []
            for _ in range(ROUNDS):
                for each, change in zip(models, learned, strict=True):
                    moved = [a + b for a, b in zip(values_of(each), change, strict=True)]
                    each.load(model(*moved).tensors())
                results = await step(namespaces, models)
                assert all(len(result.merged) == 3 for result in results)
                received.append(results[0].bytes_received)
        assert min(received) < received[0] / 2
        meant = [ROUNDS * sum(changes) / 3 for changes in zip(*learned, strict=True)]
        reached = values_of(models[0])
        part = sum(a * b for a, b in zip(reached, meant, strict=True))
        part /= sum(each * each for each in meant)
        assert 0.6 < part < 1.05

    run_virtual(main)

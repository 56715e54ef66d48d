"""Updates that are made from the ones before: small, and readable for who comes late."""

from __future__ import annotations

import trio

from sbp2p.plugins.plugin import Snapshot
from sbp2p.testing import VirtualNetwork, run_virtual
from tests.swarm.namespace_lab import ALONE, SETTINGS, bits_of, model, open_swarm, step, values_of

SIZE = 20_000


def test_small_updates_newcomers_and_missed_ones() -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 2, codec="topk:0.01") as namespaces:
            rng = network.random("models")
            models = [model(*(rng.gauss(0, 1) for _ in range(SIZE))) for _ in namespaces]
            received = []
            for _ in range(3):
                results = await step(namespaces, models)
                received.append(results[0].bytes_received)
                assert bits_of(models[0]) == bits_of(models[1])
            assert received[0] > 4 * SIZE
            assert max(received[1:]) < received[0] / 10
            node = await network.add_node("late", config=ALONE)
            async with node.namespace(
                "digits", peers=[network.nodes["n0"].address], rounds=SETTINGS, codec="topk:0.01"
            ) as late:
                empty = Snapshot({})
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(late.bootstrap, empty)
                    for namespace in namespaces:
                        await namespace.wait_for_peers(2)
                    # the last updates are made from earlier ones; the next ones are whole
                    await step(namespaces, models, deadline_s=2.0)
                assert late.round >= 4
                assert values_of(empty)
                results = await step([*namespaces, late], [*models, empty])
                assert all(len(each.merged) == 3 for each in results)
            # one misses a round, and can read nothing until a whole update comes
            await step(namespaces[:1], models[:1], deadline_s=1.0)
            await namespaces[1].bootstrap(models[1])
            reasons = []
            for _ in range(10):
                results = await step(namespaces, models, deadline_s=3.0)
                reasons += [each.reason for result in results for each in result.rejected]
            assert all(len(each.merged) == 2 for each in results)
            assert set(reasons) <= {"made from an update that is not here"}

    run_virtual(main)

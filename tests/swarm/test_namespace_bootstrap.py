"""Joining late, records that can be replayed, and the room that rounds take on the disk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.config import NamespaceConfig
from sbp2p.errors import NotFoundError
from sbp2p.merge.method import get
from sbp2p.namespace.record import replay
from sbp2p.plugins.plugin import Snapshot
from sbp2p.testing import VirtualNetwork, run_virtual
from sbp2p_protocol.round_record import RoundRecord
from tests.swarm.namespace_lab import ALONE, SETTINGS, bits_of, model, open_swarm, step, values_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_newcomer_takes_the_model_and_the_round() -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 3) as namespaces:
            models = [model(float(number)) for number in range(3)]
            for _ in range(3):
                await step(namespaces, models)
            node = await network.add_node("late", config=ALONE)
            peers = [network.nodes["n0"].address]
            async with node.namespace("digits", peers=peers, rounds=SETTINGS) as late:
                empty = Snapshot({})
                found = await late.bootstrap(empty, timeout_s=60)
                assert (found.round, late.round) == (3, 3)
                assert values_of(empty) == [1.0]
                for namespace in namespaces:
                    await namespace.wait_for_peers([late.peer_id])
                results = await step([*namespaces, late], [*models, empty])
                assert {each.round for each in results} == {4}
                assert all(len(each.merged) == 4 for each in results)

    run_virtual(main)


def test_a_newcomer_that_nobody_can_help_says_why() -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 2) as (one, other):
            with pytest.raises(NotFoundError, match="no member has published"):
                await one.bootstrap(model(0.0), timeout_s=3)
            await other.publish(model(1.0, 2.0))
            mine = model(0.0)
            with pytest.raises(NotFoundError, match="shape"):
                await one.bootstrap(mine, timeout_s=10)
            assert values_of(mine) == [0.0]

    run_virtual(main)


def test_a_model_that_no_merge_would_take_is_none_to_begin_with() -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 3) as (one, other, late):
            await one.publish(model(1.0, float("nan")))
            mine = model(0.0, 0.0)
            with pytest.raises(NotFoundError, match=r"NaN|nan"):
                await late.bootstrap(mine, timeout_s=5)
            assert values_of(mine) == [0.0, 0.0]
            await other.publish(model(2.0, 3.0))
            assert (await late.bootstrap(mine, timeout_s=10)).peer_id == other.peer_id
            assert values_of(mine) == [2.0, 3.0]

    run_virtual(main)


def test_the_newest_round_that_most_have_reached_is_taken() -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 4) as namespaces:
            models = [model(float(number)) for number in range(4)]
            await step(namespaces[:3], models[:3], deadline_s=2.0)
            await step(namespaces[:1], models[:1], deadline_s=2.0)  # one is ahead, alone
            assert [each.round for each in namespaces] == [2, 1, 1, 0]
            mine = model(9.0)
            found = await namespaces[3].bootstrap(mine)
            assert found.round == 1

    run_virtual(main)


def test_a_merge_is_replayed_from_its_record() -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 3) as namespaces:
            models = [model(0.1, 1e-8), model(0.2, 1e8), model(0.7, -1e8)]
            before = [Snapshot(dict(each.tensors())) for each in models]
            for method in ("mean", "median"):
                results = await step(namespaces, models, using=method)
                result = results[0]
                assert result.record is not None
                node = network.nodes["n0"]
                stored = node.store.version(result.record.cid)
                assert stored is not None
                assert stored.manifest.name == "digits/rounds"
                inputs = {each.cid for each in result.merged}
                assert inputs <= set(stored.manifest.parents)
                data = (stored.root_path / "round.cbor").read_bytes()
                record = RoundRecord.from_bytes(data)
                assert (record.method, record.topology, record.round) == (
                    method,
                    "full",
                    result.round,
                )
                by_peer = {
                    namespace.peer_id: plugin.tensors()
                    for namespace, plugin in zip(namespaces, before, strict=True)
                }
                sources = {each.cid: by_peer[each.peer_id] for each in record.contributions}
                again = replay(record, sources)
                assert again.is_same
                assert bits_of(Snapshot(again.tensors)) == bits_of(models[0])
                wrong = dict.fromkeys(sources, model(5.0, 5.0).tensors())
                assert not replay(record, wrong).is_same
                with pytest.raises(NotFoundError, match="not here"):
                    replay(record, {})
                before = [Snapshot(dict(each.tensors())) for each in models]

    run_virtual(main)


def test_outer_steps_are_replayed_in_order_by_one_method() -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 2) as namespaces:
            models = [model(0.0), model(0.0)]
            for each in namespaces:
                await each.start_from(models[0])
            auditor = get("diloco")
            for number in (1, 2):
                base = dict(models[0].tensors())
                models = [model(values_of(models[0])[0] + number + index) for index in range(2)]
                sent = {
                    namespace.peer_id: dict(each.tensors())
                    for namespace, each in zip(namespaces, models, strict=True)
                }
                version = (await step(namespaces, models, using="diloco"))[0].record
                assert version is not None
                stored = network.nodes["n0"].store.version(version.cid)
                assert stored is not None
                record = RoundRecord.from_bytes((stored.root_path / "round.cbor").read_bytes())
                sources = {each.cid: sent[each.peer_id] for each in record.contributions}
                assert replay(record, sources, base=base, method=auditor).is_same
                # what remembers nothing is right for the first round only
                assert replay(record, sources, base=base).is_same == (number == 1)

    run_virtual(main)


def files_under(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file()]


def test_old_rounds_leave_neither_files_nor_versions() -> None:
    async def main(network: VirtualNetwork) -> None:
        few = replace(ALONE, namespace=NamespaceConfig(records_kept=3))
        async with open_swarm(network, 2, config=few) as namespaces:
            node = network.nodes["n0"]
            models = [model(0.0), model(1.0)]
            counts = []
            for _ in range(7):
                await step(namespaces, models)
                files = files_under(node.home / "namespaces")
                counts.append((len(files), len(node.store.versions())))
            # two nodes' updates of three rounds, and the newest records
            assert counts[-1] == counts[-2] == (2 * 3 + 3, 2 * 3 + 3)

    run_virtual(main)


def test_a_node_that_comes_back_goes_on_from_its_last_round() -> None:
    async def main(network: VirtualNetwork) -> None:
        node = await network.add_node("n0", config=ALONE)
        async with node.namespace("digits") as namespace:
            for number in (1, 2):
                published = await namespace.publish(model(1.0))
                assert published.round == number
        await node.leave()
        node = await network.add_node("n0", config=ALONE)
        async with node.namespace("digits") as namespace:
            assert namespace.round == 2
            assert (await namespace.publish(model(1.0))).round == 3
        await trio.lowlevel.checkpoint()

    run_virtual(main)

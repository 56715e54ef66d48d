"""Peers of one version: how they find each other, what they are shown, who is served."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.exchange import Source
from sbp2p.transport import LinkProfile
from sbp2p_protocol import exchange_client, exchange_server
from sbp2p_protocol.choker import ChokingPolicy
from sbp2p_protocol.picking import Picking
from tests.runtime.exchange_lab import (
    BLOCK,
    LabNode,
    Version,
    make_version,
    open_lab,
    small_version,
)
from tests.runtime.store_samples import noise

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from sbp2p.exchange import FetchResult

SLOW = LinkProfile(latency_s=0.01, bytes_per_s=20 * BLOCK, capacity_bytes=4 * BLOCK)


async def get_all(version: Version, seed: LabNode, leeches: list[LabNode]) -> list[FetchResult]:
    """Have all of them fetch from the seed, which is the only peer that they know."""
    results: list[FetchResult] = []

    async def get(leech: LabNode) -> None:
        results.append(await leech.get(version, seed))
        version.assert_at(leech.out)

    async with trio.open_nursery() as nursery:
        for leech in leeches:
            nursery.start_soon(get, leech)
    return results


async def test_leechers_that_know_only_the_seed_find_each_other(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(120)
    async with open_lab(tmp_path, profile=SLOW) as lab:
        seed = await lab.node()
        await seed.publish(version)
        leeches = [await lab.node() for _ in range(4)]
        results = await get_all(version, seed, leeches)
        others = {leech.key.peer_id for leech in leeches}
        for result in results:
            gave = {each.peer_id for each in result.sources if each.blocks_verified}
            assert len(gave & others) == 3
        sent = seed.exchange.statistics().bytes_sent
        assert sent < 1.5 * sum(map(len, version.files.values()))
        assert sum(result.bytes_useless for result in results) <= 2 * BLOCK


async def test_without_super_seeding_everybody_is_told_everything(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(40)
    async with open_lab(tmp_path, profile=SLOW, super_seed=False) as lab:
        seed = await lab.node()
        await seed.publish(version)
        await get_all(version, seed, [await lab.node() for _ in range(3)])


async def test_a_few_blocks_are_shown_to_everybody_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(4)
    async with open_lab(tmp_path, profile=SLOW) as lab:
        seed, leeches = await lab.node(), [await lab.node() for _ in range(3)]
        await seed.publish(version)
        started = trio.current_time()
        await get_all(version, seed, leeches)
        assert trio.current_time() - started < 1.5  # who waits for a helper waits for three seconds


async def test_a_part_is_not_held_back_by_super_seeding(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(60)
    async with open_lab(tmp_path, profile=SLOW) as lab:
        seed, whole, part = await lab.node(), await lab.node(), await lab.node()
        await seed.publish(version)
        part.have(version, list(range(50)), "out")
        took: list[float] = []

        async def resume() -> None:
            await part.get(version, seed)
            took.append(trio.current_time())

        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(whole.get, version, seed)
            nursery.start_soon(resume)
        assert took[0] - started < 4  # twelve blocks of a link of twenty a second, shared by two


async def test_in_order_is_not_held_back_by_super_seeding(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(80)
    async with open_lab(tmp_path, profile=SLOW) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        order: list[int] = []
        gained = leech.exchange._library.gained

        def note(root: object, indices: tuple[int, ...]) -> None:
            order.extend(indices)
            gained(version.manifest.root, indices)

        leech.exchange._library.gained = note  # type: ignore[method-assign, assignment]
        await leech.exchange.fetch(version.link, leech.out, sources=[seed.source], in_order=True)
        assert order == sorted(order)


@pytest.mark.parametrize("picking", list(Picking))
async def test_every_way_of_picking_gets_there(
    tmp_path: Path, autojump_clock: MockClock, picking: Picking
) -> None:
    version = small_version(40)
    async with open_lab(tmp_path, profile=SLOW, picking=picking) as lab:
        seed = await lab.node()
        await seed.publish(version)
        await get_all(version, seed, [await lab.node() for _ in range(3)])


@pytest.mark.parametrize("policy", list(ChokingPolicy))
async def test_more_peers_than_slots_are_served_in_turn(
    tmp_path: Path, autojump_clock: MockClock, policy: ChokingPolicy
) -> None:
    version = small_version(40)
    async with open_lab(
        tmp_path,
        profile=SLOW,
        upload_slots_max=2,
        choking=policy,
        choke_round_s=1.0,
        optimistic_unchoke_s=3.0,
    ) as lab:
        seed = await lab.node()
        await seed.publish(version)
        await get_all(version, seed, [await lab.node() for _ in range(6)])


@pytest.mark.parametrize("old", ["asks", "serves"])
async def test_a_peer_that_knows_none_of_this_is_as_good_as_before(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    version = small_version(60)
    module = exchange_client if old == "asks" else exchange_server
    monkeypatch.setattr(module, "SWARM_FEATURE", "something-else")
    async with open_lab(tmp_path, profile=SLOW) as lab:
        seed = await lab.node()
        await seed.publish(version)
        await get_all(version, seed, [await lab.node() for _ in range(3)])


async def test_a_peer_that_was_told_of_and_is_gone_costs_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(40)
    async with open_lab(tmp_path, profile=SLOW) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        gone = await lab.node()
        ghost = Source(gone.key.peer_id, (gone.addresses[0],), learned=True)
        lab.network.forget(gone.addresses[0])
        await leech.get(version, seed, ghost)
        version.assert_at(leech.out)


async def test_a_donor_that_leaves_in_the_middle_is_not_noticed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = make_version({"w.bin": noise("donor", 200 * BLOCK)})
    async with open_lab(tmp_path, profile=SLOW) as lab:
        donors = [await lab.node() for _ in range(3)]
        for donor in donors:
            await donor.publish(version)
        leech = await lab.node()
        progress: list[tuple[float, int]] = []

        async def leave() -> None:
            await trio.sleep(2)
            await leech.swarm.disconnect(donors[0].key.peer_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            await leech.exchange.fetch(
                version.link,
                leech.out,
                sources=[donor.source for donor in donors],
                progress=lambda p: progress.append((trio.current_time(), p.blocks_verified)),
            )
        version.assert_at(leech.out)
        times = [at for at, blocks in progress if 0 < blocks < 200]
        seen = dict(progress)
        pauses = [b - a for a, b in pairwise(times) if seen[a] == seen[b]]
        assert sum(pauses[:5], 0.0) < 3

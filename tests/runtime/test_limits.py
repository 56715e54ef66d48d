from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sbp2p.config import LimitsConfig
from sbp2p.limits import Limits
from sbp2p.roles import Role, Rules
from sbp2p_keys.identity import PrivateKey
from tests.runtime.exchange_lab import BLOCK, make_version, open_lab
from tests.runtime.store_samples import noise

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from sbp2p_keys.identity import PeerId
    from tests.runtime.exchange_lab import LabNode

A, B, C = (PrivateKey.from_seed(bytes([90 + number]) * 32).peer_id for number in range(3))


async def test_no_limit_does_not_wait(autojump_clock: MockClock) -> None:
    limits = Limits(LimitsConfig())
    await limits.upload(A, 10**12)
    await limits.download(A, 10**12)
    assert limits.upload_piece is None
    assert limits.download_piece is None
    assert trio.current_time() == autojump_clock.current_time()


@pytest.mark.parametrize("rate", [20_000, 125_000, 5_000_000])
async def test_exact_over_ten_seconds(autojump_clock: MockClock, rate: int) -> None:
    limits = Limits(LimitsConfig(upload_bytes_s=rate))
    moved = dict.fromkeys((A, B, C), 0)

    async def send(peer: PeerId, size: int) -> None:
        while True:
            await limits.upload(peer, size)
            moved[peer] += size

    piece = limits.upload_piece
    assert piece is not None
    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, A, piece)
            nursery.start_soon(send, B, piece)
            nursery.start_soon(send, C, piece // 3)
            nursery.start_soon(send, C, piece // 4)
    assert sum(moved.values()) / (10 * rate) == pytest.approx(1, abs=0.05)
    assert max(moved.values()) / min(moved.values()) < 1.1


async def test_directions_and_peers_do_not_share(autojump_clock: MockClock) -> None:
    limits = Limits(LimitsConfig(peer_upload_bytes_s=1_000, download_bytes_s=1_000))
    start = trio.current_time()
    for peer in (A, B, C):
        await limits.upload(peer, 5_000)
    await limits.download(A, 5_000)
    assert trio.current_time() == start
    await limits.upload(A, 1)
    assert trio.current_time() - start == pytest.approx(5)


async def test_a_change_reaches_those_who_wait(autojump_clock: MockClock) -> None:
    limits = Limits(LimitsConfig(upload_bytes_s=10))
    await limits.upload(A, 1_000)
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limits.upload, A, 1_000)
        nursery.start_soon(limits.upload, B, 1_000)
        await trio.sleep(1)
        limits.change(LimitsConfig(upload_bytes_s=10_000))
        await trio.sleep(0.15)
        limits.change(LimitsConfig())
    assert trio.current_time() - start < 1.2
    assert limits.config == LimitsConfig()


async def test_cancelling_takes_nothing_and_leaves_nobody_behind(
    autojump_clock: MockClock,
) -> None:
    limits = Limits(LimitsConfig(upload_bytes_s=1_000))
    start = trio.current_time()
    await limits.upload(A, 1_000)
    async with trio.open_nursery() as nursery:
        first = trio.CancelScope()

        async def give_up() -> None:
            with first:  # it is the one that looks at the time
                await limits.upload(A, 100_000)

        nursery.start_soon(give_up)
        await wait_all_tasks_blocked()
        nursery.start_soon(limits.upload, B, 500)
        nursery.start_soon(limits.upload, C, 500)
        await wait_all_tasks_blocked()
        first.cancel()
    assert trio.current_time() - start == pytest.approx(1.5)


async def test_cancelled_when_it_was_just_granted(autojump_clock: MockClock) -> None:
    limits = Limits(LimitsConfig(upload_bytes_s=1_000))
    await limits.upload(A, 1_000)
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limits.upload, A, 5_000)
        await wait_all_tasks_blocked()
        limits.change(LimitsConfig(upload_bytes_s=1e9))  # grants it; it has not run yet
        await trio.lowlevel.cancel_shielded_checkpoint()
        nursery.cancel_scope.cancel()
    limits.change(LimitsConfig(upload_bytes_s=1_000))
    await limits.upload(B, 1)
    assert trio.current_time() - start < 6


# -- the exchange ---------------------------------------------------------------------------------

RATE = 24 * BLOCK


async def moved_in_ten_seconds(
    folder: Path, *, up: LimitsConfig, down: LimitsConfig, leeches: int = 1
) -> tuple[list[int], list[int]]:
    """Return how many payload bytes a seed sent to each leech in ten seconds, and each received."""
    version = make_version({"w": noise("limits", 800 * BLOCK)})
    async with open_lab(folder) as lab:
        seed = await lab.node()
        seed.swarm.limits.change(up)
        await seed.publish(version)
        nodes = [await lab.node() for _ in range(leeches)]
        async with trio.open_nursery() as nursery:
            for leech in nodes:
                leech.swarm.limits.change(down)
                leech.swarm.roles.change(Rules(node=Role.LEECH))  # they get it from the seed alone
                leech.have(version, [], "out")  # the tree, so that blocks are all that moves
                nursery.start_soon(leech.get, version, seed)
            await trio.sleep(1)  # until everybody is connected
            before = [_sent(seed, leech) for leech in nodes], [*map(_received, nodes)]
            await trio.sleep(10)
            after = [_sent(seed, leech) for leech in nodes], [*map(_received, nodes)]
            nursery.cancel_scope.cancel()
        sent, received = (
            [now - then for then, now in zip(*pair, strict=True)]
            for pair in zip(before, after, strict=True)
        )
        return sent, received


def _sent(node: LabNode, to: LabNode) -> int:
    accounts = node.exchange.statistics().traffic
    return sum(each.bytes_sent for each in accounts if each.peer_id == to.key.peer_id)


def _received(node: LabNode) -> int:
    return sum(each.bytes_received for each in node.exchange.statistics().traffic)


async def test_upload_limit_of_the_exchange(tmp_path: Path, autojump_clock: MockClock) -> None:
    up = LimitsConfig(upload_bytes_s=RATE)
    sent, _ = await moved_in_ten_seconds(tmp_path, up=up, down=LimitsConfig(), leeches=3)
    assert sum(sent) / (10 * RATE) == pytest.approx(1, abs=0.05)
    assert max(sent) < 1.25 * min(sent)


@pytest.mark.parametrize("leeches", [1, 5])
async def test_upload_limit_for_each_peer(
    tmp_path: Path, autojump_clock: MockClock, leeches: int
) -> None:
    """All of them are served at once: none waits for the slow line of another."""
    up = LimitsConfig(upload_bytes_s=2 * RATE, peer_upload_bytes_s=RATE / 4)
    sent, _ = await moved_in_ten_seconds(tmp_path, up=up, down=LimitsConfig(), leeches=leeches)
    shares = [each / (10 * RATE / 4) for each in sent]
    assert shares == [pytest.approx(1, abs=0.05)] * leeches


@pytest.mark.parametrize("peer_only", [False, True])
async def test_download_limit(tmp_path: Path, autojump_clock: MockClock, peer_only: bool) -> None:
    """What was read and verified; the sender may be a window ahead."""
    down = (
        LimitsConfig(peer_download_bytes_s=RATE)
        if peer_only
        else LimitsConfig(download_bytes_s=RATE)
    )
    _, received = await moved_in_ten_seconds(tmp_path, up=LimitsConfig(), down=down)
    assert sum(received) / (10 * RATE) == pytest.approx(1, abs=0.05)


async def test_a_low_limit_is_no_stall(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A reader that reads slowly because it wants to holds nothing against the sender."""
    version = make_version({"w": noise("slow", 12 * BLOCK)})
    async with open_lab(tmp_path) as lab:
        seed, leech = await lab.node(), await lab.node()
        leech.swarm.limits.change(LimitsConfig(download_bytes_s=BLOCK / 4))
        await seed.publish(version)
        result = await leech.get(version, seed)
        version.assert_at(leech.out)
        assert result.transfer_seconds > 40
        assert [each.stalls for each in result.sources] == [0]

"""Following a name: each new version once, never an older one, soon, and cancelled cleanly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.errors import ConfigError, NotFoundError, Sbp2pError
from sbp2p_protocol.catalog import CatalogEntry
from sbp2p_protocol.link import NameLink
from tests.runtime.exchange_lab import small_version
from tests.runtime.naming_lab import CONFIG, PUBLISHER, open_naming_lab

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

LINK = NameLink(PUBLISHER.peer_id, "model")


async def test_a_connected_follower_sees_a_new_version_within_seconds(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        publisher = await lab.host(signer=PUBLISHER)
        await publisher.node.publish(small_version(5))
        await publisher.naming.publish()
        reader = await lab.host()
        following = reader.naming.follow(LINK)
        assert (await anext(following)).version == 1
        for number in (2, 3):
            with trio.move_on_after(20):
                await anext(following)
                raise AssertionError("there was nothing new")
            await publisher.node.publish(small_version(5, number=number))
            began = trio.current_time()
            resolved = await anext(following)
            assert trio.current_time() - began < 2 * CONFIG.follow_ask_s
            assert resolved.version == number
            assert resolved.manifest == small_version(5, number=number).manifest.cid
        assert following.version == 3


async def test_a_follower_that_knows_nobody_sees_it_by_the_pointer(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbp2p.naming.follow._HELPERS_MAX", 0)
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(3)
        publisher = await lab.host(signer=PUBLISHER)
        await publisher.node.publish(small_version(5))
        await publisher.naming.publish()
        # nobody who is connected tells it anything: only the pointer can
        reader = await lab.host(ask_peers_max=0)
        following = reader.naming.follow(LINK)
        assert (await anext(following)).origin == "pointer"
        await publisher.node.publish(small_version(5, number=2))
        began = trio.current_time()
        resolved = await anext(following)
        assert (resolved.version, resolved.origin) == (2, "pointer")
        assert trio.current_time() - began < CONFIG.ttl_s * (1 + CONFIG.jitter) + 60


async def test_no_version_is_told_twice_and_none_that_is_older(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        publisher = await lab.host()
        await publisher.node.publish(small_version(5, number=3))
        reader = await lab.host()
        following = reader.naming.follow(LINK, after=5)
        with trio.move_on_after(60) as limit:
            await anext(following)
        assert limit.cancelled_caught
        newer = CatalogEntry(7, small_version(5, number=7).manifest.cid)
        reader.pointers.take_version(PUBLISHER.peer_id, "model", newer, lab.now())
        assert (await anext(reader.naming.follow(LINK))).version == 7, "an older one was told"
        await publisher.node.publish(small_version(5, number=8))
        assert (await anext(following)).version == 8


async def test_peers_of_the_link_are_asked(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_naming_lab(tmp_path) as lab:
        publisher = await lab.host()
        await publisher.node.publish(small_version(5))
        reader = await lab.host(join=False)
        link = NameLink(PUBLISHER.peer_id, "model", None, tuple(publisher.node.addresses))
        async for resolved in reader.naming.follow(link):
            assert resolved.version == 1
            break


async def test_trouble_is_told_and_waited_out(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_naming_lab(tmp_path) as lab:
        server = await lab.host()
        reader = await lab.host()
        told: list[Sbp2pError] = []
        following = reader.naming.follow(LINK, trouble=told.append)
        with trio.move_on_after(100):
            await anext(following)
        assert len(told) > 20
        assert all(isinstance(each, NotFoundError) for each in told)
        await server.node.publish(small_version(5))
        assert (await anext(following)).version == 1


async def test_a_cancelled_follower_leaves_nothing_behind(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.host()
        reader = await lab.host()
        following = reader.naming.follow(LINK)
        for seconds in (0, 0.5, CONFIG.follow_ask_s, 31.0):
            with trio.move_on_after(seconds) as limit:
                await anext(following)
            assert limit.cancelled_caught
        streams = sum(each.open_streams for each in reader.node.swarm.statistics().connections)
        with trio.fail_after(60):
            while streams > 1:  # the DHT keeps one for a while
                await trio.sleep(1)
                now = reader.node.swarm.statistics().connections
                streams = sum(each.open_streams for each in now)


async def test_a_link_to_one_version_cannot_be_followed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        reader = await lab.host()
        with pytest.raises(ConfigError, match="never changes"):
            reader.naming.follow(NameLink(PUBLISHER.peer_id, "model", 3))

"""A fetch that knows no address: whom it finds, and how soon it gives up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sbp2p.config import DiscoveryConfig, NodeConfig
from sbp2p.discovery import Candidate, Origin
from sbp2p.errors import NotFoundError, PeerUnreachableError
from sbp2p.node import Node, accept_new
from sbp2p.node.finding_peers import provider_key
from sbp2p_protocol.link import NameLink
from sbp2p_protocol.multiaddr import parse_address

if TYPE_CHECKING:
    from pathlib import Path

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
PROMPT = DiscoveryConfig(autonat=False, announce_wait_s=0.0, search_first_s=0.2)


def config(*bootstrap: object) -> NodeConfig:
    return NodeConfig(discovery=replace(PROMPT, bootstrap=tuple(map(str, bootstrap))))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 1000)
    return tmp_path / "model.bin"


async def test_who_has_nowhere_to_look_gives_up_at_once(tmp_path: Path, model: Path) -> None:
    async with (
        Node(home=tmp_path / "alice", listen=LOOPBACK, config=config()) as alice,
        Node(home=tmp_path / "bob", config=config()) as bob,
    ):
        version = await alice.publish(model, name="model")
        assert not bob.finder.has_ways
        with trio.fail_after(2), pytest.raises(PeerUnreachableError):
            await bob.fetch(version.link(), to=tmp_path / "copy")


async def test_a_candidate_from_anywhere_is_asked(tmp_path: Path, model: Path) -> None:
    async with (
        Node(home=tmp_path / "alice", listen=LOOPBACK, config=config()) as alice,
        Node(home=tmp_path / "bob", config=config()) as bob,
    ):
        version = await alice.publish(model, name="model")
        bob.discovery.offer(Candidate(alice.peer_id, alice.addresses, Origin.LAN))
        result = await bob.fetch(version.link(), to=tmp_path / "copy")
        assert [peer for peer, _ in result.peers] == [alice.peer_id]


async def test_who_worked_last_time_is_asked_and_who_is_gone_is_forgotten(
    tmp_path: Path, model: Path
) -> None:
    async with Node(home=tmp_path / "alice", listen=LOOPBACK, config=config()) as alice:
        version = await alice.publish(model, name="model")
        async with Node(home=tmp_path / "bob", config=config()) as bob:
            await bob.connect(str(alice.addresses[0]))
            await wait_all_tasks_blocked(0.05)
        async with Node(home=tmp_path / "bob", config=config()) as bob:
            assert [each.origin for each in bob.discovery.known()] == [Origin.REMEMBERED]
            link = str(NameLink(alice.peer_id, "model"))
            result = await bob.fetch(link, to=tmp_path / "copy", trust=accept_new)
            assert result.version.cid == version.cid
    async with Node(home=tmp_path / "bob", config=config()) as bob:
        known = bob.discovery.known()
        assert [each.peer_id for each in known] == [alice.peer_id]
        with trio.fail_after(5), pytest.raises((NotFoundError, PeerUnreachableError)):
            await bob.describe(f"sbp2p://{alice.peer_id}/other")
        assert "refused" in bob.discovery.failures()[alice.peer_id]


async def test_a_second_process_knows_them_too_and_writes_nothing(
    tmp_path: Path, model: Path
) -> None:
    async with (
        Node(home=tmp_path / "alice", listen=LOOPBACK, config=config()) as alice,
        Node(home=tmp_path / "carol", listen=LOOPBACK, config=config()) as carol,
        Node(home=tmp_path / "bob", config=config()) as bob,
    ):
        version = await alice.publish(model, name="model")
        await bob.connect(str(alice.addresses[0]))
        await wait_all_tasks_blocked(0.05)
        async with Node(home=tmp_path / "bob", config=config()) as guest:
            assert guest.ephemeral
            await guest.connect(str(carol.addresses[0]))
            await wait_all_tasks_blocked(0.05)
            result = await guest.fetch(version.link(), to=tmp_path / "copy")
            assert [peer for peer, _ in result.peers] == [alice.peer_id]
    async with Node(home=tmp_path / "bob", config=config()) as bob:
        assert [each.peer_id for each in bob.discovery.known()] == [alice.peer_id]


async def test_a_name_and_one_node_are_enough(tmp_path: Path, model: Path) -> None:
    async with Node(home=tmp_path / "hub", listen=LOOPBACK, config=config()) as hub:
        known = config(hub.addresses[0])
        async with (
            Node(home=tmp_path / "alice", listen=LOOPBACK, config=known) as alice,
            Node(home=tmp_path / "bob", config=known) as bob,
        ):
            version = await alice.publish(model, name="model")
            await alice.wait_announced(version)
            seen = await bob.describe(f"sbp2p://{alice.peer_id}/model")
            assert seen.manifest.cid == version.cid
            result = await bob.fetch(version.link(), to=tmp_path / "copy")
            assert [peer for peer, _ in result.peers] == [alice.peer_id]


async def test_a_node_that_moves_is_announced_where_it_is(tmp_path: Path, model: Path) -> None:
    async with Node(home=tmp_path / "hub", listen=LOOPBACK, config=config()) as hub:
        known = config(hub.addresses[0])
        async with Node(home=tmp_path / "alice", listen=LOOPBACK, config=known) as alice:
            version = await alice.publish(model, name="model")
            await alice.wait_announced(version)
            announcing = alice._open.parts.announcing
            assert announcing is not None
            async with announcing._done:  # so that it cannot be through before it is waited for
                await alice.swarm.listen(parse_address(LOOPBACK[0]))
                with trio.fail_after(10):
                    await announcing._done.wait()
            assert hub.dht is not None
            async with hub.dht.find_providers(provider_key(version.cid), count=1) as search:
                (found,) = [provider async for provider in search]
            told = {each.without_peer() for each in found.addresses}
            assert told == {each.without_peer() for each in alice.addresses}
            assert len(told) == 2

"""Roles by what they do: bytes that flow, or do not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from sbp2p.config import LimitsConfig
from sbp2p.errors import ConfigError, NotFoundError, PeerUnreachableError, Sbp2pError
from sbp2p.roles import Role, Rules
from tests.runtime.exchange_lab import BLOCK, BadSeed, make_version, open_lab, small_version
from tests.runtime.store_samples import noise

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from tests.runtime.exchange_lab import LabNode, Version

SOON: dict[str, Any] = {"patience_s": 4.0, "retry_s": 0.5}


def sent(node: LabNode) -> int:
    """Return how many payload bytes a node has served."""
    return node.exchange.statistics().bytes_sent


def change(node: LabNode, rules: Rules) -> None:
    node.swarm.roles.change(rules)


async def fails(node: LabNode, version: Version, *sources: LabNode) -> str:
    with pytest.raises(Sbp2pError) as caught:
        await node.get(version, *sources)
    return str(caught.value)


@pytest.mark.parametrize("role", [Role.LEECH, Role.OFFLINE])
async def test_who_does_not_send_serves_nothing(
    tmp_path: Path, autojump_clock: MockClock, role: Role
) -> None:
    version = small_version(20)
    async with open_lab(tmp_path, **SOON) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        change(seed, Rules(node=role))
        why = await fails(leech, version, seed)
        assert sent(seed) == 0
        assert not leech.store.versions()
        if role is Role.LEECH:
            assert "this node only receives" in why


@pytest.mark.parametrize("role", [Role.SEED, Role.OFFLINE])
async def test_who_does_not_receive_asks_nobody(
    tmp_path: Path, autojump_clock: MockClock, role: Role
) -> None:
    version = small_version(20)
    bad = BadSeed(version)
    async with open_lab(tmp_path, **SOON) as lab:
        _, source = await lab.serve(bad.handle)
        node = await lab.node()
        change(node, Rules(node=role))
        with pytest.raises(ConfigError, match=f"role.* {role.value}"):
            await node.get(version, source)
        with pytest.raises(ConfigError, match="role"):
            await node.exchange.find(version.link, sources=[source])
        assert bad.streams == 0


async def test_a_seed_serves_and_a_leech_receives(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(20)
    async with open_lab(tmp_path) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        change(seed, Rules(node=Role.SEED))
        change(leech, Rules(node=Role.LEECH))
        await leech.get(version, seed)
        version.assert_at(leech.out)


async def test_leeches_do_not_help_each_other(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = make_version({"w": noise("both", 60 * BLOCK)})
    async with open_lab(tmp_path) as lab:
        seed, one, two = await lab.node(), await lab.node(), await lab.node()
        await seed.publish(version)
        for leech in (one, two):
            change(leech, Rules(node=Role.LEECH))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.get, version, seed, two)
            nursery.start_soon(two.get, version, seed, one)
        for leech in (one, two):
            version.assert_at(leech.out)
            assert sent(leech) == 0
        assert sent(seed) >= 2 * 60 * BLOCK


async def test_a_role_for_one_model(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The other model is served, and what both share goes out with it."""
    shared = noise("shared", 4 * BLOCK)
    hidden = make_version({"w": shared + noise("hidden", 6 * BLOCK)}, name="hidden")
    shown = make_version({"w": shared + noise("shown", 6 * BLOCK)}, name="shown", number=2)
    async with open_lab(tmp_path, **SOON) as lab:
        seed, leech = await lab.node(), await lab.node()
        for version in (hidden, shown):
            await seed.publish(version)
        publisher = hidden.manifest.publisher
        change(seed, Rules(models={(publisher, "hidden"): Role.LEECH}))
        await leech.get(shown, seed)
        shown.assert_at(leech.out)
        before = sent(seed)
        await fails(leech, hidden, seed)
        assert sent(seed) == before
        # whoever knows the document and the tree already gets no block of it either
        other = await lab.node()
        other.have(hidden, [], "out")
        await fails(other, hidden, seed)
        assert sent(seed) - before <= 4 * BLOCK, "what both share may go out"


async def test_a_role_for_one_root(tmp_path: Path, autojump_clock: MockClock) -> None:
    first, second = small_version(10), small_version(10, number=2)
    async with open_lab(tmp_path, **SOON) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(first)
        await seed.publish(second)
        change(seed, Rules(node=Role.LEECH, roots={second.manifest.root: Role.SEED}))
        await leech.get(second, seed)
        second.assert_at(leech.out)
        await fails(leech, first, seed)


async def test_a_role_for_a_namespace(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(10)
    publisher = version.manifest.publisher
    async with open_lab(tmp_path, **SOON) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        change(seed, Rules(namespaces={publisher: Role.LEECH}))
        await fails(leech, version, seed)
        assert sent(seed) == 0
        change(seed, Rules(node=Role.OFFLINE, namespaces={publisher: Role.PEER}))
        await leech.get(version, seed)
        # and on the asking side: known once the document has come
        third = await lab.node()
        change(third, Rules(namespaces={publisher: Role.SEED}))
        with pytest.raises(ConfigError, match="role"):
            await third.get(version, seed)
        assert third.swarm.statistics().bytes_received < 10 * BLOCK


async def test_a_role_for_a_peer(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(20)
    async with open_lab(tmp_path, **SOON) as lab:
        seed, friend, other = await lab.node(), await lab.node(), await lab.node()
        await seed.publish(version)
        change(seed, Rules(node=Role.LEECH, peers={friend.key.peer_id: Role.SEED}))
        await friend.get(version, seed)
        version.assert_at(friend.out)
        before = sent(seed)
        await fails(other, version, seed)
        assert sent(seed) == before
        # the other way about: who asks may have peers that it does not ask
        change(other, Rules(peers={friend.key.peer_id: Role.SEED}))
        why = await fails(other, version, friend)
        assert sent(friend) == 0
        assert "role" in why


async def test_a_member_that_may_only_send_is_sent_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(20)
    async with open_lab(tmp_path, **SOON) as lab:
        seed, other = await lab.node(), await lab.node()
        await seed.publish(version)
        seed.swarm.roles.limit(other.key.peer_id, Role.SEED)
        await fails(other, version, seed)
        assert sent(seed) == 0


async def test_offline_to_a_peer_has_no_connection_with_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_lab(tmp_path) as lab:
        one, two = await lab.node(), await lab.node()
        await one.swarm.connect(two.addresses)
        change(two, Rules(peers={one.key.peer_id: Role.OFFLINE}))
        await trio.sleep(1)
        assert not one.swarm.peers()
        with pytest.raises(PeerUnreachableError, match="offline"):
            await two.swarm.connect(one.addresses)
        change(two, Rules())
        await two.swarm.connect(one.addresses)


# -- changed while streams are open ----------------------------------------------------------------


async def started(lab_nodes: tuple[LabNode, LabNode], nursery: trio.Nursery) -> Version:
    """Begin a fetch that takes 15 s, and return when it is on its way."""
    seed, leech = lab_nodes
    version = make_version({"w": noise("long", 300 * BLOCK)})
    await seed.publish(version)
    seed.swarm.limits.change(LimitsConfig(upload_bytes_s=20 * BLOCK))
    nursery.start_soon(leech.get, version, seed)
    await trio.sleep(3)
    assert sent(seed) > 20 * BLOCK
    return version


@pytest.mark.parametrize("role", [Role.LEECH, Role.OFFLINE])
async def test_sending_stops_at_once_and_goes_on(
    tmp_path: Path, autojump_clock: MockClock, role: Role
) -> None:
    async with open_lab(tmp_path) as lab:
        nodes = (await lab.node(), await lab.node())
        async with trio.open_nursery() as nursery:
            version = await started(nodes, nursery)
            change(nodes[0], Rules(node=role))
            await trio.sleep(1.5)
            before = sent(nodes[0])
            await trio.sleep(5)
            assert sent(nodes[0]) == before
            change(nodes[0], Rules())
        version.assert_at(nodes[1].out)


async def test_one_model_stops_at_once_and_goes_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_lab(tmp_path) as lab:
        nodes = (await lab.node(), await lab.node())
        seed = nodes[0]
        async with trio.open_nursery() as nursery:
            version = await started(nodes, nursery)
            change(seed, Rules(roots={version.manifest.root: Role.LEECH}))
            await trio.sleep(1)
            before = sent(seed)
            await trio.sleep(5)
            assert sent(seed) == before
            assert nodes[1].swarm.peers(), "the stream stays"
            change(seed, Rules())
        version.assert_at(nodes[1].out)


async def test_asking_stops_at_once_and_goes_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_lab(tmp_path) as lab:
        nodes = (await lab.node(), await lab.node())
        async with trio.open_nursery() as nursery:
            version = await started(nodes, nursery)
            change(nodes[1], Rules(node=Role.SEED))
            await trio.sleep(1)
            before = sent(nodes[0])
            await trio.sleep(5)
            assert sent(nodes[0]) == before
            change(nodes[1], Rules())
        version.assert_at(nodes[1].out)


async def test_asking_that_stays_stopped_ends_with_a_reason(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = make_version({"w": noise("long", 300 * BLOCK)})
    async with open_lab(tmp_path, **SOON) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        seed.swarm.limits.change(LimitsConfig(upload_bytes_s=20 * BLOCK))

        async def later() -> None:
            await trio.sleep(3)
            change(leech, replace(Rules(), node=Role.SEED))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            with pytest.raises((PeerUnreachableError, NotFoundError), match="role"):
                await leech.get(version, seed)

"""Membership, roles and messages of a namespace, between nodes of a virtual network."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.config import DhtConfig, DiscoveryConfig, NodeConfig
from sbp2p.errors import ConfigError, PeerUnreachableError
from sbp2p.namespace import PeerJoined, PeerLeft, RoleChanged
from sbp2p.roles import Role
from sbp2p.testing import VirtualNetwork, run_virtual
from sbp2p_protocol.limits import NAMESPACE_DATA_MAX

if TYPE_CHECKING:
    from sbp2p.namespace import Namespace
    from sbp2p.testing import VirtualNode

ALONE = NodeConfig(dht=DhtConfig(enabled=False), discovery=DiscoveryConfig(enabled=False))


async def nodes(network: VirtualNetwork, count: int) -> list[VirtualNode]:
    return [await network.add_node(f"n{number}", config=ALONE) for number in range(count)]


async def enter(stack: AsyncExitStack, node: VirtualNode, **options: object) -> Namespace:
    return await stack.enter_async_context(node.namespace("digits", **options))  # type: ignore[arg-type]


def test_members_lead_to_each_other() -> None:
    async def main(network: VirtualNetwork) -> None:
        everybody = await nodes(network, 6)
        async with AsyncExitStack() as stack:
            first = await enter(stack, everybody[0])
            others = [
                await enter(stack, node, peers=[everybody[0].address]) for node in everybody[1:]
            ]
            for namespace in (first, *others):
                found = await namespace.wait_for_peers(5, timeout_s=60)
                assert [each.role for each in found] == [Role.PEER] * 5
                assert namespace.peer_id not in {each.peer_id for each in found}
            assert trio.current_time() < 10

    run_virtual(main)


def test_two_that_ask_each_other_at_once_end_up_with_one_link() -> None:
    async def main(network: VirtualNetwork) -> None:
        one, other = await nodes(network, 2)
        async with AsyncExitStack() as stack:
            here = await enter(stack, one, peers=[other.address])
            there = await enter(stack, other, peers=[one.address])
            await here.wait_for_peers([there.peer_id], timeout_s=30)
            await there.wait_for_peers([here.peer_id], timeout_s=30)
            await trio.sleep(60)
            assert len(here.members) == len(there.members) == 1
            await here.send_to(there.peer_id, b"still here")
            assert (await there.receive()).data == b"still here"

    for seed in range(5):
        run_virtual(main, seed=seed)


def test_events_tell_who_comes_who_goes_and_what_they_do() -> None:
    async def main(network: VirtualNetwork) -> None:
        one, other, third = await nodes(network, 3)

        async with AsyncExitStack() as stack:
            here = await enter(stack, one)
            events = here.events()
            async with AsyncExitStack() as inner:
                there = await enter(inner, other, peers=[one.address])
                await enter(inner, third, peers=[one.address], role="leech")
                await here.wait_for_peers(2)
                there.change_role("seed", peer=one.peer_id)
                await trio.sleep(1)
            await trio.sleep(1)
        seen = [event async for event in events]
        assert set(seen[:2]) == {
            PeerJoined(other.peer_id, Role.PEER),
            PeerJoined(third.peer_id, Role.LEECH),
        }
        assert seen[2] == RoleChanged(other.peer_id, Role.SEED)
        assert {each.peer_id for each in seen[3:]} == {other.peer_id, third.peer_id}
        assert all(isinstance(each, PeerLeft) for each in seen[3:])
        assert here.members == ()

    run_virtual(main)


def test_a_killed_member_is_missed_at_once_and_found_again() -> None:
    async def main(network: VirtualNetwork) -> None:
        one, other = await nodes(network, 2)
        async with AsyncExitStack() as stack:
            here = await enter(stack, one, peers=[other.address])
            other.start_soon(live_in, other)
            await here.wait_for_peers(1)
            before = trio.current_time()
            await other.kill()
            await trio.sleep(0.2)
            assert here.members == ()
            with pytest.raises(PeerUnreachableError, match="not in the namespace"):
                await here.send_to(other.peer_id, b"x")
            again = await network.add_node("n1", config=ALONE)
            again.start_soon(live_in, again)
            await here.wait_for_peers(1, timeout_s=60)
            assert trio.current_time() - before < 60

    run_virtual(main)


async def live_in(node: VirtualNode) -> None:
    async with node.namespace("digits"):
        await trio.sleep_forever()


def test_messages_come_in_order_and_wait_for_the_reader() -> None:
    async def main(network: VirtualNetwork) -> None:
        one, other = await nodes(network, 2)
        sent: list[int] = []
        async with AsyncExitStack() as stack:
            here = await enter(stack, one, peers=[other.address])
            there = await enter(stack, other)
            await here.wait_for_peers(1)

            async def send() -> None:
                for number in range(12):
                    data = bytes([number]) * (NAMESPACE_DATA_MAX // 2)
                    await here.send_to(there.peer_id, data)
                    sent.append(number)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                await trio.sleep(60)
                assert sent == [0, 1, 2]  # two windows of 1 MiB: no fourth with its overhead
                got = [(await there.receive()).data[0] for _ in range(12)]
                assert got == list(range(12))
        assert sent == list(range(12))

    run_virtual(main)


def test_a_sender_hears_that_the_receiver_is_gone() -> None:
    async def main(network: VirtualNetwork) -> None:
        one, other = await nodes(network, 2)
        async with AsyncExitStack() as stack:
            here = await enter(stack, one, peers=[other.address])
            other.start_soon(live_in, other)
            await here.wait_for_peers(1)
            full = b"x" * NAMESPACE_DATA_MAX
            await here.send_to(other.peer_id, full)
            async with trio.open_nursery() as nursery:

                async def send() -> None:
                    with pytest.raises(PeerUnreachableError, match="left the namespace"):
                        await here.send_to(other.peer_id, full)

                nursery.start_soon(send)
                nursery.start_soon(send)
                await trio.sleep(1)
                await other.kill()
            with pytest.raises(ValueError, match="at most"):
                await here.send_to(other.peer_id, full + b"x")

    run_virtual(main)


def test_a_peer_that_is_filtered_or_offline_is_no_member() -> None:
    async def main(network: VirtualNetwork) -> None:
        one, other, third = await nodes(network, 3)
        async with AsyncExitStack() as stack:
            here = await enter(stack, one, peer_filter=lambda peer: peer != other.peer_id)
            there = await enter(stack, other, peers=[one.address])
            far = await enter(stack, third, peers=[one.address])
            await here.wait_for_peers([third.peer_id])
            await trio.sleep(30)
            assert [each.peer_id for each in here.members] == [third.peer_id]
            assert one.peer_id not in {each.peer_id for each in there.members}
            far.change_role("offline")
            await trio.sleep(5)
            assert here.members == far.members == ()
            far.change_role("peer")
            await here.wait_for_peers(1, timeout_s=60)

    run_virtual(main)


def test_names_and_ids_that_cannot_be_are_refused() -> None:
    async def main(network: VirtualNetwork) -> None:
        (node,) = await nodes(network, 1)
        with pytest.raises(ConfigError, match="cannot name a namespace"):
            async with node.namespace("digits/rounds"):
                pass
        async with node.namespace("digits") as namespace:
            with pytest.raises(ConfigError, match="already"):
                async with node.namespace("digits"):
                    pass
            with pytest.raises(ConfigError, match="no peer id"):
                await namespace.wait_for_peers(["alice"])
            with pytest.raises(PeerUnreachableError, match="0 of 2 members"):
                await namespace.wait_for_peers(2, timeout_s=1)
        async with node.namespace("digits"), node.namespace("letters"):
            pass

    run_virtual(main)


def test_two_namespaces_of_one_pair_are_apart() -> None:
    async def main(network: VirtualNetwork) -> None:
        one, other = await nodes(network, 2)
        async with one.namespace("digits", peers=[other.address]) as here:
            async with one.namespace("letters") as here_too:
                async with other.namespace("digits") as there, other.namespace("letters") as too:
                    for namespace in (here, here_too, there, too):
                        await namespace.wait_for_peers(1, timeout_s=60)
                    await here.send_to(other.peer_id, b"1")
                    await here_too.send_to(other.peer_id, b"a")
                    assert (await too.receive()).data == b"a"
                    assert (await there.receive()).data == b"1"
                await trio.sleep(1)
                assert here.members == here_too.members == ()

    run_virtual(main)


def test_a_member_whose_messages_wait_comes_back_only_when_they_are_read() -> None:
    async def main(network: VirtualNetwork) -> None:
        one, other = await nodes(network, 2)
        async with AsyncExitStack() as stack:
            here = await enter(stack, one)
            full = b"x" * (NAMESPACE_DATA_MAX - 64)
            for number in range(2):
                async with other.namespace("digits", peers=[one.address]) as there:
                    await there.wait_for_peers(1, timeout_s=30)
                    for _ in range(2 - number):
                        await there.send_to(one.peer_id, full)
            async with other.namespace("digits", peers=[one.address]) as there:
                with pytest.raises(PeerUnreachableError) as raised:
                    await there.wait_for_peers(1, timeout_s=30)
                assert "wait to be read" in raised.value.hint
                for _ in range(3):
                    assert (await here.receive()).peer_id == other.peer_id
                await there.wait_for_peers(1, timeout_s=60)

    run_virtual(main)

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sbp2p.errors import ConfigError, PeerUnreachableError
from sbp2p.swarm import (
    DialFailedError,
    Gate,
    PeerConnected,
    PeerDisconnected,
    PeerIdentified,
    open_swarm,
)
from sbp2p.transport import LinkProfile, MemoryNetwork
from sbp2p_protocol.multiaddr import parse_address
from tests.runtime.pair import ECHO, HOLD, KEYS, echo, hold, knobs

if TYPE_CHECKING:
    from trio.testing import MockClock

    from sbp2p.config import NodeConfig
    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p.transport import RawStream
    from sbp2p_protocol.multiaddr import Address


class Town:
    """Swarms in one memory network; the n-th has the n-th key and listens at /memory/n+1."""

    def __init__(self, stack: AsyncExitStack, profile: LinkProfile | None = None) -> None:
        self.network = MemoryNetwork(profile=profile)
        self._stack = stack

    async def add(
        self, number: int, config: NodeConfig | None = None, gate: Gate | None = None
    ) -> Swarm:
        swarm = await self._stack.enter_async_context(
            open_swarm(KEYS[number], config, gate=gate, transports=[self.network])
        )
        swarm.handle(ECHO, echo)
        swarm.handle(HOLD, hold)
        await swarm.listen(at(number))
        return swarm


def at(number: int) -> Address:
    return parse_address(f"/memory/{number + 1}")


async def check_echo(swarm: Swarm, other: Swarm) -> None:
    async with await swarm.open_stream(other.peer_id, [ECHO]) as stream:
        await stream.send_all(b"hello")
        assert await stream.receive_exactly(5) == b"hello"
        await stream.send_eof()


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(3):
        await wait_all_tasks_blocked()


async def test_two_swarms_meet_and_part() -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one, two = await town.add(0), await town.add(1)
        events = two.subscribe()
        connection = await one.connect(two.addresses)
        assert connection.peer_id == two.peer_id
        assert one.peers() == [two.peer_id]
        assert two.addresses[0].text == f"/memory/2/p2p/{two.peer_id}"
        await check_echo(one, two)
        await check_echo(two, one)
        assert await events.receive() == PeerConnected(one.peer_id)
        identified = await events.receive()
        assert isinstance(identified, PeerIdentified)
        await one.disconnect(two.peer_id)
        assert one.peers() == []
        gone = await events.receive()
        assert isinstance(gone, PeerDisconnected)
        assert gone.peer_id == one.peer_id
        assert two.peers() == []


async def test_what_the_block_raises_is_raised_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with open_swarm(KEYS[0], transports=[MemoryNetwork()]):
            raise KeyError
    with trio.CancelScope() as scope:
        async with open_swarm(KEYS[0], transports=[MemoryNetwork()]):
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_leaving_the_block_ends_everything_in_order() -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.add(0)
        async with open_swarm(KEYS[1], transports=[town.network]) as two:
            await two.connect(one.addresses)
            await settle()
            (connection,) = one.connections(two.peer_id)
        await settle()
        assert str(connection.lost) == "the peer closed the connection"
        assert one.peers() == []


async def test_an_open_connection_is_used_again() -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one, two = await town.add(0), await town.add(1)
        first = await one.connect(two.addresses)
        assert await one.connect(two.addresses) is first
        assert await one.connect([at(1)], two.peer_id) is first
        assert one.statistics().dials == 1
        # nobody knows whom this address belongs to until it is dialled
        await one.connect([at(1)])
        assert one.statistics().dials == 2


async def test_callers_share_one_dial(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack, LinkProfile(latency_s=0.1))
        one, two = await town.add(0), await town.add(1)
        found = []

        async def connect() -> None:
            found.append(await one.connect(two.addresses))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(connect)
        assert len(set(map(id, found))) == 1
        assert two.statistics().accepted == 1


async def test_a_shared_dial_outlives_the_caller_who_began_it(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack, LinkProfile(latency_s=0.1))
        one, two = await town.add(0), await town.add(1)
        first = trio.CancelScope()

        async def begin() -> None:
            with first:
                await one.connect(two.addresses)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin)
            await trio.sleep(0.15)
            nursery.start_soon(trio.lowlevel.checkpoint)
            nursery.start_soon(one.connect, two.addresses)
            await trio.sleep(0.05)
            first.cancel()
        assert one.peers() == [two.peer_id]


async def test_a_dial_nobody_waits_for_is_given_up(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack, LinkProfile(latency_s=0.1))
        one, two = await town.add(0), await town.add(1)
        with trio.move_on_after(0.35):
            await one.connect(two.addresses)
        await trio.sleep(10)
        assert one.peers() == two.peers() == []
        await one.connect(two.addresses)


@pytest.mark.parametrize("latency_s", [0.0, 0.05, 0.3])
async def test_both_sides_dial_at_once_and_keep_the_same_one(
    latency_s: float, autojump_clock: MockClock
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack, LinkProfile(latency_s=latency_s))
        one, two = await town.add(0), await town.add(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.connect, two.addresses)
            nursery.start_soon(two.connect, one.addresses)
        await check_echo(one, two)
        await check_echo(two, one)
        await trio.sleep(10)
        (kept_by_one,) = one.connections(two.peer_id)
        (kept_by_two,) = two.connections(one.peer_id)
        assert kept_by_one.local_address == kept_by_two.remote_address
        smaller = min(one.peer_id, two.peer_id)
        assert kept_by_one.initiator == (smaller == one.peer_id)
        await check_echo(one, two)
        await check_echo(two, one)


async def test_a_stream_on_the_superfluous_connection_is_not_cut(
    autojump_clock: MockClock,
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack, LinkProfile(latency_s=0.1))
        one, two = await town.add(0), await town.add(1)
        streams: list[Stream] = []

        async def use(swarm: Swarm, other: Swarm) -> None:
            connection = await swarm.connect(other.addresses)
            streams.append(await connection.open_stream([ECHO]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(use, one, two)
            nursery.start_soon(use, two, one)
        await trio.sleep(30)
        for stream in streams:
            await stream.send_all(b"still")
            assert await stream.receive_exactly(5) == b"still"
            await stream.aclose()
        await trio.sleep(30)
        assert len(one.connections(two.peer_id)) == len(two.connections(one.peer_id)) == 1


async def test_one_identity_in_two_processes_is_two_connections() -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.add(0)
        for _ in range(2):
            twin = await stack.enter_async_context(open_swarm(KEYS[1], transports=[town.network]))
            await twin.connect(one.addresses)
        await settle()
        assert len(one.connections(KEYS[1].peer_id)) == 2
        assert one.peers() == [KEYS[1].peer_id]


async def test_a_peer_may_have_so_many_connections_and_no_more() -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.add(0, knobs(max_connections_per_peer=2))
        twins = []
        for _ in range(3):
            twin = await stack.enter_async_context(open_swarm(KEYS[1], transports=[town.network]))
            twins.append(twin)
            await twin.connect(one.addresses)
        await settle()
        assert len(one.connections(twins[0].peer_id)) == 2
        assert [bool(twin.peers()) for twin in twins] == [True, True, False]


# -- who is let in --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gate",
    [Gate(deny=frozenset([KEYS[0].peer_id])), Gate(allow=frozenset([KEYS[2].peer_id]))],
    ids=["denied", "not allowed"],
)
async def test_a_gated_peer_is_served_nothing(gate: Gate) -> None:
    served: list[object] = []

    async def handler(stream: Stream) -> None:
        served.append(stream)

    async with AsyncExitStack() as stack:
        town = Town(stack)
        one, two = await town.add(0), await town.add(1, gate=gate)
        two.handle("/secret", handler)
        events = one.subscribe()
        await one.connect(two.addresses)
        with pytest.raises(PeerUnreachableError):
            await one.open_stream(two.peer_id, ["/secret"])
        await settle()
        assert one.peers() == two.peers() == []
        assert not served
        assert two.statistics().refused == 1
        kinds = [type(events.receive_nowait()) for _ in range(2)]
        assert kinds == [PeerConnected, PeerDisconnected]  # and never identified
        with pytest.raises(PeerUnreachableError, match=r"list") as caught:
            await two.connect(one.addresses)
        assert "own rules" in caught.value.hint
        assert two.statistics().dials == 0


async def test_the_gate_also_keeps_the_dialler_from_a_peer_it_did_not_expect() -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        await town.add(1)
        one = await town.add(0, gate=Gate(deny=frozenset([KEYS[1].peer_id])))
        with pytest.raises(DialFailedError, match="deny list"):
            await one.connect([at(1)])


async def test_an_allowed_peer_is_let_in() -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        gate = Gate(allow=frozenset([KEYS[0].peer_id]))
        one, two = await town.add(0), await town.add(1, gate=gate)
        await one.connect(two.addresses)
        await check_echo(one, two)


async def test_a_banned_peer_is_cut_off_and_kept_out_for_a_while(
    autojump_clock: MockClock,
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one, two = await town.add(0), await town.add(1, knobs(ban_duration_s=100.0))
        await one.connect(two.addresses)
        await check_echo(one, two)
        two.penalize(one.peer_id, 60, "odd request")
        assert two.peers() == [one.peer_id]
        two.penalize(one.peer_id, 60, "bad block")
        await trio.sleep(1)
        assert one.peers() == two.peers() == []
        await one.connect(two.addresses)
        await trio.sleep(1)
        assert one.peers() == two.peers() == []
        with pytest.raises(PeerUnreachableError, match="banned"):
            await two.connect(one.addresses)
        await trio.sleep(100)
        await one.connect(two.addresses)
        await check_echo(one, two)
        two.penalize(one.peer_id, 1000, "again")
        two.forgive(one.peer_id)
        await trio.sleep(1)
        await two.connect(one.addresses)


async def test_breaking_the_protocol_counts_against_a_peer() -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one, two = await town.add(0), await town.add(1)
        for _ in range(3):
            connection = await one.connect(two.addresses)
            await settle()
            machine = connection._machine
            assert machine._live is not None
            machine._encrypt(machine._live, [b"\xff" * 12])  # sealed, and no yamux frame
            connection._wire.wake()
            await connection.wait_closed()
            await settle()
        with pytest.raises(PeerUnreachableError, match="banned"):
            await two.connect(one.addresses)


@pytest.mark.parametrize("data", [b"\x00\x20" + bytes(32), b"\x00\x03abc"], ids=["seal", "size"])
async def test_what_the_peer_did_not_seal_counts_against_nobody(data: bytes) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one, two = await town.add(0), await town.add(1)
        for _ in range(5):
            connection = await one.connect(two.addresses)
            await settle()
            await connection._wire.raw.send_some([data])  # as somebody on the way could
            await connection.wait_closed()
            await settle()
        await two.connect(one.addresses)
        await check_echo(one, two)


# -- limits ---------------------------------------------------------------------------------


async def test_silent_arrivals_are_few_and_not_for_long(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        two = await town.add(1, knobs(max_half_open=3, upgrade_timeout_s=5.0))
        one = await town.add(0)
        silent: list[RawStream] = [await town.network.connect(at(1)) for _ in range(5)]
        await settle()
        assert two.statistics().half_open == 3
        assert two.statistics().refused == 2
        with pytest.raises(DialFailedError):
            await one.connect(two.addresses)
        await trio.sleep(6)
        assert two.statistics().half_open == 0
        await one.connect(two.addresses)
        for raw in silent:
            raw.abort()


async def test_the_table_has_a_size() -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        hub = await town.add(0, knobs(max_connections=2))
        others = [await town.add(number) for number in range(1, 4)]
        await others[0].connect(hub.addresses)
        await hub.connect(others[1].addresses)
        await settle()
        with pytest.raises(DialFailedError):
            await others[2].connect(hub.addresses)
        with pytest.raises(PeerUnreachableError, match="may have no more") as caught:
            await hub.connect(others[2].addresses)
        assert "max_connections" in caught.value.hint


async def test_a_connection_without_streams_is_closed_in_time(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.add(0, knobs(idle_connection_s=60.0))
        two = await town.add(1, knobs(idle_connection_s=10_000.0))
        await one.connect(two.addresses)
        stream = await one.open_stream(two.peer_id, [HOLD])
        await trio.sleep(200)
        assert one.peers() == [two.peer_id]
        stream.reset()
        await trio.sleep(50)
        assert one.peers() == [two.peer_id]
        await trio.sleep(30)
        assert one.peers() == two.peers() == []


async def test_a_subscriber_that_does_not_read_is_cut_off() -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one, two = await town.add(0), await town.add(1)
        lazy, closed = one.subscribe(), one.subscribe()
        closed.close()
        await one.connect(two.addresses)
        await settle()
        (message,) = [one.identified(two.peer_id)]
        assert message
        for _ in range(1100):
            one._on_identified(two.peer_id, message)
        seen = [event async for event in lazy]
        assert len(seen) == 1024


# -- errors ---------------------------------------------------------------------------------


async def test_each_address_says_why_it_failed(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.add(0, knobs(upgrade_timeout_s=3.0))
        await town.add(2)
        await town.network.listen(at(5))  # accepts, and says nothing
        with pytest.raises(DialFailedError) as caught:
            await one.connect([at(2), at(4), at(5)], KEYS[1].peer_id)
        reasons = {each.address: each.reason for each in caught.value.failures}
        assert str(KEYS[2].peer_id) in reasons[at(2)]
        assert reasons[at(4)] == "connection refused"
        assert "within 3 s" in reasons[at(5)]
        assert "another node" in caught.value.hint
        assert "\n" not in str(caught.value)


async def test_refused_and_silent_hosts_lose_to_the_one_that_answers(
    autojump_clock: MockClock,
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one, two, _three = await town.add(0), await town.add(1), await town.add(2)
        await town.network.listen(at(5))
        started = trio.current_time()
        addresses = [at(5), at(4), at(2), at(1)]
        connection = await one.connect(addresses, two.peer_id)
        assert connection.peer_id == two.peer_id
        assert trio.current_time() - started < 1.0
        assert one.peers() == [two.peer_id]


async def test_a_caller_with_other_addresses_tries_them_after_a_shared_dial_failed(
    autojump_clock: MockClock,
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack, LinkProfile(latency_s=0.1))
        one, two = await town.add(0), await town.add(1)
        failed: list[Exception] = []

        async def hopeless() -> None:
            try:
                await one.connect([at(6)], two.peer_id)
            except DialFailedError as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hopeless)
            await trio.sleep(0.05)
            await one.connect([at(6), at(1)], two.peer_id)
        assert failed
        assert one.statistics().dials == 2


async def test_nonsense_is_refused_before_dialling() -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.add(0)
        mixed = [at(1).with_peer(KEYS[1].peer_id), at(2).with_peer(KEYS[2].peer_id)]
        with pytest.raises(ConfigError, match="different peers"):
            await one.connect(mixed)
        with pytest.raises(PeerUnreachableError, match="this node itself"):
            await one.connect([at(0)])
        with pytest.raises(DialFailedError, match="no address is known"):
            await one.connect([], KEYS[1].peer_id)
        with pytest.raises(PeerUnreachableError, match="no connection"):
            await one.open_stream(KEYS[1].peer_id, [ECHO])
        with pytest.raises(ConfigError, match="no transport"):
            await one.listen(parse_address("/ip4/127.0.0.1/tcp/0"))
        with pytest.raises(ValueError, match="already"):
            one.handle(ECHO, echo)
        with pytest.raises(ValueError, match="slash"):
            one.handle("echo", echo)


async def test_swarms_meet_over_tcp_by_number_and_by_name() -> None:
    async with open_swarm(KEYS[0]) as one, open_swarm(KEYS[1]) as two:
        two.handle(ECHO, echo)
        (address,) = await two.listen(parse_address("/ip4/127.0.0.1/tcp/0"))
        by_name = parse_address(f"/dns4/localhost/tcp/{address.port}/p2p/{two.peer_id}")
        for way in (address, by_name):
            connection = await one.connect([way])
            assert connection.remote_address == address.without_peer()
            await check_echo(one, two)
            await one.disconnect(two.peer_id)
        nobody = parse_address(f"/ip4/127.0.0.1/tcp/1/p2p/{two.peer_id}")
        with pytest.raises(DialFailedError, match="refused") as caught:
            await one.connect([nobody])
        assert "running" in caught.value.hint
        await one.connect([nobody, address])

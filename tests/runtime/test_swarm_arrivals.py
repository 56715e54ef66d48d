"""Many connections from one address, and peers that are refused and come back at once."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from sbp2p.swarm import DialFailedError, Gate, open_swarm
from sbp2p.swarm.arrivals import FORGET_S, Arrivals, origin_of
from sbp2p.transport import MemoryNetwork
from sbp2p_protocol.multiaddr import parse_address
from tests.runtime.pair import ECHO, KEYS, echo, knobs

if TYPE_CHECKING:
    from trio.testing import MockClock

    from sbp2p.config import NodeConfig
    from sbp2p.swarm import Swarm
    from sbp2p_protocol.multiaddr import Address

HUB = parse_address("/memory/1")


class Neighbourhood(MemoryNetwork):
    """A memory network whose dialling ends have the IP address of `host`; so may its listeners."""

    host = "/ip4/198.51.100.7"

    def can_dial(self, address: Address) -> bool:
        return True

    def _free_address(self) -> Address:
        port = super()._free_address().port % 60_000
        return parse_address(f"{self.host}/tcp/{port}")


async def open_hub(
    stack: AsyncExitStack, config: NodeConfig | None = None, gate: Gate | None = None
) -> tuple[Neighbourhood, Swarm]:
    network = Neighbourhood()
    hub = await stack.enter_async_context(
        open_swarm(KEYS[0], config, gate=gate, transports=[network])
    )
    hub.handle(ECHO, echo)
    await hub.listen(HUB)
    return network, hub


async def add(stack: AsyncExitStack, network: Neighbourhood, number: int) -> Swarm:
    swarm = open_swarm(KEYS[number], transports=[network])
    return await stack.enter_async_context(swarm)


async def gets_in(swarm: Swarm, hub: Swarm) -> bool:
    """Dial, and say whether that is a connection that stays."""
    try:
        await swarm.connect([HUB])
    except DialFailedError:
        return False
    await wait_all_tasks_blocked()
    return swarm.peers() == [hub.peer_id]


def make(*, connections_max: int = 9, origins_max: int = 10) -> Arrivals:
    return Arrivals(
        connections_max=connections_max, wait_s=1.0, wait_max_s=32.0, origins_max=origins_max
    )


# -- origins -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("/ip4/203.0.113.9/tcp/1", "203.0.113.9"),
        ("/ip4/127.0.0.1/tcp/1", None),
        ("/ip4/127.9.9.9/tcp/1", None),
        ("/ip6/::1/tcp/1", None),
        ("/memory/7", None),
        ("/ip6/2001:db8:1:2:3:4:5:6/tcp/1", "2001:db8:1:2::/64"),
        ("/ip6/2001:db8:1:2:ffff::/tcp/1", "2001:db8:1:2::/64"),
        ("/ip6/::ffff:203.0.113.9/tcp/1", "203.0.113.9"),
        ("/ip6/::ffff:127.0.0.1/tcp/1", None),
        ("/ip6/fe80::1/tcp/1", "fe80::1"),
    ],
)
def test_who_is_counted_as_one(address: str, origin: str | None) -> None:
    assert origin_of(parse_address(address)) == origin


# -- how many ----------------------------------------------------------------------------------


async def test_one_address_does_not_take_all_places() -> None:
    async with AsyncExitStack() as stack:
        network, hub = await open_hub(stack, knobs(max_connections_per_ip=2))
        first, second, third = [await add(stack, network, number) for number in (1, 2, 3)]
        assert await gets_in(first, hub)
        assert await gets_in(second, hub)
        assert not await gets_in(third, hub)
        assert hub.statistics().refused == 1
        network.host = "/ip4/198.51.100.8"
        assert await gets_in(third, hub)
        network.host = "/ip4/198.51.100.7"
        await first.disconnect(hub.peer_id)
        await wait_all_tasks_blocked()
        assert await gets_in(first, hub), "a connection that ended leaves its place"


async def test_silent_arrivals_count_and_leave_their_places(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        network, hub = await open_hub(stack, knobs(max_connections_per_ip=3, upgrade_timeout_s=5.0))
        silent = [await network.connect(HUB) for _ in range(5)]
        await wait_all_tasks_blocked()
        assert (hub.statistics().half_open, hub.statistics().refused) == (3, 2)
        peer = await add(stack, network, 1)
        assert not await gets_in(peer, hub)
        await trio.sleep(6)
        assert await gets_in(peer, hub)
        for raw in silent:
            raw.abort()


async def test_what_this_node_dials_does_not_count() -> None:
    async with AsyncExitStack() as stack:
        network, hub = await open_hub(stack, knobs(max_connections_per_ip=1))
        there = parse_address("/ip4/198.51.100.7/tcp/9")
        peer, other = await add(stack, network, 1), await add(stack, network, 2)
        await peer.listen(there)
        await hub.connect([there])
        assert await gets_in(other, hub)


@pytest.mark.parametrize("host", ["/ip4/127.0.0.1", "/ip6/::1"])
async def test_this_machine_is_exempt(host: str) -> None:
    async with AsyncExitStack() as stack:
        gate = Gate(deny=frozenset([KEYS[1].peer_id]))
        network, hub = await open_hub(stack, knobs(max_connections_per_ip=1), gate)
        network.host = host
        denied, second, third = [await add(stack, network, number) for number in (1, 2, 3)]
        assert not await gets_in(denied, hub)
        assert await gets_in(second, hub)
        assert await gets_in(third, hub)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans())))
def test_places_are_given_back(steps: list[tuple[str, bool]]) -> None:
    arrivals = make(connections_max=2)
    inside = dict.fromkeys("abc", 0)
    for origin, comes in steps:
        assert (arrivals.refusal(origin, 0.0) is None) == (inside[origin] < 2)
        if comes and inside[origin] < 2:
            arrivals.entered(origin)
            inside[origin] += 1
        elif not comes and inside[origin]:
            arrivals.left(origin)
            inside[origin] -= 1
    assert set(arrivals._connections) == {origin for origin in inside if inside[origin]}


# -- who was refused ---------------------------------------------------------------------------


async def test_a_refused_peer_costs_no_handshake_for_a_while(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        network, hub = await open_hub(stack)
        peer = await add(stack, network, 1)
        assert await gets_in(peer, hub)
        hub.penalize(peer.peer_id, 1000, "a wrong block")
        await trio.sleep(1)
        await peer.connect([HUB])  # the handshake succeeds, and then the peer is refused
        await wait_all_tasks_blocked()
        assert peer.peers() == []
        for _ in range(20):
            with pytest.raises(DialFailedError):
                await peer.connect([HUB])
        assert hub.statistics().half_open == 0
        other = await add(stack, network, 2)
        assert not await gets_in(other, hub), "nobody knows yet that it is another peer"
        await trio.sleep(1.0)
        assert await gets_in(other, hub)


async def test_a_denied_peer_elsewhere_delays_nobody() -> None:
    async with AsyncExitStack() as stack:
        gate = Gate(deny=frozenset([KEYS[1].peer_id]))
        network, hub = await open_hub(stack, gate=gate)
        denied, other = await add(stack, network, 1), await add(stack, network, 2)
        assert not await gets_in(denied, hub)
        network.host = "/ip4/198.51.100.8"
        assert await gets_in(other, hub)


def test_the_wait_doubles_up_to_a_bound_and_is_forgotten() -> None:
    arrivals = make()
    now, waits = 0.0, []
    for _ in range(8):
        arrivals.turned_away("a", now)
        ends = now + next(s for s in range(1, 100) if arrivals.refusal("a", now + s) is None)
        waits.append(ends - now)
        now = ends
    assert waits == [1, 2, 4, 8, 16, 32, 32, 32]
    assert arrivals.refusal("b", now) is None
    now += FORGET_S
    arrivals.turned_away("a", now)
    assert arrivals.refusal("a", now + 1.0) is None


@given(st.lists(st.integers(0, 50), max_size=200))
def test_few_origins_are_remembered_and_the_latest_are(numbers: list[int]) -> None:
    arrivals = make(origins_max=5)
    for now, number in enumerate(numbers):
        arrivals.turned_away(str(number), now / 1000)
    assert len(arrivals._refused) <= 5
    latest = list(dict.fromkeys(str(number) for number in reversed(numbers)))[:5]
    assert set(arrivals._refused) == set(latest)

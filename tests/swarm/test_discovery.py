"""The discovery driver: candidates dialled politely, peers remembered, reachability found out."""

from __future__ import annotations

import os
import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sbp2p.calls import InlineCalls
from sbp2p.config import DiscoveryConfig, NodeConfig
from sbp2p.discovery import Candidate, Origin, Reachability, open_discovery
from sbp2p.discovery.autonat import ask_to_dial_back
from sbp2p.discovery.discovery import parse_bootstrap
from sbp2p.discovery.remembered import RememberedPeers
from sbp2p.errors import ConfigError
from sbp2p.ping import serve_ping
from sbp2p.swarm import Gate, open_swarm
from sbp2p.transport import MemoryNetwork
from sbp2p_protocol.autonat import DialStatus
from sbp2p_protocol.multiaddr import Address, parse_address
from tests.runtime.pair import KEYS, echo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trio.testing import MockClock

    from sbp2p.discovery import Discovery
    from sbp2p.swarm import Swarm

LOOPBACK = parse_address("/ip4/127.0.0.1/tcp/0")
QUIET = DiscoveryConfig(autonat=False)


class Town:
    """Swarms in one memory network; the n-th has the n-th key and listens at /memory/n+1."""

    def __init__(self, stack: AsyncExitStack, network: MemoryNetwork | None = None) -> None:
        self.network = network or MemoryNetwork()
        self._stack = stack

    async def swarm(self, number: int, gate: Gate | None = None) -> Swarm:
        swarm = await self._stack.enter_async_context(
            open_swarm(KEYS[number], gate=gate, transports=[self.network])
        )
        serve_ping(swarm)
        await swarm.listen(at(number))
        return swarm

    @asynccontextmanager
    async def discovery(
        self, swarm: Swarm, config: DiscoveryConfig = QUIET, home: Path | None = None
    ) -> AsyncIterator[Discovery]:
        async with open_discovery(
            swarm,
            config,
            home=home,
            calls=InlineCalls(),
            rng=random.Random(1),  # noqa: S311
            wall_clock=lambda: 1e9 + trio.current_time(),
        ) as discovery:
            yield discovery


def at(number: int) -> Address:
    return parse_address(f"/memory/{number + 1}")


def candidate(number: int, origin: Origin = Origin.DHT) -> Candidate:
    return Candidate(KEYS[number].peer_id, (at(number),), origin)


async def connected_to(swarm: Swarm, number: int) -> None:
    with swarm.subscribe() as events, trio.fail_after(1000):
        while KEYS[number].peer_id not in swarm.peers():
            await events.receive()


async def test_bootstrap_peers_are_dialled_at_the_start(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.swarm(0)
        await town.swarm(1)
        address = at(1).with_peer(KEYS[1].peer_id).text
        async with town.discovery(one, replace(QUIET, bootstrap=(address,))) as discovery:
            await connected_to(one, 1)
            assert await discovery.wait_connected(1.0)
            assert [each.origin for each in discovery.known()] == [Origin.BOOTSTRAP]


async def test_a_bootstrap_peer_that_comes_later_is_found_by_waiting(
    autojump_clock: MockClock,
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.swarm(0)
        address = at(1).with_peer(KEYS[1].peer_id).text
        config = replace(QUIET, bootstrap=(address,))
        async with town.discovery(one, config) as discovery, AsyncExitStack() as later:
            assert not await discovery.wait_connected(60.0)
            (reason,) = discovery.failures().values()
            assert "/memory/2" in reason
            dials = one.statistics().dials
            assert 3 <= dials <= 5  # 5, 10, 20, 40 s apart, and half as much again
            await Town(later, town.network).swarm(1)
            await connected_to(one, 1)
            await wait_all_tasks_blocked()
            assert discovery.failures() == {}


async def test_as_many_connections_as_are_wanted_and_no_more(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.swarm(0)
        for number in range(1, 6):
            await town.swarm(number)
        async with town.discovery(one, replace(QUIET, wanted_connections=3)) as discovery:
            for number in range(1, 6):
                discovery.offer(candidate(number))
            await trio.sleep(600)
            assert len(one.peers()) == 3
            assert one.statistics().dials == 3  # kept open by pings, past the time of idle ones
            await one.disconnect(one.peers()[0])
            await trio.sleep(60)
            assert len(one.peers()) == 3


async def test_who_turns_us_away_is_not_dialled_at_once_again(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.swarm(0)
        await town.swarm(1, Gate(allow=frozenset()))
        async with town.discovery(one, replace(QUIET, wanted_connections=1)) as discovery:
            discovery.offer(candidate(1))
            await trio.sleep(60)
            assert one.peers() == []
            assert one.statistics().dials <= 5


async def test_candidates_are_heard_of_once_and_the_channel_is_bounded(
    autojump_clock: MockClock,
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.swarm(0)
        async with town.discovery(one) as discovery:
            channel = discovery.subscribe()
            for _ in range(3):
                discovery.offer(candidate(1))
            discovery.offer(candidate(1, Origin.LAN))
            assert (await channel.receive()).origin is Origin.DHT
            assert (await channel.receive()).origin is Origin.LAN
            for port in range(1, 200):
                other = (parse_address(f"/ip4/10.0.0.1/tcp/{port}"),)
                discovery.offer(Candidate(KEYS[2].peer_id, other, Origin.DHT))
            assert channel.statistics().current_buffer_used == 64
            channel.close()
            discovery.offer(candidate(3))
            assert len(discovery.known(Origin.DHT)) == 2
            assert len(discovery.known()) == 3
            last = discovery.subscribe()
        with pytest.raises(trio.EndOfChannel):
            await last.receive()


async def test_peers_that_worked_are_known_the_next_time(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one, two = await town.swarm(0), await town.swarm(1)
        await town.swarm(2)
        async with town.discovery(one, home=tmp_path) as discovery:
            assert discovery.known() == []
            await one.connect([at(1)], KEYS[1].peer_id)  # whoever dials: it is remembered
            await trio.sleep(1)
        await one.disconnect(KEYS[1].peer_id)
        config = replace(QUIET, wanted_connections=8)
        async with town.discovery(one, config, home=tmp_path) as discovery:
            assert [each.origin for each in discovery.known()] == [Origin.REMEMBERED]
            await connected_to(one, 1)
        # who dialled us is not remembered: we do not know that it can be dialled
        async with town.discovery(two, home=tmp_path / "..") as discovery:
            assert discovery.known() == []


async def test_a_peer_that_pushes_does_not_count_as_more_successes(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one, two = await town.swarm(0), await town.swarm(1)
        async with town.discovery(one, home=tmp_path):
            await one.connect([at(1)], KEYS[1].peer_id)
            for number in range(5):
                two.handle(f"/test/{number}", echo)
                await trio.sleep(1)
    with RememberedPeers(tmp_path, keep_s=1e6, busy_timeout_s=1.0) as peers:
        assert [each.score for each in peers.all(1e9)] == [1]


async def test_peers_that_went_away_are_forgotten(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.swarm(0)
        async with open_swarm(KEYS[1], transports=[town.network]) as two:
            await two.listen(at(1))
            async with town.discovery(one, home=tmp_path):
                await one.connect([at(1)], KEYS[1].peer_id)
                await trio.sleep(1)
        config = replace(QUIET, wanted_connections=8)
        async with town.discovery(one, config, home=tmp_path) as discovery:
            assert len(discovery.known()) == 1
            await trio.sleep(60)
        async with town.discovery(one, config, home=tmp_path) as discovery:
            assert discovery.known() == []


async def test_a_home_that_cannot_be_written_costs_memory_only(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.swarm(0)
        async with town.discovery(one, home=tmp_path / "nowhere") as discovery:
            discovery.offer(candidate(1))
            assert len(discovery.known()) == 1


@pytest.mark.parametrize(
    "text", ["nonsense", "/ip4/1.2.3.4/tcp/1", f"/ip4/1.2.3.4/udp/1/quic-v1/p2p/{KEYS[0].peer_id}"]
)
def test_what_is_no_bootstrap_address_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match="bootstrap"):
        parse_bootstrap([text])
    assert parse_bootstrap(["", "  "]) == []


# -- reachability, over real TCP -------------------------------------------------------------------

FAST = DiscoveryConfig(
    dial_back_private=True, autonat_answers_min=2, autonat_settle_s=0.0, autonat_ask_s=0.05
)


@asynccontextmanager
async def reachable_swarm(
    number: int, config: DiscoveryConfig = FAST
) -> AsyncIterator[tuple[Swarm, Discovery]]:
    async with open_swarm(KEYS[number]) as swarm:
        await swarm.listen(LOOPBACK)
        async with open_discovery(swarm, config) as discovery:
            yield swarm, discovery


async def state_becomes(discovery: Discovery, state: Reachability) -> None:
    reached = trio.Event()
    discovery.on_reachability(lambda now: reached.set() if now is state else None)
    with trio.fail_after(10):
        await reached.wait()
    assert discovery.reachability is state


async def test_peers_dial_us_back(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        one, discovery = await stack.enter_async_context(reachable_swarm(0))
        others = [await stack.enter_async_context(reachable_swarm(n)) for n in (1, 2)]
        assert discovery.reachability is Reachability.UNKNOWN
        for other, _ in others:
            await one.connect(other.addresses)
        await state_becomes(discovery, Reachability.REACHABLE)
        assert "ok" in discovery.reachability_reason
        # who was dialled by us without asking knows it at once
        assert all(each.reachability is Reachability.REACHABLE for _, each in others)
        assert len(one.peers()) == 2


async def test_where_nothing_answers_we_are_unreachable() -> None:
    async with AsyncExitStack() as stack:
        one, discovery = await stack.enter_async_context(reachable_swarm(0))
        (listener,) = one._listeners
        listener.close()  # as behind a firewall: it believes that it listens
        for number in (1, 2):
            other, _ = await stack.enter_async_context(reachable_swarm(number))
            await one.connect(other.addresses)
        await state_becomes(discovery, Reachability.UNREACHABLE)
        assert "dial_error" in discovery.reachability_reason
        assert one.own_addresses.unreachable


async def test_who_does_not_listen_is_unreachable() -> None:
    async with open_swarm(KEYS[0]) as swarm, open_discovery(swarm, FAST) as discovery:
        await state_becomes(discovery, Reachability.UNREACHABLE)
        assert not swarm.own_addresses.unreachable
        await swarm.listen(LOOPBACK)
        await state_becomes(discovery, Reachability.UNKNOWN)


async def test_without_asking_an_arrival_still_tells() -> None:
    async with AsyncExitStack() as stack:
        one, discovery = await stack.enter_async_context(reachable_swarm(0, QUIET))
        two, _ = await stack.enter_async_context(reachable_swarm(1, QUIET))
        states: list[Reachability] = []
        discovery.on_reachability(states.append)
        await two.connect(one.addresses)
        await state_becomes(discovery, Reachability.REACHABLE)
        assert states == [Reachability.UNKNOWN, Reachability.REACHABLE]


async def test_private_peers_are_not_dialled_back_unless_the_owner_says_so() -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(open_swarm(KEYS[0]))
        (own,) = await one.listen(LOOPBACK)
        careful, _ = await stack.enter_async_context(reachable_swarm(1, DiscoveryConfig()))
        await one.connect(careful.addresses)
        answer = await ask_to_dial_back(one, careful.peer_id, [own], 5.0)
        assert answer.status is DialStatus.DIAL_REFUSED
        other, _ = await stack.enter_async_context(reachable_swarm(2))
        await one.connect(other.addresses)
        answer = await ask_to_dial_back(one, other.peer_id, [own], 5.0)
        assert (answer.status, answer.address) == (DialStatus.OK, own.without_peer())
        # somebody else's port there does not answer with our key
        answer = await ask_to_dial_back(one, other.peer_id, [careful.addresses[0]], 5.0)
        assert answer.status is DialStatus.DIAL_ERROR
        for _ in range(2):
            answer = await ask_to_dial_back(one, other.peer_id, [own], 5.0)
        assert answer.status is DialStatus.DIAL_REFUSED
        assert "too many" in answer.text


async def test_a_node_config_has_it_off_where_it_would_surprise() -> None:
    config = NodeConfig().discovery
    assert not config.lan
    assert config.wanted_connections == 0


async def test_one_candidate_is_tried_when_somebody_needs_it(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.swarm(0)
        await town.swarm(1)
        async with town.discovery(one) as discovery:
            assert not await discovery.attempt(candidate(2))
            assert not await discovery.attempt(candidate(2))  # not at once again
            assert one.statistics().dials == 1
            with trio.fail_after(1):
                await discovery.wait_tried()  # everybody known was tried in vain
            assert await discovery.attempt(candidate(1))
            assert await discovery.attempt(candidate(1))
            assert one.statistics().dials == 2
            with trio.fail_after(1):
                await discovery.wait_tried()


async def test_what_is_not_tried_yet_is_waited_for(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.swarm(0)
        async with town.discovery(one) as discovery, trio.open_nursery() as nursery:
            discovery.offer(candidate(2))
            with trio.move_on_after(5) as scope:
                await discovery.wait_tried()
            assert scope.cancelled_caught
            nursery.start_soon(discovery.attempt, candidate(2))
            with trio.fail_after(1):
                await discovery.wait_tried()


async def test_it_can_be_off_altogether(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        town = Town(stack)
        one = await town.swarm(0)
        config = replace(DiscoveryConfig(), enabled=False, lan=True)
        async with town.discovery(one, config, home=tmp_path) as discovery:
            assert discovery.lan is None
            assert discovery.known() == []
        assert not os.listdir(tmp_path)  # noqa: PTH208  (nothing that waits for a disk)

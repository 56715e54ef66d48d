"""Addresses of a node over real TCP: wildcards spelled out, observations confirmed and pushed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

import trio

from sbp2p.config import NodeConfig
from sbp2p.swarm import PeerIdentified, open_swarm
from sbp2p.transport.interfaces import interfaces, reachable_hosts
from sbp2p_protocol.multiaddr import Address, parse_address
from tests.runtime.pair import KEYS

LOOPBACK = parse_address("/ip4/127.0.0.1/tcp/0")


def at(host: str, port: int) -> Address:
    return parse_address(f"/ip4/{host}/tcp/{port}")


async def test_a_wildcard_is_spelled_out() -> None:
    async with open_swarm(KEYS[0]) as swarm:
        await swarm.listen(parse_address("/ip4/0.0.0.0/tcp/0"))
        hosts = [each.host for each in swarm.addresses]
        assert hosts[0] == "127.0.0.1"
        assert "0.0.0.0" not in hosts  # noqa: S104
        assert set(reachable_hosts(4)[:8]) <= set(hosts)
        announced = [each.host for each in swarm.announced_addresses()]
        assert set(announced) == set(hosts[1:] or hosts)


def test_interfaces_have_addresses() -> None:
    found = interfaces()
    assert any(each.is_loopback and "127.0.0.1" in each.hosts for each in found)
    assert all(each.index > 0 and each.hosts for each in found)
    assert not {"127.0.0.1", "::1"} & {*reachable_hosts(4), *reachable_hosts(6)}


async def test_what_four_peers_see_is_announced_and_pushed_to_them() -> None:
    config = NodeConfig()
    config = replace(config, swarm=replace(config.swarm, observers_min=3))
    async with AsyncExitStack() as stack:
        # this one listens on 127.0.0.1 alone and is dialled there through another address
        one = await stack.enter_async_context(open_swarm(KEYS[0], config))
        (own,) = await one.listen(LOOPBACK)
        others = [await stack.enter_async_context(open_swarm(key)) for key in KEYS[1:4]]
        events = others[0].subscribe()
        for other in others:
            await other.connect([own])
        seen = at("127.0.0.7", own.port)
        for other in others:
            (connection,) = one.connections(other.peer_id)
            assert connection.remote_address.host == "127.0.0.1"
            one._on_observed(connection, seen)
        assert one.own_addresses.confirmed == (seen,)
        assert one.announced_addresses() == (seen.with_peer(one.peer_id), own)
        with trio.fail_after(5):
            while True:
                event = await events.receive()
                if isinstance(event, PeerIdentified) and seen in event.message.addresses:
                    break


async def test_an_unreachable_node_announces_no_public_address() -> None:
    async with open_swarm(KEYS[0]) as swarm:
        await swarm.listen(LOOPBACK)
        swarm.own_addresses.confirmed = (at("1.2.3.4", 4801),)
        assert [each.host for each in swarm.announced_addresses()] == ["1.2.3.4"]
        swarm.own_addresses.unreachable = True
        assert swarm.announced_addresses() == ()

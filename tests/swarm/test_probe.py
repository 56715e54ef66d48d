"""A look at an address: who is there, without leaving anything behind."""

from __future__ import annotations

import pytest
from trio.testing import wait_all_tasks_blocked

from sbp2p.swarm import Gate, open_swarm
from sbp2p.transport import DialError
from sbp2p_protocol.multiaddr import parse_address
from tests.runtime.pair import KEYS

LOOPBACK = parse_address("/ip4/127.0.0.1/tcp/0")


async def test_a_look_tells_who_is_there_and_leaves_no_connection() -> None:
    async with open_swarm(KEYS[0]) as one, open_swarm(KEYS[1]) as two:
        (address,) = await two.listen(LOOPBACK)
        assert await one.probe(address) == two.peer_id
        assert await one.probe(address.without_peer()) == two.peer_id
        named = parse_address(f"/dns4/localhost/tcp/{address.port}")
        assert await one.probe(named, two.peer_id) == two.peer_id
        await wait_all_tasks_blocked()
        assert one.peers() == []
        assert one.statistics().dials == 0
        # whoever is connected already is looked at all the same
        connection = await one.connect([address])
        assert await one.probe(address) == two.peer_id
        assert connection.is_open


async def test_what_is_not_there_is_said() -> None:
    stranger = KEYS[2].peer_id
    async with open_swarm(KEYS[0]) as one, open_swarm(KEYS[1]) as two:
        (address,) = await two.listen(LOOPBACK)
        with pytest.raises(DialError, match=str(two.peer_id)):
            await one.probe(address.without_peer(), stranger)
        with pytest.raises(DialError, match="no transport"):
            await one.probe(parse_address("/memory/5"))
    async with open_swarm(KEYS[0]) as one:
        with pytest.raises(DialError, match="refused"):
            await one.probe(address)


async def test_a_gate_is_no_secret_to_a_look() -> None:
    """The id is proved before the gate is asked; what it answers is what a connection finds out."""
    gate = Gate(allow=frozenset())
    async with open_swarm(KEYS[0]) as one, open_swarm(KEYS[1], gate=gate) as two:
        (address,) = await two.listen(LOOPBACK)
        assert await one.probe(address) == two.peer_id
        assert two.peers() == []

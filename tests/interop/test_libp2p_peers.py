"""js-libp2p and py-libp2p dial us and we dial them: ping, identify, perf, echo, abrupt ends.

Neither package knows sbp2p; both speak it because it is libp2p.
"""

from __future__ import annotations

import hashlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sbp2p.errors import PeerUnreachableError
from sbp2p.perf import measure_bandwidth, serve_perf
from sbp2p.ping import ping, serve_ping
from sbp2p.swarm import PeerDisconnected, open_swarm
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.limits import YAMUX_BASE_WINDOW
from sbp2p_protocol.multiaddr import parse_address
from tests.interop.peer_process import PeerProcess, open_peer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm

pytestmark = pytest.mark.interop

MIB = 1024 * 1024
ECHO = "/echo/1.0.0"
ECHO_BYTES = 64 * MIB
LOOPBACK = parse_address("/ip4/127.0.0.1/tcp/0")

both = pytest.mark.parametrize("kind", ["js", "py"])


async def serve_echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)
    await stream.send_eof()


@asynccontextmanager
async def open_pair(kind: str) -> AsyncIterator[tuple[PeerProcess, Swarm, str]]:
    """A foreign node and ours, listening; the address is ours, for the other to dial."""
    with trio.fail_after(120):
        async with open_peer(kind) as peer, open_swarm(PrivateKey.generate()) as swarm:
            serve_ping(swarm)
            serve_perf(swarm)
            swarm.handle(ECHO, serve_echo)
            address = (await swarm.listen(LOOPBACK))[0]
            yield peer, swarm, address.text


@both
async def test_they_dial_us(kind: str) -> None:
    async with open_pair(kind) as (peer, swarm, address):
        assert (await peer.do("ping", address=address))["ms"] >= 0
        assert [str(each) for each in swarm.peers()] == [peer.peer]
        said = await peer.do("identify", address=address)
        assert said["agent"].startswith("sbp2p/")
        assert {"/ipfs/id/1.0.0", "/ipfs/ping/1.0.0", "/perf/1.0.0", ECHO} <= set(said["protocols"])
        assert said["addresses"] == [swarm.addresses[0].without_peer().text]
        assert said["signed"]
        answer = await peer.do("perf", address=address, upload=8 * MIB, download=8 * MIB)
        assert answer["received"] == 8 * MIB


@both
async def test_they_echo_through_us(kind: str) -> None:
    async with open_pair(kind) as (peer, _, address):
        answer = await peer.do("echo", address=address, bytes=ECHO_BYTES)
        assert answer == {"bytes": ECHO_BYTES, "equal": True}


@both
async def test_we_dial_them(kind: str) -> None:
    async with open_pair(kind) as (peer, swarm, _):
        connection = await swarm.connect([peer.address])
        assert str(connection.peer_id) == peer.peer
        assert connection.security == "/noise"  # they have no other suite
        assert len(await ping(connection, 3, 0)) == 3
        events = swarm.subscribe()
        while (said := swarm.identified(connection.peer_id)) is None:
            await events.receive()
        assert said.agent_version is not None
        assert said.agent_version.startswith(f"{kind}-libp2p/")
        assert ECHO in said.protocols
        result = await measure_bandwidth(connection, 8 * MIB, 8 * MIB)
        assert result.download_bytes == 8 * MIB


@both
async def test_we_echo_through_them_with_backpressure(kind: str) -> None:
    async with open_pair(kind) as (peer, swarm, _):
        connection = await swarm.connect([peer.address])
        stream = await connection.open_stream([ECHO])
        sent, received = hashlib.sha256(), hashlib.sha256()

        async def send() -> None:
            for number in range(ECHO_BYTES // MIB):
                data = number.to_bytes(8, "big") * (MIB // 8)
                sent.update(data)
                await stream.send_all(data)
            await stream.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            # Nobody reads: the echo must come to a halt, with no more than a window of it here.
            await wait_all_tasks_blocked(cushion=0.3)
            held = 0
            while stream.has_data:
                data = await stream.receive_some()
                received.update(data)
                held += len(data)
            assert held <= YAMUX_BASE_WINDOW
            total = held
            while data := await stream.receive_some():
                received.update(data)
                total += len(data)
        assert total == ECHO_BYTES
        assert sent.digest() == received.digest()


@both
async def test_they_vanish_while_we_use_a_stream(kind: str) -> None:
    async with open_pair(kind) as (peer, swarm, _):
        connection = await swarm.connect([peer.address])
        stream = await connection.open_stream([ECHO])
        await stream.send_all(b"x" * 1000)
        assert await stream.receive_exactly(1000) == b"x" * 1000
        await peer.do("dropall")
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_exactly(1)
        await connection.wait_closed()
        assert swarm.peers() == []
        again = await swarm.connect([peer.address])
        assert len(await ping(again)) == 1


@both
async def test_they_abort_a_connection_that_they_dialled(kind: str) -> None:
    async with open_pair(kind) as (peer, swarm, address):
        events = swarm.subscribe()
        await peer.do("abort", address=address)
        while not isinstance(await events.receive(), PeerDisconnected):
            pass
        assert swarm.peers() == []
        assert (await peer.do("ping", address=address))["ms"] >= 0


@both
async def test_we_vanish_and_they_live_on(kind: str) -> None:
    async with open_peer(kind) as peer:
        with trio.fail_after(60):
            async with open_swarm(PrivateKey.generate()) as swarm:
                connection = await swarm.connect([peer.address])
                stream = await connection.open_stream([ECHO])
                await stream.send_all(b"y" * MIB)  # they are still echoing when we go
            async with open_swarm(PrivateKey.generate()) as swarm:
                connection = await swarm.connect([peer.address])
                assert len(await ping(connection)) == 1


@both
async def test_a_wrong_peer_id_is_refused(kind: str) -> None:
    async with open_pair(kind) as (peer, swarm, _):
        stranger = PrivateKey.generate().peer_id
        with pytest.raises(PeerUnreachableError, match=r"peer"):
            await swarm.connect([peer.address.without_peer()], stranger)
        assert swarm.peers() == []

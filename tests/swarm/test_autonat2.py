"""The second version of AutoNAT over real TCP, and servers that do not keep to it."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.config import DiscoveryConfig
from sbp2p.discovery.autonat import serve_autonat
from sbp2p.discovery.autonat2 import DialBackAsker, NonceServer
from sbp2p.errors import PeerMisbehavedError, PeerUnreachableError
from sbp2p.swarm import open_swarm
from sbp2p_protocol.autonat import DialStatus
from sbp2p_protocol.autonat2 import (
    DIAL_BACK_PROTOCOL,
    DIAL_REQUEST_PROTOCOL,
    Data,
    DataRequest,
    DialOutcome,
    NonceMessage,
    NonceResponse,
    RequestStatus,
    decode_message,
    encode_dial_back,
    encode_message,
)
from sbp2p_protocol.framing import LengthPrefixedReader
from sbp2p_protocol.limits import AUTONAT_TWO_MESSAGE_MAX
from sbp2p_protocol.multiaddr import parse_address
from tests.e2e.cli_process import closed_port
from tests.runtime.pair import KEYS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_protocol.multiaddr import Address

LOOPBACK = parse_address("/ip4/127.0.0.1/tcp/0")
CONFIG = DiscoveryConfig(dial_back_private=True, dial_backs_per_minute=9, dial_back_timeout_s=2.0)


@asynccontextmanager
async def open_pair(
    serve: Callable[[Stream], Awaitable[None]] | None = None, config: DiscoveryConfig = CONFIG
) -> AsyncIterator[tuple[DialBackAsker, Swarm, Address]]:
    """One that asks, connected to one that serves; yields both, and the address of the first."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(open_swarm(KEYS[0]))
        two = await stack.enter_async_context(open_swarm(KEYS[1]))
        (own,) = await one.listen(LOOPBACK)
        (there,) = await two.listen(LOOPBACK)
        if serve is None:
            NonceServer(two, serve_autonat(two, config))
        else:
            two.handle(DIAL_REQUEST_PROTOCOL, serve)
        asker = DialBackAsker(one)
        asker.serve()
        await one.connect([there])
        yield asker, two, own


async def test_the_first_address_that_can_be_is_dialled_and_told() -> None:
    async with open_pair() as (asker, server, own):
        elsewhere = parse_address("/ip4/8.8.8.8/tcp/1")
        answer = await asker.ask(server.peer_id, [elsewhere, own], 5.0)
        assert (answer.status, answer.address) == (DialStatus.OK, own.without_peer())
        with closed_port() as port:
            closed = parse_address(f"/ip4/127.0.0.1/tcp/{port}")
            answer = await asker.ask(server.peer_id, [closed, own], 5.0)
        assert (answer.status, answer.address) == (DialStatus.DIAL_ERROR, closed)
        assert answer.text == "dial_error"
        answer = await asker.ask(server.peer_id, [elsewhere], 5.0)
        assert answer.status is DialStatus.DIAL_REFUSED
        # somebody else answers there
        answer = await asker.ask(server.peer_id, [server.addresses[0]], 5.0)
        assert answer.status is DialStatus.DIAL_ERROR


async def test_a_careful_server_refuses_private_hosts() -> None:
    async with open_pair(config=DiscoveryConfig()) as (asker, server, own):
        answer = await asker.ask(server.peer_id, [own], 5.0)
        assert answer.status is DialStatus.DIAL_REFUSED


async def read(stream: Stream, reader: LengthPrefixedReader) -> NonceMessage:
    while (frame := reader.next()) is None:
        data = await stream.receive_some()
        assert data
        reader.feed(data)
    return decode_message(frame)


def answers(*messages: NonceMessage) -> Callable[[Stream], Awaitable[None]]:
    """Return a server that says this, whatever it is asked."""

    async def serve(stream: Stream) -> None:
        await read(stream, LengthPrefixedReader(AUTONAT_TWO_MESSAGE_MAX))
        for message in messages:
            await stream.send_all(encode_message(message))

    return serve


OK = NonceResponse(RequestStatus.OK, 0, DialOutcome.OK)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (OK, "did not come"),
        (NonceResponse(RequestStatus.OK, 7, DialOutcome.OK), "not asked"),
        (Data(5), "not an answer"),
    ],
)
async def test_a_server_that_lies_is_found_out(message: NonceMessage, reason: str) -> None:
    async with open_pair(answers(message)) as (asker, server, own):
        with pytest.raises(PeerMisbehavedError, match=reason):
            await asker.ask(server.peer_id, [own], 5.0)


async def test_a_server_that_is_silent_or_gone_is_given_up() -> None:
    async def silent(stream: Stream) -> None:
        await trio.sleep_forever()

    async with open_pair(silent) as (asker, server, own):
        with pytest.raises(PeerUnreachableError, match=r"within 0\.2 s"):
            await asker.ask(server.peer_id, [own], 0.2)
    async with open_pair(answers()) as (asker, server, own):
        with pytest.raises(PeerUnreachableError, match="ended"):
            await asker.ask(server.peer_id, [own], 5.0)


async def test_data_is_paid_once() -> None:
    received = 0

    async def costly(stream: Stream) -> None:
        nonlocal received
        reader = LengthPrefixedReader(AUTONAT_TWO_MESSAGE_MAX)
        await read(stream, reader)
        await stream.send_all(encode_message(DataRequest(0, 30_001)))
        while received < 30_001:
            message = await read(stream, reader)
            assert isinstance(message, Data)
            received += message.size
        refused = NonceResponse(RequestStatus.DIAL_REFUSED)
        await stream.send_all(encode_message(refused))

    async with open_pair(costly) as (asker, server, own):
        answer = await asker.ask(server.peer_id, [own], 5.0)
        assert answer.status is DialStatus.DIAL_REFUSED
        assert received == 30_001
    greedy = answers(DataRequest(0, 30_000), DataRequest(0, 30_000))
    async with open_pair(greedy) as (asker, server, own):
        with pytest.raises(PeerMisbehavedError):
            await asker.ask(server.peer_id, [own], 5.0)


async def test_a_dial_back_that_nobody_asked_for_is_refused() -> None:
    async with open_pair() as (_, server, own):
        (connection,) = server.connections(own.peer_id or server.peer_id)
        stream = await connection.open_stream([DIAL_BACK_PROTOCOL])
        await stream.send_all(encode_dial_back(5))
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_exactly(1)

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.errors import PeerMisbehavedError, PeerUnreachableError
from sbp2p.handlers import HandlerTable
from sbp2p.negotiate import ProtocolUnsupportedError
from sbp2p.ping import ping, serve_ping
from sbp2p.transport import LinkProfile
from sbp2p_protocol.ping import PING_PROTOCOL
from tests.runtime.pair import joined

if TYPE_CHECKING:
    from trio.testing import MockClock

    from sbp2p.handlers import StreamHandler
    from sbp2p.stream import Stream


def serving(handler: StreamHandler | None = None) -> HandlerTable:
    table = HandlerTable()
    if handler is None:
        serve_ping(table)
    else:
        table.handle(PING_PROTOCOL, handler)
    return table


async def test_round_trips_are_measured_at_intervals(autojump_clock: MockClock) -> None:
    async with joined(profile=LinkProfile(latency_s=0.05), handlers=serving()) as (near, _far):
        started = trio.current_time()
        round_trips = await ping(near, count=4, interval_s=1.0)
        assert round_trips == pytest.approx([0.1] * 4)
        # the negotiation, three intervals, the last answer
        assert trio.current_time() - started == pytest.approx(0.1 + 3.0 + 0.1)
        assert await ping(near, count=2, interval_s=0.0) == pytest.approx([0.1] * 2)


async def test_a_peer_that_does_not_answer_is_unreachable(autojump_clock: MockClock) -> None:
    async def silent(_stream: Stream) -> None:
        await trio.sleep_forever()

    async with joined(handlers=serving(silent)) as (near, _far):
        with pytest.raises(PeerUnreachableError, match="ping 1 within 2 s"):
            await ping(near, timeout_s=2.0)
        assert near.statistics().open_streams == 0


async def test_other_bytes_are_misbehaviour() -> None:
    async def liar(stream: Stream) -> None:
        await stream.receive_exactly(32)
        await stream.send_all(bytes(32))

    async with joined(handlers=serving(liar)) as (near, _far):
        with pytest.raises(PeerMisbehavedError, match="other bytes"):
            await ping(near)


async def test_a_peer_that_hangs_up_is_unreachable() -> None:
    async def rude(stream: Stream) -> None:
        await stream.receive_exactly(32)

    async with joined(handlers=serving(rude)) as (near, _far):
        with pytest.raises(PeerUnreachableError, match="went away"):
            await ping(near)


async def test_a_peer_without_ping_says_so() -> None:
    async with joined(handlers=HandlerTable()) as (near, _far):
        with pytest.raises(ProtocolUnsupportedError):
            await ping(near)

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.errors import ConfigError, PeerMisbehavedError, PeerUnreachableError
from sbp2p.handlers import HandlerTable
from sbp2p.perf import measure_bandwidth, serve_perf
from sbp2p.transport import LinkProfile
from sbp2p_protocol import perf
from sbp2p_protocol.limits import MIB, PERF_BUDGET_S, PERF_DOWNLOAD_MAX, PERF_RUN_S
from sbp2p_protocol.perf import PERF_PROTOCOL
from tests.runtime.pair import joined

if TYPE_CHECKING:
    from trio.testing import MockClock

    from sbp2p.stream import Stream


def serving() -> HandlerTable:
    table = HandlerTable()
    serve_perf(table)
    return table


@pytest.mark.parametrize(("upload", "download"), [(0, 0), (1, 0), (0, 1), (3 * MIB + 1, MIB - 1)])
async def test_every_byte_goes_there_and_back(upload: int, download: int) -> None:
    async with joined(handlers=serving()) as (near, far):
        result = await measure_bandwidth(near, upload, download)
        assert (result.upload_bytes, result.download_bytes) == (upload, download)
        assert near.statistics().bytes_sent >= upload
        assert far.statistics().bytes_sent >= download


async def test_the_rate_is_that_of_the_link(autojump_clock: MockClock) -> None:
    profile = LinkProfile(latency_s=0.01, bytes_per_s=1e6)
    async with joined(profile=profile, handlers=serving()) as (near, _far):
        result = await measure_bandwidth(near, 2_000_000, 1_000_000)
        assert result.upload_bytes_per_s == pytest.approx(1e6, rel=0.1)
        assert result.download_bytes_per_s == pytest.approx(1e6, rel=0.3)


async def test_one_run_of_a_peer_at_a_time() -> None:
    async with joined(handlers=serving()) as (near, _far):
        async with await near.open_stream([PERF_PROTOCOL]) as stream:
            await stream.send_all(bytes(8))
            await near.ping()
            with pytest.raises(PeerUnreachableError) as caught:
                await measure_bandwidth(near, 10, 10)
            assert "busy" in caught.value.hint
            await stream.send_eof()
            assert await stream.receive_some() == b""
        await near.ping()
        await measure_bandwidth(near, 10, 10)


async def test_a_greedy_client_is_refused() -> None:
    async with joined(handlers=serving()) as (near, _far):
        stream = await near.open_stream([PERF_PROTOCOL])
        await stream.send_all((PERF_DOWNLOAD_MAX + 1).to_bytes(8, "big"))
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()


async def test_a_peer_that_measures_again_and_again_is_stopped(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perf, "PERF_BUDGET", 10 * MIB)
    async with joined(handlers=serving()) as (near, far):
        for _ in range(3):
            await measure_bandwidth(near, MIB, 2 * MIB)
        for _ in range(3):
            with pytest.raises(PeerUnreachableError) as caught:
                await measure_bandwidth(near, MIB, 2 * MIB)
            assert "enough" in caught.value.hint
        assert far.statistics().bytes_sent < 8 * MIB
        await trio.sleep(PERF_BUDGET_S)
        await measure_bandwidth(near, MIB, 2 * MIB)


@pytest.mark.parametrize("asks", [bytes(8), bytes([0, 0, 0, 1, 0, 0, 0, 0])])
async def test_a_peer_that_stops_in_a_run_does_not_hold_its_place(
    autojump_clock: MockClock, asks: bytes
) -> None:
    async with joined(handlers=serving()) as (near, _far):
        stream = await near.open_stream([PERF_PROTOCOL])
        await stream.send_all(asks)
        if any(asks):
            await stream.send_eof()  # and then it does not read
        await trio.sleep(PERF_RUN_S - 1)
        with pytest.raises(PeerUnreachableError):
            await measure_bandwidth(near, 1, 1)
        await trio.sleep(2)
        await measure_bandwidth(near, 1, 1)


@pytest.mark.parametrize(("up", "down"), [(-1, 0), (0, -1), (PERF_DOWNLOAD_MAX + 1, 0)])
async def test_what_no_node_serves_is_not_asked(up: int, down: int) -> None:
    async with joined(handlers=serving()) as (near, _far):
        with pytest.raises(ConfigError, match="cannot measure"):
            await measure_bandwidth(near, up, down)


async def test_a_server_that_sends_another_amount_is_caught() -> None:
    async def generous(stream: Stream) -> None:
        while await stream.receive_some():
            pass
        await stream.send_all(bytes(5))

    table = HandlerTable()
    table.handle(PERF_PROTOCOL, generous)
    async with joined(handlers=table) as (near, _far):
        for wanted in (4, 6):
            with pytest.raises(PeerMisbehavedError):
                await measure_bandwidth(near, 0, wanted)

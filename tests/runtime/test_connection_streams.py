from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.lowlevel
from trio.testing import wait_all_tasks_blocked

from sbp2p.handlers import HandlerTable
from sbp2p.negotiate import ProtocolUnsupportedError
from sbp2p_protocol.limits import MIB
from tests.runtime.pair import ECHO, HOLD, SINK, joined, knobs

if TYPE_CHECKING:
    from sbp2p.stream import Stream


def table(handler: object) -> HandlerTable:
    handlers = HandlerTable()
    handlers.handle("/x", handler)  # type: ignore[arg-type]
    return handlers


async def test_the_first_protocol_that_the_peer_speaks_is_taken() -> None:
    async with joined() as (near, far):
        assert near.peer_id != far.peer_id
        stream = await near.open_stream(["/no", ECHO, SINK])
        assert stream.protocol == ECHO
        assert stream.peer_id == near.peer_id
        await stream.send_all(b"hello")
        assert await stream.receive_exactly(5) == b"hello"
        await stream.send_eof()
        assert await stream.receive_some() == b""


async def test_a_protocol_that_nobody_speaks_leaves_no_stream_behind() -> None:
    async with joined() as (near, far):
        with pytest.raises(ProtocolUnsupportedError, match="/no or /nor"):
            await near.open_stream(["/no", "/nor"])
        await near.ping()
        await far.ping()
        assert near.statistics().open_streams == far.statistics().open_streams == 0


async def test_each_direction_ends_alone() -> None:
    async with joined() as (near, _far):
        async with await near.open_stream([SINK]) as stream:
            await stream.send_all(bytes(1000))
            await stream.send_eof()
            await stream.send_eof()
            with pytest.raises(trio.ClosedResourceError):
                await stream.send_all(b"more")
            assert int.from_bytes(await stream.receive_exactly(8), "big") == 1000
            assert await stream.receive_some() == b""
            assert await stream.receive_some() == b""
        assert near.statistics().open_streams == 0


async def test_64_mib_there_and_back_while_the_reader_starts_late() -> None:
    size = 64 * MIB
    sent = bytes(range(256)) * 4096
    async with joined() as (near, _far):
        stream = await near.open_stream([ECHO])

        async def send() -> None:
            for _ in range(size // len(sent)):
                await stream.send_all(sent)
            await stream.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await wait_all_tasks_blocked()  # every window and queue is full now
            queued = near.statistics().bytes_queued
            assert queued <= 2 * MIB
            for _ in range(size // len(sent)):
                assert await stream.receive_exactly(len(sent)) == sent
            assert await stream.receive_some() == b""


async def test_a_stream_nobody_reads_stops_no_other() -> None:
    async with joined() as (near, _far):
        held = await near.open_stream([HOLD])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held.send_all, bytes(32 * MIB))
            await wait_all_tasks_blocked()
            other = await near.open_stream([ECHO])
            await other.send_all(bytes(100_000))
            await other.receive_exactly(100_000)
            nursery.cancel_scope.cancel()
        held.reset()


async def test_a_small_message_waits_for_one_slice_of_a_busy_stream_at_most() -> None:
    async with joined() as (near, _far):
        bulk = await near.open_stream([SINK])
        small = await near.open_stream([ECHO])
        done: list[str] = []
        async with trio.open_nursery() as nursery:

            async def send_bulk() -> None:
                await bulk.send_all(bytes(32 * MIB))
                done.append("bulk")

            nursery.start_soon(send_bulk)
            await trio.lowlevel.checkpoint()
            for number in range(5):
                await small.send_all(bytes([number]))
                await small.receive_exactly(1)
            done.append("small")
        assert done == ["small", "bulk"]


async def test_senders_take_turns() -> None:
    async with joined(knobs(send_high_water_bytes=1)) as (near, _far):
        streams = [await near.open_stream([SINK]) for _ in range(3)]
        left: dict[int, int] = {}

        async def send(stream: Stream) -> None:
            for number in reversed(range(20)):
                await stream.send_all(bytes(1000))
                left[stream.stream_id] = number
                assert len(left) < 3 or max(left.values()) - min(left.values()) <= 2

        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(send, stream)


async def test_the_memory_of_sent_bytes_may_be_reused_at_once() -> None:
    async with joined() as (near, _far):
        stream = await near.open_stream([ECHO])
        buffer = bytearray(b"a" * 1000)
        await stream.send_all(buffer)
        buffer[:] = b"b" * 1000
        await stream.send_all(memoryview(buffer).cast("H"))
        assert await stream.receive_exactly(2000) == b"a" * 1000 + b"b" * 1000


async def test_chunks_can_be_cut_and_given_back() -> None:
    async with joined() as (near, _far):
        stream = await near.open_stream([ECHO])
        await stream.send_all(b"abcdef")
        assert bytes(await stream.receive_some(2)) == b"ab"
        stream.give_back([b"x", b"", b"y"])
        chunks = await stream.receive_chunks(4)
        assert b"".join(chunks) == b"xycd"
        await stream.send_eof()
        with pytest.raises(trio.BrokenResourceError, match="ended after 2 of 100"):
            await stream.receive_chunks(100)
        assert await stream.receive_exactly(2) == b"ef"
        with pytest.raises(ValueError, match="at least 1"):
            await stream.receive_some(0)


async def test_bytes_sent_one_by_one_do_not_cost_an_object_each() -> None:
    async def drip(stream: Stream) -> None:
        for number in range(20_000):
            await stream.send_all(bytes([number % 256]))

    async with joined(handlers=table(drip)) as (near, _far):
        stream = await near.open_stream(["/x"])
        await wait_all_tasks_blocked()
        assert len(stream._chunks) < 10
        received = await stream.receive_exactly(20_000)
        assert received == (bytes(range(256)) * 80)[:20_000]
        assert await stream.receive_some() == b""


async def test_a_reset_breaks_the_other_side_at_once() -> None:
    seen: list[Exception] = []
    started = trio.Event()

    async def handler(stream: Stream) -> None:
        started.set()
        try:
            await stream.receive_some()
        except trio.BrokenResourceError as error:
            seen.append(error)
            raise

    async with joined(handlers=table(handler)) as (near, far):
        stream = await near.open_stream(["/x"])
        await started.wait()
        stream.reset(7)
        stream.reset(7)
        await far.ping()
        assert "reset the stream (7)" in str(seen[0])
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()
        with pytest.raises(trio.ClosedResourceError):
            await stream.send_all(b"x")
        assert near.statistics().open_streams == far.statistics().open_streams == 0


async def test_leaving_a_stream_by_an_error_resets_it() -> None:
    async with joined() as (near, far):
        with pytest.raises(KeyError):
            async with await near.open_stream([HOLD]):
                raise KeyError
        await far.ping()
        assert far.statistics().open_streams == 0


async def test_two_tasks_in_one_direction_are_refused() -> None:
    async with joined() as (near, _far):
        stream = await near.open_stream([HOLD])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some)
            nursery.start_soon(stream.send_all, bytes(16 * MIB))
            await wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await stream.receive_some()
            with pytest.raises(trio.BusyResourceError):
                await stream.send_all(b"x")
            with pytest.raises(trio.BusyResourceError):
                await stream.send_eof()
            nursery.cancel_scope.cancel()


async def test_a_closed_stream_lets_the_peer_finish_but_not_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    outcome: list[str] = []

    async def handler(stream: Stream) -> None:
        try:
            while True:
                await stream.send_all(bytes(1000))
                await trio.sleep(1)
        except trio.BrokenResourceError as error:
            outcome.append(str(error))

    config = knobs(negotiate_timeout_s=5.0)
    async with joined(config, handlers=table(handler)) as (near, _far):
        stream = await near.open_stream(["/x"])
        await stream.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()
        await trio.sleep(4.0)
        assert not outcome
        assert near.statistics().open_streams == 1
        await trio.sleep(2.5)
        assert "reset" in outcome[0]
        assert near.statistics().open_streams == 0


@pytest.mark.parametrize(
    "error", [KeyError("bug"), ExceptionGroup("several", [KeyError("bug"), ValueError("other")])]
)
async def test_a_handler_that_fails_loses_its_stream_only(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(stream: Stream) -> None:
        await stream.receive_exactly(1)
        raise error

    async with joined(handlers=table(handler)) as (near, _far):
        for _ in range(2):
            stream = await near.open_stream(["/x"])
            await stream.send_all(b"!")
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
    bugs = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(bugs) == 2
    assert "handler of /x" in bugs[0].message
    assert bugs[0].exc_info


async def test_a_handler_ended_by_the_peer_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(stream: Stream) -> None:
        async with trio.open_nursery() as nursery:  # so that a group is raised
            nursery.start_soon(stream.receive_exactly, 10)
            nursery.start_soon(trio.sleep_forever)

    async with joined(handlers=table(handler)) as (near, far):
        stream = await near.open_stream(["/x"])
        stream.reset()
        await far.ping()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_too_many_streams_is_an_error_here_and_costs_nobody_the_connection() -> None:
    async with joined() as (near, _far):
        streams: list[Stream] = []

        async def open_many() -> None:
            while len(streams) < 100_000:
                streams.extend([await near.open_stream([HOLD])])

        with pytest.raises(trio.BrokenResourceError, match=r"open already|reset"):
            await open_many()
        for stream in streams:
            stream.reset()
        await (await near.open_stream([ECHO])).aclose()

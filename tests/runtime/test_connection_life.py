from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sbp2p.connection import UpgradeError
from sbp2p.errors import PeerUnreachableError
from sbp2p.transport import LinkProfile
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.limits import MIB
from sbp2p_protocol.noise import WrongPeerError
from tests.runtime.pair import ECHO, HOLD, KEYS, SINK, Troubled, joined, knobs, make, raw_pair

if TYPE_CHECKING:
    from trio.testing import MockClock


async def drain(raw: trio.abc.AsyncResource) -> None:
    buffer = memoryview(bytearray(65536))
    while await raw.receive_into(buffer):  # type: ignore[attr-defined]
        pass


async def test_both_ends_know_each_other() -> None:
    async with joined() as (near, far):
        assert near.peer_id == KEYS[1].peer_id
        assert far.peer_id == KEYS[0].peer_id
        assert near.public_key == KEYS[1].public_key
        assert near.security == far.security != ""
        assert near.remote_address == far.local_address
        assert "to" in repr(near)
        assert await near.ping() >= 0
        statistics = near.statistics()
        assert statistics.bytes_sent
        assert statistics.bytes_received
        assert statistics.rtt_s == near.rtt_s


async def test_closing_is_orderly_on_both_sides() -> None:
    async with joined() as (near, far):
        stream = await near.open_stream([HOLD])
        await near.aclose()
        await near.aclose()
        await far.wait_closed()
        assert near.lost is None
        assert str(far.lost) == "the peer closed the connection"
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()
        with pytest.raises(trio.ClosedResourceError):
            await near.open_stream([ECHO])
        with pytest.raises(trio.BrokenResourceError):
            await far.ping()


async def test_what_was_sent_before_closing_arrives() -> None:
    async with joined(profile=LinkProfile(capacity_bytes=1000)) as (near, far):
        stream = await near.open_stream([HOLD])
        await stream.send_all(bytes(100_000))
        received = far.statistics().bytes_received
        await near.aclose()
        await far.wait_closed()
        assert far.statistics().bytes_received - received > 90_000


async def test_bytes_that_arrived_before_the_connection_broke_can_be_read() -> None:
    near_raw, far_raw = raw_pair()
    async with joined(near_raw=near_raw, far_raw=far_raw) as (near, far):
        stream = await near.open_stream([ECHO])
        await stream.send_all(b"abc")
        await far.ping()
        await near.ping()
        far_raw.abort()
        await near.wait_closed()
        assert await stream.receive_exactly(3) == b"abc"
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"x")


async def test_an_abrupt_end_wakes_everybody() -> None:
    near_raw, far_raw = raw_pair()

    async with joined(near_raw=near_raw, far_raw=far_raw) as (near, _far):
        held = await near.open_stream([HOLD])
        bulk = await near.open_stream([HOLD])

        async def expect_broken(call: object, *args: object) -> None:
            with pytest.raises(trio.BrokenResourceError):
                await call(*args)  # type: ignore[operator]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_broken, held.receive_some)
            nursery.start_soon(expect_broken, bulk.send_all, bytes(32 * MIB))
            nursery.start_soon(expect_broken, held.send_all, bytes(32 * MIB))
            await wait_all_tasks_blocked()
            far_raw.abort()


async def test_a_silent_peer_ends_the_upgrade_in_time(autojump_clock: MockClock) -> None:
    near_raw, _far_raw = raw_pair()
    connection = make(near_raw, 0, knobs(upgrade_timeout_s=4.0))
    started = trio.current_time()
    with pytest.raises(UpgradeError, match="no secure connection within 4 s"):
        await connection.run()
    assert trio.current_time() - started == pytest.approx(4.5, abs=0.6)  # and close_timeout_s
    with pytest.raises(trio.BrokenResourceError):
        await connection.open_stream([ECHO])


async def test_a_peer_that_talks_nonsense_is_no_peer() -> None:
    for garbage in (b"GET / HTTP/1.1\r\n" * 9, bytes(100), b"\x13/multistream/1.0.0\n\x03na\n" * 2):
        near_raw, far_raw = raw_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain, far_raw)
            await far_raw.send_some([garbage])
            with pytest.raises(UpgradeError) as caught:
                await make(near_raw, 0, knobs(close_timeout_s=0.01)).run()
            assert isinstance(caught.value.reason, RemoteProtocolError)
            nursery.cancel_scope.cancel()


async def test_the_wrong_peer_is_named() -> None:
    near_raw, far_raw = raw_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_quietly, make(far_raw, 1, key=KEYS[2]))
        with pytest.raises(UpgradeError, match=str(KEYS[2].peer_id)) as caught:
            await make(near_raw, 0).run()
        assert isinstance(caught.value.reason, WrongPeerError)


async def test_a_peer_that_stops_reading_is_given_up(autojump_clock: MockClock) -> None:
    near_raw, inner = raw_pair(LinkProfile(capacity_bytes=100_000))
    far_raw = Troubled(inner)
    config = knobs(write_timeout_s=7.0, keepalive_s=1000.0)
    async with joined(config, near_raw=near_raw, far_raw=far_raw) as (near, far):
        stream = await near.open_stream([SINK])
        await near.ping()
        far_raw.freeze()
        started = trio.current_time()
        with pytest.raises(trio.BrokenResourceError, match="took no byte for 7 s"):
            await stream.send_all(bytes(4 * MIB))
        assert 7.0 <= trio.current_time() - started <= 8.0
        far._nursery.cancel_scope.cancel()


async def test_a_peer_that_falls_silent_is_given_up(autojump_clock: MockClock) -> None:
    near_raw, inner = raw_pair()
    far_raw = Troubled(inner)
    config = knobs(keepalive_s=20.0, ping_timeout_s=5.0)
    async with joined(config, near_raw=near_raw, far_raw=far_raw) as (near, far):
        stream = await near.open_stream([HOLD])
        await trio.sleep(100)
        assert near.is_open  # keep-alive pings were answered
        far_raw.freeze()
        started = trio.current_time()
        with pytest.raises(trio.BrokenResourceError, match="has sent nothing for 5 s"):
            await stream.receive_some()
        assert 5 <= trio.current_time() - started <= 31
        far._nursery.cancel_scope.cancel()


async def test_a_ping_without_answer_says_so(autojump_clock: MockClock) -> None:
    near_raw, inner = raw_pair()
    far_raw = Troubled(inner)
    config = knobs(ping_timeout_s=3.0)
    async with joined(config, near_raw=near_raw, far_raw=far_raw) as (near, far):
        await near.ping()
        far_raw.freeze()
        with pytest.raises((PeerUnreachableError, trio.BrokenResourceError)):
            await near.ping()
        far._nursery.cancel_scope.cancel()


async def test_a_peer_that_never_answers_a_proposal_is_not_waited_for(
    autojump_clock: MockClock,
) -> None:
    near_raw, inner = raw_pair()
    far_raw = Troubled(inner)
    config = knobs(negotiate_timeout_s=3.0, ping_timeout_s=60.0)
    async with joined(config, near_raw=near_raw, far_raw=far_raw) as (near, far):
        await near.ping()
        far_raw.freeze()
        with pytest.raises(PeerUnreachableError, match="within 3 s"):
            await near.open_stream([ECHO])
        assert near.statistics().open_streams == 0
        far._nursery.cancel_scope.cancel()


async def test_garbage_after_the_handshake_ends_the_connection_with_blame() -> None:
    near_raw, far_raw = raw_pair()
    async with joined(near_raw=near_raw, far_raw=far_raw) as (near, far):
        await near.ping()
        await far.ping()
        await far_raw.send_some([b"\x00\x20" + bytes(32)])
        await near.wait_closed()
        assert isinstance(near.lost, RemoteProtocolError)
        await far.wait_closed()


async def test_cancelling_the_task_aborts_the_raw_stream() -> None:
    near_raw, far_raw = raw_pair()
    async with joined(near_raw=Troubled(near_raw), far_raw=far_raw) as (near, far):
        near._nursery.cancel_scope.cancel()
        await far.wait_closed()
        assert near._wire.raw.aborted  # type: ignore[attr-defined]
        assert far.lost


async def count_calls() -> int:
    """Return how often the near raw stream is called in the run that is cancelled below."""
    near_raw, far_raw = raw_pair()
    troubled = Troubled(near_raw)
    async with joined(near_raw=troubled, far_raw=far_raw) as (near, _far):
        async with await near.open_stream([ECHO]) as stream:
            await stream.send_all(bytes(1000))
            await stream.receive_exactly(1000)
    return troubled.calls


async def test_cancellation_at_each_call_of_the_raw_stream_leaves_nothing_behind() -> None:
    """The stream blocks for ever at its n-th call; then everything is cancelled."""
    calls = await count_calls()
    assert calls > 8
    for block_at in range(1, calls + 1):
        near_raw, far_raw = raw_pair()
        troubled = Troubled(near_raw, block_at=block_at)
        near, far = make(troubled, 0), make(far_raw, 1, knobs(upgrade_timeout_s=1000.0))
        async with trio.open_nursery() as outer:
            outer.start_soon(run_quietly, far)
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_when_blocked, troubled, scope)
                    await nursery.start(near.run)
                    async with await near.open_stream([ECHO]) as stream:
                        await stream.send_all(bytes(1000))
                        await stream.receive_exactly(1000)
                    await near.aclose()
                    nursery.cancel_scope.cancel()
            assert troubled.aborted
            await near.wait_closed()
            await far.wait_closed()
        assert not near._streams
        assert not far._streams


async def run_quietly(connection: object) -> None:
    with suppress(UpgradeError):
        await connection.run()  # type: ignore[attr-defined]


async def cancel_when_blocked(troubled: Troubled, scope: trio.CancelScope) -> None:
    await troubled.blocked.wait()
    await wait_all_tasks_blocked()
    scope.cancel()


async def test_a_cancelled_send_has_sent_a_prefix_and_hurts_nobody() -> None:
    async with joined() as (near, _far):
        stream = await near.open_stream([HOLD])
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, bytes(32 * MIB))
                await wait_all_tasks_blocked()
                scope.cancel()
        other = await near.open_stream([ECHO])
        await other.send_all(b"fine")
        assert await other.receive_exactly(4) == b"fine"
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(0.01):
                await stream.send_all(b"still no credit")
        stream.reset()


async def test_a_cancelled_receive_has_taken_nothing() -> None:
    async with joined() as (near, _far):
        stream = await near.open_stream([ECHO])
        await stream.send_all(b"abc")
        await near.ping()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.receive_exactly, 4)
                await wait_all_tasks_blocked()
                scope.cancel()
        await stream.send_all(b"d")
        assert await stream.receive_exactly(4) == b"abcd"


async def test_a_cancelled_open_resets_the_stream() -> None:
    near_raw, far_raw = raw_pair()
    async with joined(near_raw=near_raw, far_raw=far_raw) as (near, far):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(near.open_stream, [HOLD])
                await trio.lowlevel.checkpoint()
                scope.cancel()
        await near.ping()
        await far.ping()
        assert near.statistics().open_streams == far.statistics().open_streams == 0

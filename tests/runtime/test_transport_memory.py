from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sbp2p.errors import ConfigError
from sbp2p.transport import DialError, LinkProfile, MemoryNetwork, send_all_buffers
from sbp2p_protocol.multiaddr import parse_address

if TYPE_CHECKING:
    from trio.testing import MockClock

    from sbp2p.transport import RawStream
    from sbp2p.transport.memory import MemoryStream

HERE = parse_address("/memory/7")
NEAR = parse_address("/memory/8")


def pair(**profile: float) -> tuple[MemoryStream, MemoryStream]:
    network = MemoryNetwork(profile=LinkProfile(**profile))  # type: ignore[arg-type]
    return network.open_pair(NEAR, HERE)


async def receive_all(stream: RawStream, piece: int = 65536) -> bytes:
    buffer, received = bytearray(piece), bytearray()
    while count := await stream.receive_into(memoryview(buffer)):
        received += buffer[:count]
    return bytes(received)


async def test_a_dialled_listener_gives_two_ends_of_one_link() -> None:
    network = MemoryNetwork()
    listener = await network.listen(HERE)
    near = await network.connect(HERE)
    far = await listener.accept()
    assert far.local_address == near.remote_address == HERE
    assert far.remote_address == near.local_address
    await send_all_buffers(
        near, [b"ab", bytearray(b"cd"), b"", memoryview(b"e")], stall_timeout_s=1
    )
    await near.send_eof()
    assert await receive_all(far, piece=2) == b"abcde"
    await send_all_buffers(far, [b"back"], stall_timeout_s=1)
    await far.aclose()
    assert await receive_all(near) == b"back"


async def test_nobody_listening_is_refused_with_a_reason() -> None:
    network = MemoryNetwork()
    with pytest.raises(DialError, match="/memory/7: connection refused"):
        await network.connect(HERE)


async def test_a_closed_listener_frees_its_number_and_breaks_who_waited() -> None:
    network = MemoryNetwork()
    listener = await network.listen(HERE)
    with pytest.raises(ConfigError, match="in use"):
        await network.listen(HERE)
    near = await network.connect(HERE)
    listener.close()
    with pytest.raises(trio.BrokenResourceError):
        await near.receive_into(memoryview(bytearray(1)))
    with pytest.raises(trio.ClosedResourceError):
        await listener.accept()
    await network.listen(HERE)


async def test_number_zero_takes_free_addresses() -> None:
    network = MemoryNetwork()
    first = await network.listen(parse_address("/memory/0"))
    second = await network.listen(parse_address("/memory/0"))
    assert first.addresses != second.addresses


async def test_bytes_arrive_after_the_latency(autojump_clock: MockClock) -> None:
    near, far = pair(latency_s=0.25)
    started = trio.current_time()
    await near.send_some([b"x"])
    assert trio.current_time() == started
    assert await far.receive_into(memoryview(bytearray(8))) == 1
    assert trio.current_time() - started == pytest.approx(0.25)


async def test_bandwidth_spreads_bytes_over_time(autojump_clock: MockClock) -> None:
    near, far = pair(latency_s=0.1, bytes_per_s=1000.0, capacity_bytes=100)
    started = trio.current_time()
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            await send_all_buffers(near, [bytes(2000)], stall_timeout_s=10)
            await near.send_eof()

        nursery.start_soon(send)
        assert len(await receive_all(far)) == 2000
    # 100 bytes may be on their way at once: 20 lots, each 0.1 s to leave and 0.1 s to arrive
    assert trio.current_time() - started == pytest.approx(4.0)


async def test_jitter_keeps_order_and_is_seeded(autojump_clock: MockClock) -> None:
    async def arrivals(seed: int) -> list[float]:
        profile = LinkProfile(latency_s=0.1, jitter_s=0.5)
        near, far = MemoryNetwork(profile=profile, seed=seed).open_pair(NEAR, HERE)
        started, buffer, times = trio.current_time(), bytearray(1), []
        for number in range(20):
            await near.send_some([bytes([number])])
        for number in range(20):
            await far.receive_into(memoryview(buffer))
            assert buffer[0] == number
            times.append(round(trio.current_time() - started, 9))
        return times

    first = await arrivals(1)
    assert first == sorted(first)
    assert first == await arrivals(1)
    assert first != await arrivals(2)


async def test_a_full_link_stalls_the_sender(autojump_clock: MockClock) -> None:
    near, _far = pair(capacity_bytes=10)
    assert await near.send_some([bytes(64)]) == 10
    with pytest.raises(trio.TooSlowError):
        await send_all_buffers(near, [b"more"], stall_timeout_s=3)


async def test_abort_wakes_everybody_with_the_right_error() -> None:
    near, far = pair(capacity_bytes=1)
    await near.send_some([b"x"])

    async def receive(stream: MemoryStream, error: type[Exception]) -> None:
        with pytest.raises(error):
            await stream.receive_into(memoryview(bytearray(1)))

    async def send(stream: MemoryStream, error: type[Exception]) -> None:
        with pytest.raises(error):
            await stream.send_some([b"y"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, near, trio.ClosedResourceError)
        nursery.start_soon(receive, near, trio.ClosedResourceError)
        await wait_all_tasks_blocked()
        near.abort()
    await receive(far, trio.BrokenResourceError)
    await send(far, trio.BrokenResourceError)


async def test_a_cancelled_receive_takes_nothing() -> None:
    near, far = pair()
    with trio.CancelScope() as scope:
        scope.cancel()
        await near.send_some([b"never sent"])
    await near.send_some([b"kept"])
    with trio.CancelScope() as scope:
        scope.cancel()
        await far.receive_into(memoryview(bytearray(4)))
    buffer = bytearray(4)
    assert await far.receive_into(memoryview(buffer)) == 4
    assert buffer == b"kept"

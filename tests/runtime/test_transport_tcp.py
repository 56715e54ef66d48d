from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sbp2p.config import TransportConfig
from sbp2p.errors import ConfigError
from sbp2p.transport import DialError, TcpTransport, dial, send_all_buffers
from sbp2p.transport.tcp import _ask_for_buffer
from sbp2p_protocol.limits import MIB
from sbp2p_protocol.multiaddr import parse_address

if TYPE_CHECKING:
    from sbp2p.transport import RawStream

CONFIG = TransportConfig(dial_timeout_s=5.0)
TCP = TcpTransport(CONFIG)
LOOPBACKS = ["/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0"]


def require(address: str) -> None:
    family = socket.AF_INET6 if address.startswith("/ip6") else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind(("::1" if family is socket.AF_INET6 else "127.0.0.1", 0))
    except OSError:
        pytest.skip(f"this machine has no {address}")


async def open_pair(address: str) -> tuple[RawStream, RawStream]:
    listener = await TCP.listen(parse_address(address))
    near = await TCP.connect(listener.addresses[0])
    far = await listener.accept()
    listener.close()
    return near, far


async def read_exactly(stream: RawStream, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = await stream.receive_into(view)
        assert count
        view = view[count:]
    return bytes(data)


@pytest.mark.parametrize("address", LOOPBACKS)
async def test_bytes_go_both_ways_and_each_way_ends_alone(address: str) -> None:
    require(address)
    near, far = await open_pair(address)
    assert near.remote_address == far.local_address
    assert near.local_address == far.remote_address
    await send_all_buffers(near, [b"ping", memoryview(b"!"), bytearray(b"?")], stall_timeout_s=5)
    await near.send_eof()
    assert await read_exactly(far, 6) == b"ping!?"
    assert await far.receive_into(memoryview(bytearray(1))) == 0
    await send_all_buffers(far, [b"pong"], stall_timeout_s=5)
    await far.aclose()
    assert await read_exactly(near, 4) == b"pong"
    await near.aclose()


async def test_more_buffers_and_bytes_than_one_call_takes_arrive_in_order() -> None:
    near, far = await open_pair(LOOPBACKS[0])
    buffers = [bytes([number % 256]) * 70_000 for number in range(300)]
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            await send_all_buffers(near, buffers, stall_timeout_s=5)

        nursery.start_soon(send)
        assert await read_exactly(far, 300 * 70_000) == b"".join(buffers)
    near.abort()
    far.abort()


async def test_a_stalled_reader_is_noticed() -> None:
    near, far = await open_pair(LOOPBACKS[0])
    with pytest.raises(trio.TooSlowError):
        await send_all_buffers(near, [bytes(64 << 20)], stall_timeout_s=0.05)
    near.abort()
    far.abort()


async def test_abort_is_a_reset_there_and_closed_here() -> None:
    near, far = await open_pair(LOOPBACKS[0])
    near.abort()
    near.abort()
    with pytest.raises(trio.BrokenResourceError, match="reset"):
        await far.receive_into(memoryview(bytearray(1)))
    with pytest.raises(trio.ClosedResourceError):
        await near.receive_into(memoryview(bytearray(1)))
    with pytest.raises(trio.ClosedResourceError):
        await near.send_some([b"x"])
    await far.aclose()


async def test_closing_wakes_a_reader() -> None:
    near, far = await open_pair(LOOPBACKS[0])

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await near.receive_into(memoryview(bytearray(1)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        await near.aclose()
    far.abort()


async def test_fewer_bytes_than_are_enough_wake_nobody() -> None:
    near, far = await open_pair(LOOPBACKS[0])
    counts: list[int] = []

    async def read() -> None:
        counts.append(await far.receive_into(memoryview(bytearray(100_000)), 10_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for _ in range(3):
            await send_all_buffers(near, [b"x" * 3000], stall_timeout_s=5)
            await wait_all_tasks_blocked(0.05)
            assert counts == []
        await send_all_buffers(near, [b"x" * 3000], stall_timeout_s=5)
    assert counts == [12_000]
    await send_all_buffers(near, [b"y"], stall_timeout_s=5)
    assert await far.receive_into(memoryview(bytearray(10))) == 1
    near.abort()
    far.abort()


@pytest.mark.parametrize("end", ["eof", "reset", "closed"])
async def test_an_end_wakes_whoever_waits_for_more(end: str) -> None:
    near, far = await open_pair(LOOPBACKS[0])
    await send_all_buffers(near, [b"x" * 3000], stall_timeout_s=5)
    outcome: list[int | str] = []

    async def read() -> None:
        try:
            outcome.append(await far.receive_into(memoryview(bytearray(100_000)), 10_000))
        except trio.BrokenResourceError:
            outcome.append("broken")
        except trio.ClosedResourceError:
            outcome.append("closed")

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked(0.05)
            if end == "eof":
                await near.send_eof()
            elif end == "reset":
                near.abort()
            else:
                far.abort()
    expected: dict[str, list[list[int | str]]] = {
        "eof": [[3000]],
        "reset": [["broken"], [3000]],
        "closed": [["closed"]],
    }
    assert outcome in expected[end]
    near.abort()
    far.abort()


async def test_sockets_are_set_up_for_frames_and_bulk() -> None:
    near, far = await open_pair(LOOPBACKS[0])
    for stream in (near, far):
        sock = stream._socket  # type: ignore[attr-defined]
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > 256 * 1024
        stream.abort()


@pytest.mark.parametrize(
    ("most", "got"), [(8 * MIB, 4 * MIB), (2 * MIB, 2 * MIB), (3 * MIB, 2 * MIB), (0, 0)]
)
def test_a_system_that_refuses_a_large_buffer_gives_a_smaller_one(most: int, got: int) -> None:
    taken = [0]

    class Strict:
        """Refuses as macOS and the BSDs do, instead of cutting as Linux does."""

        def setsockopt(self, level: int, option: int, size: int) -> None:
            assert (level, option) == (socket.SOL_SOCKET, socket.SO_SNDBUF)
            if size > most:
                raise OSError(errno.ENOBUFS, "no buffer space")
            taken.append(size)

    _ask_for_buffer(cast("trio.socket.SocketType", Strict()), socket.SO_SNDBUF, 4 * MIB)
    assert taken[-1] == got


async def test_aborting_what_is_closed_already_raises_nothing() -> None:
    near, far = await open_pair(LOOPBACKS[0])
    near._socket.close()  # type: ignore[attr-defined]  # any refusal by the system will do
    near.abort()
    near.abort()
    far.abort()


async def test_nobody_listening_is_refused() -> None:
    listener = await TCP.listen(parse_address(LOOPBACKS[0]))
    listener.close()
    with pytest.raises(DialError, match="connection refused"):
        await TCP.connect(listener.addresses[0])


async def test_a_name_is_resolved_and_dialled() -> None:
    listener = await TCP.listen(parse_address(LOOPBACKS[0]))
    name = parse_address(f"/dns/localhost/tcp/{listener.addresses[0].port}")
    near = await dial([name], [TCP], CONFIG)
    far = await listener.accept()
    assert near.remote_address == listener.addresses[0]
    near.abort()
    far.abort()
    listener.close()


async def test_a_name_that_does_not_exist_says_so() -> None:
    with pytest.raises(DialError, match="cannot be resolved"):
        await dial([parse_address("/dns4/nowhere.invalid/tcp/1")], [TCP], CONFIG)


async def test_a_port_in_use_is_named() -> None:
    listener = await TCP.listen(parse_address(LOOPBACKS[0]))
    with pytest.raises(ConfigError, match="in use") as caught:
        await TCP.listen(listener.addresses[0])
    assert "port 0" in caught.value.hint
    listener.close()


async def test_listening_needs_a_numeric_address() -> None:
    with pytest.raises(ConfigError, match="not a numeric address"):
        await TCP.listen(parse_address("/dns/localhost/tcp/0"))


async def test_a_wildcard_is_replaced_by_addresses_to_dial() -> None:
    listener = await TCP.listen(parse_address("/ip4/0.0.0.0/tcp/0"))
    assert listener.addresses[0].host == "127.0.0.1"
    assert all(address.host != "0.0.0.0" for address in listener.addresses)  # noqa: S104
    near = await TCP.connect(listener.addresses[0])
    near.abort()
    listener.close()


async def test_a_closed_listener_says_so() -> None:
    listener = await TCP.listen(parse_address(LOOPBACKS[0]))

    async def accept() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await wait_all_tasks_blocked()
        listener.close()
    await accept()

"""A network inside the process: memory streams with optional latency, jitter and bandwidth.

It keeps the contracts of `stream.py`, so whole swarms run in one process, and under trio's mock
clock in no time. A link is two pipes. A pipe holds at most `capacity_bytes` on their way (what the
socket buffers are to TCP); bytes leave at the link's bandwidth and arrive a latency later, in
order. Jitter comes from the network's seeded generator: the same program sees the same delays.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from sbp2p.errors import ConfigError
from sbp2p_protocol.limits import KIB, MIB
from sbp2p_protocol.multiaddr import Address, parse_address

from .queue_listener import QueueListener
from .stream import Bytes, DialError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .stream import Listener, RawStream

_FIRST_FREE_NUMBER = 1 << 32
"""Numbers that `/memory/0` and dialling ends are given start here, clear of chosen ones."""
_SEGMENT = 16 * KIB
"""Bytes that arrive together on a link of finite bandwidth, as a burst of packets would."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkProfile:
    """How a link behaves, the same in both directions."""

    latency_s: float = 0.0
    """One way."""
    jitter_s: float = 0.0
    """Most that is added to the latency of one write; order is kept."""
    bytes_per_s: float = math.inf
    capacity_bytes: int = 4 * MIB
    """Bytes sent and not yet received above which a sender waits."""


class MemoryNetwork:
    """Listeners by number, and the links between them. Is a `Transport`."""

    def __init__(self, *, profile: LinkProfile | None = None, seed: int = 0) -> None:
        self._profile = profile or LinkProfile()
        self._random = random.Random(seed)  # noqa: S311
        self._listeners: dict[int, QueueListener[MemoryStream]] = {}
        self._next_number = _FIRST_FREE_NUMBER

    def can_dial(self, address: Address) -> bool:
        """Return whether this is a memory address."""
        return address.kind == "memory"

    async def resolve(self, address: Address) -> list[Address]:
        """Return the address itself: memory addresses are numbers already."""
        await trio.lowlevel.checkpoint()
        return [address]

    async def connect(self, address: Address) -> RawStream:
        """Open a link to a listener; takes one round trip."""
        await trio.sleep(2 * self._profile.latency_s)
        listener = self._listeners.get(address.port)
        if listener is None or listener.is_full:
            raise DialError.at(address, "connection refused")
        near, far = self.open_pair(self._free_address(), address.without_peer())
        listener.arrive(far)
        return near

    async def listen(self, address: Address) -> Listener:
        """Listen on a memory address; number 0 takes a free one."""
        await trio.lowlevel.checkpoint()
        if not self.can_dial(address):
            raise ConfigError(f"cannot listen on {address.text} in a memory network")
        bound = address.without_peer() if address.port else self._free_address()
        if bound.port in self._listeners:
            raise ConfigError(f"cannot listen on {bound.text}: it is in use")
        listener = self._listeners[bound.port] = QueueListener(bound, self.forget)
        return listener

    def open_pair(self, near: Address, far: Address) -> tuple[MemoryStream, MemoryStream]:
        """Return both ends of a new link between two addresses."""
        there = _Pipe(self._profile, self._random)
        back = _Pipe(self._profile, self._random)
        return (
            MemoryStream(near, far, incoming=back, outgoing=there),
            MemoryStream(far, near, incoming=there, outgoing=back),
        )

    def forget(self, address: Address) -> None:
        """Take a listener out of the network: nobody can dial it any more."""
        self._listeners.pop(address.port, None)

    def _free_address(self) -> Address:
        number = self._next_number
        self._next_number += 1
        return parse_address(f"/memory/{number}")


class MemoryStream:
    """One end of a link."""

    def __init__(
        self, local: Address, remote: Address, *, incoming: _Pipe, outgoing: _Pipe
    ) -> None:
        self._local = local
        self._remote = remote
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False

    @property
    def local_address(self) -> Address:
        """The address of this end."""
        return self._local

    @property
    def remote_address(self) -> Address:
        """The address of the other end."""
        return self._remote

    async def receive_into(self, buffer: memoryview, enough: int = 1) -> int:
        """Receive what has arrived."""
        self._check_open()
        try:
            return await self._incoming.receive_into(buffer)
        except trio.BrokenResourceError:
            self._check_open()
            raise

    async def send_some(self, buffers: Sequence[Bytes]) -> int:
        """Send as much of the first buffer as the link has room for."""
        self._check_open()
        try:
            return await self._outgoing.send(buffers[0])
        except trio.BrokenResourceError:
            self._check_open()
            raise

    async def send_eof(self) -> None:
        """End the outgoing direction behind what was sent."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        self._outgoing.end()

    def abort(self) -> None:
        """Break both directions at once."""
        self._closed = True
        self._incoming.abort()
        self._outgoing.abort()

    async def aclose(self) -> None:
        """End the outgoing direction and stop reading."""
        self._closed = True
        self._incoming.abort()
        self._outgoing.end()
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this side closed the memory stream")


class _Pipe:
    """One direction of a link: bytes with the time at which each lot arrives."""

    def __init__(self, profile: LinkProfile, rng: random.Random) -> None:
        self._profile = profile
        self._random = rng
        self._lots: deque[tuple[float, memoryview]] = deque()
        self._size = 0
        self._sent_at = -math.inf
        self._last_arrival = -math.inf
        self._ended = False
        self._aborted = False
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()

    async def send(self, data: Bytes) -> int:
        await trio.lowlevel.checkpoint()
        while not self._aborted and self._size >= self._profile.capacity_bytes:
            await self._writers.park()
        if self._aborted or self._ended:
            raise trio.BrokenResourceError("the other side closed the memory stream")
        taken = memoryview(bytes(memoryview(data)[: self._profile.capacity_bytes - self._size]))
        self._size += len(taken)
        step = len(taken) if self._profile.bytes_per_s == math.inf else _SEGMENT
        for start in range(0, len(taken), step):
            lot = taken[start : start + step]
            self._lots.append((self._arrival(len(lot)), lot))
        self._readers.unpark_all()
        return len(taken)

    def _arrival(self, size: int) -> float:
        """Return when a lot sent now arrives: behind the ones before it, never ahead of them."""
        profile = self._profile
        self._sent_at = max(self._sent_at, trio.current_time()) + size / profile.bytes_per_s
        delay = profile.latency_s + self._random.uniform(0.0, profile.jitter_s)
        self._last_arrival = max(self._last_arrival, self._sent_at + delay)
        return self._last_arrival

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        while not self._aborted:
            if self._lots and self._lots[0][0] <= trio.current_time():
                return self._take(buffer)
            if self._ended and not self._lots:
                return 0
            arrival = self._lots[0][0] if self._lots else math.inf
            with trio.CancelScope(deadline=arrival):
                await self._readers.park()
        raise trio.BrokenResourceError("the memory stream was reset")

    def _take(self, buffer: memoryview) -> int:
        arrival, lot = self._lots.popleft()
        taken, rest = lot[: len(buffer)], lot[len(buffer) :]
        buffer[: len(taken)] = taken
        if rest:
            self._lots.appendleft((arrival, rest))
        self._size -= len(taken)
        self._writers.unpark_all()
        return len(taken)

    def end(self) -> None:
        self._ended = True
        self._readers.unpark_all()

    def abort(self) -> None:
        self._aborted = True
        self._lots.clear()
        self._readers.unpark_all()
        self._writers.unpark_all()

"""A virtual TCP connection: two pipes, two ends, and how they come to an end.

| what happens | the other side sees |
|---|---|
| `send_eof`, `aclose` | an end of stream behind what was written |
| `abort`, or bytes that come after `aclose` | a reset, one latency later |
| the network resets the connection | a reset at both sides, now |
| the hosts are cut off from each other | nothing; what was written waits, and so do end and reset |
| a host vanishes | nothing at all, ever |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from .pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.transport import Bytes
    from sbp2p_protocol.multiaddr import Address

    from .hosts import Host
    from .network import VirtualNetwork

_RESET: Final = "connection reset by the other side"


class VirtualStream:
    """One end of a connection: a raw stream."""

    def __init__(self, link: Link, side: int, local: Address, remote: Address) -> None:
        self._link = link
        self._side = side
        self._local = local
        self._remote = remote
        self._closed = False

    @property
    def local_address(self) -> Address:
        """Where this end is."""
        return self._local

    @property
    def remote_address(self) -> Address:
        """Where the other end seems to be."""
        return self._remote

    async def receive_into(self, buffer: memoryview, enough: int = 1) -> int:
        """Receive what was delivered."""
        self._check_open()
        try:
            return await self._link.pipes[1 - self._side].read_into(buffer)
        except trio.BrokenResourceError:
            self._check_open()
            raise

    async def send_some(self, buffers: Sequence[Bytes]) -> int:
        """Send as much as there is room for."""
        self._check_open()
        try:
            return await self._link.pipes[self._side].write(buffers)
        except trio.BrokenResourceError:
            self._check_open()
            raise

    async def send_eof(self) -> None:
        """End the outgoing direction behind what was sent."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        self._link.pipes[self._side].end()

    def abort(self) -> None:
        """Reset the connection."""
        if not self._closed:
            self._closed = True
            self._link.abort(self._side)

    async def aclose(self) -> None:
        """End the outgoing direction and stop reading."""
        if not self._closed:
            self._closed = True
            self._link.close(self._side)
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this side closed the virtual stream")


class Link:
    """A connection between two hosts. Side 0 dialled, side 1 listens."""

    def __init__(
        self,
        network: VirtualNetwork,
        number: int,
        hosts: tuple[Host, Host],
        addresses: tuple[Address, Address, Address],
    ) -> None:
        near, seen_as, far = addresses
        self.number = number
        self.hosts = hosts
        self._network = network
        self._latency_s = latency_s = network.latency_s(*hosts)
        rates = [each.bytes_per_s for host in hosts for each in (host.uplink, host.downlink)]
        self.pipes = tuple(
            self._make_pipe(network, side, latency_s, min(rates[2 * side], rates[3 - 2 * side]))
            for side in (0, 1)
        )
        self.streams = (
            VirtualStream(self, 0, near, far),
            VirtualStream(self, 1, far, seen_as),
        )
        self._resets_held = [False, False]
        self._over = False
        self.is_cut = False

    def _make_pipe(
        self, network: VirtualNetwork, side: int, latency_s: float, bytes_per_s: float
    ) -> Pipe:
        sender, receiver = self.hosts[side], self.hosts[1 - side]
        return Pipe(
            network.timeline,
            sender.uplink,
            receiver.downlink,
            latency_s=latency_s,
            send_buffer_bytes=network.send_buffer_bytes,
            window_bytes=network.window_bytes(bytes_per_s, latency_s),
            on_progress=lambda count: self._progress(side, count),
            on_refused=lambda: self._reset_from(1 - side),
        )

    def abort(self, side: int) -> None:
        """Reset from one side."""
        self._reset_from(side)
        for pipe in self.pipes:
            pipe.drop()
        self._break(side, "this side reset the connection")

    def close(self, side: int) -> None:
        """End one direction, and read the other no more."""
        self.pipes[side].end()
        self.pipes[1 - side].close_reader()
        self._forget_if_over()

    def reset(self) -> None:
        """Reset at both sides, at once: something on the way lost the connection."""
        for side in (0, 1):
            self._break(side, _RESET)

    def vanish(self, host: Host) -> None:
        """Take one host away; the other one is not told."""
        for pipe in self.pipes:
            pipe.drop()
        self._break(self.hosts.index(host), "this host is gone")

    def cut(self, is_cut: bool) -> None:
        """Let nothing pass, or let it again."""
        if is_cut == self.is_cut:
            return
        self.is_cut = is_cut
        for pipe in self.pipes:
            pipe.hold(is_cut)
        for side in (0, 1):
            if not is_cut and self._resets_held[side]:
                self._resets_held[side] = False
                self._reset_from(side)

    def _reset_from(self, side: int) -> None:
        if self.is_cut:
            self._resets_held[side] = True
        elif self.hosts[1 - side].is_up and self.hosts[side].is_up:
            self._network.timeline.after(self._latency_s, self._break, 1 - side, _RESET)

    def _break(self, side: int, reason: str) -> None:
        self.pipes[side].fail_writer(reason)
        self.pipes[1 - side].fail_reader(reason)
        self._forget_if_over()

    def _progress(self, side: int, count: int) -> None:
        self._network.trace("delivered", self.hosts[side], self.hosts[1 - side], count)
        if not count:
            self._forget_if_over()

    def _forget_if_over(self) -> None:
        if self._over or any(self._resets_held):
            return
        if all(pipe.is_over for pipe in self.pipes):
            self._over = True
            self._network.forget(self)

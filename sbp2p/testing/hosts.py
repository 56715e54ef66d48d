"""The machines of a virtual network: an address, two access lines, and what listens there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import trio

from sbp2p.errors import ConfigError
from sbp2p.transport import DialError
from sbp2p.transport.queue_listener import QueueListener
from sbp2p_protocol.multiaddr import Address, parse_address

from .shaper import Shaper

if TYPE_CHECKING:
    from sbp2p.transport import Listener, RawStream

    from .link import VirtualStream
    from .network import VirtualNetwork
    from .timeline import Timeline

PORT: Final = 4801
"""Where nodes listen."""
_FIRST_EPHEMERAL: Final = 32768
_PORTS: Final = 65536


class Host:
    """One machine.

    Args:
        name: in the network.
        number: in the order of their making.
        timeline: of the network.
        public_ip: where others see it.
        private_ip: its own interface, where a router translates addresses; nobody can dial it.
        chunk_s: of its lines; see `shaper`.
    """

    def __init__(
        self,
        name: str,
        number: int,
        timeline: Timeline,
        *,
        public_ip: str,
        private_ip: str | None,
        chunk_s: float,
    ) -> None:
        self.name = name
        self.number = number
        self.public_ip = public_ip
        self.private_ip = private_ip
        self.uplink = Shaper(timeline, math.inf, chunk_s=chunk_s)
        self.downlink = Shaper(timeline, math.inf, chunk_s=chunk_s)
        self.is_up = True
        """False once it has vanished from the network."""
        self.listeners: dict[int, QueueListener[VirtualStream]] = {}
        self._next_port = _FIRST_EPHEMERAL

    def __repr__(self) -> str:
        return f"<Host {self.name} at {self.public_ip}>"

    @property
    def is_reachable(self) -> bool:
        """Whether others can dial it."""
        return self.private_ip is None

    @property
    def own_ip(self) -> str:
        """The address of its own interface."""
        return self.private_ip or self.public_ip

    def free_port(self) -> int:
        """Return the next port for a dialling end, or for `/tcp/0`."""
        port = self._next_port
        self._next_port = port + 1 if port + 1 < _PORTS else _FIRST_EPHEMERAL
        return port


def tcp_address(ip: str, port: int) -> Address:
    """Return an address in a virtual network."""
    return parse_address(f"/ip4/{ip}/tcp/{port}")


class VirtualTransport:
    """TCP as one host of a virtual network has it: a `Transport`."""

    def __init__(self, network: VirtualNetwork, host: Host, dial_timeout_s: float) -> None:
        self._network = network
        self._host = host
        self._dial_timeout_s = dial_timeout_s

    def can_dial(self, address: Address) -> bool:
        """Return whether this is an IPv4 address, or a name, with a TCP port."""
        return address.kind in ("ip4", "dns", "dns4") and address.is_dialable

    async def resolve(self, address: Address) -> list[Address]:
        """Look a name up among the network's."""
        await trio.lowlevel.checkpoint()
        if address.kind == "ip4":
            return [address]
        found = self._network.names.get(address.host)
        if found is None:
            raise DialError.at(address, "the name cannot be resolved (no such name)")
        return [tcp_address(found, address.port)]

    async def connect(self, address: Address) -> RawStream:
        """Open a connection; takes a round trip, or `dial_timeout_s` if nobody answers."""
        target = self._network.host_at(address.host, self._host)
        if target is None or self._network.is_cut(self._host, target):
            await trio.sleep(self._dial_timeout_s)
            raise DialError.at(address, f"no answer within {self._dial_timeout_s:g} s")
        latency_s = self._network.latency_s(self._host, target)
        await trio.sleep(latency_s)
        listener = target.listeners.get(address.port)
        if listener is None or listener.is_full or not self._host.is_up:
            await trio.sleep(latency_s)
            raise DialError.at(address, "connection refused")
        near, far = self._network.open_link(self._host, target, address.without_peer())
        listener.arrive(far)
        try:
            await trio.sleep(latency_s)
        except BaseException:
            near.abort()
            raise
        return near

    async def listen(self, address: Address) -> Listener:
        """Listen on the host's own address or on all of them; port 0 takes a free one."""
        await trio.lowlevel.checkpoint()
        if address.kind != "ip4" or address.host not in ("0.0.0.0", self._host.own_ip):  # noqa: S104
            raise ConfigError(f"cannot listen on {address.text}: not an address of this machine")
        port = address.port or self._host.free_port()
        if port in self._host.listeners:
            raise ConfigError(f"cannot listen on {address.text}: the port is in use")
        own = tcp_address(self._host.own_ip, port)
        listener: QueueListener[VirtualStream] = QueueListener(own, self._forget)
        self._host.listeners[port] = listener
        return listener

    def _forget(self, address: Address) -> None:
        self._host.listeners.pop(address.port, None)

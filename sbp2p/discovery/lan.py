"""Multicast DNS on the interfaces of this machine: the sockets around `sbp2p_protocol.mdns`.

Theory of operation. One UDP socket for each interface and family, bound to port 5353 beside those
of other programs (SO_REUSEADDR, SO_REUSEPORT) and joined to the group on that interface alone. What
is sent on it is heard by this machine, too, so nodes of one machine find each other, and a node
hears its own question and answers it, as libp2p wants. Interfaces come and go: they are looked at
every SCAN_S, and whenever the addresses of this node change.

Loopback is left out unless it is named: what is not a network has no others on it.

Error cases: a socket that cannot be had or used is logged, and tried again at the next look. What
is read and makes no sense is dropped.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from sbp2p import observe
from sbp2p.transport.interfaces import interfaces
from sbp2p_protocol.candidates import Candidate, Origin
from sbp2p_protocol.dns_message import DnsMessage
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.limits import MDNS_RECEIVED_MAX
from sbp2p_protocol.mdns import (
    MDNS_GROUP_4,
    MDNS_GROUP_6,
    MDNS_PORT,
    MdnsMachine,
    advertised,
    instance_name,
    service_of,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from sbp2p.config import DiscoveryConfig
    from sbp2p.swarm import Swarm
    from sbp2p.transport.interfaces import Interface
    from sbp2p_protocol.multiaddr import Address

SCAN_S: Final = 5.0
_HOPS: Final = 255
"""RFC 6762 section 11. It does not leave the link in any case: the group is link-local."""
_IP_MULTICAST_ALL: Final = 49
_IPV6_MULTICAST_ALL: Final = 29
"""Linux: off, a socket gets what comes in on the interface that it joined, and nothing else."""


@dataclass(frozen=True, slots=True)
class Link:
    """One interface and family."""

    name: str
    index: int
    host: str
    """One of its addresses, which IPv4 names the interface by."""
    version: int

    def __str__(self) -> str:
        return f"{self.name} (IPv{self.version})"


def links(names: Iterable[str] = ()) -> list[Link]:
    """Return the links to use: of these interfaces, or of all that carry multicast."""
    chosen = set(names)

    def is_used(each: Interface) -> bool:
        if chosen:
            return each.name in chosen
        return each.is_multicast and not each.is_loopback

    return [
        Link(each.name, each.index, each.hosts_of(version)[0], version)
        for each in interfaces()
        if is_used(each)
        for version in (4, 6)
        if each.hosts_of(version)
    ]


class Lan:
    """Finds peers by multicast for one swarm; `run` is its task."""

    def __init__(
        self,
        swarm: Swarm,
        config: DiscoveryConfig,
        rng: random.Random,
        offer: Callable[[Candidate], None],
    ) -> None:
        self._swarm = swarm
        self._config = config
        self._rng = rng
        self._offer = offer
        self._instance = instance_name(rng)
        self._running: dict[Link, _LinkTask] = {}
        self.failures: dict[Link, str] = {}
        """Links that cannot be used, and why."""
        self.heard = 0
        """Packets about this service, our own among them."""
        self._arrivals = trio.lowlevel.ParkingLot()

    @property
    def links(self) -> list[Link]:
        """The links in use now."""
        return list(self._running)

    async def wait_heard(self) -> None:
        """Wait for the next packet about this service."""
        await self._arrivals.park()

    def ask_now(self) -> None:
        """Ask on every link soon, whenever it was asked last."""
        for task in self._running.values():
            task.machine.ask_now(trio.current_time())
            task.wake()

    async def run(self) -> None:
        """Ask and answer, for ever; when cancelled, say goodbye."""
        async with trio.open_nursery() as nursery:
            while True:
                found = links(self._config.lan_interfaces)
                for link, task in list(self._running.items()):
                    if link not in found:
                        task.scope.cancel()
                for link in found:
                    if link not in self._running:
                        nursery.start_soon(self._run_link, link)
                with trio.move_on_after(SCAN_S):
                    await self._swarm.own_addresses.wait_changed()

    async def _run_link(self, link: Link) -> None:
        if link in self._running:
            return
        machine = MdnsMachine(
            self._swarm.peer_id,
            service=service_of(self._config.lan_network),
            instance=self._instance,
            query_s=self._config.lan_query_s,
            ttl_s=self._config.lan_ttl_s,
            rng=self._rng,
            now=trio.current_time(),
        )
        try:
            sock = await _open_socket(link)
        except OSError as error:
            self._failed(link, error)
            return
        with sock:
            task = self._running[link] = _LinkTask(self, link, sock, machine)
            self.failures.pop(link, None)
            try:
                await task.run()
            except OSError as error:
                self._failed(link, error)
            finally:
                del self._running[link]

    def _failed(self, link: Link, error: OSError) -> None:
        self.failures[link] = error.strerror or str(error)
        observe.report_not_found(f"multicast on {link}", error)

    def _advertised(self) -> tuple[Address, ...]:
        return advertised(self._swarm.own_addresses.listening, self._swarm.peer_id)

    def _heard(self, machine: MdnsMachine, data: bytes) -> None:
        now = trio.current_time()
        if not machine.admit(data, now):
            return
        self.heard += 1
        try:
            found = machine.receive(DnsMessage.decode(data), now)
        except RemoteProtocolError as error:
            observe.report_refused("a multicast packet", str(error))
            return
        self._arrivals.unpark_all()
        for peer in found:
            self._offer(Candidate(peer.peer_id, peer.addresses, Origin.LAN))


class _LinkTask:
    """What runs on one link."""

    def __init__(
        self, lan: Lan, link: Link, sock: trio.socket.SocketType, machine: MdnsMachine
    ) -> None:
        self.machine = machine
        self.scope = trio.CancelScope()
        self._lan = lan
        self._link = link
        self._socket = sock
        self._wake = trio.Event()

    def wake(self) -> None:
        """Have the machine's deadline looked at again."""
        self._wake.set()

    async def run(self) -> None:
        """Read and write until cancelled; raises OSError when the link is gone."""
        failed: list[OSError] = []
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_failure, self._write, failed)
                nursery.start_soon(self._until_failure, self._read, failed)
        if failed:
            raise failed[0]

    async def _until_failure(self, task: Callable[[], object], failed: list[OSError]) -> None:
        try:
            await task()  # type: ignore[misc]
        except OSError as error:
            failed.append(error)
            self.scope.cancel()

    async def _read(self) -> None:
        while True:
            try:
                data = await self._socket.recv(MDNS_RECEIVED_MAX + 1)
            except ConnectionError:  # some system reports what became of an earlier packet
                continue
            self._lan._heard(self.machine, data)
            self._wake.set()

    async def _write(self) -> None:
        try:
            while True:
                self._wake = trio.Event()
                for message in self.machine.handle_timer(
                    trio.current_time(), self._lan._advertised()
                ):
                    await self._send(message)
                with trio.move_on_at(self.machine.next_deadline):
                    await self._wake.wait()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 0.1):
                with suppress(OSError):
                    for message in self.machine.goodbye():
                        await self._send(message)

    async def _send(self, message: DnsMessage) -> None:
        group = MDNS_GROUP_4 if self._link.version == 4 else f"{MDNS_GROUP_6}%{self._link.name}"
        try:
            await self._socket.sendto(message.encode(), (group, MDNS_PORT))
        except OSError as error:
            # no buffer or no route just now: the next question says it again
            if error.errno not in (errno.ENOBUFS, errno.EAGAIN, errno.ENETUNREACH):
                raise


async def _open_socket(link: Link) -> trio.socket.SocketType:
    """Return a socket that hears the group on one link, and speaks there."""
    is_4 = link.version == 4
    sock = trio.socket.socket(socket.AF_INET if is_4 else socket.AF_INET6, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if is_4:
            _join_4(sock, link)
        else:
            _join_6(sock, link)
        # the wildcard, not the group: macOS and Windows send nothing from a socket bound to a group
        await sock.bind(("", MDNS_PORT) if is_4 else ("::", MDNS_PORT))
    except BaseException:
        sock.close()
        raise
    return sock


def _join_4(sock: trio.socket.SocketType, link: Link) -> None:
    host = socket.inet_aton(link.host)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
    request = socket.inet_aton(MDNS_GROUP_4) + host
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, host)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, _HOPS)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)


def _join_6(sock: trio.socket.SocketType, link: Link) -> None:
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if sys.platform == "linux":
        with suppress(OSError):  # since Linux 4.20
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
    request = socket.inet_pton(socket.AF_INET6, MDNS_GROUP_6) + struct.pack("@I", link.index)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, link.index)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, _HOPS)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)

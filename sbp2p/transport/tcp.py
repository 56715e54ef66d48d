"""TCP over IPv4, IPv6 and DNS names.

Reads go straight into the caller's buffer and writes straight from it, so a byte is copied once on
each side: by the kernel. Every socket has TCP_NODELAY, because the connection above writes whole
frames and waits for answers.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import trio

from sbp2p.errors import ConfigError
from sbp2p_protocol.limits import KIB
from sbp2p_protocol.multiaddr import Address, parse_address

from .interfaces import reachable_hosts
from .stream import Bytes, DialError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.config import TransportConfig

    from .stream import Listener, RawStream

_FAMILIES = {
    "ip4": socket.AF_INET,
    "ip6": socket.AF_INET6,
    "dns": socket.AF_UNSPEC,
    "dns4": socket.AF_INET,
    "dns6": socket.AF_INET6,
}
_UNSENT_MAX = 512 * KIB
"""Bytes that wait in the kernel because the network is slower. Without this bound the send buffer
fills, and at 1 MB/s a small message waits four seconds behind 4 MiB of blocks."""
_BUFFER_MIN = 64 * KIB
"""A socket buffer below this is smaller than what every system gives unasked."""
_BUFFERS_PER_CALL = 64
"""Buffers given to one sendmsg; the kernel takes 1024, and 64 already hold a whole queue."""
_ACCEPT_PAUSE_S = 0.1
"""Wait when the process is out of file descriptors; trio.serve_listeners waits as long."""
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
_BACKLOG = 128
_INTERFACES_S = 5.0
"""How long the addresses of interfaces are taken to stay what they are; looking costs 1 ms."""
_INTERFACE_HOSTS = 8
"""Addresses of interfaces that stand for a wildcard: hosts of containers can have hundreds."""


class TcpTransport:
    """Dials and listens on TCP addresses."""

    def __init__(self, config: TransportConfig) -> None:
        self._config = config

    def can_dial(self, address: Address) -> bool:
        """Return whether this is a TCP address."""
        return address.kind in _FAMILIES and address.is_dialable

    async def resolve(self, address: Address) -> list[Address]:
        """Look names up; a numeric address is its own answer."""
        if address.kind in ("ip4", "ip6"):
            return [address]
        try:
            with trio.fail_after(self._config.dial_timeout_s):
                found = await trio.socket.getaddrinfo(
                    address.host, address.port, _FAMILIES[address.kind], socket.SOCK_STREAM
                )
        except trio.TooSlowError:
            raise DialError.at(address, "the name lookup did not answer in time") from None
        except (OSError, UnicodeError) as error:
            raise DialError.at(address, f"the name cannot be resolved ({error})") from error
        resolved = (_tcp_address(entry[4]) for entry in found)
        return list(dict.fromkeys(resolved))

    async def connect(self, address: Address) -> RawStream:
        """Connect to an ip4 or ip6 address within `dial_timeout_s`."""
        sock = trio.socket.socket(_FAMILIES[address.kind], socket.SOCK_STREAM)
        try:
            self._configure(sock)
            with trio.fail_after(self._config.dial_timeout_s):
                await sock.connect((address.host, address.port))
            return TcpStream(sock)
        except trio.TooSlowError:
            sock.close()
            seconds = self._config.dial_timeout_s
            raise DialError.at(address, f"no answer within {seconds:g} s") from None
        except OSError as error:
            sock.close()
            raise DialError.at(address, _reason(error)) from error
        except BaseException:
            sock.close()
            raise

    async def listen(self, address: Address) -> Listener:
        """Listen on an ip4 or ip6 address; port 0 takes a free one."""
        if address.kind not in ("ip4", "ip6"):
            raise ConfigError(
                f"cannot listen on {address.text}: not a numeric address",
                hint="listen on /ip4/0.0.0.0/tcp/PORT or /ip6/::/tcp/PORT",
            )
        sock = trio.socket.socket(_FAMILIES[address.kind], socket.SOCK_STREAM)
        try:
            if os.name == "posix":
                # a seeder that restarts takes its port back while old connections linger
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if address.kind == "ip6":
                # so that the same port may be taken for IPv4 beside it
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self._configure(sock)
            await sock.bind((address.host, address.port))
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            raise ConfigError(
                f"cannot listen on {address.text}: {_reason(error)}",
                hint="choose another port, or port 0 for any free one",
            ) from error
        except BaseException:
            sock.close()
            raise
        return TcpListener(sock)

    def _configure(self, sock: trio.socket.SocketType) -> None:
        """Set what must be set before connect or listen; accepted sockets inherit it."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_MAX)
        if size := self._config.socket_buffer_bytes:
            _ask_for_buffer(sock, socket.SO_SNDBUF, size)
            _ask_for_buffer(sock, socket.SO_RCVBUF, size)


class TcpStream:
    """A connected TCP socket as a raw stream."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._socket = sock
        self._local = _tcp_address(sock.getsockname())
        self._remote = _tcp_address(sock.getpeername())
        self._low_water = 1
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
        """Receive straight into `buffer`; the kernel wakes nobody for fewer than `enough` bytes.

        Their end, an error and a full receive buffer wake in any case.
        """
        try:
            if enough > 1 or self._low_water > 1:
                self._set_low_water(enough)
            if self._low_water > 1:
                # a read that is tried first would take what there is
                await trio.lowlevel.wait_readable(self._socket.fileno())
            return await self._socket.recv_into(buffer)
        except OSError as error:
            raise self._translate(error) from error

    def _set_low_water(self, count: int) -> None:
        if count != self._low_water and hasattr(socket, "SO_RCVLOWAT"):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._low_water = count

    async def send_some(self, buffers: Sequence[Bytes]) -> int:
        """Send from `buffers` what the socket takes at once."""
        try:
            if len(buffers) == 1 or not hasattr(self._socket, "sendmsg"):
                return await self._socket.send(buffers[0])
            return await self._socket.sendmsg(buffers[:_BUFFERS_PER_CALL])
        except OSError as error:
            raise self._translate(error) from error

    async def send_eof(self) -> None:
        """Send FIN behind everything sent so far."""
        await trio.lowlevel.checkpoint()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise self._translate(error) from error

    def abort(self) -> None:
        """Close with a reset: the kernel drops what it still holds."""
        if not self._closed:
            linger_for_nothing = struct.pack("ii", 1, 0)
            # macOS refuses this (EINVAL) on a socket that the other side has reset already
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_for_nothing)
            self._close()

    async def aclose(self) -> None:
        """Close; the kernel goes on delivering what it holds."""
        self._close()
        await trio.lowlevel.checkpoint()

    def _close(self) -> None:
        self._closed = True
        self._socket.close()

    def _translate(self, error: OSError) -> Exception:
        if self._closed:
            return trio.ClosedResourceError("this side closed the TCP stream")
        return trio.BrokenResourceError(_reason(error))


class TcpListener:
    """A listening TCP socket."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._socket = sock
        self._bound = _tcp_address(sock.getsockname())
        self._addresses = _reachable_addresses(self._bound)
        self._looked_at = time.monotonic()

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The bound address; for a wildcard, those of the interfaces, which come and go."""
        now = time.monotonic()
        if _is_wildcard(self._bound) and now - self._looked_at >= _INTERFACES_S:
            self._looked_at = now
            self._addresses = _reachable_addresses(self._bound)
        return self._addresses

    async def accept(self) -> RawStream:
        """Wait for a connection; those that vanish before they are taken are passed over."""
        while True:
            try:
                sock, _ = await self._socket.accept()
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    await trio.sleep(_ACCEPT_PAUSE_S)
                elif error.errno in (errno.EBADF, errno.ENOTSOCK):
                    raise trio.ClosedResourceError("the listener is closed") from error
                continue
            try:
                return TcpStream(sock)
            except OSError:
                sock.close()  # reset between accept and getpeername

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def _ask_for_buffer(sock: trio.socket.SocketType, option: int, size: int) -> None:
    """Make a socket buffer `size` bytes long, or as near to it as the system allows.

    Linux cuts what is too much by itself; macOS and the BSDs refuse it (ENOBUFS) and leave the
    buffer as it was.
    """
    while size >= _BUFFER_MIN:
        try:
            sock.setsockopt(socket.SOL_SOCKET, option, size)
        except OSError:
            size //= 2
        else:
            return


def _tcp_address(sockaddr: Any) -> Address:
    host, port = sockaddr[0], sockaddr[1]
    if ":" not in host:
        return parse_address(f"/ip4/{host}/tcp/{port}")
    # the scope of a link-local address means nothing to anybody else
    return parse_address(f"/ip6/{host.partition('%')[0]}/tcp/{port}")


def _is_wildcard(bound: Address) -> bool:
    return bound.host in ("0.0.0.0", "::")  # noqa: S104


def _reachable_addresses(bound: Address) -> tuple[Address, ...]:
    """Replace a wildcard by addresses that somebody can dial, the most usual first."""
    if not _is_wildcard(bound):
        return (bound,)
    loopback = "127.0.0.1" if bound.kind == "ip4" else "::1"
    others = reachable_hosts(4 if bound.kind == "ip4" else 6)
    hosts = [loopback, _outgoing_host(bound.kind), *others[:_INTERFACE_HOSTS]]
    found = [parse_address(f"/{bound.kind}/{host}/tcp/{bound.port}") for host in hosts if host]
    return tuple(dict.fromkeys(found))


def _outgoing_host(kind: str) -> str | None:
    """Return the local address that the default route leaves from, if there is one.

    Connecting a UDP socket sends nothing; the destinations are reserved for documentation
    (RFC 5737, RFC 3849).
    """
    destination = "192.0.2.1" if kind == "ip4" else "2001:db8::1"
    with socket.socket(_FAMILIES[kind], socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, 9))
        except OSError:
            return None
        host: str = probe.getsockname()[0]
        return host


def _reason(error: OSError) -> str:
    """Say in a few words what the operating system said."""
    match error.errno:
        case errno.ECONNREFUSED:
            return "connection refused"
        case errno.ETIMEDOUT:
            return "no answer in time"
        case errno.EHOSTUNREACH | errno.ENETUNREACH:
            return "no route to it"
        case errno.ECONNRESET | errno.EPIPE:
            return "connection reset by the other side"
        case errno.EADDRINUSE:
            return "the port is in use"
        case errno.EADDRNOTAVAIL:
            return "not an address of this machine"
        case errno.EACCES | errno.EPERM:
            return "not permitted"
    return (error.strerror or str(error)).lower()

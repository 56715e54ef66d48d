"""Raw byte streams and what makes them: the contracts every transport keeps.

A raw stream carries bytes both ways, in order, without authentication; the connection machine
turns it into something to trust. One task reads and one task writes; either may be cancelled at
any time: `receive_into` then has taken no byte, and `send_some` has sent no byte.

Errors, whatever lies below: `trio.BrokenResourceError` when the world ended the stream,
`trio.ClosedResourceError` when this side did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import trio

from sbp2p_protocol.limits import KIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p_protocol.multiaddr import Address

_JOIN_BELOW = 4 * KIB
"""Bytes below which a copy is cheaper than an entry in a vectored write."""

Bytes: TypeAlias = bytes | bytearray | memoryview


class RawStream(Protocol):
    """An open byte stream to one remote address."""

    @property
    def local_address(self) -> Address:
        """Where this end is."""

    @property
    def remote_address(self) -> Address:
        """Where the other end is."""

    async def receive_into(self, buffer: memoryview, enough: int = 1) -> int:
        """Wait for bytes, write at most `len(buffer)` of them there, return how many; 0 is EOF.

        With fewer than `enough` nothing could be done yet: a transport may wait for that many,
        where waiting is cheaper than reading often.
        """

    async def send_some(self, buffers: Sequence[Bytes]) -> int:
        """Hand over bytes from the front of `buffers`; return how many were taken (at least 1).

        The memory may be reused as soon as this returns.
        """

    async def send_eof(self) -> None:
        """Say that nothing more will be sent; the other direction stays open."""

    def abort(self) -> None:
        """Close at once, telling the other side nothing but that the stream is gone.

        Never blocks; may be called again, and while other tasks wait on the stream.
        """

    async def aclose(self) -> None:
        """Close; bytes that `send_some` took are still delivered."""


class Listener(Protocol):
    """A place where peers arrive."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """What to dial to arrive here (no peer id)."""

    async def accept(self) -> RawStream:
        """Wait for the next arrival. Cancelled: none was taken."""

    def close(self) -> None:
        """Stop listening; streams already accepted stay open. Never blocks."""


class Transport(Protocol):
    """One way to reach addresses: TCP, or memory."""

    def can_dial(self, address: Address) -> bool:
        """Return whether `connect` knows what to do with this address."""

    async def resolve(self, address: Address) -> list[Address]:
        """Turn names into numbers: what to `connect` to, best first.

        Raises:
            DialError: the name has no address.
        """

    async def connect(self, address: Address) -> RawStream:
        """Open a stream to a resolved address.

        Raises:
            DialError: refused, unreachable, or no answer in time.
        """

    async def listen(self, address: Address) -> Listener:
        """Start listening.

        Raises:
            ConfigError: the address is not one of this machine, is taken, or is not allowed.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class DialFailure:
    """Why one address did not lead to the peer."""

    address: Address
    reason: str

    def __str__(self) -> str:
        return f"{self.address.text}: {self.reason}"


class DialError(Exception):
    """No stream came of these addresses; never leaves sbp2p, which reports it per address."""

    def __init__(self, failures: Sequence[DialFailure]) -> None:
        super().__init__("; ".join(map(str, failures)))
        self.failures = tuple(failures)

    @classmethod
    def at(cls, address: Address, reason: str) -> DialError:
        """Return the error for one address."""
        return cls([DialFailure(address=address, reason=reason)])


async def send_all_buffers(
    stream: RawStream, buffers: Sequence[Bytes], *, stall_timeout_s: float
) -> None:
    """Send every byte of `buffers`, in order.

    Cancelled: an unknown prefix was sent, so the stream is of no further use.

    Raises:
        trio.TooSlowError: no byte was taken for `stall_timeout_s`.
        trio.BrokenResourceError: the stream is gone.
        trio.ClosedResourceError: this side closed it.
    """
    pending = _join_small(buffers)
    while pending:
        with trio.fail_after(stall_timeout_s):
            sent = await stream.send_some(pending)
        _drop_prefix(pending, sent)


def _join_small(buffers: Sequence[Bytes]) -> list[Bytes]:
    """Return the same bytes in fewer buffers: neighbours below 4 KiB are copied together."""
    joined: list[Bytes] = []
    run: list[Bytes] = []
    for buffer in buffers:
        if len(buffer) < _JOIN_BELOW:
            run.append(buffer)
            continue
        if run:
            joined.append(b"".join(run))
            run.clear()
        joined.append(buffer)
    if run:
        joined.append(b"".join(run))
    return [buffer for buffer in joined if len(buffer)]


def _drop_prefix(buffers: list[Bytes], count: int) -> None:
    """Remove the first `count` bytes from a list of buffers, in place."""
    whole = 0
    for buffer in buffers:
        if count < len(buffer):
            break
        count -= len(buffer)
        whole += 1
    del buffers[:whole]
    if count:
        buffers[0] = memoryview(buffers[0])[count:]

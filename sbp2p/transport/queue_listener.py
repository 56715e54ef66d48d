"""A listener whose connections are handed to it: what networks inside one process have.

Theory of operation: a dialling end asks `is_full` and calls `arrive`; `accept` takes arrivals in
order. The queue has the bound of a socket's backlog. Closing tells the owner, which frees the
address, and aborts what nobody accepted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbp2p_protocol.multiaddr import Address

    from .stream import RawStream

BACKLOG: Final = 128
"""Connections that wait to be accepted; further ones are refused."""

_S = TypeVar("_S", bound="RawStream")


class QueueListener(Generic[_S]):
    """A `Listener` at one address.

    Args:
        forget: called once with the address when the listener closes.
    """

    def __init__(self, address: Address, forget: Callable[[Address], object]) -> None:
        self._address = address
        self._forget = forget
        self._arrivals: deque[_S] = deque()
        self._waiting = trio.lowlevel.ParkingLot()
        self._closed = False

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The one address to dial."""
        return (self._address,)

    @property
    def is_full(self) -> bool:
        """Whether as many connections wait to be accepted as may."""
        return len(self._arrivals) >= BACKLOG

    def arrive(self, stream: _S) -> None:
        """Queue a connection for `accept`."""
        self._arrivals.append(stream)
        self._waiting.unpark()

    async def accept(self) -> RawStream:
        """Wait for the next arrival."""
        await trio.lowlevel.checkpoint()
        while not self._arrivals:
            if self._closed:
                raise trio.ClosedResourceError("the listener is closed")
            await self._waiting.park()
        return self._arrivals.popleft()

    def close(self) -> None:
        """Free the address; connections that nobody accepted are reset."""
        if not self._closed:
            self._closed = True
            self._forget(self._address)
            while self._arrivals:
                self._arrivals.popleft().abort()
            self._waiting.unpark_all()

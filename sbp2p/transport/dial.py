"""Several addresses at once: the first that works wins (RFC 8305, "happy eyeballs").

Addresses are tried in order with a head start of `delay_s` each; a failure starts the next one at
once. IPv6 and IPv4 alternate, so that a broken family costs one head start and not one timeout for
every address in it. An attempt may be more than a TCP connect: the swarm's lasts until the peer has
proved who it is, so a host that accepts and then says nothing loses to the next address too.

`race` owns what the losers made: an attempt is cancelled, or, when it succeeds too late, its
result goes to `discard`.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from .stream import DialError, DialFailure, RawStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sbp2p.config import TransportConfig
    from sbp2p_protocol.multiaddr import Address

    from .stream import Transport

T = TypeVar("T")


async def dial(
    addresses: Sequence[Address], transports: Sequence[Transport], config: TransportConfig
) -> RawStream:
    """Return a raw stream to whichever address answers first.

    Raises:
        DialError: none did; it holds a reason for each address.
    """

    async def connect(transport: Transport, address: Address) -> RawStream:
        return await transport.connect(address)

    return await dial_with(
        addresses, transports, config, attempt=connect, discard=lambda raw: raw.abort()
    )


async def dial_with(
    addresses: Sequence[Address],
    transports: Sequence[Transport],
    config: TransportConfig,
    *,
    attempt: Callable[[Transport, Address], Awaitable[T]],
    discard: Callable[[T], None],
) -> T:
    """Race `attempt` over everything that `addresses` resolve to.

    Names are looked up inside the race, so a slow resolver delays only its own address.

    Raises:
        DialError: every attempt failed.
    """
    limiter = trio.CapacityLimiter(config.max_parallel_dials)

    async def try_numeric(transport: Transport, address: Address) -> T:
        async with limiter:
            return await attempt(transport, address)

    async def try_address(address: Address) -> T:
        transport = next((each for each in transports if each.can_dial(address)), None)
        if transport is None:
            raise DialError.at(address, "no transport here can dial this kind of address")
        resolved = alternate_families(await transport.resolve(address))
        attempts = [_bind(try_numeric, transport, each) for each in resolved]
        return await race(attempts, delay_s=config.happy_eyeballs_delay_s, discard=discard)

    ordered = alternate_families(list(dict.fromkeys(addresses)))
    attempts = [_bind_one(try_address, each) for each in ordered]
    return await race(attempts, delay_s=config.happy_eyeballs_delay_s, discard=discard)


def _bind(
    call: Callable[[Transport, Address], Awaitable[T]], transport: Transport, address: Address
) -> Callable[[], Awaitable[T]]:
    return lambda: call(transport, address)


def _bind_one(
    call: Callable[[Address], Awaitable[T]], address: Address
) -> Callable[[], Awaitable[T]]:
    return lambda: call(address)


def alternate_families(addresses: Sequence[Address]) -> list[Address]:
    """Reorder so that families take turns, each in its given order, the first address first."""
    families: dict[str, list[Address]] = {}
    for address in addresses:
        families.setdefault(address.kind, []).append(address)
    return [address for turn in zip_longest(*families.values()) for address in turn if address]


async def race(
    attempts: Sequence[Callable[[], Awaitable[T]]],
    *,
    delay_s: float,
    discard: Callable[[T], None],
) -> T:
    """Run attempts with staggered starts; return the first result, cancel the rest.

    Cancelled: every attempt is cancelled, and no result is kept.

    Raises:
        DialError: all attempts raised DialError. Anything else that an attempt raises is a bug, and
            leaves as an exception group.
    """
    contest = _Contest(attempts, delay_s, discard)
    try:
        async with trio.open_nursery() as nursery:
            contest.start_next(nursery)
    except BaseException:
        contest.discard_winner()
        raise
    return contest.result()


class _Contest(Generic[T]):
    """One race: which attempts have started, who won, who failed and why."""

    def __init__(
        self,
        attempts: Sequence[Callable[[], Awaitable[T]]],
        delay_s: float,
        discard: Callable[[T], None],
    ) -> None:
        self._waiting = list(reversed(attempts))
        self._delay_s = delay_s
        self._discard = discard
        self._winners: list[T] = []
        self._failures: list[DialFailure] = []

    def start_next(self, nursery: trio.Nursery) -> None:
        """Start the next attempt that waits, if any."""
        if self._waiting and not self._winners:
            nursery.start_soon(self._run, self._waiting.pop(), nursery)

    async def _run(self, attempt: Callable[[], Awaitable[T]], nursery: trio.Nursery) -> None:
        finished = trio.Event()
        nursery.start_soon(self._start_next_after, finished, nursery)
        try:
            result = await attempt()
        except DialError as error:
            self._failures.extend(error.failures)
            finished.set()
            return
        if self._winners:
            self._discard(result)
        else:
            self._winners.append(result)
            nursery.cancel_scope.cancel()

    async def _start_next_after(self, finished: trio.Event, nursery: trio.Nursery) -> None:
        with trio.move_on_after(self._delay_s):
            await finished.wait()
        self.start_next(nursery)

    def discard_winner(self) -> None:
        """Give up the result: the race itself was cancelled."""
        while self._winners:
            self._discard(self._winners.pop())

    def result(self) -> T:
        """Return what the winner made, or raise why there is none."""
        if not self._winners:
            raise DialError(self._failures)
        return self._winners[0]

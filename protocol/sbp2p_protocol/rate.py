"""How fast bytes may go: token buckets, and whose turn it is among peers that wait for tokens.

Theory of operation. A bucket fills with `rate` tokens a second, one for each byte, up to BURST_S
seconds' worth. Whoever finds it not in debt may spend as much as one piece at once, which may put
it into debt; the next one waits until the debt is paid. So over any span of T seconds no more than
`rate * (T + BURST_S + PIECE_S)` bytes are let through: 3 % too many over 10 s at worst, and none
too few while somebody always waits.

A `RateQueue` has one bucket for all peers and one for each. Peers wait with tickets; the next to be
granted is, of those whose own bucket lets them, the one that has got the fewest bytes (start-time
fair queueing: a peer that comes back after a pause starts where the others are). So a peer with
many requests, or with large ones, gets no more than one with few.

    ticket     becomes                  by
    waiting    granted                  `grant`, when both buckets are out of debt
    waiting    gone                     `withdraw`
    granted    gone, tokens given back  `withdraw`: it was cancelled before anything was sent

Time is an argument, in seconds; nothing here waits. Errors: ValueError for a rate or a count that
is not positive.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Generic, TypeVar

PeerT = TypeVar("PeerT")

BURST_S: Final = 0.25
"""How much unspent time is kept. A process that is woken a little late loses nothing, and 0.25 s of
10 s is 2.5 %."""
PIECE_S: Final = 0.05
"""A piece is what goes in this time: 20 steps a second look smooth, and are 0.5 % of 10 s."""
PIECE_MIN: Final = 256
"""Bytes; below 5 kB/s steps become fewer instead of smaller."""
PIECE_MAX: Final = 256 * 1024
"""Bytes; above 5 MB/s steps become more instead of larger. Four whole Noise messages."""

_NOTHING: Final = 1e-6
"""A debt below this many bytes is rounding."""


class TokenBucket:
    """Tokens for bytes in one direction.

    Args:
        rate: bytes a second, above 0; None for no limit.
        now: seconds of the clock that all other times are of.
    """

    __slots__ = ("_at", "_level", "rate")

    def __init__(self, rate: float | None, now: float) -> None:
        self.rate = _checked(rate)
        self._level = 0.0
        self._at = now

    def set_rate(self, rate: float | None, now: float) -> None:
        """Fill at another rate from now on; a debt stays, in bytes."""
        self._fill(now)
        self.rate = _checked(rate)
        self._level = 0.0 if rate is None else min(self._level, rate * BURST_S)

    def ready_at(self, now: float) -> float:
        """When the bucket is out of debt; `now` if it is."""
        self._fill(now)
        if self.rate is None or self._level >= -_NOTHING:
            return now
        return now - self._level / self.rate

    def spend(self, count: float, now: float) -> None:
        """Take tokens, whether they are there or not; a negative count gives them back."""
        self._fill(now)
        if self.rate is not None:
            self._level = min(self._level - count, self.rate * BURST_S)

    def is_idle(self, now: float) -> bool:
        """Whether a fresh bucket would allow no more than this one."""
        return self.ready_at(now) <= now

    def _fill(self, now: float) -> None:
        if self.rate is not None and now > self._at:
            self._level = min(self._level + (now - self._at) * self.rate, self.rate * BURST_S)
        self._at = max(self._at, now)


def piece_bytes(rate: float | None) -> int | None:
    """Return the size of a step at a rate in bytes a second; None when there is no limit."""
    if rate is None:
        return None
    return int(min(max(rate * PIECE_S, PIECE_MIN), PIECE_MAX))


class Ticket(Generic[PeerT]):
    """A wish to move `count` bytes to or from `peer`."""

    __slots__ = ("count", "granted", "peer")

    def __init__(self, peer: PeerT, count: int) -> None:
        self.peer = peer
        self.count = count
        self.granted = False


class _Line(Generic[PeerT]):
    """One peer's tickets, bucket, and how far it has been served, in bytes."""

    __slots__ = ("bucket", "served", "waiting")

    def __init__(self, bucket: TokenBucket, served: float) -> None:
        self.bucket = bucket
        self.served = served
        self.waiting: deque[Ticket[PeerT]] = deque()


class RateQueue(Generic[PeerT]):
    """Tickets of peers that wait for tokens; see the module's theory of operation.

    Args:
        total: bytes a second for all peers together; None for no limit.
        each: bytes a second for each of them; None for no limit.
        now: the time.
    """

    def __init__(self, total: float | None, each: float | None, now: float) -> None:
        self._total = TokenBucket(total, now)
        self._each = _checked(each)
        self._lines: dict[PeerT, _Line[PeerT]] = {}
        """Peers that wait, are in debt, or are ahead of others."""
        self._served = 0.0
        """How far the peer that was granted last had been served."""

    @property
    def limited(self) -> bool:
        """Whether anybody might ever have to wait."""
        return self._total.rate is not None or self._each is not None

    @property
    def piece(self) -> int | None:
        """Most bytes to ask for with one ticket, so that it goes smoothly; None: no limit."""
        pieces = [piece_bytes(rate) for rate in (self._total.rate, self._each)]
        return min((piece for piece in pieces if piece is not None), default=None)

    @property
    def waiting(self) -> int:
        """How many tickets are not granted yet."""
        return sum(len(line.waiting) for line in self._lines.values())

    def set_rates(self, total: float | None, each: float | None, now: float) -> None:
        """Go by other rates from now on; tickets keep waiting, and debts stay."""
        self._each = _checked(each)
        self._total.set_rate(total, now)
        for line in self._lines.values():
            line.bucket.set_rate(each, now)

    def ask(self, peer: PeerT, count: int, now: float) -> Ticket[PeerT]:
        """Return a waiting ticket; `grant` may grant it at once."""
        if count <= 0:
            raise ValueError(f"cannot wait for {count} bytes")
        line = self._lines.get(peer)
        if line is None:
            line = self._lines[peer] = _Line(TokenBucket(self._each, now), self._served)
        elif not line.waiting:
            line.served = max(line.served, self._served)
        ticket = Ticket(peer, count)
        line.waiting.append(ticket)
        return ticket

    def withdraw(self, ticket: Ticket[PeerT], now: float) -> None:
        """Forget a ticket; the tokens of a granted one are given back."""
        line = self._lines.get(ticket.peer)
        if ticket.granted:
            self._total.spend(-ticket.count, now)
            if line is not None:
                line.bucket.spend(-ticket.count, now)
                line.served -= ticket.count
        elif line is not None:
            line.waiting.remove(ticket)

    def grant(self, now: float) -> list[Ticket[PeerT]]:
        """Grant what can be granted now, in order."""
        granted: list[Ticket[PeerT]] = []
        while self._total.ready_at(now) <= now:
            ready = [
                line
                for line in self._lines.values()
                if line.waiting and line.bucket.ready_at(now) <= now
            ]
            if not ready:
                break
            line = min(ready, key=lambda line: line.served)
            ticket = line.waiting.popleft()
            self._total.spend(ticket.count, now)
            line.bucket.spend(ticket.count, now)
            self._served = line.served
            line.served += ticket.count
            ticket.granted = True
            granted.append(ticket)
        self._forget_idle(now)
        return granted

    def next_time(self, now: float) -> float:
        """When `grant` may grant something again; infinity while nobody waits."""
        own = (line.bucket.ready_at(now) for line in self._lines.values() if line.waiting)
        return max(min(own, default=math.inf), self._total.ready_at(now))

    def _forget_idle(self, now: float) -> None:
        if not any(line.waiting for line in self._lines.values()):
            self._served = max((line.served for line in self._lines.values()), default=0.0)
        idle = [
            peer
            for peer, line in self._lines.items()
            if not line.waiting and line.served <= self._served and line.bucket.is_idle(now)
        ]
        for peer in idle:
            del self._lines[peer]


def _checked(rate: float | None) -> float | None:
    if rate is not None and not 0 < rate < math.inf:
        raise ValueError(f"not a rate: {rate} bytes a second")
    return rate

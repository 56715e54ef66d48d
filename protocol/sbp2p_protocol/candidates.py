"""Peers that could be connected to: where each was heard of, when to dial it, and when not.

Theory of operation. Candidates come from several places, most of which are other people's word. The
book joins what is said about one peer, hands out those that are due, best first, and makes every
failure of a peer cost it a longer wait. It never hands out a peer twice at once, so several sources
that name one peer cause one dial.

| origin | who said so | rank |
|---|---|---|
| LAN | the peer itself, by multicast on a network that this node is on | 1 |
| LINK | a link that the user gave | 2 |
| BOOTSTRAP | the user's settings | 3 |
| REMEMBERED | this node: it worked, just now or last time | 4 |
| EXCHANGE | a peer, about others in its swarm | 5 |
| DHT | strangers | 6 |

Among equals, who failed less goes first, then who was heard of last. Some bootstrap peers are
always wanted, up to `bootstrap_wanted`; others only while fewer than `wanted` peers are connected.

    IDLE --due()--> DIALLING --succeeded()--> IDLE --lasted()--> IDLE, wait reset
                        +------failed()-----> IDLE, wait doubled, plus up to half of it at random

A connection alone resets nothing, for a peer may turn this node away right after it was made.

At CANDIDATES_MAX peers the worst gives way: never one that is being dialled, and never a bootstrap
peer. Pure: time and dice are arguments. Nothing raises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from .limits import CANDIDATE_ADDRESSES_MAX, CANDIDATES_MAX

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Iterable

    from sbp2p_keys.identity import PeerId

    from .multiaddr import Address


class Origin(Enum):
    """Where a candidate was heard of, the most promising first."""

    LAN = "lan"
    LINK = "link"
    BOOTSTRAP = "bootstrap"
    REMEMBERED = "remembered"
    EXCHANGE = "exchange"
    DHT = "dht"


_RANK: Final = {origin: rank for rank, origin in enumerate(Origin)}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A peer that may be there, and where."""

    peer_id: PeerId
    addresses: tuple[Address, ...]
    origin: Origin


@dataclass(slots=True)
class _Entry:
    peer_id: PeerId
    origins: set[Origin]
    heard_at: float
    addresses: dict[Address, None] = field(default_factory=dict)
    failures: int = 0
    due_at: float = -math.inf
    dialling: bool = False
    reason: str = ""

    @property
    def rank(self) -> tuple[int, int, float]:
        return (min(_RANK[each] for each in self.origins), self.failures, -self.heard_at)

    def candidate(self) -> Candidate:
        origin = min(self.origins, key=_RANK.__getitem__)
        return Candidate(self.peer_id, tuple(self.addresses), origin)


class CandidateBook:
    """What one node knows of peers that it is not connected to, and of some that it is.

    Args:
        own_id: this node, which is never a candidate.
        wanted: how many connected peers are enough.
        bootstrap_wanted: how many connected bootstrap peers are, whatever else is connected.
        backoff_s: wait after a first failure; doubles each time.
        backoff_max_s: the longest wait.
        rng: spreads the waits.
    """

    def __init__(
        self,
        own_id: PeerId,
        *,
        wanted: int,
        bootstrap_wanted: int,
        backoff_s: float,
        backoff_max_s: float,
        rng: random.Random,
    ) -> None:
        self._own_id = own_id
        self._wanted = wanted
        self._bootstrap_wanted = bootstrap_wanted
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._rng = rng
        self._entries: dict[PeerId, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, candidate: Candidate, now: float) -> bool:
        """Take what somebody said; return whether it says anything new."""
        addresses = [each for each in candidate.addresses if each.is_dialable]
        if candidate.peer_id == self._own_id or not addresses:
            return False
        entry = self._entries.get(candidate.peer_id)
        if entry is None:
            if len(self._entries) >= CANDIDATES_MAX and not self._make_room(candidate.origin):
                return False
            entry = self._entries[candidate.peer_id] = _Entry(candidate.peer_id, set(), now)
        is_new = candidate.origin not in entry.origins
        entry.origins.add(candidate.origin)
        entry.heard_at = now
        for each in addresses:
            address = (
                each if each.peer_id == candidate.peer_id else each.with_peer(candidate.peer_id)
            )
            is_new |= address not in entry.addresses
            entry.addresses.pop(address, None)
            entry.addresses[address] = None
        while len(entry.addresses) > CANDIDATE_ADDRESSES_MAX:
            del entry.addresses[next(iter(entry.addresses))]
        return is_new

    def due(self, now: float, connected: Collection[PeerId], count: int) -> list[Candidate]:
        """Return at most `count` candidates to dial now; each is dialling until told otherwise."""
        taken = sorted(self._open(now, connected), key=lambda each: each.rank)
        chosen: list[_Entry] = []
        dialling = [each for each in self._entries.values() if each.dialling]
        missing = self._wanted - len(connected) - len(dialling)
        bootstrap_missing = self._bootstrap_wanted - self._bootstraps(connected)
        bootstrap_missing -= sum(Origin.BOOTSTRAP in each.origins for each in dialling)
        for entry in taken:
            is_bootstrap = Origin.BOOTSTRAP in entry.origins
            if len(chosen) < count and (missing > 0 or (is_bootstrap and bootstrap_missing > 0)):
                chosen.append(entry)
                missing -= 1
                bootstrap_missing -= is_bootstrap
        for entry in chosen:
            entry.dialling = True
        return [entry.candidate() for entry in chosen]

    def begin(self, peer_id: PeerId, now: float) -> bool:
        """Begin to dial one peer for a reason of the caller's; False if it is not its time."""
        entry = self._entries.get(peer_id)
        if entry is None or entry.dialling or entry.due_at > now:
            return False
        entry.dialling = True
        return True

    def succeeded(self, peer_id: PeerId) -> None:
        """Note that a peer is connected, whoever dialled."""
        if (entry := self._entries.get(peer_id)) is not None:
            entry.dialling = False
            entry.reason = ""

    def lasted(self, peer_id: PeerId) -> None:
        """Note that a connection with a peer was of use; its past failures count no more."""
        if (entry := self._entries.get(peer_id)) is not None:
            entry.failures = 0
            entry.due_at = -math.inf

    def failed(self, peer_id: PeerId, reason: str, now: float) -> None:
        """Note that a peer could not be reached, or left at once; it waits before the next dial."""
        if (entry := self._entries.get(peer_id)) is not None:
            entry.dialling = False
            wait = min(self._backoff_s * 2.0 ** min(entry.failures, 32), self._backoff_max_s)
            entry.due_at = now + wait * self._rng.uniform(1.0, 1.5)
            entry.failures += 1
            entry.reason = reason

    def given_up(self, peer_id: PeerId) -> None:
        """Note that a dial ended before its outcome was known."""
        if (entry := self._entries.get(peer_id)) is not None:
            entry.dialling = False

    def forget(self, peer_id: PeerId) -> None:
        """Drop a peer."""
        self._entries.pop(peer_id, None)

    def next_due(self, now: float, connected: Collection[PeerId]) -> float:
        """Return when `due` may have something new to say, if nothing else changes."""
        bootstraps = self._bootstraps(connected)
        waiting = [
            entry.due_at
            for entry in self._entries.values()
            if not entry.dialling
            and entry.peer_id not in connected
            and entry.due_at > now
            and (
                len(connected) < self._wanted
                or (Origin.BOOTSTRAP in entry.origins and bootstraps < self._bootstrap_wanted)
            )
        ]
        return min(waiting, default=math.inf)

    def known(self) -> list[Candidate]:
        """Return every candidate, best first."""
        ordered = sorted(self._entries.values(), key=lambda each: each.rank)
        return [entry.candidate() for entry in ordered]

    def of(self, peer_id: PeerId) -> Candidate | None:
        """Return what is known of a peer."""
        entry = self._entries.get(peer_id)
        return entry.candidate() if entry is not None else None

    def failures(self) -> dict[PeerId, str]:
        """Return why peers could not be reached last time."""
        return {peer: entry.reason for peer, entry in self._entries.items() if entry.reason}

    def _open(self, now: float, connected: Collection[PeerId]) -> Iterable[_Entry]:
        for entry in self._entries.values():
            if not entry.dialling and entry.due_at <= now and entry.peer_id not in connected:
                yield entry

    def _bootstraps(self, connected: Iterable[PeerId]) -> int:
        entries = (self._entries.get(each) for each in connected)
        return sum(each is not None and Origin.BOOTSTRAP in each.origins for each in entries)

    def _make_room(self, origin: Origin) -> bool:
        """Drop the worst entry if it is no better than a newcomer from `origin` would be."""
        droppable = [
            each
            for each in self._entries.values()
            if not each.dialling and Origin.BOOTSTRAP not in each.origins
        ]
        worst = max(droppable, key=lambda each: each.rank, default=None)
        if worst is None or (worst.rank[0] < _RANK[origin] and not worst.failures):
            return False
        del self._entries[worst.peer_id]
        return True

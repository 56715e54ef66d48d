"""A lookup: finding the servers nearest to a place by asking ever nearer ones.

Theory of operation. A lookup starts with the nearest contacts of the routing table and asks the
nearest peers it has heard of, `alpha` (10) at a time, for peers nearer still. Each candidate is in
one state:

    HEARD --next_requests--> WAITING --on_reply--> QUERIED
      ^                         |
      +--new addresses-- UNREACHABLE (on_failure)

A path has converged when the `beta` (3) nearest of its candidates that may still answer have all
answered, or nobody is left to ask. The lookup is done when all paths have, and, if it is to be
`whole`, when the k nearest of all candidates have answered too: who stores or seeks a record needs
all k of them, who seeks a peer does not.

Disjoint paths (S/Kademlia). With `paths` above 1 the first candidates are dealt out to so many
paths; whom a peer tells of belongs to its path, and no peer is on two. Liars who name only each
other then have the paths they are on, and the others end at honest servers.

Slow peers. The driver calls `on_slow` when a request has waited for long: it no longer takes one of
the alpha places, and neither path nor lookup waits for it, though a late answer still counts. So a
server that never answers costs a lookup seconds, and many of them, at most 3 * alpha at once, no
more than one.

Poisoned addresses. A peer that could not be reached at the addresses of one teller is asked again,
twice at most, when another teller has other addresses for it.

Bounds: at most 40 peers are read of a reply, and KAD_QUERIES_MAX requests end any lookup. Nothing
raises: messages were parsed before, and answers of nobody that was asked are ignored.
"""

from __future__ import annotations

import heapq
from bisect import insort
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Final

from .kad_keys import KadId, distance, kad_id_of
from .kad_messages import KadPeer
from .kad_table import BUCKET_SIZE
from .limits import (
    KAD_CANDIDATES_MAX,
    KAD_CLOSER_MAX,
    KAD_PEER_ADDRESSES_MAX,
    KAD_QUERIES_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sbp2p_keys.identity import PeerId

ALPHA: Final = 10
"""Requests of a lookup that wait for an answer at one time. go: 10; rust: 3."""

BETA: Final = 3
"""Nearest peers that must have answered before a path ends. go: 3."""

DISJOINT_PATHS: Final = 3
"""Paths of a lookup for a record. Two of three may be led astray."""

_IN_FLIGHT_FACTOR: Final = 3
"""Times alpha that may wait together with those that are slow."""

_RETRIES_MAX: Final = 2


class State(Enum):
    """How far the lookup is with one peer."""

    HEARD = "heard"
    WAITING = "waiting"
    QUERIED = "queried"
    UNREACHABLE = "unreachable"


@dataclass(slots=True, order=True)
class Candidate:
    """One peer of a lookup, ordered by distance.

    Attributes:
        distance: To the target.
        peer: Who it is, and where it may be.
        path: Number of the path that it is on.
        hops: Requests in a row that lead to it, its own included.
        state: How far the lookup is with it.
        slow: Whether it is waited for no more.
        retries: How often it was asked again at other addresses.
    """

    distance: int
    peer: KadPeer = field(compare=False)
    path: int = field(compare=False)
    hops: int = field(compare=False)
    state: State = field(compare=False, default=State.HEARD)
    slow: bool = field(compare=False, default=False)
    retries: int = field(compare=False, default=0)

    @property
    def may_count(self) -> bool:
        """Whether it has answered or may still, soon."""
        return self.state is not State.UNREACHABLE and not self.slow


class _Path:
    """The candidates of one path, nearest first."""

    __slots__ = ("active", "candidates", "waiting")

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        self.waiting = 0
        self.active = 0  # of those that wait, the ones that are not slow

    def has_converged(self, beta: int) -> bool:
        """Tell whether the nearest that may answer all have."""
        nearest = islice((each for each in self.candidates if each.may_count), beta)
        return all(candidate.state is State.QUERIED for candidate in nearest)


class Lookup:
    """One lookup; see the module's theory of operation.

    Args:
        target: The place.
        own: This node, which is never asked.
        seeds: Who is known already.
        k: Peers in the result.
        alpha: Requests at a time, over all paths.
        beta: Nearest answers that end a path.
        paths: Disjoint paths.
        whole: Whether all of the k nearest must answer.
    """

    def __init__(
        self,
        target: KadId,
        own: PeerId,
        seeds: Iterable[KadPeer],
        *,
        k: int = BUCKET_SIZE,
        alpha: int = ALPHA,
        beta: int = BETA,
        paths: int = 1,
        whole: bool = False,
    ) -> None:
        self.target = target
        self.asked = 0
        self.answered = 0
        self.failed = 0
        self._own = own
        self._k = k
        self._alpha = alpha
        self._beta = beta
        self._whole = whole
        self._paths = [_Path() for _ in range(max(1, paths))]
        self._share = max(1, alpha // len(self._paths))
        self._candidates: dict[PeerId, Candidate] = {}
        self._finishing = False
        self._stopped = False
        by_distance = sorted(seeds, key=lambda seed: self._distance(seed.peer_id))
        for number, seed in enumerate(by_distance):
            self._hear(seed, number % len(self._paths), hops=1)

    # -- what to do ---------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether nobody is to be asked any more, and no answer is worth waiting for."""
        return self._stopped or not (self._wanted() or self._is_waiting())

    def next_requests(self) -> list[KadPeer]:
        """Return the peers to ask now; they count as asked."""
        found = []
        while not self._stopped and (candidate := self._wanted()) is not None:
            candidate.state = State.WAITING
            self._paths[candidate.path].waiting += 1
            self._paths[candidate.path].active += 1
            self.asked += 1
            found.append(candidate.peer)
        return found

    def stop(self) -> None:
        """End the lookup: what was sought is found."""
        self._stopped = True

    # -- what happened ------------------------------------------------------------------------

    def on_reply(self, peer_id: PeerId, closer: Iterable[KadPeer]) -> None:
        """Take the answer of a peer that was asked."""
        candidate = self._settle(peer_id, State.QUERIED)
        if candidate is not None:
            self.answered += 1
            for peer in islice(closer, KAD_CLOSER_MAX):
                self._hear(peer, candidate.path, candidate.hops + 1)

    def on_failure(self, peer_id: PeerId) -> None:
        """Note that a peer that was asked did not answer, or answered nonsense."""
        if self._settle(peer_id, State.UNREACHABLE) is not None:
            self.failed += 1

    def on_slow(self, peer_id: PeerId) -> None:
        """Wait for a peer no longer."""
        candidate = self._candidates.get(peer_id)
        if candidate is not None and candidate.state is State.WAITING and not candidate.slow:
            candidate.slow = True
            self._paths[candidate.path].active -= 1

    # -- what came of it ----------------------------------------------------------------------

    def closest(self) -> list[KadPeer]:
        """Return the k nearest peers that have answered, nearest first."""
        return [candidate.peer for candidate in self._answered(self._k)]

    @property
    def hops(self) -> int:
        """Requests in a row that led to the nearest peer that answered; 0 without one."""
        return next((candidate.hops for candidate in self._answered(1)), 0)

    def state_of(self, peer_id: PeerId) -> State | None:
        """Return how far the lookup is with a peer; None if it has not heard of it."""
        candidate = self._candidates.get(peer_id)
        return None if candidate is None else candidate.state

    # -- inside -------------------------------------------------------------------------------

    def _distance(self, peer_id: PeerId) -> int:
        return distance(kad_id_of(peer_id), self.target)

    def _answered(self, count: int) -> Iterator[Candidate]:
        queried = (each for each in self._by_distance() if each.state is State.QUERIED)
        return islice(queried, count)

    def _nearest(self) -> list[Candidate]:
        """Return the k nearest of all candidates that have answered or may soon."""
        return list(islice((each for each in self._by_distance() if each.may_count), self._k))

    def _by_distance(self) -> Iterator[Candidate]:
        if len(self._paths) == 1:
            return iter(self._paths[0].candidates)
        return heapq.merge(*(path.candidates for path in self._paths))

    def _hear(self, peer: KadPeer, number: int, hops: int) -> None:
        if peer.peer_id == self._own:
            return
        known = self._candidates.get(peer.peer_id)
        if known is not None:
            _learn(known, peer)
            return
        # with fewer seeds than paths, the others start with the first peers that are told
        empty = (each for each, path in enumerate(self._paths) if not path.candidates)
        number = next(empty, number)
        candidate = Candidate(self._distance(peer.peer_id), peer, number, hops)
        candidates = self._paths[number].candidates
        if len(candidates) >= KAD_CANDIDATES_MAX // len(self._paths):
            farthest = candidates[-1]
            if farthest.state is not State.HEARD or farthest < candidate:
                return
            del self._candidates[candidates.pop().peer.peer_id]
        insort(candidates, candidate)
        self._candidates[peer.peer_id] = candidate

    def _settle(self, peer_id: PeerId, state: State) -> Candidate | None:
        """Note that a request is over; None if there was none."""
        candidate = self._candidates.get(peer_id)
        if candidate is None or candidate.state is not State.WAITING:
            return None
        path = self._paths[candidate.path]
        path.waiting -= 1
        path.active -= not candidate.slow
        candidate.slow = False
        candidate.state = state
        return candidate

    def _wanted(self) -> Candidate | None:
        """Return the next candidate to ask, if anybody is to be asked now."""
        in_flight = sum(path.waiting for path in self._paths)
        if self.asked >= KAD_QUERIES_MAX or in_flight >= _IN_FLIGHT_FACTOR * self._alpha:
            return None
        if not self._finishing:
            going = [path for path in self._paths if not path.has_converged(self._beta)]
            for path in sorted(going, key=lambda path: path.active):
                candidate = _heard(path.candidates) if path.active < self._share else None
                if candidate is not None:
                    return candidate
            if going or not self._whole:
                return None
            self._finishing = True
        if sum(path.active for path in self._paths) >= self._alpha:
            return None
        return _heard(self._nearest())

    def _is_waiting(self) -> bool:
        """Tell whether an answer that is still to come could change the result."""
        if self._finishing:
            in_flight = any(path.waiting for path in self._paths)
            return in_flight and any(each.state is not State.QUERIED for each in self._nearest())
        return any(path.waiting and not path.has_converged(self._beta) for path in self._paths)


def _heard(candidates: Iterable[Candidate]) -> Candidate | None:
    return next((each for each in candidates if each.state is State.HEARD), None)


def _learn(candidate: Candidate, told: KadPeer) -> None:
    """Add what another teller knows about the addresses of a candidate."""
    known = candidate.peer.addresses
    new = [address for address in told.addresses if address not in known]
    new = new[: KAD_PEER_ADDRESSES_MAX - len(known)]
    if not new or candidate.state in (State.WAITING, State.QUERIED):
        return
    candidate.peer = KadPeer(candidate.peer.peer_id, (*known, *new))
    if candidate.state is State.UNREACHABLE and candidate.retries < _RETRIES_MAX:
        candidate.retries += 1
        candidate.state = State.HEARD

"""One peer's rounds: whose updates are waited for, for how long, and which count.

Theory of operation: a round begins when this peer has published its own update for it. The machine
is told what happens (updates arrive, are fetched, fail; neighbours come and go) and asked, whenever
something did or a time is reached, what to do: `decision(now)` is to wait until a time, or to close
with the updates that count. It asks nobody and fetches nothing; `wanted` lists what its driver
should fetch.

| state of a neighbour | meaning | waited for |
|---|---|---|
| AWAITED | nothing of this round was heard yet | yes |
| COMING | an update is wanted, and not here yet | yes |
| FRESH | its update of this round, or a later one, is here | no |
| STALE | a late update of an earlier round is here, and nothing newer was heard | yes |
| FAILED | its update could not be had, or contradicts another one | no |
| AHEAD | an update of this round or a later one was merged in an earlier round | no |
| JOINED | it came after the round began, and nothing was heard of it | no |
| GONE | it went away, and nothing usable was heard of it | no |

Rules:

1. The round closes when nobody is waited for and the quorum is there; when the quorum was there for
   `patience_s`; at the deadline in any case. A quorum counts neighbours that are FRESH. So no
   round outlives its deadline, whatever happens.
2. Closed with fewer than the quorum, nothing is merged: this peer keeps its own model, and the
   updates stay usable. A quorum of 0, the default, means that a peer may also go on alone.
3. An update counts once. One that arrives after its round was closed counts in the next round,
   as stale: with weight decay^staleness, and not at all beyond `staleness_max` rounds. An update of
   a later round than this one counts as fresh: its peer is ahead, and the newest is what it has.
4. A newer update replaces a stale one, also while that is being fetched. An update of this round is
   not replaced: what comes after it is for the next round.
5. Two updates of one round by one peer: neither counts, in this round or later (round_updates.py).
6. Whoever joins in the middle is welcome, and nobody waits for it. Whoever goes away is not waited
   for; what was already heard of it is still fetched, from whoever has it, and counts.

Times are seconds of one clock. Events of peers that are no neighbours change nothing in the round.

Error cases: LocalProtocolError for calls that make no sense (a decision before a round began, a
round that does not come after the last one). Nothing a peer does raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.limits import ROUND_REASON_MAX, ROUND_STALENESS_MAX
from sbp2p_protocol.round_updates import Update, UpdateBook, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid

__all__ = [
    "Close",
    "CloseReason",
    "Decision",
    "NeighbourState",
    "Refusal",
    "RoundSettings",
    "Rounds",
    "Taken",
    "Update",
    "UpdateBook",
    "Verdict",
    "Wait",
]

EQUIVOCATION = "published two different updates for one round"
"""The reason that a refusal gives for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """How long a round lasts at most, and what counts in it.

    Attributes:
        deadline_s: seconds after which a round closes with what it has.
        quorum: neighbours whose fresh updates must be there for anything to be merged; 0 for none.
        patience_s: seconds to wait for the others once the quorum is there; None: to the deadline.
        staleness_max: rounds that an update may be late by and still count; 0 drops late ones.
        staleness_decay: what a late update's weight is multiplied by for each round, from 0 to 1;
            kept to a millionth.

    Raises:
        ValueError: a value out of range, or patience without a quorum.
    """

    deadline_s: float = 60.0
    quorum: int = 0
    patience_s: float | None = None
    staleness_max: int = 2
    staleness_decay: Fraction | float = Fraction(1, 2)

    def __post_init__(self) -> None:
        """Check the values."""
        if not 0 < self.deadline_s < inf:
            raise ValueError(f"a deadline of {self.deadline_s} s: it must be over 0, and finite")
        if self.quorum < 0:
            raise ValueError(f"a quorum of {self.quorum}")
        if self.patience_s is not None and not 0 <= self.patience_s < inf:
            raise ValueError(f"a patience of {self.patience_s} s")
        if self.patience_s is not None and self.quorum == 0:
            raise ValueError("patience begins when the quorum is there: set a quorum, too")
        if not 0 <= self.staleness_max <= ROUND_STALENESS_MAX:
            raise ValueError(f"staleness_max is from 0 to {ROUND_STALENESS_MAX}")
        if not 0 <= self.staleness_decay <= 1:
            raise ValueError(f"a decay of {self.staleness_decay}: it must be from 0 to 1")

    def decay(self, staleness: int) -> Fraction:
        """Return what the weight of an update is multiplied by that is late by so many rounds."""
        given = self.staleness_decay
        exact = Fraction(str(given) if isinstance(given, float) else given)
        return exact.limit_denominator(10**6) ** staleness


class NeighbourState(Enum):
    """What a neighbour is to this round; see the table."""

    AWAITED = auto()
    COMING = auto()
    FRESH = auto()
    STALE = auto()
    FAILED = auto()
    AHEAD = auto()
    JOINED = auto()
    GONE = auto()

    @property
    def is_waited_for(self) -> bool:
        """Whether the round stays open for it."""
        return self in (NeighbourState.AWAITED, NeighbourState.COMING, NeighbourState.STALE)


class CloseReason(Enum):
    """Why a round closed."""

    ALL_IN = "all are in"
    QUORUM = "the quorum is in, and patience is over"
    DEADLINE = "the deadline"


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until`, unless something happens."""

    until: float


@dataclass(frozen=True, slots=True)
class Taken:
    """An update that counts, how many rounds it is late by, and what that makes of its weight."""

    update: Update
    staleness: int
    decay: Fraction

    @property
    def peer(self) -> PeerId:
        """Whose update it is."""
        return self.update.peer


@dataclass(frozen=True, slots=True)
class Refusal:
    """An update that does not count, and why, in one line."""

    update: Update
    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """The round is over.

    Attributes:
        round: its number.
        reason: why it closed.
        has_quorum: whether to merge; if not, keep the own model.
        taken: what to merge with the own model, sorted by peer.
        late: updates that were heard of but are not here; usable in the next round.
        refused: updates that failed or were refused.
        missing: neighbours of which nothing was taken, refused ones among them, sorted.
    """

    round: int
    reason: CloseReason
    has_quorum: bool
    taken: tuple[Taken, ...]
    late: tuple[Update, ...]
    refused: tuple[Refusal, ...]
    missing: tuple[PeerId, ...]


Decision: TypeAlias = Wait | Close


class _Neighbour:
    """What a round knows of one neighbour."""

    __slots__ = ("coming", "fresh_from", "here", "is_ahead", "is_failed", "is_gone", "is_waited")

    def __init__(self, *, fresh_from: int, is_ahead: bool, is_waited: bool) -> None:
        self.fresh_from = fresh_from
        self.here: Update | None = None
        self.coming: Update | None = None
        self.is_ahead = is_ahead
        self.is_waited = is_waited
        self.is_failed = False
        self.is_gone = False

    @property
    def state(self) -> NeighbourState:
        """What it is to the round."""
        if self.here is not None and self.here.round >= self.fresh_from:
            return NeighbourState.FRESH
        if self.coming is not None:
            return NeighbourState.COMING
        if self.is_failed:
            return NeighbourState.FAILED
        if self.is_gone:
            return NeighbourState.GONE
        if self.is_ahead:
            return NeighbourState.AHEAD
        if not self.is_waited:
            return NeighbourState.JOINED
        return NeighbourState.AWAITED if self.here is None else NeighbourState.STALE

    def hear(self, update: Update) -> None:
        """Want an update, unless one of this round is here or coming."""
        best = self.coming or self.here
        if best is None or best.round < min(update.round, self.fresh_from):
            self.coming = update
            self.is_failed = False


class Rounds:
    """The rounds of one peer in one namespace, one after the other; see the module.

    Args:
        own: this peer; what it publishes itself is not waited for.
        settings: deadlines and the rest; `begin` may be given others.
    """

    def __init__(self, own: PeerId, settings: RoundSettings) -> None:
        self.own = own
        self.settings = settings
        self.book = UpdateBook()
        self.number = -1
        """The round that is open or was the last; -1 before the first."""
        self._neighbours: dict[PeerId, _Neighbour] = {}
        self._refused: list[Refusal] = []
        self._deadline = 0.0
        self._quorum_at: float | None = None
        self._closed: Close | None = None

    @property
    def is_open(self) -> bool:
        """Whether a round has begun and not closed."""
        return self.number >= 0 and self._closed is None

    def begin(
        self,
        number: int,
        neighbours: Iterable[PeerId],
        now: float,
        settings: RoundSettings | None = None,
    ) -> None:
        """Begin a round; it comes after the last one, which is closed.

        Args:
            number: of the round; rounds may be left out.
            neighbours: who is connected now and exchanges models with this peer in this round.
            now: the deadline is `deadline_s` after it.
            settings: for this round and those that follow.
        """
        if self.is_open:
            raise LocalProtocolError(f"round {self.number} is still open")
        if number <= self.number:
            raise LocalProtocolError(f"round {number} does not come after {self.number}")
        self.settings = settings or self.settings
        self.number = number
        self._deadline = now + self.settings.deadline_s
        self._quorum_at = None
        self._closed = None
        self._refused = []
        self._neighbours = {}
        for peer in neighbours:
            if peer != self.own:
                self._admit(peer, is_waited=True)

    def _admit(self, peer: PeerId, *, is_waited: bool) -> None:
        self._neighbours[peer] = neighbour = _Neighbour(
            fresh_from=self.number,
            is_ahead=self.book.used(peer) >= self.number,
            is_waited=is_waited,
        )
        update = self.book.usable(peer)
        if update is not None and self._is_recent(update):
            neighbour.hear(update)

    def _is_recent(self, update: Update) -> bool:
        return self.number - update.round <= self.settings.staleness_max

    # -- what happens ---------------------------------------------------------------------------

    def update_arrived(
        self, peer: PeerId, round_number: int, cid: Cid, samples: int, now: float
    ) -> Verdict:
        """Note that a peer published an update, whether a round is open or not.

        Returns:
            what it is; NEW alone may make it wanted, EQUIVOCATION speaks against the peer.
        """
        update = Update(peer, round_number, cid, samples)
        verdict = self.book.heard(update)
        neighbour = self._neighbours.get(peer) if self.is_open else None
        if neighbour is None:
            return verdict
        if verdict is Verdict.NEW and self._is_recent(update):
            neighbour.hear(update)
        elif verdict is Verdict.EQUIVOCATION:
            self._drop_contradicted(neighbour, update)
        self._count(now)
        return verdict

    def _drop_contradicted(self, neighbour: _Neighbour, update: Update) -> None:
        first = (self.book.evidence(update.peer) or (update,))[0]
        self._refused += [Refusal(each, EQUIVOCATION) for each in (first, update)]
        neighbour.is_failed = True
        if neighbour.coming is not None and neighbour.coming.round == update.round:
            neighbour.coming = None
        if neighbour.here is not None and neighbour.here.round == update.round:
            neighbour.here = None

    def fetched(self, peer: PeerId, cid: Cid, now: float) -> None:
        """Note that a wanted update is here, and is what its manifest says."""
        neighbour = self._coming(peer, cid)
        if neighbour is not None:
            neighbour.here, neighbour.coming = neighbour.coming, None
            self._count(now)

    def failed(self, peer: PeerId, cid: Cid, reason: str) -> None:
        """Note that a wanted update could not be had now; it may be wanted in the next round."""
        neighbour = self._coming(peer, cid)
        if neighbour is not None and neighbour.coming is not None:
            self._refused.append(Refusal(neighbour.coming, shortened(reason)))
            # a late one that fails says nothing about the one that is awaited
            neighbour.is_failed = neighbour.coming.round >= self.number
            neighbour.coming = None

    def refused(self, peer: PeerId, cid: Cid, reason: str) -> None:
        """Note that a wanted update is unfit for ever: malformed, or not what it claims to be."""
        neighbour = self._coming(peer, cid)
        if neighbour is not None and neighbour.coming is not None:
            self.book.spoiled(neighbour.coming)
            self.failed(peer, cid, reason)

    def _coming(self, peer: PeerId, cid: Cid) -> _Neighbour | None:
        neighbour = self._neighbours.get(peer) if self.is_open else None
        if neighbour is None or neighbour.coming is None or neighbour.coming.cid != cid:
            return None  # of another round, or no longer wanted
        return neighbour

    def peer_joined(self, peer: PeerId, now: float) -> None:
        """Note that a neighbour came, or came back."""
        if not self.is_open or peer == self.own:
            return
        if (neighbour := self._neighbours.get(peer)) is not None:
            neighbour.is_gone = False
        else:
            self._admit(peer, is_waited=False)
        self._count(now)

    def peer_gone(self, peer: PeerId, now: float) -> None:
        """Note that a neighbour went away."""
        if (neighbour := self._neighbours.get(peer)) is not None:
            neighbour.is_gone = True
        self._count(now)

    def _count(self, now: float) -> None:
        if self._quorum_at is None and self.is_open and self._has_quorum():
            self._quorum_at = now

    def _has_quorum(self) -> bool:
        states = [neighbour.state for neighbour in self._neighbours.values()]
        return states.count(NeighbourState.FRESH) >= self.settings.quorum

    # -- what to do -----------------------------------------------------------------------------

    def state_of(self, peer: PeerId) -> NeighbourState | None:
        """Return what a peer is to the round that is open or was the last; None: no neighbour."""
        neighbour = self._neighbours.get(peer)
        return None if neighbour is None else neighbour.state

    def wanted(self) -> tuple[Update, ...]:
        """Return the updates to fetch, in the order of their peers; none when no round is open."""
        if not self.is_open:
            return ()
        found = [each.coming for each in self._neighbours.values() if each.coming is not None]
        return tuple(sorted(found, key=lambda update: update.peer.to_bytes()))

    def decision(self, now: float) -> Decision:
        """Return when to ask again, or how the round closed; the same Close from then on."""
        if self.number < 0:
            raise LocalProtocolError("no round has begun")
        if self._closed is not None:
            return self._closed
        has_quorum = self._has_quorum()
        until = self._deadline
        if has_quorum and self._quorum_at is not None and self.settings.patience_s is not None:
            until = min(until, self._quorum_at + self.settings.patience_s)
        is_waiting = any(each.state.is_waited_for for each in self._neighbours.values())
        if has_quorum and not is_waiting:
            return self._close(CloseReason.ALL_IN)
        if now < until:
            return Wait(until)
        return self._close(CloseReason.DEADLINE if now >= self._deadline else CloseReason.QUORUM)

    def _close(self, reason: CloseReason) -> Close:
        order = sorted(self._neighbours, key=lambda peer: peer.to_bytes())
        taken = []
        for peer in order:
            if (update := self._neighbours[peer].here) is not None:
                staleness = max(0, self.number - update.round)
                taken.append(Taken(update, staleness, self.settings.decay(staleness)))
        there = {each.peer for each in taken}
        has_quorum = self._has_quorum()
        if has_quorum:
            for each in taken:
                self.book.merged(each.update)
        self._closed = Close(
            self.number,
            reason,
            has_quorum,
            tuple(taken),
            self.wanted(),
            tuple(self._refused),
            tuple(peer for peer in order if peer not in there),
        )
        return self._closed


def shortened(reason: str) -> str:
    """Return a reason as a record may hold it: one printable line, ROUND_REASON_MAX bytes."""
    line = " ".join(reason.split())
    clean = "".join(each if each.isprintable() else "?" for each in line)
    data = clean.encode("utf-8", "replace")
    if len(data) <= ROUND_REASON_MAX:
        return data.decode()
    return data[: ROUND_REASON_MAX - 3].decode("utf-8", "ignore") + "..."

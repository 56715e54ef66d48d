"""Whom to serve: the peers that give most, those that are due, and now and then one on trial.

Theory of operation. A link that everybody shares serves nobody in time: a block is of use to others
only when it is whole. So there are `slots`, as many as the upload can feed, and peers beyond those
are choked. While slots are free nobody who wants something is choked, so none of this is noticed in
a small swarm. Rates count over about two rounds: each round halves what was counted before.

    state      becomes     when
    IDLE       SERVED      it wants something, and a slot is free
    IDLE       CHOKED      it wants something, and none is
    CHOKED     SERVED      a round: it is among the best; or a slot has come free
    CHOKED     TRIED       each `optimistic_s`: drawn by lot, newcomers three times as likely
    SERVED     CHOKED      a round: it is no longer among the best
    TRIED      SERVED      a round: it is among the best by now
    TRIED      CHOKED      the next one is tried
    any        IDLE        it wants nothing

Who is best. While this node fetches: who has sent us most lately (tit for tat). A peer that owes us
something and has sent nothing for `snub_s` is *snubbed* and counts as the last. When this node has
all it wants: who has had a slot for less than `turn_s` keeps it, and then the one that has waited
longest gets it, so that everybody is served in turn. One slot of `slots`, if there are at least
two, is the optimistic one.

With `ChokingPolicy.NONE` everybody is served. Times are seconds of one clock; nothing waits here.
Each call returns nothing; `changes` tells who is to be told what.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from .errors import LocalProtocolError

if TYPE_CHECKING:
    from random import Random

PeerKey = TypeVar("PeerKey")

_NEWCOMER_S: Final = 60.0
"""A peer is new for this long: it has had no time to earn anything."""
_NEWCOMER_WEIGHT: Final = 3


class ChokingPolicy(Enum):
    """Who is served when not everybody can be."""

    TIT_FOR_TAT = "tit_for_tat"
    NONE = "none"


class ChokeState(Enum):
    """What a peer is to us."""

    IDLE = auto()
    CHOKED = auto()
    SERVED = auto()
    TRIED = auto()

    @property
    def is_served(self) -> bool:
        """Whether its requests are served."""
        return self is not ChokeState.CHOKED


class _Peer:
    """What is known about one peer."""

    __slots__ = ("came_at", "earned", "heard_at", "owes", "state", "told", "turned_at")

    def __init__(self, now: float) -> None:
        self.state = ChokeState.IDLE
        self.told = False  # whether it was told that it is choked
        self.came_at = now
        self.turned_at = now  # when its state changed last
        self.earned = 0.0
        self.heard_at = now
        self.owes = False


class Choker(Generic[PeerKey]):
    """Gives slots to peers; see the module's theory of operation.

    Args:
        rng: draws whom to try.
        policy: who is served when not everybody can be.
        slots: peers that are served at the same time.
        round_s, optimistic_s, turn_s, snub_s: seconds, as above.
        now: the time.
    """

    def __init__(
        self,
        rng: Random,
        *,
        policy: ChokingPolicy,
        slots: int,
        round_s: float,
        optimistic_s: float,
        snub_s: float,
        now: float,
    ) -> None:
        self.slots = slots
        self.fetching = False
        """Whether this node still wants something, so that what peers give counts."""
        self._rng = rng
        self._policy = policy
        self._round_s = round_s
        self._optimistic_s = optimistic_s
        self._turn_s = optimistic_s
        self._snub_s = snub_s
        self._peers: dict[PeerKey, _Peer] = {}
        self._next_round = now + round_s
        self._next_trial = now + optimistic_s

    # -- what happens ---------------------------------------------------------------------------

    def joined(self, peer: PeerKey, now: float) -> None:
        """Add a peer that wants nothing yet."""
        if peer in self._peers:
            raise LocalProtocolError("the choker knows this peer already")
        self._peers[peer] = _Peer(now)

    def left(self, peer: PeerKey, now: float) -> None:
        """Forget a peer; its slot goes to another."""
        del self._peers[peer]
        self._fill(now)

    def wants(self, peer: PeerKey, wanting: bool, now: float) -> None:
        """Note whether a peer wants anything that this node has."""
        entry = self._peers[peer]
        if wanting == (entry.state is not ChokeState.IDLE):
            return
        self._turn(entry, ChokeState.CHOKED if wanting else ChokeState.IDLE, now)
        self._fill(now)

    def received(self, peer: PeerKey, count: int, now: float) -> None:
        """Note bytes that a peer has sent us."""
        entry = self._peers.get(peer)
        if entry is not None:
            entry.earned += count
            entry.heard_at = now

    def owes(self, peer: PeerKey, owing: bool, now: float) -> None:
        """Note whether a peer owes us anything; silence counts only while it does."""
        entry = self._peers.get(peer)
        if entry is not None and entry.owes != owing:
            entry.owes = owing
            entry.heard_at = now

    def next_deadline(self) -> float:
        """When `handle_timer` wants to be called."""
        return min(self._next_round, self._next_trial)

    def handle_timer(self, now: float) -> None:
        """Take the time: judges anew when a round is over."""
        if now < self.next_deadline():
            return
        tried = now >= self._next_trial
        if tried:
            self._next_trial = now + self._optimistic_s
        if now >= self._next_round:
            self._next_round = now + self._round_s
            self._judge(now)
            for entry in self._peers.values():
                entry.earned /= 2
        if tried:
            self._try_another(now)
        self._fill(now)

    # -- what comes of it -----------------------------------------------------------------------

    def state(self, peer: PeerKey) -> ChokeState:
        """Return what a peer is to us now."""
        return self._peers[peer].state

    def is_snubbed(self, peer: PeerKey, now: float) -> bool:
        """Whether a peer owes us something and has sent nothing for `snub_s`."""
        return self._snubbed(self._peers[peer], now)

    def changes(self) -> list[tuple[PeerKey, bool]]:
        """Return whom to tell that it is choked (True) or no longer is, each change once."""
        changed: list[tuple[PeerKey, bool]] = []
        for peer, entry in self._peers.items():
            choked = not entry.state.is_served
            if choked is not entry.told:
                entry.told = choked
                changed.append((peer, choked))
        return changed

    # -- judging --------------------------------------------------------------------------------

    @property
    def _unlimited(self) -> bool:
        return self._policy is ChokingPolicy.NONE

    def _turn(self, entry: _Peer, state: ChokeState, now: float) -> None:
        if entry.state is not state:
            entry.state = state
            entry.turned_at = now

    def _snubbed(self, entry: _Peer, now: float) -> bool:
        return self.fetching and entry.owes and now - entry.heard_at >= self._snub_s

    def _of(self, *states: ChokeState) -> list[_Peer]:
        return [entry for entry in self._peers.values() if entry.state in states]

    def _merit(self, entry: _Peer, now: float) -> tuple[float, ...]:
        """Return what is greatest for the best."""
        served = entry.state is ChokeState.SERVED
        age = now - entry.turned_at
        if self.fetching:
            return (-self._snubbed(entry, now), entry.earned, served, age)
        if served and age < self._turn_s:
            return (2, age)
        return (0 if served else 1, age)

    def _judge(self, now: float) -> None:
        wanting = self._of(ChokeState.CHOKED, ChokeState.SERVED, ChokeState.TRIED)
        if self._unlimited or len(wanting) <= self.slots:
            return  # `_fill` gives everybody a slot
        regular = max(1, self.slots - 1)
        order = sorted(wanting, key=lambda entry: self._merit(entry, now), reverse=True)
        for entry in order[:regular]:
            self._turn(entry, ChokeState.SERVED, now)
        for entry in order[regular:]:
            if entry.state is ChokeState.SERVED:
                self._turn(entry, ChokeState.CHOKED, now)

    def _try_another(self, now: float) -> None:
        choked = self._of(ChokeState.CHOKED)
        if not choked or self.slots < 2:
            return
        for entry in self._of(ChokeState.TRIED):
            self._turn(entry, ChokeState.CHOKED, now)
        weights = [_NEWCOMER_WEIGHT if now - entry.came_at < _NEWCOMER_S else 1 for entry in choked]
        (chosen,) = self._rng.choices(choked, weights)
        if len(self._of(ChokeState.SERVED)) < self.slots:
            self._turn(chosen, ChokeState.TRIED, now)

    def _fill(self, now: float) -> None:
        """Give free slots to those who are choked, the best first."""
        choked = self._of(ChokeState.CHOKED)
        if not choked:
            return
        served = len(self._of(ChokeState.SERVED, ChokeState.TRIED))
        free = len(choked) if self._unlimited else self.slots - served
        if free <= 0:
            return
        choked.sort(key=lambda entry: self._merit(entry, now), reverse=True)
        for entry in choked[:free]:
            self._turn(entry, ChokeState.SERVED, now)

"""Rounds: who is waited for, what counts, and that every round ends by its deadline."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.limits import ROUND_PEERS_MAX, ROUND_REASON_MAX
from sbp2p_protocol.round_weights import Weighting, weigh
from sbp2p_protocol.rounds import (
    EQUIVOCATION,
    Close,
    CloseReason,
    NeighbourState,
    Rounds,
    RoundSettings,
    Update,
    UpdateBook,
    Verdict,
    Wait,
    shortened,
)
from sbp2p_protocol.topology import full, ring
from tests.protocol.topology_samples import peers, version

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId

ME, A, B, C, D = peers(5)
STATE = NeighbourState


def opened(*neighbours: PeerId, number: int = 5, now: float = 0.0, **options: Any) -> Rounds:
    """Return rounds of which one is open, with a deadline 10 s later."""
    rounds = Rounds(ME, RoundSettings(deadline_s=10, **options))
    rounds.begin(number, neighbours, now)
    return rounds


def arrive(rounds: Rounds, peer: PeerId, number: int, now: float = 1.0, salt: int = 0) -> Verdict:
    cid = version(number, salt)
    return rounds.update_arrived(peer, number, cid, 10, now)


def bring(rounds: Rounds, peer: PeerId, number: int, now: float = 1.0) -> None:
    """Have an update arrive and be fetched."""
    arrive(rounds, peer, number, now)
    rounds.fetched(peer, version(number, 0), now)


def closed(rounds: Rounds, now: float) -> Close:
    decision = rounds.decision(now)
    assert isinstance(decision, Close)
    return decision


def taken(rounds: Rounds, now: float) -> list[tuple[PeerId, int, int]]:
    return [(each.peer, each.update.round, each.staleness) for each in closed(rounds, now).taken]


# -- when a round closes ---------------------------------------------------------------------------


def test_all_neighbours_are_waited_for() -> None:
    rounds = opened(A, B)
    assert rounds.decision(0.5) == Wait(10.0)
    bring(rounds, A, 5)
    assert rounds.decision(1.0) == Wait(10.0)
    bring(rounds, B, 5, 2.0)
    close = closed(rounds, 2.0)
    assert close.reason is CloseReason.ALL_IN
    assert close.has_quorum
    assert [each.peer for each in close.taken] == sorted([A, B], key=lambda peer: peer.to_bytes())
    assert (close.late, close.refused, close.missing) == ((), (), ())
    assert rounds.decision(99.0) is close
    assert not rounds.is_open


def test_the_deadline_ends_any_round() -> None:
    rounds = opened(A, B, C)
    bring(rounds, A, 5)
    arrive(rounds, B, 5)
    assert rounds.decision(9.99) == Wait(10.0)
    close = closed(rounds, 10.0)
    assert close.reason is CloseReason.DEADLINE
    assert [each.peer for each in close.taken] == [A]
    assert [each.peer for each in close.late] == [B]
    assert set(close.missing) == {B, C}


def test_alone_a_peer_goes_on_at_once() -> None:
    close = closed(opened(), 0.0)
    assert close.reason is CloseReason.ALL_IN
    assert close.has_quorum
    assert close.taken == ()


def test_a_quorum_is_waited_for_even_alone() -> None:
    rounds = opened(A, quorum=2)
    bring(rounds, A, 5)
    assert rounds.decision(5.0) == Wait(10.0)
    rounds.peer_joined(B, 6.0)
    bring(rounds, B, 5, 6.0)
    assert closed(rounds, 6.0).has_quorum


def test_without_a_quorum_nothing_is_merged_or_used_up() -> None:
    rounds = opened(A, B, quorum=2)
    bring(rounds, A, 5)
    close = closed(rounds, 10.0)
    assert not close.has_quorum
    assert len(close.taken) == 1
    rounds.begin(6, [A, B], 11.0)
    assert rounds.wanted() == (close.taken[0].update,)


def test_patience_begins_with_the_quorum() -> None:
    rounds = opened(A, B, C, quorum=2, patience_s=3.0)
    bring(rounds, A, 5, 1.0)
    assert rounds.decision(2.0) == Wait(10.0)
    bring(rounds, B, 5, 2.0)
    assert rounds.decision(2.0) == Wait(5.0)
    assert rounds.decision(4.9) == Wait(5.0)
    close = closed(rounds, 5.0)
    assert close.reason is CloseReason.QUORUM
    assert close.missing == (C,)


def test_patience_does_not_outlive_the_deadline() -> None:
    rounds = opened(A, B, quorum=1, patience_s=100.0)
    bring(rounds, A, 5, 9.0)
    assert rounds.decision(9.0) == Wait(10.0)
    assert closed(rounds, 10.0).reason is CloseReason.DEADLINE


# -- what a neighbour is ---------------------------------------------------------------------------


def test_the_states_of_a_neighbour() -> None:
    rounds = opened(A, staleness_max=2)
    assert rounds.state_of(A) is STATE.AWAITED
    assert rounds.state_of(B) is None
    arrive(rounds, A, 4)
    assert rounds.state_of(A) is STATE.COMING
    rounds.fetched(A, version(4, 0), 1.0)
    assert rounds.state_of(A) is STATE.STALE
    rounds.peer_gone(A, 1.0)
    assert rounds.state_of(A) is STATE.GONE
    rounds.peer_joined(A, 1.0)
    assert rounds.state_of(A) is STATE.STALE
    arrive(rounds, A, 5)
    assert rounds.state_of(A) is STATE.COMING
    rounds.failed(A, version(5, 0), "no")
    assert rounds.state_of(A) is STATE.FAILED
    arrive(rounds, A, 6)
    rounds.fetched(A, version(6, 0), 1.0)
    assert rounds.state_of(A) is STATE.FRESH
    rounds.peer_joined(B, 1.0)
    assert rounds.state_of(B) is STATE.JOINED


def test_a_late_update_counts_in_the_next_round_and_once() -> None:
    rounds = opened(A, B)
    bring(rounds, B, 5)
    assert taken(rounds, 10.0) == [(B, 5, 0)]
    assert arrive(rounds, A, 5, 11.0) is Verdict.NEW
    rounds.begin(6, [A, B], 12.0)
    assert [each.peer for each in rounds.wanted()] == [A]
    rounds.fetched(A, version(5, 0), 12.0)
    bring(rounds, B, 6, 13.0)
    assert rounds.decision(13.0) == Wait(22.0)  # its update of round 6 may still come
    close = closed(rounds, 22.0)
    assert [(each.peer, each.staleness) for each in close.taken if each.staleness] == [(A, 1)]
    assert [each.decay for each in close.taken if each.peer == A] == [Fraction(1, 2)]
    rounds.begin(7, [A, B], 23.0)
    assert rounds.wanted() == ()
    assert taken(rounds, 33.0) == []


def test_a_newer_update_replaces_a_stale_one() -> None:
    rounds = opened(A)
    arrive(rounds, A, 4)
    arrive(rounds, A, 5)
    assert [each.round for each in rounds.wanted()] == [5]
    rounds.fetched(A, version(4, 0), 1.0)  # of no use any more
    assert rounds.state_of(A) is STATE.COMING
    rounds.fetched(A, version(5, 0), 1.0)
    assert taken(rounds, 1.0) == [(A, 5, 0)]


def test_a_stale_update_counts_if_the_newer_one_does_not_come() -> None:
    rounds = opened(A)
    bring(rounds, A, 4)
    arrive(rounds, A, 5)
    close = closed(rounds, 10.0)
    assert [(each.update.round, each.staleness) for each in close.taken] == [(4, 1)]
    assert [each.round for each in close.late] == [5]


def test_an_update_of_this_round_is_not_replaced() -> None:
    rounds = opened(A, B)
    arrive(rounds, A, 5)
    arrive(rounds, A, 6)
    assert [each.round for each in rounds.wanted()] == [5]
    rounds.fetched(A, version(5, 0), 1.0)
    assert taken(rounds, 10.0) == [(A, 5, 0)]
    rounds.begin(6, [A], 11.0)
    assert [each.round for each in rounds.wanted()] == [6]


def test_who_is_ahead_counts_as_fresh_and_is_not_waited_for_again() -> None:
    rounds = opened(A)
    bring(rounds, A, 7)
    assert taken(rounds, 1.0) == [(A, 7, 0)]
    rounds.begin(6, [A], 2.0)
    assert rounds.state_of(A) is STATE.AHEAD
    assert closed(rounds, 2.0).missing == (A,)
    rounds.begin(7, [A], 3.0)
    assert closed(rounds, 3.0).reason is CloseReason.ALL_IN
    rounds.begin(8, [A], 4.0)
    assert rounds.decision(4.0) == Wait(14.0)


@pytest.mark.parametrize("staleness_max", [0, 1, 3])
def test_what_is_too_late_does_not_count(staleness_max: int) -> None:
    for late in range(5):
        rounds = opened(A, staleness_max=staleness_max)
        bring(rounds, A, 5 - late)
        expected = [(A, 5 - late, late)] if late <= staleness_max else []
        assert taken(rounds, 10.0) == expected


def test_whoever_goes_is_not_waited_for_but_what_it_said_counts() -> None:
    rounds = opened(A, B)
    arrive(rounds, A, 5)
    rounds.peer_gone(A, 2.0)
    rounds.peer_gone(B, 2.0)
    rounds.peer_gone(D, 2.0)
    assert rounds.state_of(A) is STATE.COMING
    assert rounds.decision(2.0) == Wait(10.0)
    rounds.fetched(A, version(5, 0), 3.0)
    assert taken(rounds, 3.0) == [(A, 5, 0)]


def test_whoever_joins_is_welcome_and_not_waited_for() -> None:
    rounds = opened(A)
    rounds.peer_joined(B, 1.0)
    rounds.peer_joined(C, 1.0)
    rounds.peer_joined(ME, 1.0)
    bring(rounds, B, 5, 2.0)
    assert rounds.decision(2.0) == Wait(10.0)
    bring(rounds, A, 5, 3.0)
    close = closed(rounds, 3.0)
    assert {each.peer for each in close.taken} == {A, B}
    assert close.missing == (C,)


def test_whoever_was_heard_before_it_joined_is_fetched_at_once() -> None:
    rounds = opened(A)
    arrive(rounds, B, 5)
    assert rounds.wanted() == ()
    rounds.peer_joined(B, 1.0)
    assert [each.peer for each in rounds.wanted()] == [B]


# -- what goes wrong -------------------------------------------------------------------------------


def test_what_fails_is_not_waited_for_and_may_count_later() -> None:
    rounds = opened(A)
    arrive(rounds, A, 5)
    rounds.failed(A, version(5, 0), "it went\naway")
    close = closed(rounds, 2.0)
    assert [(each.update.peer, each.reason) for each in close.refused] == [(A, "it went away")]
    assert close.missing == (A,)
    rounds.begin(6, [A], 3.0)
    assert [each.round for each in rounds.wanted()] == [5]


def test_what_is_unfit_is_never_wanted_again() -> None:
    rounds = opened(A)
    arrive(rounds, A, 5)
    rounds.refused(A, version(5, 0), "not a model")
    assert closed(rounds, 2.0).refused[0].reason == "not a model"
    rounds.begin(6, [A], 3.0)
    assert rounds.wanted() == ()


def test_a_late_one_that_fails_says_nothing_about_the_next() -> None:
    rounds = opened(A)
    arrive(rounds, A, 4)
    rounds.failed(A, version(4, 0), "gone")
    assert rounds.state_of(A) is STATE.AWAITED
    assert rounds.decision(2.0) == Wait(10.0)


def test_replays_are_refused() -> None:
    rounds = opened(A)
    bring(rounds, A, 5)
    closed(rounds, 1.0)
    rounds.begin(6, [A], 2.0)
    assert arrive(rounds, A, 5) is Verdict.KNOWN
    assert arrive(rounds, A, 4) is Verdict.OLD
    assert rounds.wanted() == ()
    assert rounds.decision(3.0) == Wait(12.0)


@pytest.mark.parametrize("is_here", [False, True])
def test_two_updates_of_one_round_are_noticed_and_neither_counts(is_here: bool) -> None:
    rounds = opened(A, B)
    arrive(rounds, A, 5)
    if is_here:
        rounds.fetched(A, version(5, 0), 1.0)
    assert arrive(rounds, A, 5, salt=1) is Verdict.EQUIVOCATION
    assert rounds.state_of(A) is STATE.FAILED
    assert rounds.book.evidence(A) == (
        Update(A, 5, version(5, 0), 10),
        Update(A, 5, version(5, 1), 10),
    )
    bring(rounds, B, 5)
    close = closed(rounds, 2.0)
    assert [each.peer for each in close.taken] == [B]
    assert [each.reason for each in close.refused] == [EQUIVOCATION, EQUIVOCATION]
    rounds.begin(6, [A], 3.0)
    assert rounds.wanted() == ()
    bring(rounds, A, 6)
    assert taken(rounds, 4.0) == [(A, 6, 0)]


def test_a_contradiction_after_the_merge_is_still_noticed() -> None:
    rounds = opened(A)
    bring(rounds, A, 5)
    closed(rounds, 1.0)
    assert arrive(rounds, A, 5, salt=1) is Verdict.EQUIVOCATION
    assert rounds.book.evidence(A) is not None


def test_events_of_others_change_nothing() -> None:
    rounds = opened(A)
    assert arrive(rounds, B, 5) is Verdict.NEW
    rounds.fetched(B, version(5, 0), 1.0)
    rounds.failed(B, version(5, 0), "no")
    rounds.refused(A, version(5, 0), "not wanted")
    assert rounds.decision(1.0) == Wait(10.0)
    assert rounds.state_of(B) is None


def test_calls_that_make_no_sense_are_bugs() -> None:
    rounds = Rounds(ME, RoundSettings())
    with pytest.raises(LocalProtocolError, match="no round has begun"):
        rounds.decision(0.0)
    assert rounds.wanted() == ()
    rounds.peer_gone(A, 0.0)
    rounds.begin(3, [A, ME], 0.0)
    assert rounds.state_of(ME) is None
    with pytest.raises(LocalProtocolError, match="round 3 is still open"):
        rounds.begin(4, [A], 0.0)
    closed(rounds, 60.0)
    with pytest.raises(LocalProtocolError, match="round 3 does not come after 3"):
        rounds.begin(3, [A], 0.0)


@pytest.mark.parametrize(
    "options",
    [
        {"deadline_s": 0},
        {"deadline_s": float("inf")},
        {"deadline_s": float("nan")},
        {"quorum": -1},
        {"patience_s": -1.0, "quorum": 1},
        {"patience_s": 1.0},
        {"staleness_max": 65},
        {"staleness_decay": 1.5},
        {"staleness_decay": float("nan")},
    ],
)
def test_settings_are_checked(options: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        RoundSettings(**options)


def test_decay_is_exact() -> None:
    assert RoundSettings(staleness_decay=0.9).decay(2) == Fraction(81, 100)
    assert RoundSettings(staleness_decay=0).decay(0) == 1
    assert RoundSettings(staleness_decay=0).decay(1) == 0


def test_reasons_fit_a_record() -> None:
    assert shortened("a\n b\x1b[2J") == "a b?[2J"
    long = shortened("\u00e9" * 500)
    assert len(long.encode()) <= ROUND_REASON_MAX
    assert long.endswith("\u00e9...")
    assert shortened("lone \ud800") == "lone ?"


# -- the book --------------------------------------------------------------------------------------


def test_the_book_is_bounded() -> None:
    book = UpdateBook()
    crowd = peers(8)
    book.heard(Update(crowd[0], 1, version(1)))
    book.heard(Update(crowd[1], 1, version(1)))
    book._entries |= dict.fromkeys(range(ROUND_PEERS_MAX - 2))  # type: ignore
    assert book.heard(Update(crowd[0], 1, version(1))) is Verdict.KNOWN
    book.heard(Update(crowd[2], 1, version(1)))
    assert len(book) == ROUND_PEERS_MAX
    assert book.newest(crowd[1]) is None, "heard of longest ago"
    assert book.newest(crowd[0]) is not None
    book.forget(crowd[0])
    assert (book.usable(crowd[0]), book.used(crowd[0]), book.evidence(crowd[0])) == (None, -1, None)


# -- weights ---------------------------------------------------------------------------------------


def closed_with(late: int = 0) -> Close:
    rounds = opened(A, B, C)
    bring(rounds, A, 5)
    bring(rounds, B, 5 - late)
    return closed(rounds, 10.0)


def test_mixing_weights_leave_what_is_missing_to_the_own_model() -> None:
    row = full().weights(ME, [ME, A, B, C])
    weights = weigh(Weighting.MIXING, closed_with().taken, own=ME, row=row)
    quarter = Fraction(1, 4)
    assert weights == {A: quarter, B: quarter, ME: 2 * quarter}
    late = weigh(Weighting.MIXING, closed_with(late=1).taken, own=ME, row=row)
    assert late == {A: quarter, B: quarter / 2, ME: Fraction(5, 8)}


def test_two_that_miss_each_other_keep_the_mean() -> None:
    members = peers(6)
    rows = {}
    for me in members:
        rounds = Rounds(me, RoundSettings(deadline_s=1))
        rounds.begin(0, ring().neighbours(me, members), 0.0)
        for other in ring().neighbours(me, members):
            if {me, other} != set(sorted(members, key=str)[:2]):
                bring(rounds, other, 0)
        close = closed(rounds, 1.0)
        rows[me] = weigh(Weighting.MIXING, close.taken, own=me, row=ring().weights(me, members))
    columns = [sum(row.get(peer, Fraction(0)) for row in rows.values()) for peer in members]
    assert columns == [1] * 6
    assert all(rows[one].get(other, 0) == rows[other].get(one, 0) for one in rows for other in rows)


def test_sample_weights() -> None:
    weights = weigh(Weighting.SAMPLES, closed_with(late=1).taken, own=ME, samples=15, row={})
    assert weights == {ME: Fraction(1, 2), A: Fraction(1, 3), B: Fraction(1, 6)}
    bounded = weigh(
        Weighting.SAMPLES, closed_with().taken, own=ME, samples=1000, row={}, samples_max=10
    )
    assert set(bounded.values()) == {Fraction(1, 3)}
    with pytest.raises(LocalProtocolError, match="-1 samples"):
        weigh(Weighting.SAMPLES, (), own=ME, samples=-1, row={})


def test_nobody_has_samples() -> None:
    rounds = opened(A)
    rounds.update_arrived(A, 5, version(5, 0), 0, 1.0)
    rounds.fetched(A, version(5, 0), 1.0)
    close = closed(rounds, 1.0)
    weights = weigh(Weighting.SAMPLES, close.taken, own=ME, samples=0, row={})
    assert weights == {ME: Fraction(1, 2), A: Fraction(1, 2)}
    assert weigh(Weighting.SAMPLES, close.taken, own=ME, samples=1, row={}) == {ME: Fraction(1)}


def test_equal_weights() -> None:
    weights = weigh(Weighting.EQUAL, closed_with().taken, own=ME, row={})
    assert set(weights.values()) == {Fraction(1, 3)}


@pytest.mark.parametrize("weighting", Weighting)
def test_who_has_no_model_merges_the_others(weighting: Weighting) -> None:
    row = {A: Fraction(1, 4), B: Fraction(1, 2), ME: Fraction(1, 4)}
    weights = weigh(weighting, closed_with().taken, own=ME, row=row, includes_own=False)
    assert set(weights) == {A, B}
    assert sum(weights.values()) == 1
    assert weigh(weighting, (), own=ME, row=row, includes_own=False) == {}
    assert weigh(weighting, (), own=ME, row=row) == {ME: 1}


def test_a_row_that_is_none_is_a_bug() -> None:
    row = {A: Fraction(3, 4), B: Fraction(3, 4)}
    with pytest.raises(LocalProtocolError, match="add up to more than 1"):
        weigh(Weighting.MIXING, closed_with().taken, own=ME, row=row)


# -- whatever happens ------------------------------------------------------------------------------

CROWD = peers(6)
peer = st.sampled_from(CROWD)
salts = st.integers(0, 1)
lags = st.integers(-3, 5)


class AnyRounds(RuleBasedStateMachine):
    """Any events in any order: every round closes, and what counts is what may."""

    @initialize(
        quorum=st.integers(0, 3),
        patience=st.none() | st.floats(0, 20),
        staleness=st.integers(0, 3),
    )
    def start(self, quorum: int, patience: float | None, staleness: int) -> None:
        self.settings = RoundSettings(
            deadline_s=10,
            quorum=quorum,
            patience_s=patience if quorum else None,
            staleness_max=staleness,
        )
        self.rounds = Rounds(ME, self.settings)
        self.now = 0.0
        self.deadline = 0.0
        self.neighbours: set[PeerId] = set()
        self.here: set[tuple[PeerId, Any]] = set()
        self.merged: set[tuple[PeerId, int]] = set()
        self.said: dict[tuple[PeerId, int], set[Any]] = {}

    @rule(skipped=st.integers(1, 3), chosen=st.sets(peer))
    def begin(self, skipped: int, chosen: set[PeerId]) -> None:
        if self.rounds.is_open:
            return
        self.rounds.begin(self.rounds.number + skipped, chosen, self.now)
        self.deadline = self.now + 10
        self.neighbours = chosen - {ME}
        self.here = set()

    @rule(who=peer, lag=lags, salt=salts)
    def arrives(self, who: PeerId, lag: int, salt: int) -> None:
        number = max(0, self.rounds.number - lag)
        cid = version(number, salt)
        known = self.rounds.book.newest(who)
        verdict = self.rounds.update_arrived(who, number, cid, lag + 3, self.now)
        assert (verdict is Verdict.NEW) == (known is None or known.round < number)
        if known is not None and known.round == number and known.cid != cid:
            assert verdict is Verdict.EQUIVOCATION
        if verdict is not Verdict.OLD:
            self.said.setdefault((who, number), set()).add(cid)

    @rule(data=st.data(), outcome=st.integers(0, 2))
    def ends(self, data: st.DataObject, outcome: int) -> None:
        wanted = self.rounds.wanted()
        if not wanted:
            return
        update = data.draw(st.sampled_from(wanted))
        if outcome == 0:
            self.rounds.fetched(update.peer, update.cid, self.now)
            self.here.add((update.peer, update.cid))
        elif outcome == 1:
            self.rounds.failed(update.peer, update.cid, "failed")
        else:
            self.rounds.refused(update.peer, update.cid, "refused")

    @rule(who=peer, number=st.integers(0, 20), salt=salts)
    def talks_nonsense(self, who: PeerId, number: int, salt: int) -> None:
        cid = version(number, salt + 7)
        self.rounds.fetched(who, cid, self.now)
        self.rounds.failed(who, cid, "what?")
        self.rounds.refused(who, cid, "what?")

    @rule(who=peer)
    def joins(self, who: PeerId) -> None:
        if self.rounds.is_open and who != ME:
            self.neighbours.add(who)
        self.rounds.peer_joined(who, self.now)

    @rule(who=peer)
    def goes(self, who: PeerId) -> None:
        self.rounds.peer_gone(who, self.now)

    @rule(seconds=st.floats(0, 12))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def decide(self) -> None:
        if self.rounds.number < 0:
            return
        was_open = self.rounds.is_open
        decision = self.rounds.decision(self.now)
        if isinstance(decision, Wait):
            assert self.now < decision.until <= self.deadline
            return
        assert self.rounds.decision(self.now + 5) is decision
        if was_open:
            self.check(decision)

    def check(self, close: Close) -> None:
        peers_taken = {each.peer for each in close.taken}
        assert len(peers_taken) == len(close.taken)
        assert peers_taken | set(close.missing) == self.neighbours
        assert not peers_taken & set(close.missing)
        for each in close.taken:
            update = each.update
            assert (update.peer, update.cid) in self.here
            assert each.staleness == max(0, close.round - update.round)
            assert each.staleness <= self.settings.staleness_max
            assert (update.peer, update.round) not in self.merged, "each update counts once"
            assert self.said[update.peer, update.round] == {update.cid}, "contradictions never do"
        fresh = [each for each in close.taken if not each.staleness]
        assert close.has_quorum == (len(fresh) >= self.settings.quorum)
        if close.has_quorum:
            self.merged |= {(each.peer, each.update.round) for each in close.taken}
        if close.reason is not CloseReason.ALL_IN:
            assert self.now >= self.deadline or self.settings.patience_s is not None
        row = full().weights(ME, [ME, *self.neighbours])
        for weighting in Weighting:
            weights = weigh(weighting, close.taken, own=ME, row=row)
            assert sum(weights.values()) == 1
            assert all(weight > 0 for weight in weights.values())

    @invariant()
    def is_never_open_beyond_the_deadline(self) -> None:
        if self.rounds.is_open and self.now >= self.deadline:
            self.decide()
            assert not self.rounds.is_open

    def teardown(self) -> None:
        if self.rounds.is_open:
            self.now = self.deadline
            self.decide()
            assert not self.rounds.is_open


TestAnyRounds = AnyRounds.TestCase
TestAnyRounds.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)

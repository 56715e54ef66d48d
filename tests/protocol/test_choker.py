from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sbp2p_protocol.choker import Choker, ChokeState, ChokingPolicy
from sbp2p_protocol.errors import LocalProtocolError

ROUND, TRIAL, SNUB = 10.0, 30.0, 60.0


def make(
    slots: int, *, policy: ChokingPolicy = ChokingPolicy.TIT_FOR_TAT, seed: int = 0
) -> Choker[str]:
    return Choker(
        random.Random(seed),  # noqa: S311
        policy=policy,
        slots=slots,
        round_s=ROUND,
        optimistic_s=TRIAL,
        snub_s=SNUB,
        now=0.0,
    )


def want(choker: Choker[str], peers: str, now: float = 0.0) -> None:
    for peer in peers:
        choker.joined(peer, now)
        choker.wants(peer, True, now)


def served(choker: Choker[str], peers: str) -> str:
    return "".join(peer for peer in peers if choker.state(peer).is_served)


def run(choker: Choker[str], until: float, earns: dict[str, int] | None = None) -> None:
    """Let time pass in steps of a second; `earns` is what each peer sends in each."""
    for now in range(1, int(until) + 1):
        for peer, count in (earns or {}).items():
            choker.received(peer, count, float(now))
        choker.handle_timer(float(now))


def test_nobody_is_choked_while_there_are_slots() -> None:
    choker = make(4)
    want(choker, "abcd")
    run(choker, 100)
    assert served(choker, "abcd") == "abcd"
    assert choker.changes() == []


def test_who_comes_too_late_is_choked_and_gets_the_next_free_slot() -> None:
    choker = make(2)
    want(choker, "abc")
    assert served(choker, "abc") == "ab"
    assert choker.changes() == [("c", True)]
    assert choker.changes() == []
    choker.left("a", 1.0)
    assert choker.changes() == [("c", False)]


def test_who_wants_nothing_takes_no_slot() -> None:
    choker = make(2)
    want(choker, "abc")
    choker.wants("b", False, 1.0)
    assert served(choker, "ac") == "ac"
    assert choker.state("b") is ChokeState.IDLE
    choker.wants("b", True, 2.0)
    assert choker.state("b") is ChokeState.CHOKED


def test_while_fetching_the_slots_go_to_those_who_give_most() -> None:
    choker = make(3)
    choker.fetching = True
    want(choker, "abcdef")
    run(choker, 20, {"d": 300, "e": 200, "f": 100, "a": 1})
    assert choker.state("d") is ChokeState.SERVED
    assert choker.state("e") is ChokeState.SERVED


def test_one_slot_is_for_trying_others() -> None:
    choker = make(3)
    choker.fetching = True
    want(choker, "abcdef")
    tried = Counter[str]()
    for now in range(1, 1000):
        choker.received("a", 100, float(now))
        choker.received("b", 90, float(now))
        choker.handle_timer(float(now))
        for peer in "abcdef":
            tried[peer] += choker.state(peer) is ChokeState.TRIED
    assert choker.state("a") is choker.state("b") is ChokeState.SERVED
    assert set(+tried) == set("cdef")


def test_who_is_tried_and_gives_keeps_a_slot() -> None:
    choker = make(2)
    choker.fetching = True
    want(choker, "ab")
    want(choker, "c", 1.0)
    for now in range(1, 200):
        choker.received("a", 100, float(now))
        if choker.state("c").is_served:
            choker.received("c", 500, float(now))
        choker.handle_timer(float(now))
    assert choker.state("c") is ChokeState.SERVED


def test_who_owes_and_sends_nothing_comes_last() -> None:
    choker = make(2)
    choker.fetching = True
    want(choker, "ab")
    choker.received("a", 10_000_000, 0.0)
    choker.owes("a", True, 0.0)
    run(choker, 59)
    assert not choker.is_snubbed("a", 59.0)
    run(choker, 60)
    assert choker.is_snubbed("a", 60.0)
    want(choker, "c", 60.0)
    choker.received("b", 1, 60.0)
    for now in range(61, 80):
        choker.handle_timer(float(now))
    assert choker.state("b") is ChokeState.SERVED
    choker.received("a", 1, 80.0)
    assert not choker.is_snubbed("a", 80.0)


def test_silence_of_one_that_owes_nothing_is_no_snub() -> None:
    choker = make(2)
    choker.fetching = True
    want(choker, "a")
    assert not choker.is_snubbed("a", 1000.0)


def test_a_seed_serves_everybody_in_turn() -> None:
    choker = make(4)
    want(choker, "abcdefghijkl")
    turns = Counter[str]()
    for now in range(1, 1200):
        choker.handle_timer(float(now))
        turns.update(served(choker, "abcdefghijkl"))
    assert min(turns.values()) > 0.5 * max(turns.values())


def test_without_a_policy_everybody_is_served() -> None:
    choker = make(2, policy=ChokingPolicy.NONE)
    want(choker, "abcdef")
    run(choker, 100)
    assert served(choker, "abcdef") == "abcdef"


def test_peers_are_joined_once() -> None:
    choker = make(2)
    want(choker, "a")
    with pytest.raises(LocalProtocolError):
        choker.joined("a", 0.0)


class ChokerModel(RuleBasedStateMachine):
    """Whatever happens: slots are bounded, none is free while somebody waits, news are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.choker = make(3)
        self.wanting: dict[str, bool] = {}
        self.told: dict[str, bool] = {}

    @rule(peer=st.sampled_from("abcdefgh"))
    def join(self, peer: str) -> None:
        if peer not in self.wanting:
            self.choker.joined(peer, self.now)
            self.wanting[peer] = self.told[peer] = False

    @rule(peer=st.sampled_from("abcdefgh"))
    def leave(self, peer: str) -> None:
        if peer in self.wanting:
            self.choker.left(peer, self.now)
            del self.wanting[peer], self.told[peer]

    @rule(peer=st.sampled_from("abcdefgh"), wanting=st.booleans())
    def want(self, peer: str, wanting: bool) -> None:
        if peer in self.wanting:
            self.choker.wants(peer, wanting, self.now)
            self.wanting[peer] = wanting

    @rule(peer=st.sampled_from("abcdefgh"), count=st.integers(0, 1000), owing=st.booleans())
    def give(self, peer: str, count: int, owing: bool) -> None:
        self.choker.received(peer, count, self.now)
        self.choker.owes(peer, owing, self.now)

    @rule(fetching=st.booleans(), slots=st.integers(1, 5))
    def change(self, fetching: bool, slots: int) -> None:
        self.choker.fetching = fetching
        if slots >= self.choker.slots:
            self.choker.slots = slots

    @rule(seconds=st.floats(0.1, 40))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.choker.handle_timer(self.now)
        assert self.choker.next_deadline() > self.now

    @invariant()
    def agrees(self) -> None:
        for peer, choked in self.choker.changes():
            assert self.told[peer] is not choked
            self.told[peer] = choked
        states = {peer: self.choker.state(peer) for peer in self.wanting}
        for peer, wanting in self.wanting.items():
            assert (states[peer] is ChokeState.IDLE) is not wanting
            assert self.told[peer] is (states[peer] is ChokeState.CHOKED)
        using = [s for s in states.values() if s in (ChokeState.SERVED, ChokeState.TRIED)]
        assert len(using) <= self.choker.slots
        if self.now and len(using) < min(3, self.choker.slots):
            assert ChokeState.CHOKED not in states.values()


ChokerModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestChoker = ChokerModel.TestCase

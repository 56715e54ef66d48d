from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sbp2p_protocol.bitmap import Bitmap
from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.super_seed import (
    DRY_MAX_S,
    DRY_S,
    PATIENCE_S,
    WINDOW_MAX,
    WINDOW_MIN,
    SuperSeed,
)


def make(size: int, *peers: str, seed: int = 0) -> SuperSeed[str]:
    """Make a super-seed whose peers want everything."""
    show: SuperSeed[str] = SuperSeed(size, random.Random(seed))  # noqa: S311
    for peer in peers:
        show.joined(peer)
        show.wants(peer, 0, Bitmap.full(size).to_bytes())
    return show


def test_each_block_is_shown_to_one_peer() -> None:
    show = make(20, "a", "b", "c")
    shown = [index for peer in "abc" for index in show.reveal(peer, 0.0)]
    assert len(shown) == len(set(shown)) == 3 * WINDOW_MIN


def test_the_next_is_shown_when_one_was_sent() -> None:
    show = make(20, "a", "b")
    first, _second = show.reveal("a", 0.0)
    assert show.reveal("a", 0.0) == []
    show.sent("a", first, contended=True)
    assert len(show.reveal("a", 0.0)) == 1


def test_every_block_goes_out_once_and_then_everything_is_open() -> None:
    show = make(101, "a", "b", "c")
    sent: list[int] = []
    waiting: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    while not show.is_open("a", 0.0):
        for peer, queue in waiting.items():
            queue += show.reveal(peer, 0.0)
            if queue:
                sent.append(queue.pop(0))
                show.sent(peer, sent[-1], contended=True)
    assert sorted(sent) == list(range(101))
    assert all(show.is_open(peer, 0.0) for peer in "abc")


def test_the_window_grows_for_one_that_runs_dry_and_shrinks_while_others_wait() -> None:
    show = make(2000, "a")
    counts = []
    for _ in range(12):
        revealed = show.reveal("a", 0.0)
        counts.append(len(revealed))
        for index in revealed:
            show.sent("a", index, contended=False)
    assert counts[0] == WINDOW_MIN
    assert counts[-1] > 50 * WINDOW_MIN
    assert max(counts) <= WINDOW_MAX
    for _ in range(3):
        for index in show.reveal("a", 0.0):
            show.sent("a", index, contended=True)
    assert len(show.reveal("a", 0.0)) < WINDOW_MAX


def test_none_of_several_is_shown_more_than_half_of_its_part() -> None:
    """Whoever had the rest alone would pass it on alone, while the links of others are idle."""
    size, peers = 64, "abcd"
    show = make(size, *peers)
    left = size
    while left:
        for peer in peers:  # a link that is never full: windows would grow
            for index in show.reveal(peer, 0.0):
                show.sent(peer, index, contended=False)
            shown = show.reveal(peer, 0.0)
            assert len(shown) <= max(WINDOW_MIN, left // (2 * len(peers)))
            for index in shown:
                show.sent(peer, index, contended=False)
        left = size - show.out_count


def test_only_what_is_wanted_is_shown() -> None:
    show = make(64)
    show.joined("a")
    show.wants("a", 16, b"\x0f")
    seen: list[int] = []
    while revealed := show.reveal("a", 0.0):
        seen += revealed
        for index in revealed:
            show.sent("a", index, contended=False)
    assert sorted(seen) == [16, 17, 18, 19]


def test_one_that_nothing_is_left_for_may_see_everything_soon() -> None:
    show = make(64, "b")
    show.joined("a")
    show.wants("a", 0, b"\x01")
    (index,) = show.reveal("a", 0.0)
    show.sent("a", index, contended=False)
    show.got("a", [0])
    assert show.reveal("a", 10.0) == []
    assert not show.is_open("a", 10.0 + DRY_S - 0.1)
    assert show.is_open("a", 10.0 + DRY_S)
    assert not show.is_open("b", 10.0 + DRY_S)


def test_one_that_asks_for_nothing_is_shown_more() -> None:
    show = make(100, "a")
    assert len(show.reveal("a", 0.0)) == WINDOW_MIN
    for _ in range(3):
        show.unasked("a")
        assert show.reveal("a", 0.0)
    show.paused("a")
    assert len(show.reveal("a", 0.0)) == 8 * WINDOW_MIN


def test_one_that_others_are_about_to_have_something_for_is_not_shown_it() -> None:
    show = make(3, "a", "b")
    assert len(show.reveal("a", 0.0)) == 2
    (index,) = show.reveal("b", 0.0)
    show.sent("b", index, contended=True)
    assert show.reveal("b", 0.0) == []
    assert not show.is_open("b", DRY_MAX_S - 0.1)
    assert show.is_open("b", DRY_MAX_S), "the others may have died without a word"


def test_what_a_peer_does_not_ask_for_goes_to_others() -> None:
    show = make(2, "idle", "busy")
    assert len(show.reveal("idle", 0.0)) == 2
    assert show.reveal("busy", 0.0) == []
    show.asking("idle", 1.0)
    assert not show.expire("idle", PATIENCE_S + 0.9)
    assert show.expire("idle", PATIENCE_S + 1.0)
    assert sorted(show.reveal("busy", PATIENCE_S)) == [0, 1]


@pytest.mark.parametrize("end", ["left", "paused"])
def test_what_was_shown_to_one_that_is_gone_goes_to_others(end: str) -> None:
    show = make(2, "gone", "here")
    show.reveal("gone", 0.0)
    getattr(show, end)("gone")
    assert sorted(show.reveal("here", 0.0)) == [0, 1]


def test_what_somebody_has_is_not_shown() -> None:
    show = make(16, "a", "b")
    show.got("a", range(8))
    show.others_have(8, b"\x0f")
    show.joined("late")
    show.wants("late", 0, b"\xff\xff")
    seen: set[int] = set()
    while revealed := show.reveal("late", 0.0):
        seen |= set(revealed)
        for index in revealed:
            show.sent("late", index, contended=False)
    assert seen == {12, 13, 14, 15}


def test_wants_beyond_the_version_are_ignored() -> None:
    show = make(11)
    show.joined("a")
    show.wants("a", 0, b"\xff" * 40)
    show.wants("a", 800, b"\xff")
    show.got("a", [900])
    assert set(show.reveal("a", 0.0)) <= set(range(11))


def test_peers_are_joined_once() -> None:
    show = make(3, "a")
    with pytest.raises(LocalProtocolError):
        show.joined("a")


class SuperSeedModel(RuleBasedStateMachine):
    """Whatever peers do, each block is with one peer at a time, and in the end all are out."""

    SIZE = 37
    names = st.sampled_from("abcd")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.show = make(self.SIZE)
        self.shown: dict[str, list[int]] = {}
        self.has: dict[str, set[int]] = {}
        self.out: set[int] = set()

    @rule(peer=names)
    def join(self, peer: str) -> None:
        if peer not in self.shown:
            self.show.joined(peer)
            self.show.wants(peer, 0, Bitmap.full(self.SIZE).to_bytes())
            self.shown[peer], self.has[peer] = [], set()

    @rule(peer=names)
    def leave(self, peer: str) -> None:
        if peer in self.shown:
            self.show.left(peer)
            del self.shown[peer], self.has[peer]

    @rule(peer=names)
    def reveal(self, peer: str) -> None:
        if peer in self.shown:
            revealed = self.show.reveal(peer, self.now)
            assert not set(revealed) & (self.out | self.has[peer] | set(self.shown[peer]))
            for other, shown in self.shown.items():
                if other != peer:  # unless it has had them for too long
                    late = {i for i in revealed if i in shown}
                    assert not late or self.now >= PATIENCE_S
            self.shown[peer] += revealed

    @rule(peer=names, contended=st.booleans())
    def send(self, peer: str, contended: bool) -> None:
        if self.shown.get(peer):
            index = self.shown[peer].pop(0)
            self.show.sent(peer, index, contended=contended)
            self.out.add(index)

    @rule(peer=names, index=st.integers(0, SIZE - 1))
    def get(self, peer: str, index: int) -> None:
        if peer in self.has:
            self.show.got(peer, [index])
            self.has[peer].add(index)
            self.out.add(index)
            if index in self.shown[peer]:
                self.shown[peer].remove(index)

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for peer in self.shown:
            self.show.expire(peer, self.now)

    @invariant()
    def counts(self) -> None:
        assert self.show.out_count == len(self.out)

    def teardown(self) -> None:
        # a peer that comes last gets whatever nobody has
        self.now += 2 * PATIENCE_S
        for peer in self.shown:
            self.show.expire(peer, self.now)
        self.show.joined("z")
        self.show.wants("z", 0, Bitmap.full(self.SIZE).to_bytes())
        while revealed := self.show.reveal("z", self.now):
            for index in revealed:
                self.show.sent("z", index, contended=False)
        assert self.show.is_open("z", self.now)


SuperSeedModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestSuperSeed = SuperSeedModel.TestCase

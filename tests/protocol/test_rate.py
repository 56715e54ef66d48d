from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbp2p_protocol.rate import (
    BURST_S,
    PIECE_MAX,
    PIECE_MIN,
    PIECE_S,
    RateQueue,
    Ticket,
    TokenBucket,
    piece_bytes,
)

RATES = st.floats(min_value=20_000, max_value=1e9)


def run(queue: RateQueue[str], wants: dict[str, int], until: float) -> dict[str, float]:
    """Let each peer ask for pieces of its size again and again; returns bytes let through."""
    now = 0.0
    moved = dict.fromkeys(wants, 0.0)
    for peer, count in wants.items():
        queue.ask(peer, count, now)
    while now <= until:
        for ticket in queue.grant(now):
            moved[ticket.peer] += ticket.count
            queue.ask(ticket.peer, wants[ticket.peer], now)
        later = queue.next_time(now)
        assert later >= now
        now = max(later, math.nextafter(now, math.inf))
    return moved


@given(RATES)
def test_ten_seconds_are_exact(rate: float) -> None:
    piece = piece_bytes(rate)
    assert piece is not None
    if rate > 1e8:
        piece *= 64  # fewer steps, for the test's sake
    queue: RateQueue[str] = RateQueue(rate, None, 0.0)
    moved = run(queue, {"a": piece, "b": piece}, 10.0)
    assert abs(sum(moved.values()) / (10 * rate) - 1) < 0.02


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 50_000)), max_size=60), RATES)
def test_no_span_gets_more_than_the_rate(steps: list[tuple[float, int]], rate: float) -> None:
    """Whatever the pauses, the debt bounds what any span lets through."""
    bucket = TokenBucket(rate, 0.0)
    now, spent = 0.0, []
    for pause, count in steps:
        now = max(bucket.ready_at(now), now) + pause
        assert bucket.ready_at(now) <= now
        bucket.spend(count, now)
        spent.append((now, count))
    for first in range(len(spent)):
        for last in range(first, len(spent)):
            took = spent[last][0] - spent[first][0]
            let_through = sum(count for _, count in spent[first:last])  # the last one is a debt
            assert let_through <= rate * (took + BURST_S) * (1 + 1e-6) + 1


def test_shares_are_equal_by_bytes() -> None:
    queue: RateQueue[str] = RateQueue(100_000, None, 0.0)
    moved = run(queue, {"small": 300, "large": 5_000, "third": 1_000}, 30.0)
    assert sum(moved.values()) == pytest.approx(3e6, rel=0.02)
    assert max(moved.values()) - min(moved.values()) <= 10_000


def test_a_share_that_is_not_used_is_others() -> None:
    queue: RateQueue[str] = RateQueue(100_000, 80_000, 0.0)
    assert run(queue, {"a": 1_000}, 10.0)["a"] == pytest.approx(800_000, rel=0.02)
    queue = RateQueue(100_000, 20_000, 0.0)
    moved = run(queue, {"a": 1_000, "b": 1_000}, 10.0)
    assert list(moved.values()) == [pytest.approx(200_000, rel=0.02)] * 2


def test_many_tickets_of_one_peer_count_as_one_peer() -> None:
    queue: RateQueue[str] = RateQueue(1_000, None, 0.0)
    for _ in range(50):
        queue.ask("greedy", 100, 0.0)
    queue.ask("modest", 100, 0.0)
    order: list[str] = []
    now = 0.0
    while len(order) < 3:
        order += [ticket.peer for ticket in queue.grant(now)]
        now = queue.next_time(now)
    assert "modest" in order


def test_who_was_away_has_no_credit_against_the_others() -> None:
    queue: RateQueue[str] = RateQueue(1_000, None, 0.0)
    now = 0.0
    for _ in range(100):
        queue.ask("a", 100, now)
        assert queue.grant(now)
        now = queue.next_time(now) if queue.waiting else now + 0.1
    for peer in "ab" * 10:
        queue.ask(peer, 100, now)
    order: list[str] = []
    while len(order) < 10:
        order += [ticket.peer for ticket in queue.grant(now)]
        now = queue.next_time(now)
    assert 4 <= order.count("b") <= 6


def test_a_cancelled_ticket_costs_nothing() -> None:
    queue: RateQueue[str] = RateQueue(1_000, None, 0.0)
    first = queue.ask("a", 500, 0.0)
    assert queue.grant(0.0) == [first]
    waiting = queue.ask("b", 500, 0.0)
    assert queue.grant(0.0) == []
    queue.withdraw(first, 0.0)
    assert queue.grant(0.0) == [waiting]
    queue.withdraw(queue.ask("c", 500, 0.0), 0.0)
    assert queue.next_time(0.0) == math.inf
    assert queue.waiting == 0


def test_no_limit_never_waits() -> None:
    queue: RateQueue[str] = RateQueue(None, None, 0.0)
    assert not queue.limited
    assert queue.piece is None
    tickets = [queue.ask("a", 10**12, 0.0) for _ in range(3)]
    assert queue.grant(0.0) == tickets


def test_rates_change_for_those_who_wait() -> None:
    queue: RateQueue[str] = RateQueue(10, None, 0.0)
    queue.ask("a", 1_000, 0.0)
    queue.grant(0.0)
    queue.ask("a", 1_000, 0.0)
    assert queue.next_time(0.0) == pytest.approx(100)
    queue.set_rates(1_000, None, 0.0)
    assert queue.next_time(0.0) == pytest.approx(1)
    queue.set_rates(None, None, 0.0)
    assert queue.grant(0.0)


@pytest.mark.parametrize("rate", [0, -1, math.inf, math.nan])
def test_what_is_no_rate(rate: float) -> None:
    with pytest.raises(ValueError, match="not a rate"):
        TokenBucket(rate, 0.0)
    with pytest.raises(ValueError, match="not a rate"):
        RateQueue(None, rate, 0.0)


def test_pieces() -> None:
    assert piece_bytes(None) is None
    assert piece_bytes(10) == PIECE_MIN
    assert piece_bytes(125_000) == int(125_000 * PIECE_S)
    assert piece_bytes(1e9) == PIECE_MAX
    with pytest.raises(ValueError, match="0 bytes"):
        RateQueue[str](1, 1, 0.0).ask("a", 0, 0.0)


class QueueMachine(RuleBasedStateMachine):
    """Any calls in any order: nobody is forgotten, and no bucket lets too much through."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.queue: RateQueue[int] = RateQueue(1_000, 700, 0.0)
        self.waiting: list[Ticket[int]] = []
        self.moved = 0
        self.begun: float | None = None

    @rule(peer=st.integers(0, 4), count=st.integers(1, 200))
    def ask(self, peer: int, count: int) -> None:
        self.waiting.append(self.queue.ask(peer, count, self.now))

    @rule(pause=st.floats(0, 2))
    def wait(self, pause: float) -> None:
        self.now += pause
        self._grant()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(ticket)
        self.queue.withdraw(ticket, self.now)

    @precondition(lambda self: self.waiting)
    @rule()
    def next(self) -> None:
        self._grant()
        if not self.waiting:
            return
        later = self.queue.next_time(self.now)
        assert math.isfinite(later)
        self.now = later + 1e-6
        before = len(self.waiting)
        self._grant()
        assert len(self.waiting) < before, "next_time said that somebody could go"

    def _grant(self) -> None:
        for ticket in self.queue.grant(self.now):
            self.waiting.remove(ticket)
            self.moved += ticket.count

    @invariant()
    def bounded(self) -> None:
        assert self.queue.waiting == len(self.waiting)
        assert self.moved <= 1_000 * (self.now + BURST_S) + 200 + 1


TestQueueMachine = QueueMachine.TestCase

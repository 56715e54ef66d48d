"""Receive windows: when credit goes back, when they grow, and what the budget refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.limits import KIB, MIB
from sbp2p_protocol.yamux_window import ReceiveWindow, RoundTrip, WindowBudget


def path(rtt_s: float | None) -> RoundTrip:
    trip = RoundTrip()
    if rtt_s is not None:
        trip.add(rtt_s)
    return trip


def receive(window: ReceiveWindow, size: int) -> None:
    window.credit -= size
    window.unread += size


def go_round(window: ReceiveWindow, now: float, trip: RoundTrip, budget: WindowBudget) -> int:
    """Receive and consume half a window at `now`; return the credit given."""
    half = window.size // 2
    receive(window, half)
    return window.consume(half, now, trip, budget)


def test_round_trip_is_the_smallest_of_the_last_samples() -> None:
    trip = RoundTrip()
    assert trip.seconds is None
    assert trip.tuning_s == 0.0
    for sample in (0.5, 0.1, 0.9):
        trip.add(sample)
    assert trip.seconds == 0.1
    assert trip.tuning_s == pytest.approx(0.4)
    for _ in range(8):
        trip.add(0.3)
    assert trip.seconds == 0.3


def test_clock_that_stands_still_counts_as_a_millisecond() -> None:
    assert path(0.0).tuning_s == pytest.approx(0.004)


def test_credit_goes_back_at_half_the_window() -> None:
    window, budget = ReceiveWindow(1000, 1000), WindowBudget(0)
    receive(window, 1000)
    assert window.consume(499, 0.0, path(None), budget) == 0
    assert window.consume(1, 0.0, path(None), budget) == 500
    assert window.credit == 500
    assert window.unread == 500


def test_fast_rounds_double_the_window_up_to_the_maximum() -> None:
    window, budget, trip = ReceiveWindow(256 * KIB, 1 * MIB), WindowBudget(64 * MIB), path(0.1)
    budget.take_base(window.size)
    sizes = []
    for step in range(5):
        go_round(window, 1000.0 + step * 0.39, trip, budget)
        sizes.append(window.size // KIB)
    assert sizes == [256, 512, 1024, 1024, 1024]
    assert budget.used == window.size


def test_growth_is_announced_with_the_credit() -> None:
    window, budget, trip = ReceiveWindow(256 * KIB, 1 * MIB), WindowBudget(64 * MIB), path(0.1)
    assert go_round(window, 0.0, trip, budget) == 128 * KIB
    assert go_round(window, 0.1, trip, budget) == (128 + 256) * KIB
    assert window.credit == window.size == 512 * KIB


def test_slow_rounds_do_not_grow() -> None:
    window, budget, trip = ReceiveWindow(256 * KIB, 1 * MIB), WindowBudget(64 * MIB), path(0.1)
    for step in range(5):
        go_round(window, step * 0.41, trip, budget)
    assert window.size == 256 * KIB


def test_no_growth_before_a_round_trip_is_known() -> None:
    window, budget = ReceiveWindow(256 * KIB, 1 * MIB), WindowBudget(64 * MIB)
    for _ in range(5):
        go_round(window, 0.0, path(None), budget)
    assert window.size == 256 * KIB


def test_budget_refuses_growth_and_gives_it_back() -> None:
    budget = WindowBudget(1000)
    budget.take_base(900)
    assert budget.grow(500) == 100
    assert budget.grow(1) == 0
    budget.take_base(900)
    assert budget.grow(1) == 0
    budget.release(1900)
    assert budget.grow(700) == 700


@pytest.mark.parametrize("count", [-1, 11])
def test_consuming_what_is_not_there(count: int) -> None:
    window = ReceiveWindow(100, 100)
    receive(window, 10)
    with pytest.raises(LocalProtocolError):
        window.consume(count, 0.0, path(None), WindowBudget(0))


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400), st.floats(0, 0.2))))
def test_bytes_of_a_window_are_always_accounted_for(
    steps: list[tuple[int, int, float]],
) -> None:
    window, budget, trip = ReceiveWindow(256, 4096), WindowBudget(3000), path(0.02)
    budget.take_base(window.size)
    now = 0.0
    for arriving, taken, pause in steps:
        now += pause
        receive(window, min(arriving, window.credit))
        window.consume(min(taken, window.unread), now, trip, budget)
        assert window.size == window.credit + window.unread + window.pending
        assert window.size == budget.used <= budget.limit
        assert window.pending * 2 < window.size

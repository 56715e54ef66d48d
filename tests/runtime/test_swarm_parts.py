from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import sbp2p
from sbp2p.swarm.gate import Gate
from sbp2p.swarm.scores import Scores
from tests.runtime.pair import KEYS

IDS = [key.peer_id for key in KEYS]


def scores(peers_max: int = 100) -> Scores:
    return Scores(ban_score=100, ban_duration_s=50.0, half_life_s=10.0, peers_max=peers_max)


def test_a_violation_costs_the_same_wherever_it_is_noticed() -> None:
    package = Path(sbp2p.__file__).parent
    defined = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"^VIOLATION_POINTS\b.* = ", path.read_text(), flags=re.MULTILINE)
    ]
    assert defined == ["swarm/scores.py"]


def test_points_add_up_to_a_ban_that_ends() -> None:
    table = scores()
    assert not table.penalize(IDS[0], 99, now=0.0)
    assert not table.is_banned(IDS[0], now=0.0)
    assert table.penalize(IDS[0], 1, now=0.0)
    assert table.is_banned(IDS[0], now=49.9)
    assert not table.is_banned(IDS[0], now=50.0)
    assert not table.is_banned(IDS[1], now=0.0)


def test_points_halve_with_time() -> None:
    table = scores()
    table.penalize(IDS[0], 80, now=0.0)
    assert table.points(IDS[0], now=10.0) == 40
    assert not table.penalize(IDS[0], 59, now=10.0)
    assert table.points(IDS[0], now=1000.0) == 0
    assert table.points(IDS[1], now=0.0) == 0


def test_forgiving_forgets() -> None:
    table = scores()
    table.penalize(IDS[0], 100, now=0.0)
    table.forgive(IDS[0])
    table.forgive(IDS[0])
    assert not table.is_banned(IDS[0], now=0.0)


def test_a_full_table_forgets_the_least_and_never_a_ban_before_that() -> None:
    table = scores(peers_max=3)
    table.penalize(IDS[0], 100, now=0.0)
    table.penalize(IDS[1], 5, now=0.0)
    table.penalize(IDS[2], 50, now=0.0)
    table.penalize(IDS[3], 7, now=0.0)
    assert table.points(IDS[1], now=0.0) == 0
    table.penalize(IDS[4], 9, now=0.0)
    assert table.points(IDS[3], now=0.0) == 0
    assert table.is_banned(IDS[0], now=0.0)
    assert table.points(IDS[2], now=0.0) == 50


@given(
    allow=st.none() | st.frozensets(st.sampled_from(IDS)), deny=st.frozensets(st.sampled_from(IDS))
)
def test_the_gate_lets_in_who_is_allowed_and_not_denied(
    allow: frozenset[object] | None, deny: frozenset[object]
) -> None:
    gate = Gate(allow=allow, deny=deny)  # type: ignore[arg-type]
    for peer_id in IDS:
        expected = peer_id not in deny and (allow is None or peer_id in allow)
        assert (gate.refusal(peer_id) is None) == expected

"""What the benchmarks of learning compute and draw, without running one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import bootstrap, learn, learn_plots
from benchmarks.bootstrap import Visit
from examples.digits.attacks import ATTACKS
from examples.digits.experiment import Outcome, Row
from examples.digits.training import Recipe

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.harness import Claim


def row(number: int, accuracy: float = 90.0, **changes: Any) -> Row:
    plain: dict[str, Any] = {
        "round": number,
        "nodes": 8,
        "accuracy": accuracy,
        "worst": accuracy,
        "received": 1e5 * number,
        "round_s": 1.0,
        "merge_s": 0.5,
        "timed_out": 0,
        "rejected": 0,
        "missing": 0,
    }
    return Row(**{**plain, **changes})


def outcome(accuracy: float, **changes: Any) -> Outcome:
    plain: dict[str, Any] = {
        "rows": [row(1), row(2, accuracy)],
        "final": {"node-0": accuracy},
        "hung": [],
        "died": {},
        "seconds": 10.0,
        "over_deadline": 0.0,
        "neighbours": 7.0,
        "events": {},
    }
    return Outcome(**{**plain, **changes})


def claims(outcomes: dict[str, list[Outcome]]) -> dict[str, Claim]:
    found = learn.claims_of(outcomes, {"mlp": 98.0, "cnn": 99.0}, {"full": 111.0})
    return {claim.name: claim for claim in found}


class TestLearn:
    def test_points_are_below_centralised(self) -> None:
        found = claims({"full": [outcome(97.5)], "ring": [outcome(95.0)], "star": [outcome(80)]})
        assert found["points_below_centralised_full"].value == 0.5
        assert found["points_below_centralised_full"].ok
        assert found["points_below_centralised_ring"].ok is False
        assert found["points_below_centralised_star"].ok is None
        assert found["bytes_ratio_full"].ok

    def test_points_that_lies_cost_are_the_worst_of_all_attacks(self) -> None:
        outcomes = {"full": [outcome(97.0)]}
        for number, attack in enumerate(ATTACKS):
            outcomes[f"{learn.ROBUST} {attack}"] = [outcome(97.0 - number)]
            outcomes[f"{learn.MEAN} {attack}"] = [outcome(10.0)]
        found = claims(outcomes)
        assert found["points_lost_hostile_robust"].value == len(ATTACKS) - 1
        assert found["points_lost_hostile_robust"].ok is False
        assert found["points_lost_hostile_mean"].value == 87
        assert found["points_lost_hostile_mean"].ok is None

    def test_who_does_not_get_through_hangs(self) -> None:
        late = outcome(90.0, hung=["node-1"], died={"node-2": "why"}, over_deadline=0.2)
        found = claims({"full": [outcome(97.0)], "killed": [late]})
        assert found["hangs"].value == 2
        assert found["hangs"].ok is False
        assert found["round_over_deadline_percent"].value == pytest.approx(20)
        assert found["round_over_deadline_percent"].ok is False
        assert found["points_lost_killed"].value == 7

    def test_the_median_of_the_seeds_counts(self) -> None:
        found = claims({"full": [outcome(90.0), outcome(97.0), outcome(98.0)]})
        assert found["points_below_centralised_full"].value == 1.0

    def test_bytes_are_compared_with_whole_models_every_step(self) -> None:
        recipe = Recipe(rounds=2, steps=100)
        asked = learn.experiments(recipe, 8, quick=False)["full"]
        whole = 2 * 100 * 7 * 9610 * 4
        assert learn.bytes_ratio(asked, outcome(90.0)) == pytest.approx(whole / 2e5)

    def test_a_quick_run_has_fewer_runs(self) -> None:
        few = learn.experiments(Recipe(), 4, quick=True)
        everything = learn.experiments(Recipe(), 8, quick=False)
        assert few.keys() < everything.keys()
        assert {f"{learn.ROBUST} {attack}" for attack in ATTACKS} < everything.keys()
        assert all(everything[f"{learn.MEAN} {attack}"].liars == 2 for attack in ATTACKS)
        assert everything["killed"].killed == 3
        assert everything["frozen"].frozen == 1


class TestBootstrap:
    def test_donors_are_slowed_by_the_median_over_pairs_of_rounds(self) -> None:
        there = Visit(round_s=[2.0, 1.1, 1.0], rounds_to_step=1, merged=5, boot_s=0.2, step_s=2)
        without = Visit(round_s=[1.0, 1.0, 1.0])
        found = {
            claim.name: claim for claim in bootstrap.claims_of({True: [there], False: [without]})
        }
        assert found["donors_slowed_percent"].value == pytest.approx(10)
        assert found["donors_slowed_percent"].ok is False
        assert found["rounds_to_step"].ok
        assert found["seconds_to_step"].value == 2
        assert found["models_in_its_first_merge"].value == 5


class TestPlots:
    def test_the_same_report_is_drawn_the_same(self, tmp_path: Path) -> None:
        rounds = [{"round": 1, "accuracy": 90.0, "received": 1e5}]
        rounds.append({"round": 2, "accuracy": 95.0, "received": 2e5})
        names = ["full", "ring", f"{learn.ROBUST} nan", f"{learn.MEAN} nan", "killed"]
        curves: dict[str, Any] = {name: {"rounds": rounds} for name in names}
        curves["centralised mlp"] = [91.0, 96.0]
        stories = {"losses": [2.0, 1.0], "received": [1e5, 2e5]}
        stories |= {"synchronous": [1.9, 0.9], "gradients": 1e8}  # type: ignore[dict-item]
        made = [learn_plots.draw(curves, stories, tmp_path / each) for each in ("one", "two")]
        assert made[0] == made[1]
        assert len(made[0]) == 5
        for name in made[0]:
            one, two = (tmp_path / each / name for each in ("one", "two"))
            text = one.read_text()
            assert text == two.read_text()
            assert "<dc:date>" not in text

    def test_what_was_not_run_is_not_drawn(self, tmp_path: Path) -> None:
        assert learn_plots.draw({}, None, tmp_path) == []

"""What the simulated race computes, and how it is drawn."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from benchmarks import sim
from benchmarks.chart import Chart, y_ticks

OUTCOME = sim.Outcome(
    policy="default",
    leechers=4,
    free_riders=0,
    size=1000,
    limit_s=10.0,
    last_s=12.0,
    median_s=11.0,
    last_free_rider_s=0.0,
    seeder_bytes=1300,
    received_bytes=4200,
    wire_bytes=4400,
)


def test_a_small_race_comes_to_its_end_and_repeats_itself() -> None:
    race = sim.Race("default", 4, 8).run(seed=2)
    assert race.leechers == 4
    assert race.limit_s == pytest.approx(race.size / (sim.BLOCKS_PER_S * sim.BLOCK_BYTES[4]))
    assert 1.0 < race.last_over_limit < 5.0
    assert race.wire_bytes > race.received_bytes >= 4 * race.size
    assert sim.Race("default", 4, 8).run(seed=2) == race


def test_figures() -> None:
    assert OUTCOME.last_over_limit == 1.2
    assert OUTCOME.seeder_over_size == 1.3
    assert OUTCOME.duplicates == pytest.approx(0.05)
    slower = replace(OUTCOME, policy="random picking", last_s=18.0)
    riders = replace(OUTCOME, free_riders=1, last_free_rider_s=24.0)
    claims = {claim.name: claim.value for claim in sim.claims_of([OUTCOME, slower, riders])}
    assert claims == {
        "last_over_fluid_limit_4": 1.2,
        "seeder_over_file_4": 1.3,
        "duplicate_share_4": pytest.approx(0.05),
        "random_picking_over_default_4": 1.5,
        "free_rider_over_giver_tit_for_tat": 2.0,
    }
    assert "1.200" in sim.row(OUTCOME)


def test_the_curves_are_well_formed_and_hold_every_point() -> None:
    outcomes = [replace(OUTCOME, leechers=size, last_s=12.0 + size) for size in (4, 8, 64)]
    drawn = sim.charts(outcomes)["sim-last"].svg()
    circles = [each for each in ET.fromstring(drawn).iter() if each.tag.endswith("circle")]  # noqa: S314
    assert len(circles) == 3
    alone = Chart(title="a < b", x_label="x", y_label="y", lines={"one": [(8.0, 1.0)]}).svg()
    assert "a &lt; b" in alone


@pytest.mark.parametrize("values", [[1.0, 1.4], [0.0, 0.0], [3.0], [1.02, 987.0]])
def test_ticks_are_round_and_span_the_values(values: list[float]) -> None:
    ticks = y_ticks(values)
    assert ticks[0] <= min(values)
    assert ticks[-1] >= max(values)
    assert len(ticks) <= 8

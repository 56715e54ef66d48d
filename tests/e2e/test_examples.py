"""Each example in a short form, on real nodes in processes of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import demo_merge
from examples.digits.experiment import Experiment, run
from examples.digits.training import Recipe
from examples.transformer import experiment as stories
from examples.transformer import training as stories_training
from examples.transformer.model import Shape

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.e2e


def test_the_program_in_the_guide_merges_two_models() -> None:
    text = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(programs) == 1
    paths = os.pathsep.join(str(ROOT / each) for each in ("", "protocol", "keys"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", programs[0]],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=120,
    )
    assert done.stdout == "2 models merged: [[2.0, 2.0]]\n" * 2, done.stderr


def test_digits_are_learned_in_a_ring_from_the_command_line() -> None:
    words = ["--nodes", "3", "--rounds", "4", "--steps", "60", "--topology", "ring"]
    done = subprocess.run(
        [sys.executable, "-m", "examples.digits", *words, "--json", "--no-centralised"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [row["round"] for row in told["rows"]] == [1, 2, 3, 4]
    assert told["accuracy"] > 85  # chance is 10, and a node alone does not know all digits
    assert told["bytes_every_step"] > 40 * told["rows"][-1]["received"] > 0
    assert not told["hung"]


def test_nodes_that_lie_and_nodes_that_die_stop_nobody() -> None:
    outcome = run(
        Experiment(
            recipe=Recipe(rounds=6, steps=60),
            nodes=4,
            hostile=0.25,
            attack="nan",
            kill=0.25,
            deadline_s=20,
            limit_s=200,
        )
    )
    assert not outcome.hung
    assert not outcome.died
    assert len(outcome.final) == 3  # two honest ones, and who took a dead one's place
    assert min(value for name, value in outcome.final.items() if "again" not in name) > 80
    liar = next(event["peer"] for event in outcome.events["node-3"] if event["event"] == "ready")
    refused = {
        peer
        for name, events in outcome.events.items()
        for event in events
        if event["event"] == "round" and name != "node-3"
        for peer, _ in event["rejected"]
    }
    assert refused == {liar}


def test_a_transformer_learns_by_talking_twice() -> None:
    recipe = stories_training.Recipe(
        nodes=2, rounds=2, steps=25, shape=Shape(features=32, layers=1, context=32)
    )
    outcome = stories.run(recipe, limit_s=200)
    assert not outcome.hung
    assert outcome.losses[-1] < outcome.losses[0] < 3.5  # nats; knowing nothing costs 4.03
    assert outcome.spread == 0  # the same bits on both, outer momentum included
    assert stories.bytes_of_gradients(recipe) > 10 * outcome.received[-1] > 0


def test_two_plugins_that_know_half_know_more_when_merged() -> None:
    said: list[str] = []
    assert demo_merge.run_demo(said.append)
    assert any("bit for bit" in line for line in said)

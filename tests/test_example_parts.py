"""What the examples are made of, without a network: data, shards, lies, training, processes."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from examples.digits import data
from examples.digits.attacks import ATTACKS, Liar
from examples.digits.experiment import Experiment
from examples.digits.options import read
from examples.digits.settings import Settings
from examples.digits.training import Recipe, Trainer, centralised
from examples.processes import Family
from examples.transformer import text
from examples.transformer import training as stories
from examples.transformer.model import Shape, make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SMALL = stories.Recipe(nodes=2, rounds=1, steps=6, shape=Shape(features=32, layers=1, context=32))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models so small are slower with two threads, and far slower beside other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class TestDigits:
    def test_the_pictures_are_those_of_scikit_learn(self) -> None:
        from sklearn.datasets import load_digits

        train, test = data.load(3)
        images = torch.cat([test.images, train.images]) * 16
        order = np.random.default_rng(3).permutation(len(images))
        expected = load_digits()
        assert np.array_equal(images.numpy(), expected.data[order].astype(np.float32))
        assert np.array_equal(torch.cat([test.labels, train.labels]), expected.target[order])

    @pytest.mark.parametrize("alpha", [0.1, 1.0])
    def test_shards_share_nothing_and_are_equally_large(self, alpha: float) -> None:
        train, _ = data.load(0)
        cut = data.shards(train.labels, 8, alpha, 0)
        assert {len(shard) for shard in cut} == {len(train) // 8}
        assert len(np.unique(np.concatenate(cut))) == 8 * (len(train) // 8)

    def test_a_smaller_alpha_makes_shards_less_alike(self) -> None:
        train, _ = data.load(0)

        def largest(alpha: float) -> float:
            cut = data.shards(train.labels, 8, alpha, 0)
            return float(np.mean([np.bincount(train.labels[shard]).max() for shard in cut]))

        assert largest(0.1) > 1.5 * largest(10.0)

    def test_shards_are_the_same_for_everybody(self) -> None:
        train, _ = data.load(0)
        one, two = (data.shards(train.labels, 3, 0.5, 7) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))

    @pytest.mark.parametrize("model", ["mlp", "cnn"])
    def test_training_learns_and_repeats(self, model: str) -> None:
        train, test = data.load(0)
        recipe = Recipe(model=model, rounds=2, steps=40, rate=0.05)
        found = centralised(recipe, train, test, nodes=2)
        assert found[-1] > 60
        assert found == centralised(recipe, train, test, nodes=2)

    def test_a_node_trains_in_steps_of_its_own(self) -> None:
        train, test = data.load(0)
        recipe = Recipe(steps=20)
        one, two = (Trainer(recipe, train, stream=stream) for stream in (0, 1))
        assert one.accuracy(test) == two.accuracy(test)
        assert one.train(0) != two.train(0)

    def test_settings_survive_the_way_to_a_child(self) -> None:
        settings = Settings(
            recipe=Recipe(rounds=3), home="h", identity="i", shard=1, shards=2, peers=("a", "b")
        )
        assert Settings.from_json(settings.to_json()) == settings

    def test_the_command_line_says_what_is_run(self) -> None:
        experiment, args = read(["--kill", "0.3", "--hostile", "0.25", "--rounds", "5", "--json"])
        assert (experiment.killed, experiment.liars, experiment.recipe.rounds) == (3, 2, 5)
        assert args.json
        assert read([])[0] == Experiment()


class TestLies:
    @pytest.mark.parametrize("attack", ATTACKS)
    def test_a_lie_has_the_names_and_shapes_of_the_truth(self, attack: str) -> None:
        before = {"a": torch.zeros(3), "b": torch.ones(2, 2)}
        after = {name: tensor + 1 for name, tensor in before.items()}
        kept = copy.deepcopy(after)
        lie = Liar(attack, before, 1).lie(before, after)
        assert {name: tensor.shape for name, tensor in lie.items()} == {
            name: tensor.shape for name, tensor in after.items()
        }
        assert all(torch.equal(after[name], kept[name]) for name in kept)
        assert not all(torch.equal(lie[name], after[name]) for name in lie)

    def test_what_the_lies_are(self) -> None:
        first, before, after = ({"a": torch.full((4,), float(value))} for value in (1, 2, 3))

        def lie(attack: str) -> torch.Tensor:
            return Liar(attack, first, 1).lie(before, after)["a"]

        assert lie("sign-flip").tolist() == [-8.0] * 4
        assert lie("stale").tolist() == [1.0] * 4
        assert lie("nan").isnan().all()
        assert lie("noise").std() > 0.1

    def test_an_unknown_attack_is_refused(self) -> None:
        with pytest.raises(ValueError, match="sign-flip"):
            Liar("shout", {}, 0)


class TestTransformer:
    def test_the_text_is_the_same_for_the_same_seed_and_no_other(self) -> None:
        assert torch.equal(text.stream(1, 500), text.stream(1, 500))
        assert not torch.equal(text.stream(1, 500)[:400], text.stream(2, 500)[:400])
        assert text.stream(1, 500).max() < text.VOCABULARY

    def test_targets_are_what_follows(self) -> None:
        batches = text.Batches(torch.arange(100), context=7, batch=3, seed=0)
        inputs, targets = batches.next()
        assert inputs.shape == targets.shape == (3, 7)
        assert torch.equal(inputs + 1, targets)

    def test_no_place_sees_what_comes_after_it(self) -> None:
        model = make(SMALL.shape, 0)
        inputs = text.stream(1, 100)[:20].view(1, 20)
        changed = inputs.clone()
        changed[0, 12:] = 0
        assert torch.allclose(model(inputs)[0, :12], model(changed)[0, :12], atol=1e-6)
        assert not torch.allclose(model(inputs)[0, 12:], model(changed)[0, 12:], atol=1e-6)

    def test_both_ways_to_train_lower_the_loss(self) -> None:
        examiner = stories.Examiner(SMALL)
        before = examiner.loss(make(SMALL.shape, SMALL.seed))
        trainer = stories.Trainer(SMALL, 0)
        trainer.train(0)
        assert examiner.loss(trainer.model) < before
        assert stories.synchronous(SMALL)[-1] < before

    def test_the_rate_rises_and_falls(self) -> None:
        recipe = stories.Recipe(rounds=2, steps=50)
        rates = [recipe.rate_at(step) for step in range(100)]
        assert max(rates) <= recipe.rate
        assert rates[0] < rates[12] > rates[-1] > 0
        assert stories.Recipe.from_json(
            {"rounds": 2, "steps": 50, "shape": {"features": 32}}
        ).shape == Shape(features=32)


def children(folder: Path, program: str) -> Family:
    """Return a family whose module `child_program` is `program`."""
    (folder / "child_program.py").write_text(program)
    return Family(folder)


@pytest.mark.e2e
class TestProcesses:
    def test_a_child_is_heard_and_ends_with_its_input(self, tmp_path: Path) -> None:
        program = (
            "import json, sys\n"
            "print(json.dumps({'event': 'done', 'got': json.loads(sys.argv[1])}), flush=True)\n"
            "sys.stdin.read()\n"
        )
        with children(tmp_path, program) as family:
            child = family.start("one", "child_program", {"a": 1})
            for _, event in family.events(time.monotonic() + 20):
                if event["event"] == "done":
                    break
            assert child.last("done") == {"event": "done", "got": {"a": 1}}
        assert child.process.returncode == 0

    def test_a_child_that_breaks_says_why(self, tmp_path: Path) -> None:
        with children(tmp_path, "raise SystemExit('out of luck')") as family:
            child = family.start("one", "child_program", {})
            kinds = [event["event"] for _, event in family.events(time.monotonic() + 20)]
        assert kinds == ["died"]
        assert "out of luck" in child.told[-1]["why"]

    def test_nothing_outlives_the_block(self, tmp_path: Path) -> None:
        program = "import signal\nsignal.pause()\n"
        family = children(tmp_path, program)

        def interrupted() -> None:
            with family:
                family.start("deaf", "child_program", {})
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert family.children[0].process.returncode == -9

    def test_a_killed_child_has_not_died_of_itself(self, tmp_path: Path) -> None:
        program = 'import sys\nprint(\'{"event": "up"}\', flush=True)\nsys.stdin.read()\n'
        with children(tmp_path, program) as family:
            child = family.start("one", "child_program", {})
            for _, event in family.events(time.monotonic() + 20):
                if event["event"] == "up":
                    child.kill()
        assert [event["event"] for event in child.told] == ["up", "ended"]
        assert child.process.returncode == -9

    def test_waiting_ends_at_its_moment(self, tmp_path: Path) -> None:
        with children(tmp_path, "import sys\nsys.stdin.read()\n") as family:
            family.start("silent", "child_program", {})
            started = time.monotonic()
            assert list(family.events(started + 0.2)) == []
            assert time.monotonic() - started < 5

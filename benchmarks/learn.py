"""Learning together against learning in one place, undisturbed, disturbed and under attack.

Eight real nodes, each a process, learn the handwritten digits that scikit-learn ships, from shards
that are not alike (`examples.digits`). Centralised training is one model, the same recipe, as many
samples as all nodes see together. Accuracy is that of every honest node after its last merge, on
the mean, on pictures that no node trained on.

Bytes are what the nodes' connections carried to a node, handshakes and records included, against
the model's size times the neighbours that it merged with, times all steps: what exchanging whole
models after every step would be. Robust runs are measured against the undisturbed run on the same
topology, so what the two hostile nodes' pictures would have taught counts as lost, too.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.harness import Claim, Sample, parser, print_table, report
from examples.digits.attacks import ATTACKS
from examples.digits.data import load
from examples.digits.experiment import Experiment, Outcome, run
from examples.digits.model import make
from examples.digits.training import Recipe, centralised

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

MEAN: Final = "mean"
ROBUST: Final = "minimum-diameter"
EXPECTED_HOSTILE: Final = "1/4"
TOPOLOGIES: Final = {
    "full": "full",
    "ring": "ring",
    "random_regular": "random-regular:4",
    "star": "star",
}
_BELOW: Final = {"full": 1.0, "ring": 2.0, "random_regular": 1.0}
_DEADLINE_S: Final = 30.0
_DISTURBED_DEADLINE_S: Final = 10.0
_LIMIT_S: Final = 900.0
_QUICK_NODES: Final = 4
_QUICK_ROUNDS: Final = 6

Outcomes = dict[str, list[Outcome]]


def experiments(recipe: Recipe, nodes: int, *, quick: bool) -> dict[str, Experiment]:
    """Return what is run, by name."""
    plain = Experiment(recipe=recipe, nodes=nodes, deadline_s=_DEADLINE_S, limit_s=_LIMIT_S)
    found = {name: replace(plain, topology=text) for name, text in TOPOLOGIES.items()}
    hostile = replace(plain, hostile=0.25)
    options = {"share": EXPECTED_HOSTILE}
    for attack in ATTACKS:
        lied = replace(hostile, attack=attack)
        found[f"{MEAN} {attack}"] = lied
        found[f"{ROBUST} {attack}"] = replace(lied, method=ROBUST, options=options)
    tight = replace(plain, deadline_s=_DISTURBED_DEADLINE_S)
    found["killed"] = replace(tight, kill=0.3)
    found["frozen"] = replace(tight, freeze=1 / nodes)
    if quick:
        wanted = ("full", "ring", f"{ROBUST} sign-flip", "killed")
        return {name: found[name] for name in wanted}
    found["killed ring"] = replace(tight, kill=0.3, topology="ring")
    found["newcomer"] = replace(plain, newcomer=True)
    convolutions = replace(recipe, model="cnn")
    for name in ("full", "ring"):
        found[f"cnn {name}"] = replace(found[name], recipe=convolutions)
    return found


def bytes_ratio(experiment: Experiment, outcome: Outcome) -> float:
    """Return how many times fewer bytes came to a node than whole models every step would be."""
    recipe = experiment.recipe
    size = sum(each.nbytes for each in make(recipe.model, recipe.seed).state_dict().values())
    whole = recipe.rounds * recipe.steps * outcome.neighbours * size
    return whole / outcome.received if outcome.received else 0.0


def _accuracy(outcomes: Sequence[Outcome]) -> float:
    return median(each.accuracy for each in outcomes)


def claims_of(
    outcomes: Mapping[str, Sequence[Outcome]],
    central: Mapping[str, float],
    ratios: Mapping[str, float],
) -> list[Claim]:
    """Return the claims.

    Args:
        outcomes: of every run, by the names of `experiments`.
        central: accuracy of centralised training, by model.
        ratios: of bytes, by topology.
    """
    claims = []
    for name in TOPOLOGIES.keys() & outcomes.keys():
        below = central["mlp"] - _accuracy(outcomes[name])
        target = _BELOW.get(name)
        claims.append(_lower(f"points_below_centralised_{name}", below, "points", target))
    for name in ("full", "ring"):
        if f"cnn {name}" in outcomes:
            below = central["cnn"] - _accuracy(outcomes[f"cnn {name}"])
            claims.append(_lower(f"points_below_centralised_cnn_{name}", below, "points"))
    for name, ratio in ratios.items():
        target = 100.0 if name in _BELOW else None
        claims.append(Claim(name=f"bytes_ratio_{name}", value=ratio, unit="x", target=target))
    clean = _accuracy(outcomes["full"])
    for method, target in ((ROBUST, 2.0), (MEAN, None)):
        lost = {
            attack: clean - _accuracy(outcomes[f"{method} {attack}"])
            for attack in ATTACKS
            if f"{method} {attack}" in outcomes
        }
        word = "robust" if method == ROBUST else "mean"
        for attack, points in lost.items():
            name = f"points_lost_{word}_{attack.replace('-', '_')}"
            claims.append(_lower(name, points, "points"))
        if lost:
            worst = max(lost.values())
            claims.append(_lower(f"points_lost_hostile_{word}", worst, "points", target))
    for name in ("killed", "killed ring", "frozen"):
        if name in outcomes:
            base = _accuracy(outcomes["ring" if name.endswith("ring") else "full"])
            lost_here = base - _accuracy(outcomes[name])
            claims.append(_lower(f"points_lost_{name.replace(' ', '_')}", lost_here, "points"))
    everything = [each for rows in outcomes.values() for each in rows]
    hangs = sum(len(each.hung) + len(each.died) for each in everything)
    claims.append(_lower("hangs", hangs, "nodes", 0.0))
    disturbed = [
        each for name, rows in outcomes.items() if name.startswith(("killed", "frozen"))
        for each in rows
    ]  # fmt: skip
    over = max((each.over_deadline for each in disturbed), default=0.0)
    claims.append(_lower("round_over_deadline_percent", 100 * over, "%", 10.0))
    return sorted(claims, key=lambda claim: claim.target is None)


def _lower(name: str, value: float, unit: str, target: float | None = None) -> Claim:
    return Claim(name=name, value=value, unit=unit, target=target, better="lower")


def _told(name: str, outcome: Outcome) -> None:
    last = outcome.rows[-1] if outcome.rows else None
    late = sum(row.timed_out for row in outcome.rows)
    refused = sum(row.rejected for row in outcome.rows)
    print(
        f"  {name:<28}{outcome.accuracy:7.2f} %{outcome.received / 1e6:9.2f} MB"
        f"{outcome.seconds:8.1f} s  late {late:<4} refused {refused:<4} "
        f"nodes {last.nodes if last else 0}",
        file=sys.stderr,
        flush=True,
    )
    for who, why in outcome.died.items():
        print(f"    {who} died: {why}", file=sys.stderr)
    for who in outcome.hung:
        print(f"    {who} did not get through", file=sys.stderr)


def _sample(outcome: Outcome) -> Sample:
    told = [event for events in outcome.events.values() for event in events]
    peak = max((event["rss_mb"] for event in told if event["event"] == "done"), default=0.0)
    return Sample(seconds=outcome.seconds, wall_s=outcome.seconds, rss_mb={"node": peak})


def _curve(outcome: Outcome) -> dict[str, Any]:
    rows = [asdict(row) for row in outcome.rows]
    return {"rounds": rows, "final": outcome.final, "seconds": outcome.seconds}


@dataclass(slots=True)
class _Found:
    """What the runs have brought so far."""

    outcomes: Outcomes = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    central: dict[str, list[float]] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)
    """Of the first seed, as the report has them."""

    def train_centrally(self, recipe: Recipe, nodes: int) -> None:
        """Add centralised training."""
        found = centralised(recipe, *load(recipe.seed), nodes)
        self.central.setdefault(recipe.model, []).append(found[-1])
        if recipe.seed == 0:
            self.curves[f"centralised {recipe.model}"] = found

    def run(self, name: str, experiment: Experiment) -> None:
        """Run an experiment and add what came of it."""
        outcome = run(experiment)
        _told(name, outcome)
        self.outcomes.setdefault(name, []).append(outcome)
        if experiment.recipe.seed == 0:
            self.curves[name] = _curve(outcome)
        if name in TOPOLOGIES:
            self.ratios.setdefault(name, []).append(bytes_ratio(experiment, outcome))

    def claims(self) -> list[Claim]:
        """Return the claims: accuracies by their median over the seeds, ratios by the least."""
        central = {model: median(found) for model, found in self.central.items()}
        ratios = {name: min(found) for name, found in self.ratios.items()}
        return claims_of(self.outcomes, central, ratios)


def _asked(args: argparse.Namespace, seed: int) -> dict[str, Experiment]:
    recipe = Recipe(seed=seed, rounds=_QUICK_ROUNDS) if args.quick else Recipe(seed=seed)
    nodes = _QUICK_NODES if args.quick else Experiment().nodes
    asked = experiments(recipe, nodes, quick=args.quick)
    if args.only:
        asked = {name: each for name, each in asked.items() if name in ("full", *args.only)}
    return asked


def main() -> int:
    """Run everything once for each seed; print the table and the claims."""
    made = parser(__doc__ or "")
    made.add_argument("--only", nargs="*", metavar="RUN", help="these runs, and `full`")
    made.add_argument("--keep", action="store_true", help="leave other runs' curves in the report")
    args = made.parse_args()
    torch.set_num_threads(1)
    found = _Found()
    if args.keep and args.json is not None and args.json.exists():
        found.curves = json.loads(args.json.read_text(encoding="utf-8"))["curves"]
    for seed in range(args.rounds or 1):
        asked = _asked(args, seed)
        recipes = {each.recipe.model: each.recipe for each in asked.values()}
        for recipe in recipes.values():
            found.train_centrally(recipe, asked["full"].nodes)
        for name, experiment in asked.items():
            found.run(name, experiment)
            if args.json is not None:  # what there is, should this be stopped
                args.json.write_text(json.dumps({"curves": found.curves}), encoding="utf-8")
    samples = {name: [_sample(each) for each in rows] for name, rows in found.outcomes.items()}
    print_table(samples, gigabytes=None)
    extra = {"curves": found.curves, "centralised": found.central}
    return report(found.claims(), samples, json_path=args.json, extra=extra)


if __name__ == "__main__":
    sys.exit(main())

"""The command line of the example, read into an experiment."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from .attacks import ATTACKS
from .experiment import Experiment
from .training import Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence


def parser() -> argparse.ArgumentParser:
    """Return the options, with the defaults of `Experiment` and `Recipe`."""
    made = argparse.ArgumentParser(
        prog="python -m examples.digits",
        description="Learn handwritten digits on several real nodes of this machine.",
    )
    plain, recipe = Experiment(), Recipe()
    made.add_argument("--topology", default=plain.topology, help="full, ring, random-regular:4 ...")
    made.add_argument("--nodes", type=int, default=plain.nodes)
    made.add_argument("--rounds", type=int, default=recipe.rounds)
    made.add_argument("--steps", type=int, default=recipe.steps, help="between two merges")
    made.add_argument("--model", choices=("mlp", "cnn"), default=recipe.model)
    made.add_argument("--method", default=plain.method, help="mean, trimmed-mean, multi-krum ...")
    made.add_argument("--codec", default=plain.codec, help="lossless, int8 ...")
    made.add_argument("--alpha", type=float, default=recipe.alpha, help="how alike the shards are")
    made.add_argument("--kill", type=float, default=0.0, help="share of the nodes to kill")
    made.add_argument("--freeze", type=float, default=0.0, help="share of the nodes to stop")
    made.add_argument("--hostile", type=float, default=0.0, help="share of the nodes that lie")
    made.add_argument("--attack", choices=ATTACKS, default=plain.attack)
    made.add_argument("--newcomer", action="store_true", help="one more node comes half way")
    made.add_argument("--deadline", type=float, default=plain.deadline_s, help="of a merge, in s")
    made.add_argument("--limit", type=float, default=plain.limit_s, help="of the whole, in s")
    made.add_argument("--seed", type=int, default=recipe.seed)
    made.add_argument("--json", action="store_true", help="print one JSON document")
    made.add_argument("--no-centralised", action="store_true", help="leave the comparison out")
    return made


def read(words: Sequence[str] | None = None) -> tuple[Experiment, argparse.Namespace]:
    """Return what to run, and the options about printing."""
    args = parser().parse_args(words)
    recipe = replace(
        Recipe(),
        model=args.model,
        rounds=args.rounds,
        steps=args.steps,
        alpha=args.alpha,
        seed=args.seed,
    )
    experiment = Experiment(
        recipe=recipe,
        nodes=args.nodes,
        topology=args.topology,
        method=args.method,
        codec=args.codec,
        kill=args.kill,
        freeze=args.freeze,
        hostile=args.hostile,
        attack=args.attack,
        newcomer=args.newcomer,
        deadline_s=args.deadline,
        limit_s=args.limit,
    )
    return experiment, args

"""python -m examples.transformer: DiLoCo over the swarm against synchronous training."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from .experiment import bytes_of_gradients, bytes_of_ring, run
from .training import Recipe, synchronous


def main() -> int:
    """Run both, print both."""
    plain = Recipe()
    parser = argparse.ArgumentParser(prog="python -m examples.transformer", description=__doc__)
    parser.add_argument("--nodes", type=int, default=plain.nodes)
    parser.add_argument("--rounds", type=int, default=plain.rounds)
    parser.add_argument("--steps", type=int, default=plain.steps, help="between two merges")
    parser.add_argument("--codec", default="lossless", help="lossless, int8 ...")
    parser.add_argument("--seed", type=int, default=plain.seed)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    parser.add_argument("--limit", type=float, default=600.0, help="of the nodes, in s")
    parser.add_argument("--no-synchronous", action="store_true", help="leave the comparison out")
    args = parser.parse_args()
    recipe = Recipe(nodes=args.nodes, rounds=args.rounds, steps=args.steps, seed=args.seed)
    torch.set_num_threads(1)
    outcome = run(recipe, codec=args.codec, limit_s=args.limit)
    central = [] if args.no_synchronous else synchronous(recipe)
    if args.json is not None:
        facts = {"synchronous": central, "gradients": bytes_of_gradients(recipe)}
        args.json.write_text(json.dumps({**asdict(outcome), **facts}) + "\n", encoding="utf-8")
    print(f"{recipe.tokens:,} characters; loss in nats a character, on text that no node sees")
    print("round   DiLoCo   synchronous   MB received")
    for number, (loss, received) in enumerate(zip(outcome.losses, outcome.received, strict=True)):
        beside = f"{central[number]:>14.4f}" if central else " " * 14
        print(f"{number + 1:>5}{loss:>9.4f}{beside}{received / 1e6:>14.2f}")
    if outcome.received:
        total = outcome.received[-1]
        print(
            f"gradients of everybody in every step: {bytes_of_gradients(recipe) / 1e6:.0f} MB, "
            f"{bytes_of_gradients(recipe) / total:.0f} times as many; "
            f"by a ring all-reduce {bytes_of_ring(recipe) / total:.0f} times"
        )
    if outcome.hung:
        print(f"not through: {', '.join(outcome.hung)}")
    return 1 if outcome.hung else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # the children have ended
        sys.exit(130)

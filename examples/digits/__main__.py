"""python -m examples.digits: several real nodes learn digits together, and what came of it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from .data import load
from .experiment import Experiment, Outcome, Row, run
from .model import make
from .options import read
from .training import centralised

if TYPE_CHECKING:
    from examples.processes import Event


def model_bytes(experiment: Experiment) -> int:
    """Return the size of the model's tensors."""
    made = make(experiment.recipe.model, experiment.recipe.seed)
    return sum(tensor.nbytes for tensor in made.state_dict().values())


def bytes_every_step(experiment: Experiment, outcome: Outcome) -> float:
    """Return what a node would receive if its neighbours sent their models after every step."""
    steps = experiment.recipe.rounds * experiment.recipe.steps
    return steps * outcome.neighbours * model_bytes(experiment)


def _print_row(row: Row) -> None:
    print(
        f"{row.round:>5}{row.nodes:>7}{row.accuracy:>10.2f}{row.worst:>8.2f}"
        f"{row.received / 1e6:>10.2f}{row.round_s:>9.2f}{row.merge_s:>9.2f}"
        f"{row.timed_out:>6}{row.rejected:>6}"
    )


def _show(name: str, event: Event) -> None:
    kind = event["event"]
    if kind == "begun":
        print(f"{name} begins in round {event['round'] + 1}", file=sys.stderr)
    elif kind == "died" or (kind == "ended" and event["status"]):
        print(f"{name} has ended: {event.get('why') or event['status']}", file=sys.stderr)


def main() -> int:
    """Run, print, and tell by the exit status whether everybody who lived got through."""
    torch.set_num_threads(1)
    experiment, args = read()
    outcome = run(experiment, _show)
    central = None
    if not args.no_centralised:
        train, test = load(experiment.recipe.seed)
        central = centralised(experiment.recipe, train, test, experiment.nodes)[-1]
    every_step = bytes_every_step(experiment, outcome)
    if args.json:
        facts = {"centralised": central, "bytes_every_step": every_step}
        print(json.dumps({**asdict(outcome), **facts, "accuracy": outcome.accuracy}))
    else:
        _print_all(outcome, central, every_step)
    return 1 if outcome.hung or outcome.died else 0


def _print_all(outcome: Outcome, central: float | None, every_step: float) -> None:
    print("round  nodes  accuracy   worst  MB recvd  round s  merge s  late  refused")
    for row in outcome.rows:
        _print_row(row)
    print()
    print(f"accuracy                  {outcome.accuracy:.2f} %, mean of {len(outcome.final)} nodes")
    if central is not None:
        print(f"centralised, same budget  {central:.2f} %")
    if outcome.received:
        print(
            f"bytes to each node        {outcome.received / 1e6:.2f} MB; with models exchanged "
            f"every step {every_step / 1e6:.0f} MB, {every_step / outcome.received:.0f} times that"
        )
    print(f"seconds                   {outcome.seconds:.1f}")
    for name, why in outcome.died.items():
        print(f"{name} died: {why}")
    if outcome.hung:
        print(f"not through: {', '.join(outcome.hung)}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # the children have ended
        sys.exit(130)

"""Four real nodes that train one transformer, and what synchronous training would have cost."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from examples.processes import Family

from .model import make

if TYPE_CHECKING:
    from examples.processes import Child, Event

    from .training import Recipe

_NODE: Final = "examples.transformer.node"
_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        losses: after each round, the mean over the nodes, in nats a character.
        spread: the largest difference between two nodes' losses after one round; 0 when all nodes
            have the same bits.
        received: bytes that a node had received after each round, on the mean.
        hung: names of the nodes that did not get through.
    """

    losses: list[float]
    spread: float
    received: list[float]
    hung: list[str]
    seconds: float


def model_bytes(recipe: Recipe) -> int:
    """Return the size of the model's parameters, tied ones once."""
    return sum(each.nbytes for each in make(recipe.shape, recipe.seed).parameters())


def bytes_of_gradients(recipe: Recipe) -> int:
    """Return what a node receives in synchronous training: everybody's gradient in every step."""
    return recipe.rounds * recipe.steps * (recipe.nodes - 1) * model_bytes(recipe)


def bytes_of_ring(recipe: Recipe) -> float:
    """Return the same by a ring all-reduce, the fewest bytes there can be: 2 (n - 1) / n of it."""
    parts = 2 * (recipe.nodes - 1) / recipe.nodes
    return recipe.rounds * recipe.steps * parts * model_bytes(recipe)


def run(recipe: Recipe, *, codec: str = "lossless", limit_s: float = 600.0) -> Outcome:
    """Train on real nodes; every process has ended when this returns.

    Raises:
        SystemExit: a process died; says why.
    """
    started = time.monotonic()
    until = started + limit_s
    with tempfile.TemporaryDirectory(prefix="sbp2p-stories-") as folder:
        with Family(Path(folder)) as family:
            children: list[Child] = []
            common = {"recipe": asdict(recipe), "codec": codec, "limit_s": limit_s}
            common |= {"deadline_s": _DEADLINE_S}

            def start(index: int, peers: list[str]) -> None:
                own: dict[str, Any] = {"index": index, "home": f"{folder}/{index}", "peers": peers}
                name = f"node-{index}"
                children.append(family.start(name, _NODE, {**common, **own, "name": name}))

            start(0, [])
            for child, event in family.events(until):
                if event["event"] == "died":
                    raise SystemExit(f"{child.name} died: {event['why']}")
                if event["event"] == "ready" and child is children[0]:
                    for index in range(1, recipe.nodes):
                        start(index, [event["address"]])
                if len(children) == recipe.nodes and all(each.is_done for each in children):
                    break
        return _outcome(children, time.monotonic() - started)


def _outcome(children: list[Child], seconds: float) -> Outcome:
    told = [event for each in children for event in each.told if event["event"] == "round"]
    rounds: dict[int, list[Event]] = {}
    for event in told:
        rounds.setdefault(event["round"], []).append(event)
    losses = {number: [event["loss"] for event in rounds[number]] for number in sorted(rounds)}
    return Outcome(
        losses=[fmean(each) for each in losses.values()],
        spread=max((max(each) - min(each) for each in losses.values()), default=0.0),
        received=[fmean(event["received"] for event in rounds[number]) for number in losses],
        hung=[each.name for each in children if not each.is_done],
        seconds=seconds,
    )

"""Eight real nodes on one machine: started, disturbed as asked, listened to, and ended.

The first node is the rendezvous: the others are given its address and nothing else. With `kill`,
that share of the nodes gets SIGKILL after a third of the rounds, all at once, wherever they are in
their round, and as many newcomers take over their shards: they bootstrap from those that are left.
With `freeze`, that share is stopped (SIGSTOP) at that moment and never goes on: its connections are
still there, and only a deadline ends the waiting for it.
With `newcomer`, one more node comes half way. Hostile nodes are the last ones.

What is counted: accuracy on pictures that no node trains on, of every honest node after its merge;
bytes as the nodes' connections carried them, handshakes and all; seconds as they passed, on
whatever else the machine does.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from examples.processes import Family

from .settings import Settings
from .training import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.processes import Child, Event

_NODE: Final = "examples.digits.node"


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """What is run.

    Attributes:
        nodes: how many processes.
        kill, freeze, hostile: shares of them, rounded up.
        newcomer: whether one more comes half way.
        limit_s: the whole is ended after so long; whoever is not through by then hangs.
    """

    recipe: Recipe = field(default_factory=Recipe)
    nodes: int = 8
    topology: str = "full"
    method: str = "mean"
    options: dict[str, Any] = field(default_factory=dict)
    kill: float = 0.0
    freeze: float = 0.0
    hostile: float = 0.0
    attack: str = "sign-flip"
    newcomer: bool = False
    codec: str = "lossless"
    deadline_s: float = 10.0
    limit_s: float = 300.0

    @property
    def liars(self) -> int:
        """How many nodes are hostile."""
        return math.ceil(self.hostile * self.nodes)

    @property
    def killed(self) -> int:
        """How many nodes are killed."""
        return math.ceil(self.kill * self.nodes)

    @property
    def frozen(self) -> int:
        """How many nodes are stopped."""
        return math.ceil(self.freeze * self.nodes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One round, over the honest nodes that finished it."""

    round: int
    nodes: int
    accuracy: float
    worst: float
    received: float
    """Bytes that a node had received by its end, on the mean."""
    round_s: float
    """Of training, publishing and merging together: the slowest node."""
    merge_s: float
    timed_out: int
    rejected: int
    missing: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of it.

    Attributes:
        rows: by round.
        final: accuracy of each honest node that got through, by name.
        hung: names of those that did not, within the limit.
        died: why processes ended that should not have, by name.
        seconds: from the first start to the last end.
        over_deadline: the largest part by which a merge took longer than its deadline; 0 if none.
        neighbours: models of others that a node merged in a round, on the mean.
        events: everything that the nodes told, by name.
    """

    rows: list[Row]
    final: dict[str, float]
    hung: list[str]
    died: dict[str, str]
    seconds: float
    over_deadline: float
    neighbours: float
    events: dict[str, list[Event]]

    @property
    def accuracy(self) -> float:
        """Of the honest nodes at the end, on the mean; 0 when none got through."""
        return fmean(self.final.values()) if self.final else 0.0

    @property
    def received(self) -> float:
        """Bytes that came to an honest node over all its rounds, on the mean."""
        return self.rows[-1].received if self.rows else 0.0


class _Run:
    """One experiment under way."""

    def __init__(self, experiment: Experiment, family: Family, folder: Path) -> None:
        self.experiment = experiment
        self.family = family
        self._folder = folder
        self._rng = Random(experiment.recipe.seed)  # noqa: S311  (whom it hits)
        self._disturbed = self._joined = False
        self.liars: set[str] = set()
        self._shard: dict[str, int] = {}

    def start(self, name: str, shard: int, **changes: Any) -> Child:
        """Start a node."""
        asked = self.experiment
        settings = Settings(
            recipe=asked.recipe,
            home=str(self._folder / name),
            identity=f"{asked.recipe.seed}/{name}",
            shard=shard,
            shards=asked.nodes + asked.newcomer,
            topology=asked.topology,
            method=asked.method,
            options=asked.options,
            deadline_s=asked.deadline_s,
            codec=asked.codec,
            limit_s=asked.limit_s,
            **changes,
        )
        self._shard[name] = shard
        return self.family.start(name, _NODE, settings.to_json())

    def start_all(self, until: float) -> None:
        """Start the rendezvous, and when it can be dialled, the others."""
        asked = self.experiment
        others = asked.nodes - 1
        first = self.start("node-0", 0, wait_for=others, attack=self._attack(0))
        for child, event in self.family.events(until):
            if child is first and event["event"] in ("ready", "died"):
                break
        ready = first.last("ready")
        if ready is None:
            raise SystemExit(f"the first node did not start: {first.complaint()}")
        for index in range(1, asked.nodes):
            attack = self._attack(index)
            name = f"node-{index}"
            self.start(name, index, wait_for=others, attack=attack, peers=(ready["address"],))

    def _attack(self, index: int) -> str | None:
        if index < self.experiment.nodes - self.experiment.liars:
            return None
        self.liars.add(f"node-{index}")
        return self.experiment.attack

    def on_round(self, finished: int) -> None:
        """Do what is due once somebody has finished a round."""
        asked, rounds = self.experiment, self.experiment.recipe.rounds
        if not self._disturbed and finished >= max(rounds // 3, 1):
            self._disturbed = True
            self._disturb()
        if asked.newcomer and not self._joined and finished >= max(rounds // 2, 1):
            self._joined = True
            self.start("newcomer", asked.nodes, newcomer=True, peers=self._addresses())

    def _disturb(self) -> None:
        asked = self.experiment
        honest = [each for each in self.family.children if each.name not in self.liars]
        chosen = self._rng.sample(honest, asked.killed + asked.frozen)
        for victim in chosen[: asked.killed]:
            victim.kill()
        for victim in chosen[asked.killed :]:
            victim.freeze()
        for victim in chosen[: asked.killed]:
            name = f"{victim.name}-again"
            shard = self._shard[victim.name]
            self.start(name, shard, newcomer=True, peers=self._addresses())

    def _addresses(self) -> tuple[str, ...]:
        """Return where a newcomer may ask: any three that are there."""
        there = [each.last("ready") for each in self.family.children if not each.is_lost]
        return tuple(each["address"] for each in there if each is not None)[:3]

    def is_over(self) -> bool:
        """Whether everybody who lives is through."""
        living = [each for each in self.family.children if not each.is_lost]
        return all(each.is_done or each.last("died") for each in living)


def run(experiment: Experiment, progress: Callable[[str, Event], None] | None = None) -> Outcome:
    """Run an experiment to its end, or to its limit; every process has ended when this returns.

    Args:
        experiment: what to run.
        progress: called with each event, and the name of the node that told it.
    """
    started = time.monotonic()
    until = started + experiment.limit_s
    with tempfile.TemporaryDirectory(prefix="sbp2p-digits-") as folder:
        with Family(Path(folder)) as family:
            under_way = _Run(experiment, family, Path(folder))
            under_way.start_all(until)
            for child, event in family.events(until):
                if progress is not None:
                    progress(child.name, event)
                if event["event"] == "round":
                    under_way.on_round(event["round"])
                elif event["event"] in ("done", "died") and under_way.is_over():
                    break
        seconds = time.monotonic() - started
        return _outcome(experiment, family, under_way.liars, seconds)


def _outcome(experiment: Experiment, family: Family, liars: set[str], seconds: float) -> Outcome:
    honest = [each for each in family.children if each.name not in liars]
    living = [each for each in honest if not each.is_lost]
    told = [event for each in honest for event in each.told if event["event"] == "round"]
    slowest = max((event["merge_s"] for event in told), default=0.0)
    merged = [event["merged"] - 1 for event in told if event["merged"]]
    return Outcome(
        rows=_rows(told),
        final={each.name: each.last("done")["accuracy"] for each in living if each.is_done},  # type: ignore[index]
        hung=[each.name for each in living if not each.is_done and not each.last("died")],
        died={each.name: each.complaint() for each in family.children if each.last("died")},
        seconds=seconds,
        over_deadline=max(slowest / experiment.deadline_s - 1, 0.0),
        neighbours=fmean(merged) if merged else 0.0,
        events={each.name: each.told for each in family.children},
    )


def _rows(told: list[Event]) -> list[Row]:
    rows = []
    for number in sorted({event["round"] for event in told}):
        here = [event for event in told if event["round"] == number]
        accuracies = [event["accuracy"] for event in here]
        row = Row(
            round=number,
            nodes=len(here),
            accuracy=fmean(accuracies),
            worst=min(accuracies),
            received=fmean(event["received"] for event in here),
            round_s=max(event["round_s"] for event in here),
            merge_s=max(event["merge_s"] for event in here),
            timed_out=sum(event["timed_out"] for event in here),
            rejected=sum(len(event["rejected"]) for event in here),
            missing=sum(event["missing"] for event in here),
        )
        rows.append(row)
    return rows

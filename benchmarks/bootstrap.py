"""A newcomer without a model comes to nodes that train: how soon is it in step, and who pays?

Donors learn the digits (`examples.digits`), all connected. A process more has everything loaded and
its node open, and waits; half way it is told to go. It bootstraps, which takes the model and the
round from the members, and merges from then on like the others. It is a leech: it does not train
and publishes nothing, so that what it costs is what serving it costs, and not one more model to
fetch and to merge in each round.

The same is run with the newcomer never told to go, in turn. Donors are slowed by the part that
their rounds, from the one in which it comes until three later, take longer than the same rounds
without it. In step is who has merged a round with the donors: `rounds_to_step` counts from the
round that was under way when it was told.

All of them share this machine's cores, which nodes on machines of their own do not. So a round's
training takes two seconds, most of which it waits, as for an accelerator; what is left of a round
is publishing, merging, serving the others, and serving the newcomer.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness import Claim, Sample, alternate, parser, print_table, report
from examples.digits.settings import Settings
from examples.digits.training import Recipe
from examples.processes import Child, Family

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NODE: Final = "examples.digits.node"
_LIMIT_S: Final = 300.0
_PACE_S: Final = 2.0
_WINDOW: Final = 3
"""Rounds after the one in which the newcomer comes that count as slowed by it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """One run.

    Attributes:
        round_s: the donors' round times in the window, each the slowest donor's.
        boot_s: from being told to go to having the model; 0 without a newcomer.
        step_s: from being told to go to the end of the first round merged with the others.
        rounds_to_step: 0 when that was the round that was under way.
        merged: models in that merge, its own included.
    """

    round_s: list[float]
    boot_s: float = 0.0
    step_s: float = 0.0
    rounds_to_step: int = 0
    merged: int = 0


class Bootstrap:
    """The runs with and without a newcomer."""

    def __init__(self, recipe: Recipe, donors: int) -> None:
        self._recipe = recipe
        self._donors = donors
        self.visits: dict[bool, list[Visit]] = {True: [], False: []}

    def run(self, *, comes: bool) -> Sample:
        """Run once."""
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="sbp2p-bootstrap-") as folder:
            with Family(Path(folder)) as family:
                visit = self._visit(family, Path(folder), comes=comes)
        self.visits[comes].append(visit)
        return Sample(seconds=median(visit.round_s), wall_s=time.perf_counter() - started)

    def _visit(self, family: Family, folder: Path, *, comes: bool) -> Visit:
        until = time.monotonic() + _LIMIT_S
        donors = [self._start(family, folder, 0)]
        address = _wait_ready(family, donors, until)
        others = range(1, self._donors)
        donors += [self._start(family, folder, each, peers=(address,)) for each in others]
        newcomer = self._start(
            family,
            folder,
            self._donors,
            newcomer=True,
            waits=True,
            idle=True,
            leech=True,
            peers=(address,),
        )
        begin = self._recipe.rounds // 2
        told_at, under_way, step_s = 0.0, 0, 0.0
        for child, event in family.events(until):
            if event["event"] == "died":
                raise SystemExit(f"{child.name} died: {event['why']}")
            if event["event"] == "round" and child is newcomer and not step_s:
                step_s = time.monotonic() - told_at
            if event["event"] == "round" and event["round"] >= begin and not told_at:
                told_at, under_way = time.monotonic(), event["round"] + 1
                if comes:
                    newcomer.go()
            if all(each.is_done for each in donors) and (newcomer.is_done or not comes):
                break
        if not all(each.is_done for each in donors):
            raise SystemExit(f"the donors were not through after {_LIMIT_S:.0f} s")
        window = range(under_way, under_way + _WINDOW + 1)
        round_s = [_slowest(donors, number) for number in window]
        if not comes:
            return Visit(round_s=round_s)
        return _judge(newcomer, round_s, under_way, step_s)

    def _start(self, family: Family, folder: Path, index: int, **changes: Any) -> Child:
        settings = Settings(
            recipe=self._recipe,
            home=str(folder / str(index)),
            identity=f"bootstrap/{index}",
            shard=index,
            shards=self._donors + 1,
            wait_for=self._donors - 1,
            limit_s=_LIMIT_S,
            deadline_s=30.0,
            pace_s=_PACE_S,
        )
        changed = replace(settings, **changes)
        return family.start(f"node-{index}", _NODE, changed.to_json())


def _wait_ready(family: Family, donors: list[Child], until: float) -> str:
    for child, event in family.events(until):
        if child is donors[0] and event["event"] == "ready":
            return str(event["address"])
    raise SystemExit(f"the first donor did not start: {donors[0].complaint()}")


def _slowest(donors: Sequence[Child], number: int) -> float:
    told = [event for each in donors for event in each.told if event["event"] == "round"]
    return max(float(event["round_s"]) for event in told if event["round"] == number)


def _judge(newcomer: Child, round_s: list[float], under_way: int, step_s: float) -> Visit:
    begun = newcomer.last("begun")
    first = next((event for event in newcomer.told if event["event"] == "round"), None)
    if begun is None or first is None:
        raise SystemExit("the newcomer never got in step")
    return Visit(
        round_s=round_s,
        boot_s=begun["seconds"],
        step_s=step_s,
        rounds_to_step=first["round"] - under_way,
        merged=first["merged"],
    )


def claims_of(visits: Mapping[bool, Sequence[Visit]]) -> list[Claim]:
    """Return the claims from runs with (True) and without (False) a newcomer, in pairs."""
    slowed = [
        median(
            100 * (mine / theirs - 1)
            for mine, theirs in zip(there.round_s, without.round_s, strict=True)
        )
        for there, without in zip(visits[True], visits[False], strict=True)
    ]
    worst = max(each.rounds_to_step for each in visits[True])
    least = min(each.merged for each in visits[True])

    def lower(name: str, value: float, unit: str, target: float | None = None) -> Claim:
        return Claim(name=name, value=value, unit=unit, target=target, better="lower")

    return [
        lower("rounds_to_step", worst, "rounds", 1.0),
        lower("donors_slowed_percent", median(slowed), "%", 5.0),
        lower("seconds_to_bootstrap", median(each.boot_s for each in visits[True]), "s"),
        lower("seconds_to_step", median(each.step_s for each in visits[True]), "s"),
        Claim(name="models_in_its_first_merge", value=least, unit="models"),
    ]


def main() -> int:
    """Run both in turn; print the table and the claims."""
    args = parser(__doc__ or "").parse_args()
    recipe = Recipe(rounds=10 if args.quick else 16)
    bench = Bootstrap(recipe, donors=2 if args.quick else 4)
    contenders = {
        "with a newcomer": partial(bench.run, comes=True),
        "without": partial(bench.run, comes=False),
    }
    samples = alternate(contenders, rounds=args.rounds or (1 if args.quick else 5), warmup=0)
    print_table(samples, gigabytes=None)
    return report(claims_of(bench.visits), samples, json_path=args.json)


if __name__ == "__main__":
    sys.exit(main())

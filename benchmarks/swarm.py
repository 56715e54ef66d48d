"""One seeder and many leechers on shaped links: how close to the fluid limit is the last one?

Every node is a process in a network namespace of its own, with a link of a given rate up and down.
Leechers know the seeder's address and nothing else; they find each other through it. Beside us, in
the same rig and the same run, libtorrent in several configurations, the best of which counts.

The fluid limit T* is the least time in which any way of sharing could have served everybody:
max(F / u_seeder, F / min d, N F / (u_seeder + sum u)). It knows no headers and no round trips; the
headers of Ethernet, IP and TCP alone are 4.5 % of what a link carries.

Needs root, for the namespaces; without it this says so and does nothing.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import netns
from benchmarks.data import MIB, fresh_folder, model_file
from benchmarks.harness import Claim, Sample, parser, print_table, report
from benchmarks.race import (
    TABLE_HEAD,
    Outcome,
    Plan,
    Race,
    fluid_limit,
    print_link_use,
    sha256,
    table_row,
)
from benchmarks.teams import Libtorrent, Sbp2p

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.race import Team

FULL_MIB = 256
QUICK_MIB = 16
RATE = 40
"""Mbit/s up and down of every node where links are equal, and of the seeder everywhere."""
UNEQUAL = (0.5, 1, 5)
"""Rates of the thirds of the leechers over the seeder's, where links are not equal: 1 : 2 : 10.

If the seeder has 40 Mbit/s, the links of eight leechers sum up to 0.6 Gbit/s, a tenth of what two
cores carry over loopback, encryption and hashes included.
"""
LIMITS = {"8": 1.10, "16": 1.15, "unequal": 1.25}
"""Targets of the last one's time over the fluid limit."""
MBIT = 1_000_000
FULL_SIZES = [8, 16]
QUICK_SIZE = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Links, and how many leechers are killed half way."""

    name: str
    rates: tuple[int, ...]
    """Mbit/s of each leecher, up and down."""
    kill: int = 0
    seeder: int

    def limit_s(self, size: int) -> float:
        """Return the fluid limit for a file of `size` bytes."""
        rates = [rate * MBIT / 8 for rate in self.rates]
        return fluid_limit(size, self.seeder * MBIT / 8, rates, rates)

    def links(self) -> list[netns.Link]:
        """Return everybody's link, the seeder's first."""
        return [netns.Link(rate * MBIT, rate * MBIT) for rate in (self.seeder, *self.rates)]

    def killed(self) -> tuple[int, ...]:
        """Return the numbers of those who are killed, spread over all."""
        return tuple(len(self.rates) * (2 * at + 1) // (2 * self.kill) for at in range(self.kill))


def scenarios(count: int, sizes: Sequence[int], rate: int = RATE) -> dict[str, Scenario]:
    """Return the scenarios: equal links at each size; unequal links and churn at `count`.

    `rate` is in Mbit/s.
    """
    thirds = tuple(round(rate * UNEQUAL[at * len(UNEQUAL) // count]) for at in range(count))
    found = [Scenario(name=str(size), rates=(rate,) * size, seeder=rate) for size in sizes]
    found.append(Scenario(name="unequal", rates=thirds, seeder=rate))
    found.append(Scenario(name="churn", rates=(rate,) * count, seeder=rate, kill=-(-count // 5)))
    return {each.name: each for each in found}


TEAMS: dict[str, Callable[[Path, Path], Team]] = {
    "sbp2p": Sbp2p,
    "libtorrent": Libtorrent,
    "libtorrent super": partial(Libtorrent, acquainted=True, super_seeding=True),
    "libtorrent tuned": partial(Libtorrent, acquainted=True, tuned=True),
    "libtorrent tuned super": partial(Libtorrent, acquainted=True, tuned=True, super_seeding=True),
    "sbp2p told": partial(Sbp2p, acquainted=True),
}
"""Acquainted: every leecher is given the addresses of all others at the start, so that it need not
wait for peer exchange. The last team is for finding out what peer exchange costs us."""
DEFAULT_TEAMS = [name for name in TEAMS if name != "sbp2p told"]
LIBTORRENTS = [name for name in TEAMS if name.startswith("libtorrent")]
QUICK_TEAMS = ["sbp2p", "libtorrent tuned super"]


class Rig:
    """Runs scenarios, all with one file."""

    def __init__(self, source: Path, *, sync: bool = True, trace: bool = False) -> None:
        """Take the file; with `sync`, write out all dirty pages before each race."""
        self._source = source
        self._trace = trace
        self._sync = sync
        self._size = source.stat().st_size
        self._digest = sha256(source)

    def race(self, name: str, scenario: Scenario) -> Outcome:
        """Run one team through one scenario, on links and in a folder of its own."""
        work = fresh_folder("swarm")
        if self._sync:  # the last team's dirty pages are not the next one's burden
            os.sync()
        plan = Plan(
            size=self._size,
            digest=self._digest,
            limit_s=scenario.limit_s(self._size),
            killed=scenario.killed(),
        )
        team = TEAMS[name](work, self._source)
        try:
            with netns.network(scenario.links()) as hosts:
                return Race(team, hosts, plan, trace=self._trace).run()
        finally:
            shutil.rmtree(work, ignore_errors=True)


Races = dict[str, dict[str, list[Outcome]]]
"""Outcomes by scenario and team."""


def run_all(rig: Rig, chosen: Mapping[str, Scenario], teams: Sequence[str], rounds: int) -> Races:
    """Run every team through every scenario, in turn, each round beginning with another one."""
    races: Races = {name: {team: [] for team in teams} for name in chosen}
    for number in range(rounds):
        shift = number % len(teams)
        for name, scenario in chosen.items():
            for team in [*teams[shift:], *teams[:shift]]:
                outcome = rig.race(team, scenario)
                races[name][team].append(outcome)
                label = f"round {number + 1}/{rounds} {name} {team}"
                print(f"  {label:<40}{outcome.last_s:8.1f} s", file=sys.stderr)
    return races


def print_races(races: Races) -> None:
    """Print a line for each race."""
    print(TABLE_HEAD)
    for name, teams in races.items():
        for team, outcomes in teams.items():
            for outcome in outcomes:
                print(table_row(f"{name} {team}", outcome))
                print_link_use(outcome)
    print()


def median_last(outcomes: Sequence[Outcome]) -> float:
    """Return the median over rounds of when the last one was done."""
    return statistics.median(each.last_s for each in outcomes)


def claims_of(races: Races) -> list[Claim]:
    """Return what this benchmark claims, from the races of one run."""
    claims = []
    for name, teams in races.items():
        ours = teams.get("sbp2p", [])
        if not ours:
            continue
        value = statistics.median(each.last_s / each.limit_s for each in ours)
        claims.append(_lower(f"last_over_fluid_limit_{name}", value, LIMITS.get(name)))
        if any(each.killed for each in ours):
            finished = sum(len(each.done) for each in ours) / sum(each.survivors for each in ours)
            label = f"{name}_survivors_finished"
            claims.append(Claim(name=label, value=finished, unit="share", target=1.0))
    # who is killed takes along what only he had, and the seeder has to send it again
    every = [each for teams in races.values() for each in teams.get("sbp2p", [])]
    ours = [each for each in every if not each.killed]
    if ours:
        upload = max(each.seeder_link_bytes / each.size for each in ours)
        payload = max(each.seeder_payload_bytes / each.size for each in ours)
        duplicates = max(each.duplicate_share for each in ours)
        claims.append(_lower("seeder_upload_over_file", upload, 1.2))
        claims.append(_lower("seeder_payload_over_file", payload, None))
        claims.append(_lower("duplicate_bytes", duplicates, 0.01, "share"))
    return claims + ratio_claims(races)


def ratio_claims(races: Races) -> list[Claim]:
    """Return how much later libtorrent's last one was, at its best, in each scenario.

    The target is about equal links, and the worse of their sizes is held to it.
    """
    ratios = {}
    for name, teams in races.items():
        theirs = [median_last(rows) for team, rows in teams.items() if team in LIBTORRENTS]
        if theirs and teams.get("sbp2p"):
            ratios[name] = min(theirs) / median_last(teams["sbp2p"])
    claims = [
        Claim(name=f"ratio_vs_libtorrent_last_{name}", value=value, unit="x")
        for name, value in ratios.items()
    ]
    equal = [value for name, value in ratios.items() if name.isdigit()]
    if equal:
        worst = Claim(name="ratio_vs_libtorrent_last", value=min(equal), unit="x", target=1.3)
        claims.append(worst)
    return claims


def _lower(name: str, value: float, target: float | None, unit: str = "x") -> Claim:
    return Claim(name=name, value=value, unit=unit, target=target, better="lower")


def _sample(outcome: Outcome) -> Sample:
    return Sample(seconds=outcome.last_s, cpu_s=outcome.cpu_s, rss_mb=outcome.rss_mb)


def _arguments() -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--repeats", dest="rounds", type=int, help="the same as --rounds; default 1")
    made.add_argument("--mib", type=int, help=f"size of the file; default {FULL_MIB}")
    made.add_argument("--rate", type=int, default=RATE, help=f"Mbit/s of a link; default {RATE}")
    made.add_argument("--sizes", type=int, nargs="+", metavar="N", help="leechers on equal links")
    made.add_argument("--only", nargs="+", metavar="NAME", help="scenarios: a size, unequal, churn")
    made.add_argument("--trace", action="store_true", help="show how full the links were, too")
    made.add_argument("--teams", nargs="+", choices=list(TEAMS), help="default: all that count")
    return made.parse_args()


def main() -> int:
    """Run the races, print the table and the claims."""
    args = _arguments()
    reason = netns.missing()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    sizes = args.sizes or ([QUICK_SIZE] if args.quick else FULL_SIZES)
    chosen = scenarios(min(sizes), sizes, args.rate)
    unknown = set(args.only or ()) - set(chosen)
    if unknown:
        raise SystemExit(f"no such scenario: {', '.join(unknown)}; there are {', '.join(chosen)}")
    chosen = {name: each for name, each in chosen.items() if not args.only or name in args.only}
    teams = args.teams or (QUICK_TEAMS if args.quick else DEFAULT_TEAMS)
    size = (args.mib or (QUICK_MIB if args.quick else FULL_MIB)) * MIB
    rig = Rig(model_file(size), sync=not args.quick, trace=args.trace)
    races = run_all(rig, chosen, teams, args.rounds or 1)
    samples = {
        f"{name} {team}": [_sample(each) for each in outcomes]
        for name, found in races.items()
        for team, outcomes in found.items()
    }
    print_races(races)
    print_table(samples, gigabytes=None)
    extra = {
        "races": {
            name: {team: [each.to_json() for each in rows] for team, rows in found.items()}
            for name, found in races.items()
        },
        "rates_mbit_s": {name: [each.seeder, *each.rates] for name, each in chosen.items()},
        "file_bytes": size,
        "network": netns.description(),
    }
    return report(claims_of(races), samples, json_path=args.json, extra=extra)


if __name__ == "__main__":
    sys.exit(main())

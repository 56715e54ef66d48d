"""What every benchmark shares: rounds that alternate, medians, claims, a table and JSON.

A benchmark names its contenders, each a callable that does the work once, checks the bytes and
returns a `Sample`. `alternate` runs them in turn, so that a slow minute of a shared machine falls
on everybody, and starts each round with another contender, so that nobody always goes first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".bench"
PEERS = ROOT / "benchmarks" / "peers"
LIBTORRENT = ROOT / ".venv-libtorrent" / "bin" / "python"
PY_LIBP2P = ROOT / ".venv-py-libp2p" / "bin" / "python"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One contender's work in one round.

    Attributes:
        seconds: the work itself, as the tool tells it.
        wall_s: the whole process that did it, start included; 0 where there is no such process.
        cpu_s: CPU seconds, by role.
        rss_mb: peak resident megabytes, by role.
    """

    seconds: float
    wall_s: float = 0.0
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    rss_mb: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A figure with the target it is held to; `better` says on which side of it to be."""

    name: str
    value: float
    unit: str
    target: float | None = None
    better: Literal["higher", "lower"] = "higher"

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None where there is no target, only a figure."""
        if self.target is None:
            return None
        return self.value >= self.target if self.better == "higher" else self.value <= self.target

    def to_json(self) -> dict[str, Any]:
        """Return the claim as the JSON report holds it."""
        relation = ">=" if self.better == "higher" else "<="
        target = None if self.target is None else f"{relation} {self.target:g}"
        value = round(self.value, 4)
        return {
            "name": self.name,
            "value": value,
            "unit": self.unit,
            "target": target,
            "ok": self.ok,
        }


LOAD_BEFORE = os.getloadavg()[0]
"""Processes that wanted a core in the minute before this one began."""
BUSY_LOAD = 0.5

Contenders = Mapping[str, Callable[[], Sample]]


def parser(description: str) -> argparse.ArgumentParser:
    """Return the options that every benchmark takes."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--quick", action="store_true", help="smaller and under 45 s")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the report here too")
    made.add_argument("--rounds", type=int, metavar="N", help="rounds after the warm-up")
    return made


def alternate(contenders: Contenders, *, rounds: int, warmup: int = 1) -> dict[str, list[Sample]]:
    """Run every contender `rounds` times in turn, after `warmup` rounds that do not count."""
    samples: dict[str, list[Sample]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(-warmup, rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            sample = contenders[name]()
            label = f"round {number + 1}/{rounds}" if number >= 0 else "warm-up"
            print(f"  {label:<10} {name:<24} {sample.seconds:8.3f} s", file=sys.stderr)
            if number >= 0:
                samples[name].append(sample)
    return samples


def median_seconds(samples: Sequence[Sample]) -> float:
    """Return the median of the samples' seconds."""
    return statistics.median(sample.seconds for sample in samples)


def median_ratio(ours: Sequence[Sample], theirs: Sequence[Sample]) -> float:
    """Return how many times faster we are: the median over rounds of theirs / ours."""
    return statistics.median(b.seconds / a.seconds for a, b in zip(ours, theirs, strict=True))


def print_table(samples: Mapping[str, Sequence[Sample]], *, gigabytes: float | None) -> None:
    """Print median, spread and, where bytes were moved, the rate of every contender."""
    print(
        f"{'':<24}{'median':>9}{'min':>9}{'max':>9}{'process':>9}"
        f"{'GB/s':>7}{'CPU s':>8}{'RSS MB':>8}"
    )
    for name, rows in samples.items():
        seconds = [row.seconds for row in rows]
        median = statistics.median(seconds)
        wall = statistics.median(row.wall_s for row in rows)
        cpu = statistics.median(sum(row.cpu_s.values()) for row in rows)
        rss = statistics.median(max(row.rss_mb.values(), default=0.0) for row in rows)
        columns = [f"{value:9.3f}" for value in (median, min(seconds), max(seconds), wall)]
        rate = f"{gigabytes / median:7.2f}" if gigabytes else " " * 7
        print(f"{name:<24}{''.join(columns)}{rate}{cpu:8.2f}{rss:8.1f}")


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, cores, memory, kernel, Python."""
    model = platform.processor() or "unknown"
    with suppress(OSError):  # only Linux tells the model
        for line in (
            Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
        ):
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": LOAD_BEFORE,
    }


def report(
    claims: Sequence[Claim],
    samples: Mapping[str, Sequence[Sample]],
    *,
    json_path: Path | None,
    extra: Mapping[str, Any] | None = None,
) -> int:
    """Print the claims, write the JSON report, and return the process's exit status.

    A target that is not met is a result, not a failure: the status is 0 either way.
    """
    print()
    for claim in claims:
        row = claim.to_json()
        verdict = {True: "met", False: "NOT MET", None: ""}[claim.ok]
        target = f"(target {row['target']})" if row["target"] else ""
        print(f"{claim.name:<34}{claim.value:>10.3f} {claim.unit:<8}{target:<20}{verdict}")
    if LOAD_BEFORE > BUSY_LOAD:
        print(f"the machine was busy (load {LOAD_BEFORE:.1f}) when this began: figures suffer")
    document = {
        "claims": [claim.to_json() for claim in claims],
        "rounds": {name: [asdict(row) for row in rows] for name, rows in samples.items()},
        "machine": machine(),
        **(extra or {}),
    }
    if json_path is not None:
        json_path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0

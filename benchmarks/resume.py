"""Kill a fetch 200 times at random moments: is it right, what comes twice, how soon does it go on?

One `sbp2p seed`, and `sbp2p get` of 1 GiB over loopback, killed (SIGKILL) and started again and
again, with the seeder sending so slowly that the fetch is not over before the kills are. Half of
the kills come while a run is still starting, checking and connecting, at a moment between its start
and the usual time of its first block; the other half up to half a second after its first block. The
moments are drawn from a seed. A fetch that is complete is compared with the source and another one
begins, in a new home. When the kills are used up, a seeder without a limit lets the last one end.

refetched_mib_per_kill   everything that the seeders sent, handshakes, manifests, framing and what
                         was still in a socket's buffer included, less the files, for each kill
seconds_to_resume        from the start of a process to its first new block, as its `progress`
                         events tell (ten a second); of the runs whose kill waits for that block
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import sbp2p_process
from benchmarks.data import MIB, fresh_folder, model_file
from benchmarks.harness import Claim, Sample, parser, print_table, report
from benchmarks.processes import START_TIMEOUT_S, Usage, reap, run, start, stop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FULL_BYTES, QUICK_BYTES = 1024 * MIB, 64 * MIB
FULL_KILLS, QUICK_KILLS = 200, 12
RATE = "25MB"
"""Bytes a second that the seeder sends: 200 kills come at about 1 GiB."""
AFTER_S = 0.5
"""Kills of the second kind come up to this long after the first block."""
FIRST_WINDOW_S = 1.0
"""Guess of the time to the first block, before one was seen."""
SETTLE_S = 2.5
"""Quiet seconds after which a seeder has told its last counters; it tells them each second."""
PROGRESS_KILLS = 20
RUN_TIMEOUT_S = 120.0
STEPS = ("starting", "connecting", "metadata", "local", "network")
"""What a run does before its first block: `starting` up to its first event, then its phases."""


@dataclass(slots=True)
class Attempt:
    """One `sbp2p get`: when it did what, in seconds since its start."""

    entered_s: dict[str, float] = field(default_factory=dict)
    """When each phase began."""
    first_block_s: float | None = None
    completed: bool = False
    usage: Usage = field(default_factory=Usage)

    def steps(self) -> dict[str, float]:
        """Return how long each step took, of a run that came to its first block."""
        assert self.first_block_s is not None
        begins = [0.0, *(self.entered_s[step] for step in STEPS[1:]), self.first_block_s]
        return {step: begins[at + 1] - begins[at] for at, step in enumerate(STEPS)}


class Runner:
    """Runs one attempt and kills it when its time has come."""

    def __init__(
        self, argv: Sequence[str], *, kill_at_s: float | None, after_s: float | None
    ) -> None:
        """Start it.

        Args:
            argv: the command.
            kill_at_s: kill it so long after its start.
            after_s: kill it so long after its first block.
        """
        self.attempt = Attempt()
        self._after_s = after_s
        self._resumed_at_bytes: int | None = None
        self._timers: list[threading.Timer] = []
        self._killed = False
        self._began = time.perf_counter()
        self._process = start(argv, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, env=None)
        self._kill_in(RUN_TIMEOUT_S if kill_at_s is None else kill_at_s)

    def finish(self) -> Attempt:
        """Read what it says until it ends; raises SystemExit if it ended badly by itself."""
        said = []
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                said.append(line)
                if line.startswith("{") and line.endswith("}\n"):
                    self._take(json.loads(line), time.perf_counter() - self._began)
        for timer in self._timers:
            timer.cancel()
        status = reap(self._process, self.attempt.usage)
        if status != 0 and not self._killed:
            raise SystemExit(f"a resumed fetch ended with {status}:\n{''.join(said)}")
        return self.attempt

    def _take(self, event: dict[str, Any], now: float) -> None:
        attempt = self.attempt
        if event["event"] == "done":
            attempt.completed = True
        if event["event"] != "progress":
            return
        attempt.entered_s.setdefault(event["phase"], now)
        if event["phase"] != "network" or attempt.first_block_s is not None:
            return
        if self._resumed_at_bytes is None:
            self._resumed_at_bytes = event["done_bytes"]
        elif event["done_bytes"] > self._resumed_at_bytes:
            attempt.first_block_s = now
            if self._after_s is not None:
                self._kill_in(self._after_s)

    def _kill_in(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._kill)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _kill(self) -> None:
        if self._process.returncode is None:
            self._killed = True
            os.kill(self._process.pid, signal.SIGKILL)


class Seeder:
    """A running `sbp2p seed`, and what it has sent."""

    def __init__(self, home: Path, limit: str | None) -> None:
        words = ["--upload-limit", limit] if limit else []
        argv = sbp2p_process.command(home, "seed", "--listen", "/ip4/127.0.0.1/tcp/0", *words)
        self.sent = 0
        self.link = ""
        self.usage = Usage()
        self._heard = time.monotonic()
        self._seeding = threading.Event()
        self._process = start(argv, stdin=subprocess.DEVNULL, stderr=None, env=None)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        if not self._seeding.wait(4 * START_TIMEOUT_S):
            raise SystemExit("the seeder did not get ready in time")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["event"] == "seeding":
                self.link = event["link"]
                self._seeding.set()
            elif event["event"] == "stats":
                self.sent = event["bytes_sent"]
                self._heard = time.monotonic()

    def close(self) -> None:
        """Wait until it has told all, and end it."""
        while time.monotonic() - self._heard < SETTLE_S:
            time.sleep(0.1)
        stop(self._process, self.usage)
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def seeding(home: Path, limit: str | None) -> Iterator[Seeder]:
    """Run a seeder while the block runs; its `sent` is final after it."""
    seeder = Seeder(home, limit)
    try:
        yield seeder
    finally:
        seeder.close()


@dataclass(kw_only=True, slots=True)
class Ordeal:
    """What came of all kills."""

    kills: int
    in_transfer: int = 0
    """Kills that came after the run's first block."""
    fetches: int = 0
    sent_bytes: int = 0
    file_bytes: int = 0
    """Of one file."""
    wrong_bytes: int = 0
    wall_s: float = 0.0
    resumed: list[Attempt] = field(default_factory=list)
    """Runs that were let come to their first block, the first run of each fetch not among them."""

    @property
    def refetched_mib(self) -> float:
        """MiB that were sent beyond the files."""
        return (self.sent_bytes - self.fetches * self.file_bytes) / MIB


class Killer:
    """Fetches one file over and over, and kills who fetches it."""

    def __init__(self, source: Path, kills: int, seed: int) -> None:
        self._source = source
        self._rng = Random(seed)  # noqa: S311  (moments, to be repeated)
        self._work = fresh_folder("resume")
        self._home = self._work / "seeder"
        sbp2p_process.run_json(self._home, "publish", source.parent, "--name", "bench")
        self._window_s = FIRST_WINDOW_S
        self._fresh = True
        self.ordeal = Ordeal(kills=kills, file_bytes=source.stat().st_size)

    def run(self, limit: str | None) -> Ordeal:
        """Kill as often as is to be killed, with a seeder that keeps to `limit`."""
        ordeal = self.ordeal
        began = time.perf_counter()
        left = ordeal.kills
        with seeding(self._home, limit) as seeder:
            while left:
                if not self._attempt(seeder.link, left).completed:
                    left -= 1
                    if left % PROGRESS_KILLS == 0:
                        print(f"  {left} kills left", file=sys.stderr)
        ordeal.sent_bytes += seeder.sent
        if not self._fresh:
            with seeding(self._home, None) as seeder:
                while not self._run(seeder.link, None, None).completed:
                    pass
            ordeal.sent_bytes += seeder.sent
        ordeal.wall_s = time.perf_counter() - began
        return ordeal

    def _attempt(self, link: str, number: int) -> Attempt:
        """Run once and kill: while it starts, or after its first block, in turn."""
        where = self._rng.random()
        fresh = self._fresh
        if number % 2:
            attempt = self._run(link, where * self._window_s, None)
        else:
            attempt = self._run(link, None, where * AFTER_S)
            if attempt.first_block_s is not None and not fresh:
                self.ordeal.resumed.append(attempt)
                times = [each.first_block_s or 0.0 for each in self.ordeal.resumed]
                self._window_s = statistics.median(times)
        if attempt.first_block_s is not None and not attempt.completed:
            self.ordeal.in_transfer += 1
        return attempt

    def _run(self, link: str, kill_at_s: float | None, after_s: float | None) -> Attempt:
        """Run once; if that completes the fetch, compare the copy and make room for another."""
        copy = self._work / "copy"
        words = ["get", link, "--to", copy]
        argv = sbp2p_process.command(self._work / "leecher", *words)
        self._fresh = False
        attempt = Runner(argv, kill_at_s=kill_at_s, after_s=after_s).finish()
        if attempt.completed:
            self.ordeal.fetches += 1
            self.ordeal.wrong_bytes += differing_bytes(self._source, copy / self._source.name)
            fresh_folder("resume", "copy").rmdir()
            fresh_folder("resume", "leecher").rmdir()
            self._fresh = True
        return attempt


def differing_bytes(source: Path, copy: Path) -> int:
    """Return how many bytes of the copy are not those of the source; missing ones count."""
    count = abs(source.stat().st_size - copy.stat().st_size)
    with source.open("rb") as one, copy.open("rb") as other:
        while True:
            left, right = one.read(MIB), other.read(MIB)
            length = min(len(left), len(right))
            if not length:
                return count
            pair = [np.frombuffer(each[:length], np.uint8) for each in (left, right)]
            count += int(np.count_nonzero(pair[0] != pair[1]))


def import_seconds() -> float:
    """Return the median time that a process takes to start and to import what `get` needs."""
    program = "import sbp2p.cli.app, sbp2p.cli.get, sbp2p.cli.serving; from sbp2p.node import Node"
    return statistics.median(run([sys.executable, "-c", program]).wall_s for _ in range(5))


def claims_of(ordeal: Ordeal) -> list[Claim]:
    """Return what this benchmark claims, from all kills of one run."""
    times = sorted(each.first_block_s or 0.0 for each in ordeal.resumed)
    claims = [
        _figure("wrong_bytes", ordeal.wrong_bytes, "bytes", 0),
        _figure("refetched_mib_per_kill", ordeal.refetched_mib / ordeal.kills, "MiB", 8),
    ]
    if ordeal.in_transfer:
        value = ordeal.refetched_mib / ordeal.in_transfer
        claims.append(_figure("refetched_mib_per_kill_in_transfer", value, "MiB"))
    if times:
        claims.append(_figure("seconds_to_resume", statistics.median(times), "s", 1))
        claims.append(_figure("seconds_to_resume_95", times[len(times) * 95 // 100], "s"))
        steps = [each.steps() for each in ordeal.resumed]
        for step in STEPS:
            value = statistics.median(each[step] for each in steps)
            claims.append(_figure(f"  of_this_{step}", value, "s"))
    return claims


def _figure(name: str, value: float, unit: str, target: float | None = None) -> Claim:
    return Claim(name=name, value=value, unit=unit, target=target, better="lower")


def main() -> int:
    """Kill, print the table and the claims."""
    made = parser(__doc__ or "")
    made.add_argument("--kills", type=int, metavar="N", help=f"default {FULL_KILLS}")
    made.add_argument("--seed", type=int, default=1, help="of the moments; default 1")
    made.add_argument("--limit", default=RATE, help=f"of the seeder; default {RATE}; 0 is none")
    args = made.parse_args()
    source = model_file(QUICK_BYTES if args.quick else FULL_BYTES)
    kills = args.kills or (QUICK_KILLS if args.quick else FULL_KILLS)
    limit = None if args.limit == "0" else args.limit
    ordeal = Killer(source, kills, args.seed).run(limit)
    samples = {
        "to the first block": [
            Sample(
                seconds=each.first_block_s or 0.0,
                cpu_s={"leecher": each.usage.cpu_s},
                rss_mb={"leecher": each.usage.rss_mb},
            )
            for each in ordeal.resumed
        ]
    }
    if ordeal.resumed:
        print_table(samples, gigabytes=None)
    extra = {
        "kills": ordeal.kills,
        "kills_in_transfer": ordeal.in_transfer,
        "fetches": ordeal.fetches,
        "seed": args.seed,
        "limit": limit,
        "wall_s": ordeal.wall_s,
        "import_s": import_seconds(),
    }
    print(f"{kills} kills in {ordeal.wall_s:.0f} s, {ordeal.in_transfer} of them in a transfer;")
    print(f"{ordeal.fetches} fetches; starting and importing alone: {extra['import_s']:.3f} s")
    return report(claims_of(ordeal), samples, json_path=args.json, extra=extra)


if __name__ == "__main__":
    sys.exit(main())

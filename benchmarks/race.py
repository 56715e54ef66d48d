"""One race of the `swarm` benchmark: a seeder, leechers that know only it, and who is done when.

Theory of operation. All processes are started, each on its own host, and say that they are ready;
then every leecher is told to begin, and the clock runs. A leecher that is done goes on serving. The
race is over when every leecher that is alive is done, or has ended, or time is up; then the links'
counters are read, standard inputs are closed, and everybody says what it has sent and is reaped.
The copies are compared with the source outside of the time measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.processes import START_TIMEOUT_S, STOP_TIMEOUT_S, Usage, reap, start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.netns import Host

PATIENCE_FACTOR = 6
"""Fluid limits after which whoever is not done is said to have failed."""
PATIENCE_S = 30.0
READY_S = 4 * START_TIMEOUT_S
"""Seventeen interpreters start at once, and perhaps the machine has other things to do."""
TRACE_S = 2.0


class Team(Protocol):
    """How one tool is run. Made anew for each race, with its own empty folder."""

    def seeder(self, host: Host) -> list[str]:
        """Return the argv of the seeder."""

    def leecher(self, host: Host, number: int) -> list[str]:
        """Return the argv of a leecher."""

    def signal(self, number: int, addresses: Sequence[str]) -> dict[str, Any]:
        """Return what a leecher is told to begin with; `addresses` are all, the seeder's first."""

    def copy(self, number: int) -> Path:
        """Return where that leecher puts the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What happens in a race."""

    size: int
    """Bytes of the file."""
    digest: str
    """SHA-256 of the file."""
    limit_s: float
    """The fluid limit: no way of sharing ends sooner."""
    killed: tuple[int, ...] = ()
    """Leechers that are killed when half of the fluid limit is over."""


@dataclass(frozen=True, slots=True)
class LinkUse:
    """How full each link was, up and down, in the time up to `at_s`, as a share of its rate."""

    at_s: float
    up: list[float]
    down: list[float]


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What came of a race."""

    finished_s: list[float | None]
    """Seconds from the start to the complete file, for each leecher; None if it was killed, did
    not finish in time, or ended early."""
    killed: tuple[int, ...]
    size: int
    """Bytes of the file."""
    limit_s: float
    waited_s: float
    """When the race was over, or given up."""
    seeder_link_bytes: int
    """What the seeder's link carried upwards until the last one was done, headers included."""
    seeder_payload_bytes: int
    """Bytes of the file that the seeder sent, by its own account."""
    received_bytes: int
    """Bytes of the file that leechers who finished received, by their own account."""
    link_down_bytes: list[int]
    """What each leecher's link carried downwards, headers included."""
    cpu_s: dict[str, float] = field(default_factory=dict)
    rss_mb: dict[str, float] = field(default_factory=dict)
    link_use: list[LinkUse] = field(default_factory=list)
    """How full the links were over time, if that was to be traced."""
    idle_share: float = 0.0
    """Of all cores' time during the race: near 0 the cores were the limit, not the links."""

    @property
    def survivors(self) -> int:
        """How many leechers were not killed."""
        return len(self.finished_s) - len(self.killed)

    @property
    def done(self) -> list[float]:
        """The times of those who finished."""
        return [seconds for seconds in self.finished_s if seconds is not None]

    @property
    def all_finished(self) -> bool:
        """Whether every leecher that was not killed finished."""
        return len(self.done) == self.survivors

    @property
    def last_s(self) -> float:
        """When the last one was done, or the race was given up because one never was."""
        return max(self.done) if self.all_finished and self.done else self.waited_s

    @property
    def duplicate_share(self) -> float:
        """Bytes received twice, over those that were needed; tree nodes count as duplicates."""
        needed = self.size * len(self.done)
        return max(0, self.received_bytes - needed) / needed if needed else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as the JSON report holds it."""
        rounded = [None if each is None else round(each, 3) for each in self.finished_s]
        return {**asdict(self), "finished_s": rounded}


class _Runner:
    """One process; its events go to a queue that all share, and None when its output ends."""

    def __init__(
        self, argv: Sequence[str], events: queue.SimpleQueue[tuple[_Runner, dict[str, Any] | None]]
    ) -> None:
        self.usage = Usage()
        self.ready: dict[str, Any] = {}
        self.finished: dict[str, Any] | None = None
        self.end: dict[str, Any] = {}
        self.ended = False
        self.process = start(argv, stdin=subprocess.PIPE, stderr=None, env=None)
        self._thread = threading.Thread(target=self._read, args=(events,), daemon=True)
        self._thread.start()

    def _read(self, events: queue.SimpleQueue[tuple[_Runner, dict[str, Any] | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                events.put((self, json.loads(line)))
        events.put((self, None))

    def take(self, event: dict[str, Any] | None) -> None:
        """Note an event."""
        match event:
            case None:
                self.ended = True
            case {"event": "ready"}:
                self.ready = event
            case {"event": "finished"}:
                self.finished = event
            case {"event": "end"}:
                self.end = event
            case _:
                pass

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End it at once."""
        if self.process.returncode is None:
            os.kill(self.process.pid, signal.SIGKILL)

    def close_input(self) -> None:
        """Ask it to end."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def reap(self) -> None:
        """Wait for its end, up to a bound, and fill in what it cost."""
        force = threading.Timer(STOP_TIMEOUT_S, self.kill)
        force.start()
        try:
            reap(self.process, self.usage)
        finally:
            force.cancel()
            self._thread.join()
            assert self.process.stdout is not None
            self.process.stdout.close()


class Race:
    """Runs one team over hosts, the first of which is the seeder's."""

    def __init__(
        self, team: Team, hosts: Sequence[Host], plan: Plan, *, trace: bool = False
    ) -> None:
        """Take what a race needs; with `trace`, which costs a tenth of a core, watch the links."""
        self._team = team
        self._trace = trace
        self._link_use: list[LinkUse] = []
        self._over = threading.Event()
        self._hosts = hosts
        self._plan = plan
        self._events: queue.SimpleQueue[tuple[_Runner, dict[str, Any] | None]] = queue.SimpleQueue()
        self._runners: list[_Runner] = []
        self._killed: set[_Runner] = set()

    def run(self) -> Outcome:
        """Run to the end and compare the copies; every process is gone afterwards."""
        try:
            began, idle_before = self._begin()
            tracer = threading.Thread(target=self._trace_links, args=(began,))
            if self._trace:
                tracer.start()
            self._wait_done(began)
            waited = time.monotonic() - began
            idle = (_idle_s() - idle_before) / waited / (os.cpu_count() or 1)
            traffic = [host.traffic() for host in self._hosts]
            self._over.set()
            if self._trace:
                tracer.join()
        except BaseException:
            for runner in self._runners:
                runner.kill()
            raise
        finally:
            self._over.set()
            for runner in self._runners:
                runner.close_input()
            for runner in self._runners:
                runner.reap()
        self._drain()
        self._check_copies()
        seeder, *leechers = self._runners
        done = [each.finished for each in leechers if each.finished and each not in self._killed]
        return Outcome(
            finished_s=[
                each.finished["at"] - began if each.finished and each not in self._killed else None
                for each in leechers
            ],
            killed=self._plan.killed,
            size=self._plan.size,
            limit_s=self._plan.limit_s,
            waited_s=waited,
            seeder_link_bytes=traffic[0].up,
            seeder_payload_bytes=seeder.end.get("payload_sent", 0),
            received_bytes=sum(each["payload_bytes"] for each in done),
            link_down_bytes=[each.down for each in traffic[1:]],
            cpu_s={
                "seeder": seeder.usage.cpu_s,
                "leechers": sum(each.usage.cpu_s for each in leechers),
            },
            rss_mb={
                "seeder": seeder.usage.rss_mb,
                "leechers": max(each.usage.rss_mb for each in leechers),
            },
            link_use=self._link_use,
            idle_share=max(0.0, idle),
        )

    def _begin(self) -> tuple[float, float]:
        """Start everybody, and give the signal; returns when, and the cores' idle seconds."""
        first, *others = self._hosts
        argvs = [self._team.seeder(first)]
        argvs += [self._team.leecher(host, number) for number, host in enumerate(others)]
        for host, argv in zip(self._hosts, argvs, strict=True):
            self._runners.append(_Runner(host.command(argv), self._events))
        self._wait(lambda: all(each.ready for each in self._runners), READY_S)
        addresses = [each.ready["address"] for each in self._runners]
        lines = [json.dumps(self._team.signal(number, addresses)) for number in range(len(others))]
        began, idle = time.monotonic(), _idle_s()
        for runner, line in zip(self._runners[1:], lines, strict=True):
            runner.tell(line)
        return began, idle

    def _wait_done(self, began: float) -> None:
        """Wait until the race is over; kill who is to be killed, half way."""
        leechers = self._runners[1:]

        def over() -> bool:
            return all(each.finished or each.ended for each in leechers)

        if self._plan.killed:
            half = began + self._plan.limit_s / 2 - time.monotonic()
            self._wait(over, half, required=False)
            self._killed = {leechers[number] for number in self._plan.killed}
            for runner in self._killed:
                runner.kill()
        end = began + PATIENCE_FACTOR * self._plan.limit_s + PATIENCE_S
        self._wait(over, end - time.monotonic(), required=False)

    def _trace_links(self, began: float) -> None:
        """Note every TRACE_S how full the links were since the last time."""
        at, before = began, [host.traffic() for host in self._hosts]
        while not self._over.wait(TRACE_S):
            now, traffic = time.monotonic(), [host.traffic() for host in self._hosts]
            both = list(zip(self._hosts, before, traffic, strict=True))
            up = [8 * (new.up - old.up) / (now - at) / host.link.up for host, old, new in both]
            down = [
                8 * (new.down - old.down) / (now - at) / host.link.down for host, old, new in both
            ]
            self._link_use.append(LinkUse(now - began, _rounded(up), _rounded(down)))
            at, before = now, traffic

    def _wait(
        self, condition: Callable[[], bool], seconds: float, *, required: bool = True
    ) -> None:
        """Take events until the condition holds or time is up."""
        end = time.monotonic() + seconds
        while not condition():
            try:
                runner, event = self._events.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                if required:
                    raise SystemExit("a peer did not get ready in time") from None
                return
            runner.take(event)
            if required and event is None:
                raise SystemExit("a peer ended before it was ready")

    def _drain(self) -> None:
        while not self._events.empty():
            runner, event = self._events.get()
            runner.take(event)

    def _check_copies(self) -> None:
        for number, runner in enumerate(self._runners[1:]):
            if runner.finished is None or runner in self._killed:
                continue
            copy = self._team.copy(number)
            if sha256(copy) != self._plan.digest:
                raise SystemExit(f"{copy} does not have the bytes of the source")


def sha256(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, hashlib.sha256).hexdigest()


def fluid_limit(size: int, seeder_up: float, ups: Sequence[float], downs: Sequence[float]) -> float:
    """Return the least seconds in which all can have the file, by any way of sharing.

    Kumar and Ross (2006): the seeder has to send it once, the slowest has to receive it, and all
    links upwards together have to carry it once for each leecher. Rates in bytes a second.
    """
    return max(
        size / seeder_up,
        size / min(downs),
        len(downs) * size / (seeder_up + sum(ups)),
    )


def table_row(name: str, outcome: Outcome) -> str:
    """Return one line of the table of races."""
    times = sorted(outcome.done) or [float("nan")]
    limit = outcome.limit_s
    cpu = sum(outcome.cpu_s.values())
    return (
        f"{name:<30}{limit:8.1f}{times[0]:8.1f}{times[len(times) // 2]:8.1f}{times[-1]:8.1f}"
        f"{times[-1] / limit:8.3f}{len(outcome.done):>5}/{outcome.survivors:<3}"
        f"{outcome.seeder_link_bytes / outcome.size:8.2f}"
        f"{outcome.seeder_payload_bytes / outcome.size:8.2f}"
        f"{100 * outcome.duplicate_share:8.2f}{cpu:8.1f}{100 * outcome.idle_share:7.0f}"
    )


TABLE_HEAD = (
    f"{'':<30}{'T* s':>8}{'first':>8}{'median':>8}{'last':>8}{'/T*':>8}{'done':>8} "
    f"{'up/F':>8}{'payl/F':>8}{'dup %':>8}{'CPU s':>8}{'idle %':>7}"
)


def print_link_use(outcome: Outcome) -> None:
    """Print how full the links were over time, in percent, the seeder's first."""
    for use in outcome.link_use:
        columns = [" ".join(f"{100 * each:4.0f}" for each in side) for side in (use.up, use.down)]
        print(f"{use.at_s:8.1f} s   up {columns[0]}   down {columns[1]}")


def _rounded(shares: Sequence[float]) -> list[float]:
    return [round(each, 3) for each in shares]


def _idle_s() -> float:
    """Return the idle seconds of all cores since the machine started."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")

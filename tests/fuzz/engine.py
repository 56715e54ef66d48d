"""The fuzzing loop: seeds, mutants, what a target may do with them, and what is reported.

Theory of operation. A target is a function of bytes that returns when it is content and raises when
its parser did something that no bytes may make it do. The loop mutates a corpus that starts with
valid encodings. Guided, it keeps every mutant that ran a new line of the code under test; blind, it
keeps none. Every MEMORY_EVERY-th input is measured for the memory at its peak.

A finding is one exception at one place: the first input that gave it, made as short as it goes.
Same target, seed, guidance and number of runs: same inputs, same findings.
"""

from __future__ import annotations

import signal
import time
import traceback
import tracemalloc
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from .coverage_lines import LineTracer
from .mutate import Mutation, havoc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = (
    ROOT / "keys" / "sbp2p_keys",
    ROOT / "protocol" / "sbp2p_protocol",
    ROOT / "sbp2p",
)

MEMORY_EVERY: Final = 64
MEMORY_MAX: Final = 4 * 1024 * 1024
"""Bytes that one input may make a target hold at once, unless the target says otherwise."""

_TRACE_WHILE: Final = 100
"""Inputs without a new line after which only some are traced: tracing takes most of the time."""
_TRACE_EVERY: Final = 8

_MINIMIZE_RUNS: Final = 2000
_PRINTED_MAX: Final = 1024


class UnexpectedError(AssertionError):
    """Something that holds for every input did not; the message says what."""


class TooSlowError(UnexpectedError):
    """An input took longer than a target's time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parser, or one machine in one role.

    Attributes:
        name: what the command line calls it.
        modules: the parsers it is for; the tests check that its seeds reach them.
        check: runs the parser on an input; raises whatever the parser should not have done.
        seeds: valid inputs, and invalid ones worth starting from.
        mutations: those that know the format; half of all mutants come from them.
        tokens: bytes that mean something to the parser.
        max_size: bytes in an input.
        memory_max: bytes the check may hold at its peak.
        test_runs: mutants in the test suite; about 0.2 s of them.
    """

    name: str
    modules: tuple[str, ...]
    check: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    mutations: tuple[Mutation, ...] = ()
    tokens: tuple[bytes, ...] = ()
    max_size: int = 4096
    memory_max: int = MEMORY_MAX
    test_runs: int = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """What went wrong, and the bytes that show it."""

    target: str
    data: bytes
    error: BaseException

    def report(self) -> str:
        """Return the trace and a command that repeats it."""
        trace = "".join(traceback.format_exception(self.error))
        lines = [line if len(line) <= 400 else f"{line[:400]}..." for line in trace.splitlines()]
        short = len(self.data) <= _PRINTED_MAX
        source = f"hex:{self.data.hex()}" if short else "FILE (written by --save FOLDER)"
        lines.append(f"{self.target}: {len(self.data)} bytes; again with")
        lines.append(f"  python -m tests.fuzz {self.target} --input {source}")
        return "\n".join(lines)


@dataclass(slots=True)
class Report:
    """What a run did."""

    runs: int = 0
    seconds: float = 0.0
    corpus: int = 0
    lines: int = 0
    slowest_s: float = 0.0
    peak_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)


class Fuzzer:
    """Runs one target.

    Args:
        target: what to run.
        seed: of all random choices.
        guided: keep mutants that reach new lines. Costs time at first, and finds more.
        limit_s: seconds that one input may take; None does not watch (and works in any thread).
    """

    def __init__(
        self, target: Target, *, seed: int, guided: bool = False, limit_s: float | None = None
    ) -> None:
        self.target = target
        self.report = Report()
        self._rng = Random(f"{target.name} {seed}")  # noqa: S311
        self._tracer = LineTracer(SOURCES) if guided else None
        self._limit_s = limit_s
        self._corpus: list[bytes] = []
        self._places: set[str] = set()
        self._last_news = 0

    @property
    def reached(self) -> dict[str, set[int]]:
        """Lines that ran, by source file; empty when not guided."""
        return {} if self._tracer is None else self._tracer.reached

    def run_seeds(self) -> None:
        """Run the seeds, in order; they are the first corpus."""
        for data in self.target.seeds():
            self._try(data)
            self._corpus.append(data)
        if not self._corpus:
            raise ValueError(f"{self.target.name} has no seeds")
        self.report.corpus = len(self._corpus)

    def run(self, *, runs: int | None = None, seconds: float | None = None) -> Report:
        """Run the seeds and then mutants, `runs` of them or for `seconds`."""
        start = time.perf_counter()
        self.run_seeds()
        while runs is None or self.report.runs < runs:
            if seconds is not None and time.perf_counter() - start >= seconds:
                break
            self.report.runs += 1
            data = self._mutant()
            if self._try(data, measure=self.report.runs % MEMORY_EVERY == 0):
                self._corpus.append(data)
        self.report.seconds = time.perf_counter() - start
        self.report.corpus = len(self._corpus)
        return self.report

    def check(self, data: bytes) -> BaseException | None:
        """Run one input; return what it raised."""
        try:
            with _watched(self._limit_s):
                self.target.check(data)
        except Exception as error:
            return error
        return None

    def _try(self, data: bytes, *, measure: bool = False) -> bool:
        """Run one input and note what it did; returns whether it reached a new line."""
        runs = self.report.runs
        traced = runs - self._last_news < _TRACE_WHILE or runs % _TRACE_EVERY == 0
        tracer = self._tracer if traced else None
        begun = time.perf_counter()
        with tracer or nullcontext():
            error = self._measured(data) if measure else self.check(data)
        self.report.slowest_s = max(self.report.slowest_s, time.perf_counter() - begun)
        if error is not None:
            self._note(data, error)
        if tracer is None or tracer.count == self.report.lines:
            return False
        self.report.lines = tracer.count
        self._last_news = runs
        return True

    def _measured(self, data: bytes) -> BaseException | None:
        tracemalloc.start()
        try:
            error = self.check(data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        self.report.peak_bytes = max(self.report.peak_bytes, peak)
        if error is None and peak > self.target.memory_max:
            error = UnexpectedError(f"{len(data)} bytes made the parser hold {peak} bytes")
        return error

    def _mutant(self) -> bytes:
        rng, corpus = self._rng, self._corpus
        # what was found last has been tried least
        fresh = rng.random() < 0.3
        data = corpus[-1 - int(len(corpus) * rng.random() ** 3)] if fresh else rng.choice(corpus)
        if self.target.mutations and rng.random() < 0.5:
            try:
                for _ in range(1 + rng.randrange(3)):
                    data = rng.choice(self.target.mutations)(rng, data)
            except ValueError:
                data = havoc(rng, data, corpus, self.target.tokens)
        else:
            data = havoc(rng, data, corpus, self.target.tokens)
        return data[: self.target.max_size]

    # -- findings ---------------------------------------------------------------------------

    def _note(self, data: bytes, error: BaseException) -> None:
        place = _place(error)
        if place in self._places:
            return
        self._places.add(place)
        shortest, error = self._minimize(data, error, place)
        self.report.findings.append(Finding(self.target.name, shortest, error))

    def _minimize(
        self, data: bytes, error: BaseException, place: str
    ) -> tuple[bytes, BaseException]:
        """Drop parts of the input for as long as it fails in the same place."""
        left = _MINIMIZE_RUNS if not isinstance(error, TooSlowError) else 0
        size = max(1, len(data) // 2)
        while left:
            at, shorter = 0, False
            while at < len(data) and left:
                left -= 1
                candidate = data[:at] + data[at + size :]
                again = self.check(candidate)
                if again is not None and _place(again) == place:
                    data, error, shorter = candidate, again, True
                else:
                    at += size
            if size == 1 and not shorter:
                break
            size = max(1, size // 2)
        return data, error


def _place(error: BaseException) -> str:
    """Return what tells two findings apart: the kind of error and the lines it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(ROOT)]
    last = [f"{frame.filename}:{frame.lineno}" for frame in own[-2:]]
    return " ".join([type(error).__name__, *last])


@contextmanager
def _watched(limit_s: float | None) -> Iterator[None]:
    """Interrupt Python code that runs too long; works in the main thread only."""
    if limit_s is None:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"not done after {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

"""Every fuzz target, briefly and the same each time; and that no parser is without one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sbp2p.checkpoint.formats.layout import MalformedError
from sbp2p_keys.errors import KeysError
from sbp2p_protocol.errors import RemoteProtocolError
from tests.fuzz.coverage_lines import LineTracer
from tests.fuzz.engine import ROOT, SOURCES, Fuzzer, Target, UnexpectedError
from tests.fuzz.expect import attempt, cuts, same_for_all_cuts
from tests.fuzz.registry import TARGETS

if TYPE_CHECKING:
    from types import ModuleType

_PACKAGES = ("sbp2p_keys", "sbp2p_protocol", "sbp2p.checkpoint.formats")

_ERRORS = (KeysError, RemoteProtocolError, MalformedError)
"""What parsers raise; a module that names none of them refuses no bytes."""

_NO_PARSER = {
    "sbp2p_keys.errors": "defines the errors",
    "sbp2p_protocol.errors": "defines the errors",
    "sbp2p_protocol.events": "carries an error in an event",
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_no_mutant_does_what_no_bytes_may_do(target: Target) -> None:
    report = Fuzzer(target, seed=1).run(runs=target.test_runs)
    assert not report.findings, report.findings[0].report()


def test_targets_reach_the_modules_they_are_for() -> None:
    """Some seeds alone run a part of each module: no target only names it."""
    with LineTracer(SOURCES) as tracer:
        for target in TARGETS.values():
            for data in target.seeds()[:3]:
                target.check(data)
    for module in _covered():
        path = inspect.getsourcefile(module) or ""
        assert len(tracer.reached.get(path, ())) >= 5, f"no seed reaches {module.__name__}"


def test_every_parser_module_has_a_target() -> None:
    covered = {module.__name__ for module in _covered()}
    found = [name for name in _modules() if _raises(importlib.import_module(name))]
    missing = [name for name in found if name not in covered and name not in _NO_PARSER]
    assert not missing, f"no target in tests/fuzz names {missing}"
    assert len(found) > 25


def _covered() -> list[ModuleType]:
    names = {name for target in TARGETS.values() for name in target.modules}
    return [importlib.import_module(name) for name in sorted(names)]


def _modules() -> list[str]:
    names = []
    for package in _PACKAGES:
        root = importlib.import_module(package)
        names += [module.name for module in pkgutil.iter_modules(root.__path__, f"{package}.")]
    return [name for name in names if not name.endswith(".pb")]


def _raises(module: ModuleType) -> bool:
    values = vars(module).values()
    return any(isinstance(value, type) and issubclass(value, _ERRORS) for value in values)


# -- the engine itself -----------------------------------------------------------------------------


def _target(check: object, **options: object) -> Target:
    return Target(name="sample", modules=(), check=check, **options)  # type: ignore[arg-type]


def test_a_run_can_be_repeated() -> None:
    def inputs(seed: int) -> list[bytes]:
        seen: list[bytes] = []
        target = _target(seen.append, seeds=lambda: [b"one", b"two and more"])
        Fuzzer(target, seed=seed).run(runs=50)
        return seen

    assert inputs(1) == inputs(1)
    assert inputs(1) != inputs(2)


def test_a_finding_is_made_short_and_reported_once() -> None:
    def check(data: bytes) -> None:
        if b"!" in data:
            raise IndexError("a bug")

    target = _target(check, seeds=lambda: [b"some bytes! and more", b"also this!"])
    (finding,) = Fuzzer(target, seed=1).run(runs=10).findings
    assert finding.data == b"!"
    assert "IndexError: a bug" in finding.report()
    assert "sample --input hex:21" in finding.report()


def test_memory_and_time_are_watched() -> None:
    def hold(data: bytes) -> None:
        bytearray(100_000)

    report = Fuzzer(_target(hold, seeds=lambda: [b""], memory_max=50_000), seed=1).run(runs=64)
    assert "made the parser hold" in str(report.findings[0].error)
    assert report.peak_bytes > 100_000

    def hang(data: bytes) -> None:
        while data:
            pass

    error = Fuzzer(_target(hang, seeds=lambda: [b"x"]), seed=1, limit_s=0.05).check(b"x")
    assert "not done after 0.05 s" in str(error)


def test_guided_runs_keep_what_reaches_new_lines() -> None:
    target = TARGETS["dag_cbor"]
    seeds = Fuzzer(target, seed=1, guided=True).run(runs=0)
    report = Fuzzer(target, seed=1, guided=True).run(runs=200)
    assert report.lines > seeds.lines > 50
    assert report.corpus > seeds.corpus == len(target.seeds())


def test_a_line_is_new_once() -> None:
    def absolute(number: int) -> int:
        if number < 0:
            return -number
        return number

    with LineTracer([Path(__file__).parent]) as tracer:
        absolute(1)
        first = tracer.count
        absolute(1)
        again = tracer.count
        absolute(-1)
        other = tracer.count
    assert (again, other) == (first, first + 1)


def test_errors_of_another_kind_are_findings() -> None:
    def careless() -> None:
        raise KeyError("not an error of this layer")

    with pytest.raises(KeyError):
        attempt(RemoteProtocolError, careless)

    def vague() -> None:
        raise KeysError("the root is never raised")

    with pytest.raises(UnexpectedError, match="never raised itself"):
        attempt(KeysError, vague)

    def noisy() -> None:
        raise RemoteProtocolError("\x1b[2J clears the screen")

    with pytest.raises(UnexpectedError, match="does not print"):
        attempt(RemoteProtocolError, noisy)


def test_cuts_lose_nothing_and_differences_are_findings() -> None:
    for size in (0, 1, 500, 5000):
        data = bytes(number % 251 for number in range(size))
        whole, single, pieces = cuts(data)
        assert b"".join(whole) == b"".join(single) == b"".join(pieces) == data
        assert len(single) >= min(size, 500)
    assert same_for_all_cuts(b"".join, b"abc") == b"abc"
    with pytest.raises(UnexpectedError, match="depends on how the stream is cut"):
        same_for_all_cuts(len, b"abc" * 100)


def test_the_command_line() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.fuzz", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    done = run("ping", "--runs", "10", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert "10 runs" in done.stdout
    assert "findings 0" in done.stdout
    assert run("no-such-target").returncode == 2


def test_the_sources_are_where_the_tracer_looks() -> None:
    assert all((folder / "__init__.py").is_file() for folder in SOURCES)

"""`python -m tests.fuzz [NAME...] --seconds N --seed S`: fuzz some targets, or all, one by one.

NAME is a target or a glob of targets. Prints a line a target and every finding with its trace and
the command that repeats it. Exit status: 0 nothing found, 1 findings, 2 a name that is none.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from . import atheris_mode
from .coverage_lines import lines_of_functions
from .engine import Finding, Fuzzer, Target

_LIMIT_S = 20.0
"""Seconds after which one input counts as a hang; the slowest honest one takes some 0.1."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    targets = _targets(options)
    if targets is None:
        return 2
    first = next(iter(targets.values()))
    if options.list:
        for target in targets.values():
            _say(f"{target.name:26} {', '.join(target.modules)}")
        return 0
    if options.input is not None:
        return _run_input(first, options.input)
    if options.atheris:
        atheris_mode.run(first, options.seconds)
        return 0
    failed = [_run(target, options) for target in targets.values()]
    return int(any(failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="targets or globs; all if none")
    parser.add_argument("--seconds", type=float, default=10.0, help="per target (default 10)")
    parser.add_argument("--runs", type=int, help="mutants per target, in place of --seconds")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices (default 1)")
    parser.add_argument("--blind", action="store_true", help="do not look which lines are reached")
    parser.add_argument("--input", metavar="FILE", help="run one input: a file, or hex:...")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write findings here, too")
    parser.add_argument("--missing", action="store_true", help="print the lines not reached")
    parser.add_argument("--list", action="store_true", help="list the targets and their modules")
    parser.add_argument("--atheris", action="store_true", help="let atheris drive one target")
    return parser


def _targets(options: argparse.Namespace) -> dict[str, Target] | None:
    """Return the targets that are asked for; None when there is one that does not exist."""
    if options.atheris:
        try:
            targets = atheris_mode.load_targets()
        except ImportError:
            sys.stderr.write("atheris is not here: `pip install atheris`, or without --atheris\n")
            return None
    else:
        from .registry import TARGETS as targets  # noqa: N811  # atheris must come before it
    for pattern in options.names:
        if not any(fnmatchcase(name, pattern) for name in targets):
            sys.stderr.write(f"no target is called {pattern!r}: see --list\n")
            return None
    patterns = options.names or ["*"]
    return {
        name: target
        for name, target in targets.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def _run_input(target: Target, text: str) -> int:
    data = bytes.fromhex(text[4:]) if text.startswith("hex:") else Path(text).read_bytes()
    error = Fuzzer(target, seed=0, limit_s=_LIMIT_S).check(data)
    if error is None:
        _say(f"{target.name}: {len(data)} bytes, nothing wrong")
        return 0
    _say(Finding(target.name, data, error).report())
    return 1


def _run(target: Target, options: argparse.Namespace) -> bool:
    fuzzer = Fuzzer(target, seed=options.seed, guided=not options.blind, limit_s=_LIMIT_S)
    seconds = None if options.runs is not None else options.seconds
    report = fuzzer.run(runs=options.runs, seconds=seconds)
    _say(
        f"{target.name:26} {report.runs:8} runs {report.runs / report.seconds:7.0f}/s"
        f"  corpus {report.corpus:4}  lines {report.lines:5}"
        f"  slowest {report.slowest_s * 1000:6.1f} ms  peak {report.peak_bytes / 1024:7.0f} KiB"
        f"  findings {len(report.findings)}"
    )
    if options.missing and not options.blind:
        _say_missing(target, fuzzer.reached)
    for number, finding in enumerate(report.findings):
        _say(finding.report())
        if options.save is not None:
            options.save.mkdir(parents=True, exist_ok=True)
            (options.save / f"{target.name}-{number}").write_bytes(finding.data)
    return bool(report.findings)


def _say_missing(target: Target, reached: dict[str, set[int]]) -> None:
    for name in target.modules:
        path = inspect.getsourcefile(importlib.import_module(name)) or ""
        missing = lines_of_functions(path) - reached.get(path, set())
        _say(f"  {name}: {' '.join(map(str, sorted(missing)))}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

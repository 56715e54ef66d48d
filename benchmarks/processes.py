"""Starting, stopping and accounting for the processes that the benchmarks run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
_MAXRSS_PER_MIB = 2**20 if sys.platform == "darwin" else 2**10
"""getrusage(2) counts bytes on macOS and KiB elsewhere."""


class PeerMissingError(SystemExit):
    """A peer is not installed: `make bench-deps` installs it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not installed: run `make bench-deps` first")


@dataclass(slots=True)
class Usage:
    """What one process cost: CPU seconds (user and system) and peak resident megabytes."""

    cpu_s: float = 0.0
    rss_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended well."""

    output: str
    wall_s: float
    usage: Usage


def require(path: Path | str, name: str) -> str:
    """Return `path` as text when the peer is there, or say how to install it."""
    if not Path(path).exists():
        raise PeerMissingError(name)
    return str(path)


def start(
    argv: Sequence[str], *, stdin: int, stderr: int | None, env: Mapping[str, str] | None
) -> subprocess.Popen[str]:
    """Start a process whose output is read through a pipe."""
    # A child's peak counts from before its exec, when it still has this process's memory: forget
    # this process's own peak (proc(5), clear_refs), so that what is left is what it holds now.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return subprocess.Popen(
        list(argv),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **(env or {})},
    )


def reap(process: subprocess.Popen[str], usage: Usage) -> int:
    """Wait for the process, fill in what it cost, and return its exit code."""
    _, status, spent = os.wait4(process.pid, 0)
    usage.cpu_s = spent.ru_utime + spent.ru_stime
    usage.rss_mb = spent.ru_maxrss / _MAXRSS_PER_MIB
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode


def stop(process: subprocess.Popen[str], usage: Usage) -> None:
    """Ask a process to end, make it if it does not, and fill in what it cost."""
    # os.kill: the methods of Popen would reap a process that is gone already, and its usage with it
    os.kill(process.pid, signal.SIGTERM)
    force = threading.Timer(STOP_TIMEOUT_S, os.kill, (process.pid, signal.SIGKILL))
    force.start()
    try:
        reap(process, usage)
    finally:
        force.cancel()


def run(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Finished:
    """Run a command to its end; raise with its output if it fails."""
    usage = Usage()
    started = time.perf_counter()
    process = start(argv, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, env=env)
    assert process.stdout is not None
    with process.stdout:
        output = process.stdout.read()
    status = reap(process, usage)
    wall_s = time.perf_counter() - started
    if status != 0:
        raise SystemExit(f"{' '.join(argv)}\nended with {status}:\n{output}")
    return Finished(output, wall_s, usage)


@contextmanager
def server(
    argv: Sequence[str], *, ready: str, env: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Usage]]:
    """Run a server while the block runs; yield its first line that starts with `ready`.

    The server is asked to end by closing its standard input and by SIGTERM; its `Usage` is filled
    in once it has ended, after the block.
    """
    usage = Usage()
    process = start(argv, stdin=subprocess.PIPE, stderr=None, env=env)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = ""
        while not line.startswith(ready):
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"{' '.join(argv)} ended before it was ready")
        yield line.strip(), usage
    finally:
        process.stdin.close()
        stop(process, usage)
        process.stdout.close()

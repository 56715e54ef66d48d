"""sbp2p as the benchmarks run it: the command line, in processes of its own."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.processes import Finished, Usage, run, server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def command(home: Path, *words: object) -> list[str]:
    """Return the argv of one sbp2p command on one home."""
    return [sys.executable, "-m", "sbp2p", *map(str, words), "--home", str(home), "--json"]


def run_json(home: Path, *words: object) -> tuple[dict[str, Any], Finished]:
    """Run a command to its end; return its last event and what it cost."""
    finished = run(command(home, *words))
    lines = [line for line in finished.output.splitlines() if line.startswith("{")]
    event: dict[str, Any] = json.loads(lines[-1])
    return event, finished


@contextmanager
def seeding(home: Path) -> Iterator[tuple[str, Usage]]:
    """Seed everything in `home` on a free loopback port; yield the address to dial."""
    listen = "/ip4/127.0.0.1/tcp/0"
    argv = command(home, "seed", "--listen", listen)
    with server(argv, ready='{"event": "listening"') as (line, usage):
        address: str = json.loads(line)["addresses"][0]
        yield address, usage

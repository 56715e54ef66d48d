"""The demo's hold on `sbp2p` processes: one home each, driven and read by `--json` lines."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

STOP_TIMEOUT_S = 5.0


class DemoError(Exception):
    """A step that did not hold; the message is what the demo prints last."""


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    print(text, flush=True)


def step(title: str) -> None:
    """Print the heading of an act."""
    say(f"\n{title}")


class Running:
    """A started command whose `--json` lines are read as they come."""

    def __init__(self, argv: list[str]) -> None:
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.last: dict[str, Any] = {}

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield one event a line until the command ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last = json.loads(line)
            yield self.last

    def wait(self) -> tuple[int, str]:
        """Read the rest; return the exit status and the error's one line, if any."""
        for _ in self.events():
            pass
        assert self.process.stderr is not None
        complaint = self.process.stderr.read().strip()
        return self.process.wait(), complaint.partition("\n")[0]


class Sbp2p:
    """The command line of one node: everything it knows lies under `home`."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def start(self, command: str, *words: object) -> Running:
        """Start a command and leave it running."""
        options = ["--home", str(self.home), "--json"]
        return Running([sys.executable, "-m", "sbp2p", command, *map(str, words), *options])

    def run(self, command: str, *words: object) -> dict[str, Any]:
        """Run a command to its end; return its last event, or end the demo."""
        running = self.start(command, *words)
        status, complaint = running.wait()
        if status != 0:
            raise DemoError(f"sbp2p {command} ended with {status}: {complaint}")
        return running.last

    def peer_id(self) -> str:
        """Return this node's peer id."""
        return str(self.run("id")["peer"])


class Seeder:
    """`sbp2p seed` for as long as the block runs, on loopback alone."""

    def __init__(self, node: Sbp2p, *options: object) -> None:
        words = ("--listen", "/ip4/127.0.0.1/tcp/0", "--no-lan", *options)
        self._running = node.start("seed", *words)
        self.process = self._running.process
        self.peer = ""
        self.address = ""

    def link(self, cid: str) -> str:
        """Return the link to a version by its manifest, with this seeder's address."""
        return f"sbp2p:{cid}?peer={self.address}"

    def __enter__(self) -> Self:
        for event in self._running.events():
            if event["event"] == "listening":
                self.peer, self.address = event["peer"], event["addresses"][0]
                return self
        _, complaint = self._running.wait()
        raise DemoError(f"sbp2p seed did not start: {complaint}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.terminate()
        try:
            self.process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()

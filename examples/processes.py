"""Processes of an example: started together, heard line by line, and ended for certain.

Each child is one Python module that reads its settings, as JSON, from its one argument and tells
what happens as JSON lines. A child ends when its standard input ends, so it does not outlive this
process whatever becomes of it; it ignores Ctrl-C, which is this process's to handle (`child`).

    with Family(work) as family:
        child = family.start("examples.digits.node", {...})
        for child, event in family.events(until=time.monotonic() + 60):
            ...

Error cases: a child that ends by itself before it has told "done" is an event "died" with the end
of what it wrote to standard error. Children are reaped when the block ends, by whatever way.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

ROOT: Final = Path(__file__).resolve().parent.parent
_STOP_S: Final = 5.0
_TAIL: Final = 2000
_QUIET: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "SBP2P_NO_LAN": "1",
}
"""One core's worth of threads for each child: there are more children than cores."""

Event = dict[str, Any]


class Child:
    """One process, and what it has told."""

    def __init__(self, name: str, module: str, settings: Mapping[str, Any], folder: Path) -> None:
        self.name = name
        self.told: list[Event] = []
        self.killed = self.frozen = False
        self._complaints = folder / f"{name}.stderr"
        paths = [str(ROOT), str(ROOT / "protocol"), str(ROOT / "keys")]
        known = os.environ.get("PYTHONPATH")
        environment = {**os.environ, **_QUIET}
        environment["PYTHONPATH"] = os.pathsep.join([*paths, known] if known else paths)
        with self._complaints.open("wb") as complaints:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(dict(settings))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                cwd=folder,
                env=environment,
            )

    @property
    def is_lost(self) -> bool:
        """Whether it was killed or frozen."""
        return self.killed or self.frozen

    @property
    def is_done(self) -> bool:
        """Whether it has said that it is through."""
        return any(event["event"] == "done" for event in self.told)

    def last(self, kind: str) -> Event | None:
        """Return the newest event of a kind."""
        return next((each for each in reversed(self.told) if each["event"] == kind), None)

    def complaint(self) -> str:
        """Return the end of what it wrote to standard error."""
        return self._complaints.read_bytes()[-_TAIL:].decode(errors="replace").strip()

    def kill(self) -> None:
        """End it without a word, as a machine that loses its power does."""
        self.killed = True
        self.process.kill()

    def freeze(self) -> None:
        """Stop it for good, as it is: to its peers it is there and says nothing."""
        self.frozen = True
        self.process.send_signal(signal.SIGSTOP)

    def go(self) -> None:
        """Let it go on, where it waits for that."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def release(self) -> None:
        """Let it end: it waits for the end of its standard input."""
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()


class Family:
    """Children that end when the block does.

    Args:
        folder: an empty folder for what they write; each child runs in it.
    """

    def __init__(self, folder: Path) -> None:
        self.children: list[Child] = []
        self._folder = folder
        self._events: queue.Queue[tuple[Child, Event]] = queue.Queue()
        self._readers: list[threading.Thread] = []

    def start(self, name: str, module: str, settings: Mapping[str, Any]) -> Child:
        """Start a child; what it tells comes out of `events`."""
        child = Child(name, module, settings, self._folder)
        self.children.append(child)
        reader = threading.Thread(target=self._read, args=(child,), name=name, daemon=True)
        self._readers.append(reader)
        reader.start()
        return child

    def _read(self, child: Child) -> None:
        assert child.process.stdout is not None
        with child.process.stdout as lines:
            for line in lines:
                if line.startswith(b"{"):
                    self._events.put((child, json.loads(line)))
        child.process.wait()
        self._events.put((child, {"event": "ended", "status": child.process.returncode}))

    def events(self, until: float) -> Iterator[tuple[Child, Event]]:
        """Yield what children tell, as it comes, until a moment of `time.monotonic`.

        Ends early when no child is running and everything was yielded.
        """
        while self._events.qsize() or any(each.is_alive() for each in self._readers):
            left = until - time.monotonic()
            if left <= 0:
                return
            with suppress(queue.Empty):
                child, event = self._events.get(timeout=min(left, 0.5))
                if event["event"] == "ended" and not (child.is_done or child.is_lost):
                    event = {**event, "event": "died", "why": child.complaint()}
                child.told.append(event)
                yield child, event

    def release(self) -> None:
        """Let all of them end."""
        for child in self.children:
            child.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
        for child in self.children:
            if child.frozen:
                child.process.kill()
        deadline = time.monotonic() + (_STOP_S if kind is None else 0.5)
        for child in self.children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(deadline - time.monotonic(), 0.01))
        for child in self.children:
            if child.process.poll() is None:
                child.process.kill()
        for reader in self._readers:
            reader.join(_STOP_S)

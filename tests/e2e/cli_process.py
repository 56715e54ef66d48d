"""The command line as a process: one home each, driven as a user or a script drives it."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 60


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without what would change what commands do."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SBP2P_")}
    # no test speaks to the network that its machine is on
    return {**kept, "COLUMNS": "100", "SBP2P_NO_LAN": "1", **more}


class Cli:
    """`sbp2p` with a home of its own."""

    def __init__(self, home: Path, **variables: str) -> None:
        self.home = home
        self._environment = environment(**variables)

    def argv(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "sbp2p", *map(str, words), "--home", str(self.home)]

    def run(self, *words: object, code: int = 0, **variables: str) -> Done:
        """Run a command to its end and check how it ended."""
        done = subprocess.run(
            self.argv(*words),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**self._environment, **variables},
            timeout=TIMEOUT_S,
        )
        result = Done(done.returncode, done.stdout, done.stderr)
        assert result.code == code, result
        assert "Traceback" not in result.err, result.err
        return result

    def json(self, *words: object, code: int = 0) -> Done:
        return self.run(*words, "--json", code=code)

    def start(self, *words: object) -> Running:
        return Running(self.argv(*words, "--json"), self._environment)


class Running:
    """A started command, read event by event; a context manager that leaves no process."""

    def __init__(self, argv: list[str], variables: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_for(self, event: str, **least: int) -> dict[str, Any]:
        """Return the next event of this kind in which some numbers are large enough."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found: dict[str, Any] = json.loads(line)
            if found["event"] == event and all(found[key] >= n for key, n in least.items()):
                return found
        raise AssertionError(f"no {event} event: {self.end()}")

    def interrupt(self, number: int = signal.SIGINT) -> Done:
        self.process.send_signal(number)
        return self.end()

    def end(self) -> Done:
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return Done(self.process.returncode, out, err)


def write_safetensors(path: Path, tensors: dict[str, bytes]) -> None:
    """Write a safetensors file of one-dimensional U8 tensors."""
    header: dict[str, Any] = {}
    offset = 0
    for name, data in tensors.items():
        end = offset + len(data)
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


@contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port of loopback at which nobody answers while the block runs."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


class StallingRelay:
    """Passes bytes on to a port of loopback, and stops for good after some from there."""

    def __init__(self, port: int, limit: int) -> None:
        self._target = port
        self._left = limit
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            # wakes the thread that is blocked in it, which close alone does not
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()

    def _start(self, target: Any, *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [near, far]
            self._start(self._pump, near, far, False)
            self._start(self._pump, far, near, True)

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(65536):
                if counted:
                    data = data[: self._left]
                    self._left -= len(data)
                if not data:
                    return
                sink.sendall(data)
        except OSError:
            return

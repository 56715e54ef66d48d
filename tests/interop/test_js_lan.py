"""js-libp2p on the same LAN: its mDNS finds us and ours finds it, and we dial it back."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.interop.peer_process import HERE, ROOT, command_of
from tests.swarm.test_lan import IP, lan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.interop

TIMEOUT_S = 60
PUBLIC = ("5.5.5.1", "5.5.5.2")
"""Addresses that count as public, and lead nowhere outside of the namespaces."""


class Child:
    """A process in a namespace that speaks in JSON lines."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._buffer = b""

    async def wait_for(self, key: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        while True:
            while b"\n" not in self._buffer:
                data = await self._process.stdout.receive_some()
                assert data, "the process ended"
                self._buffer += data
            line, _, self._buffer = self._buffer.partition(b"\n")
            answer: dict[str, Any] = json.loads(line)
            assert "fault" not in answer, answer
            if key in answer:
                return answer

    async def tell(self, text: str) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send_all(f"{text}\n".encode())


@asynccontextmanager
async def child(namespace: str, *argv: str) -> AsyncIterator[Child]:
    async with trio.open_nursery() as nursery:
        start = partial(
            trio.run_process,
            [IP, "netns", "exec", namespace, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            check=False,
            cwd=ROOT,
        )
        process: trio.Process = await nursery.start(start)
        yield Child(process)
        nursery.cancel_scope.cancel()


async def test_each_finds_the_other_and_we_dial_it_back() -> None:
    node, _ = command_of("js")
    if not (HERE / "js" / "node_modules" / "@libp2p" / "mdns").is_dir():
        pytest.skip("js-libp2p's mdns is not installed: run `make interop-deps`")
    with lan() as (here, there), trio.fail_after(TIMEOUT_S):
        for name, host in zip((here, there), PUBLIC, strict=True):
            words = ("-n", name, "addr", "add", f"{host}/24", "dev", "lan0")
            await trio.run_process([IP, *words])
            # js sends where the system would route it to; ours names the interface
            words = ("-n", name, "route", "add", "224.0.0.0/4", "dev", "lan0")
            await trio.run_process([IP, *words])
        script = str(HERE / "js" / "lan_peer.mjs")
        module = ("-m", "tests.interop.lan_child", "a", PUBLIC[0])
        theirs_argv = (node, script, "/ip4/0.0.0.0/tcp/4001", PUBLIC[1])
        async with child(here, sys.executable, *module) as ours:
            own = await ours.wait_for("peer")
            async with child(there, *theirs_argv) as theirs:
                their_id = (await theirs.wait_for("peer"))["peer"]
                found = await ours.wait_for("found")
                assert (found["found"], found["origin"]) == (their_id, "lan")
                assert f"/ip4/10.77.0.2/tcp/4001/p2p/{their_id}" in found["addresses"]
                found = await theirs.wait_for("found")
                assert found["found"] == own["peer"]
                assert any(each.startswith("/ip4/10.77.0.1/tcp/") for each in found["addresses"])
                await ours.tell(f"/ip4/{PUBLIC[1]}/tcp/4001")
                answer = await ours.wait_for("second")
                assert answer["second"] == "OK", answer
                assert answer["address"] == own["address"].partition("/p2p/")[0]
                # its server of the first version takes the connection that is there for the one it
                # was to make, sees that the address differs, and closes it, now and then with an
                # answer before: nothing breaks
                assert (await ours.wait_for("failed"))["failed"] in ("PeerUnreachableError", "")
                await theirs.tell(own["address"])
                answer = await theirs.wait_for("status")
                assert answer["status"] == "OK", answer
                assert answer["address"] == answer["claimed"]

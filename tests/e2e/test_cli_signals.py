"""Ctrl-C and SIGTERM: how soon, with which exit code, and what is kept."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.cli_process import Cli, StallingRelay, environment, write_safetensors

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

MB = 10**6
SLACK_S = 3.0
"""A second is what is promised; the rest is for a machine that is busy with other tests."""


def test_an_interrupted_get_ends_at_once_and_resumes(tmp_path: Path) -> None:
    noise = random.Random(2)  # noqa: S311  (the same bytes every time)
    model, copy = tmp_path / "model", tmp_path / "copy"
    model.mkdir()
    tensors = {f"t{n}": noise.randbytes(2 * MB) for n in range(8)}
    write_safetensors(model / "model.safetensors", tensors)
    alice, bob = Cli(tmp_path / "alice"), Cli(tmp_path / "bob")
    with alice.start("seed", model, "--listen", "/ip4/127.0.0.1/tcp/0") as seeder:
        address = seeder.wait_for("listening")["addresses"][0]
        link = seeder.wait_for("seeding")["link"]
        port = address.split("/")[4]
        with StallingRelay(int(port), 9 * MB) as relay:
            stalling = link.replace(f"/tcp/{port}/", f"/tcp/{relay.port}/")
            with bob.start("get", stalling, "--to", copy) as get:
                get.wait_for("progress", network_bytes=3 * MB)
                started = time.monotonic()
                done = get.interrupt()
                assert time.monotonic() - started < SLACK_S
        assert done.code == 130
        assert done.err.splitlines()[-2:] == [
            "sbp2p: interrupted",
            "  hint: what came is kept: run the same command again to go on",
        ]
        assert done.last == {
            "event": "error",
            "error": "interrupted",
            "hint": "what came is kept: run the same command again to go on",
            "exit_code": 130,
        }
        assert not (copy / "model.safetensors").exists()
        fields = bob.json("get", link, "--to", copy).last
    assert fields["resumed_bytes"] >= 3 * MB
    assert fields["network_bytes"] + fields["resumed_bytes"] >= fields["total_bytes"]
    name = "model.safetensors"
    assert (copy / name).read_bytes() == (model / name).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_seeder_ends_when_told(tmp_path: Path, number: int) -> None:
    with Cli(tmp_path / "home").start("seed", "--listen", "/ip4/127.0.0.1/tcp/0") as seeder:
        seeder.wait_for("listening")
        started = time.monotonic()
        done = seeder.interrupt(number)
        assert time.monotonic() - started < SLACK_S
    assert done.code == 0, "that is how it is meant to end"
    assert "Traceback" not in done.err


def test_an_end_that_takes_too_long_is_cut_short(tmp_path: Path) -> None:
    code = """
import signal, sys, threading
from sbp2p.cli.console import Settings
from sbp2p.cli.invocation import Invocation, execute

def run(console):
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        threading.Event().wait(60)

sys.exit(execute(Invocation(Settings(), run)))
"""
    started = time.monotonic()
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment())
    assert time.monotonic() - started < SLACK_S
    assert (done.returncode, done.stderr) == (143, "sbp2p: interrupted\n")


@pytest.mark.parametrize("raising", [False, True])
def test_ctrl_c_when_all_is_said_prints_nothing_more(raising: bool) -> None:
    code = f"""
import signal, sys
from sbp2p.cli.console import Settings
from sbp2p.cli.invocation import Invocation, execute
from sbp2p.errors import NotFoundError

def run(console):
    if {raising}:
        raise NotFoundError("not there")
    return 0

code = execute(Invocation(Settings(), run))
signal.raise_signal(signal.SIGINT)
sys.exit(code)
"""
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ("sbp2p: not there\n" if raising else "")

"""Ctrl-C, SIGTERM, and a terminal that answers."""

from __future__ import annotations

import os
import pty
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


# -- a terminal ------------------------------------------------------------------------------------


class Terminal:
    """A command whose stdin and stderr are a terminal, and stdout is a pipe."""

    def __init__(self, cli: Cli, *words: object) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            cli.argv(*words), stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=environment()
        )
        os.close(slave)

    def read_until(self, text: bytes) -> bytes:
        seen = b""
        while text not in seen:
            seen += os.read(self.master, 4096)
        return seen

    def answer(self, text: bytes) -> None:
        os.write(self.master, text)

    def end(self) -> tuple[int, bytes]:
        out, _ = self.process.communicate(timeout=30)
        os.close(self.master)
        return self.process.returncode, out


def test_questions_are_asked_on_a_terminal(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    (tmp_path / "file").write_text("x")
    cli.run("publish", tmp_path / "file")
    for answer, said in ((b"n\n", b""), (b"yes\n", b"forgot file version 1 in ")):
        terminal = Terminal(cli, "rm", "file")
        assert b"Forget file version 1 in " in terminal.read_until(b"[y/N]")
        terminal.answer(answer)
        code, out = terminal.end()
        assert code == 0
        assert out.startswith(said)
        assert bool(out) == bool(said)


def test_a_passphrase_is_asked_for_and_not_shown(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    setting = Terminal(cli, "id", "--passphrase")
    setting.read_until(b"passphrase for the key: ")
    setting.answer(b"secret\n")
    setting.read_until(b"the same again: ")
    setting.answer(b"secret\n")
    assert b"secret" not in setting.read_until(b"made a new identity")
    assert setting.end()[0] == 0
    asking = Terminal(cli, "id")
    asking.read_until(b"passphrase of the key: ")
    asking.answer(b"secret\n")
    code, out = asking.end()
    assert (code, b"protected by a passphrase" in out) == (0, True)


def test_ctrl_c_at_a_question(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    terminal = Terminal(cli, "id", "--passphrase")
    terminal.read_until(b"passphrase for the key: ")
    terminal.process.send_signal(signal.SIGINT)
    assert b"Traceback" not in terminal.read_until(b"sbp2p: interrupted")
    assert terminal.end()[0] == 130

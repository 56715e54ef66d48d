"""On a terminal: questions, passphrases that are not shown, the progress bar."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Self

import pytest

from tests.e2e.cli_process import Cli, environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.e2e


class Terminal:
    """A command whose stdin and stderr are a terminal, and stdout is a pipe; a context manager."""

    def __init__(self, argv: Sequence[str], **variables: str) -> None:
        self._unread = b""
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=environment(**variables)
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.master)

    def read_until(self, text: bytes) -> bytes:
        """Return what is shown up to and with `text`; what follows is for the next call."""
        while text not in self._unread:
            self._unread += os.read(self.master, 4096)
        seen, found, self._unread = self._unread.partition(text)
        return seen + found

    def answer(self, text: bytes) -> None:
        os.write(self.master, text)

    def end(self) -> tuple[int, bytes]:
        out, _ = self.process.communicate(timeout=30)
        return self.process.returncode, out


def test_questions_are_asked_on_a_terminal(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    (tmp_path / "file").write_text("x")
    cli.run("publish", tmp_path / "file")
    for answer, said in ((b"n\n", b""), (b"yes\n", b"forgot file version 1 in ")):
        with Terminal(cli.argv("rm", "file")) as terminal:
            assert b"Forget file version 1 in " in terminal.read_until(b"[y/N]")
            terminal.answer(answer)
            code, out = terminal.end()
        assert code == 0
        assert out.startswith(said)
        assert bool(out) == bool(said)


def test_a_passphrase_is_asked_for_and_not_shown(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    with Terminal(cli.argv("id", "--passphrase")) as setting:
        setting.read_until(b"passphrase for the key: ")
        setting.answer(b"secret\n")
        setting.read_until(b"the same again: ")
        setting.answer(b"secret\n")
        assert b"secret" not in setting.read_until(b"made a new identity")
        assert setting.end()[0] == 0
    with Terminal(cli.argv("id")) as asking:
        asking.read_until(b"passphrase of the key: ")
        asking.answer(b"secret\n")
        code, out = asking.end()
    assert (code, b"protected by a passphrase" in out) == (0, True)


def test_ctrl_c_at_a_passphrase(tmp_path: Path) -> None:
    with Terminal(Cli(tmp_path / "home").argv("id", "--passphrase")) as terminal:
        terminal.read_until(b"passphrase for the key: ")
        terminal.process.send_signal(signal.SIGINT)
        assert b"Traceback" not in terminal.read_until(b"sbp2p: interrupted")
        assert terminal.end()[0] == 130


def test_a_new_publisher_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    alice, bob = Cli(tmp_path / "alice"), Cli(tmp_path / "bob")
    with alice.start("seed", tmp_path / "file", "--listen", "/ip4/127.0.0.1/tcp/0") as seeder:
        listening = seeder.wait_for("listening")
        seeder.wait_for("seeding")
        link = f"sbp2p://{listening['peer']}/file?peer={listening['addresses'][0]}"
        argv = bob.argv("get", link, "--to", tmp_path / "copy")
        with Terminal(argv) as terminal:
            seen = terminal.read_until(b"[y/N]")
            assert f"file is published by {listening['peer']}".encode() in seen
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.end() == (130, b"")
        with Terminal(argv) as terminal:
            terminal.read_until(b"[y/N]")
            terminal.answer(b"y\n")
            assert terminal.end()[0] == 0
    assert (tmp_path / "copy" / "file").read_text() == "x"


BAR = """
import time
from sbp2p.cli.console import Console, Settings
from sbp2p.cli.progress import Reporter
from sbp2p.cli.signals import Interrupts
from sbp2p.node import Progress

now = 0.0
with Reporter(Console(Settings(), Interrupts()), clock=lambda: now) as reporter:
    for second in range(11):
        now = float(second)
        done = second * 10**6
        reporter(
            Progress(
                phase="network",
                done_bytes=done,
                total_bytes=10**7,
                network_bytes=done,
                peers=3,
            )
        )
print("over")
"""


@pytest.mark.parametrize("no_color", [False, True])
def test_the_bar_shows_rate_and_time_left_and_goes_away(no_color: bool) -> None:
    variables = {"TERM": "xterm-256color"} | ({"NO_COLOR": "1"} if no_color else {})
    with Terminal([sys.executable, "-c", BAR], **variables) as terminal:
        seen = terminal.read_until(b"10.0 MB of 10.0 MB")
        seen += terminal.read_until(b"\x1b[?25h")  # the cursor is back
        assert terminal.end() == (0, b"over\n")
    assert b"5.0 MB of 10.0 MB, 50%, 1.0 MB/s, ETA 0:05, 3 peers" in seen
    assert (b"\x1b[38;" in seen or b"\x1b[3" in seen) == (not no_color)
    assert b"\x1b[2K" in seen, "the line is cleared"


def test_a_terminal_that_cannot_draw_gets_lines() -> None:
    with Terminal([sys.executable, "-c", BAR], TERM="dumb") as terminal:
        seen = terminal.read_until(b"network: 9.0 MB of 10.0 MB, 90%, 1.0 MB/s, ETA 0:01, 3 peers")
        assert terminal.end() == (0, b"over\n")
    assert b"\x1b" not in seen

"""On a terminal: questions, passphrases that are not shown, the progress bar."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.e2e.cli_process import Cli, environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.e2e


class Terminal:
    """A command whose stdin and stderr are a terminal, and stdout is a pipe."""

    def __init__(self, argv: Sequence[str], **variables: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=environment(**variables)
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
        terminal = Terminal(cli.argv("rm", "file"))
        assert b"Forget file version 1 in " in terminal.read_until(b"[y/N]")
        terminal.answer(answer)
        code, out = terminal.end()
        assert code == 0
        assert out.startswith(said)
        assert bool(out) == bool(said)


def test_a_passphrase_is_asked_for_and_not_shown(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    setting = Terminal(cli.argv("id", "--passphrase"))
    setting.read_until(b"passphrase for the key: ")
    setting.answer(b"secret\n")
    setting.read_until(b"the same again: ")
    setting.answer(b"secret\n")
    assert b"secret" not in setting.read_until(b"made a new identity")
    assert setting.end()[0] == 0
    asking = Terminal(cli.argv("id"))
    asking.read_until(b"passphrase of the key: ")
    asking.answer(b"secret\n")
    code, out = asking.end()
    assert (code, b"protected by a passphrase" in out) == (0, True)


def test_ctrl_c_at_a_question(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    terminal = Terminal(cli.argv("id", "--passphrase"))
    terminal.read_until(b"passphrase for the key: ")
    terminal.process.send_signal(signal.SIGINT)
    assert b"Traceback" not in terminal.read_until(b"sbp2p: interrupted")
    assert terminal.end()[0] == 130


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
    terminal = Terminal([sys.executable, "-c", BAR], **variables)
    seen = terminal.read_until(b"10.0 MB of 10.0 MB")
    assert b"5.0 MB of 10.0 MB, 50%, 1.0 MB/s, ETA 0:05, 3 peers" in seen
    assert (b"\x1b[38;" in seen or b"\x1b[3" in seen) == (not no_color)
    seen += terminal.read_until(b"\x1b[?25h")  # the cursor is back
    assert terminal.end() == (0, b"over\n")
    assert b"\x1b[2K" in seen, "the line is cleared"

"""What a command writes, and where.

| | for people | with --json |
|---|---|---|
| results | stdout | stdout, one JSON object a line |
| what is going on, progress, questions | stderr, not with --quiet | progress events on stdout |
| errors | stderr, two lines | stderr, and an `error` event on stdout |

So stdout can always be piped. Every write is flushed: who reads a pipe sees events as they happen.
When the reader of stdout goes away, OutputClosedError ends the command without a word; when stdout
cannot be written to, an OSError that names it does. A stdout that was closed from the start is
nobody's wish to read: what would go there is dropped.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from .text import one_line, printable

if TYPE_CHECKING:
    from .failure import Failure
    from .signals import Interrupts


OUTPUT_CLOSED: Final = 141
"""What a shell reports for a process that SIGPIPE ended."""


class OutputClosedError(Exception):
    """Nobody reads stdout any more."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that every command takes."""

    home: str | None = None
    json: bool = False
    quiet: bool = False
    verbose: bool = False


class Console:
    """Where one command writes to and asks from."""

    def __init__(self, settings: Settings, interrupts: Interrupts) -> None:
        self.settings = settings
        self.interrupts = interrupts
        self.resume_hint = ""
        """What an interrupted command says about running it again."""

    @property
    def json(self) -> bool:
        """Whether stdout carries events rather than text."""
        return self.settings.json

    @property
    def home(self) -> str | None:
        """The node's home if it was given by option."""
        return self.settings.home

    @property
    def shows_bars(self) -> bool:
        """Whether progress may be drawn rather than listed."""
        return is_terminal(sys.stderr) and os.environ.get("TERM") not in ("dumb", "unknown")

    @property
    def can_ask(self) -> bool:
        """Whether somebody sits there who can answer a question."""
        return not self.json and is_terminal(sys.stdin) and is_terminal(sys.stderr)

    def event(self, event: str, /, **fields: object) -> None:
        """Write one JSON line; nothing without --json."""
        if self.json:
            self._write(json.dumps({"event": event, **fields}, separators=(", ", ": ")))

    def result(self, line: str = "") -> None:
        """Write a line of what was asked for; nothing with --json."""
        if not self.json:
            self._write(line)

    def note(self, line: str) -> None:
        """Say what is going on; nothing with --quiet or --json."""
        if not self.json and not self.settings.quiet:
            self.complain(line)

    def complain(self, line: str) -> None:
        """Write a line to stderr, whatever the options say."""
        write_stderr(line)

    def fail(self, failure: Failure) -> None:
        """Report what ended the command."""
        code = failure.exit_code
        with suppress(OSError, OutputClosedError):  # stderr and the exit code still tell
            self.event("error", error=failure.message, hint=failure.hint, exit_code=code)
        write_stderr(f"sbp2p: {one_line(failure.message)}")
        if failure.hint:
            write_stderr(f"  hint: {one_line(failure.hint)}")

    def ask(self, question: str) -> bool:
        """Ask a yes-or-no question on the terminal; anything but y or yes means no.

        Blocks, and may be left behind in a thread (session.ask): so it reads the descriptor, since
        the interpreter cannot end while a thread holds the lock of sys.stdin.
        """
        sys.stderr.write(f"{printable(question)} [y/N] ")
        sys.stderr.flush()
        answer = os.read(sys.stdin.fileno(), 1024)
        return answer.strip().lower() in (b"y", b"yes")

    def ask_passphrase(self, prompt: str) -> bytes:
        """Read a passphrase from the terminal without showing it; for the main thread."""
        from getpass import getpass

        with self.interrupts.raised():
            return getpass(f"{printable(prompt)}: ", stream=sys.stderr).encode()

    def _write(self, line: str) -> None:
        if sys.stdout is None:
            return
        try:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        except BrokenPipeError as error:
            discard_stdout()
            raise OutputClosedError from error
        except OSError as error:
            discard_stdout()
            error.filename = "stdout"
            raise


def discard_stdout() -> None:
    """Drop what is buffered for stdout and all that follows: it would fail again, and loudly."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream is there, open, and a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def write_stderr(line: str) -> None:
    """Write a line to stderr; a reader of stderr that went away is no reason to stop."""
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return

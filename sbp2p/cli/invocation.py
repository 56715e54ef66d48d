"""Runs one command: whatever it raises ends here, as a message and an exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .console import OUTPUT_CLOSED, Console, OutputClosedError, Settings, write_stderr
from .failure import Failure, explain, leaves
from .signals import Interrupts
from .text import one_line

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Invocation:
    """What the arguments ask for: `run`, with these settings, returns the exit code."""

    settings: Settings
    run: Callable[[Console], int]


def execute(invocation: Invocation) -> int:
    """Run a command to its end, whatever that is, and return the exit code."""
    interrupts = Interrupts()
    interrupts.install()
    console = Console(invocation.settings, interrupts)
    try:
        _log_to_stderr(console.settings.verbose)
        return invocation.run(console)
    except BaseException as error:  # the outermost boundary: nothing may print a traceback
        interrupts.release()
        return _end(console, error)
    finally:
        interrupts.release()


def _end(console: Console, error: BaseException) -> int:
    """Tell the user why it ended, and return the exit code."""
    try:
        return _tell(console, error)
    except OutputClosedError:
        return OUTPUT_CLOSED


def _tell(console: Console, error: BaseException) -> int:
    if console.interrupts.signal_number is not None:
        if not console.interrupts.is_expected:
            console.fail(Failure("interrupted", console.resume_hint, console.interrupts.exit_code))
        return console.interrupts.exit_code
    if any(isinstance(leaf, OutputClosedError) for leaf in leaves(error)):
        raise OutputClosedError
    failure = explain(error)
    console.fail(failure)
    if failure.is_bug and console.settings.verbose:
        import traceback

        write_stderr("".join(traceback.format_exception(error)).rstrip())
    return failure.exit_code


def _log_to_stderr(verbose: bool) -> None:
    """Show warnings as one line each; with --verbose everything, with tracebacks."""
    import logging

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            write_stderr(_format(record, verbose))

    logger = logging.getLogger("sbp2p")
    logger.addHandler(Lines())
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
    logger.propagate = False


def _format(record: logging.LogRecord, verbose: bool) -> str:
    line = f"sbp2p: {record.levelname.lower()}: {one_line(record.getMessage())}"
    if verbose and record.exc_info is not None and record.exc_info[1] is not None:
        import traceback

        line += "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    return line

"""Ctrl-C and SIGTERM: one orderly end, within a second.

Theory of operation: while trio runs, the first signal cancels the command's scope and everything
unwinds as it does for any cancellation; otherwise it is raised where the main thread is. A second
signal, or GRACE_S after the first, ends the process on the spot: the store is made to survive that,
so waiting longer would protect nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

GRACE_S: Final = 0.8


class Interrupted(KeyboardInterrupt):
    """The command was told to end."""


class Interrupts:
    """The signal handlers of one process."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        """The first signal that came."""
        self.is_expected = False
        """Whether a signal is how this command is meant to end."""
        self._cancel: Callable[[], None] | None = None

    @property
    def exit_code(self) -> int:
        """What the process ends with after a signal, as a shell would say it."""
        return 0 if self.is_expected else 128 + (self.signal_number or signal.SIGINT)

    def install(self) -> None:
        """Handle signals from now on, until `release`."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def release(self) -> None:
        """Let a first signal end the process on the spot: there is nothing left to unwind."""
        if self.signal_number is None:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)

    @contextmanager
    def cancelling(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Inside the block a signal calls `cancel`, which must be safe in a handler."""
        before, self._cancel = self._cancel, cancel
        try:
            yield
        finally:
            self._cancel = before

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Inside the block a signal is raised at once: for blocking calls in the main thread."""
        before, self._cancel = self._cancel, None
        try:
            yield
        finally:
            self._cancel = before

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.signal_number is not None:
            os._exit(self.exit_code)
        self.signal_number = number
        watchdog = threading.Timer(GRACE_S, self._give_up)
        watchdog.daemon = True
        watchdog.start()
        if self._cancel is None:
            raise Interrupted
        self._cancel()

    def _give_up(self) -> None:
        if os.isatty(2):
            os.write(2, b"\r\x1b[K\x1b[?25h")  # a bar hides the cursor while it is drawn
        if not self.is_expected:
            os.write(2, b"sbp2p: interrupted\n")
        os._exit(self.exit_code)

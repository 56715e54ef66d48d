"""Progress of one long operation, in the form that its reader can use.

| stderr or option | what |
|---|---|
| a terminal | a bar with rate and time left, from BAR_DELAY_S on, gone when done |
| not a terminal | a line at each phase that lasts, and one every LINE_INTERVAL_S |
| --json | a `progress` event at each phase and every EVENT_INTERVAL_S at most |
| --quiet | nothing |

rich draws the bar. It is imported when the bar is due: most operations on small checkpoints are
over before that.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, Self

from .text import format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from sbp2p.node import Progress

    from .console import Console

BAR_DELAY_S: Final = 0.5
LINE_INTERVAL_S: Final = 1.0
EVENT_INTERVAL_S: Final = 0.05
REDRAW_INTERVAL_S: Final = 0.1
RATE_WINDOW_S: Final = 3.0
"""The rate shown is over this long: long enough to read, short enough to notice a stall."""


class Rate:
    """Bytes a second over the last RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, done_bytes: int) -> float:
        """Take a reading of a counter that only grows, and return the rate."""
        samples = self._samples
        if samples and done_bytes < samples[-1][1]:
            samples.clear()
        samples.append((now, done_bytes))
        while len(samples) > 2 and samples[1][0] <= now - RATE_WINDOW_S:
            samples.popleft()
        (start, before), (end, after) = samples[0], samples[-1]
        return (after - before) / (end - start) if end > start else 0.0


class Reporter:
    """Shows the progress that a node reports; a context manager, and the callback itself."""

    def __init__(
        self,
        console: Console,
        *,
        events: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start silent.

        Args:
            console: where to.
            events: whether --json gets `progress` events.
            clock: seconds, monotonic.
        """
        self._console = console
        self._clock = clock
        self._started = clock()
        self._phase = ""
        self._rate = Rate()
        self._last = 0.0
        self._last_done = -1
        self._bar: _Bar | None = None
        self._show = self._choose(events)

    def _choose(self, events: bool) -> Callable[[Progress, float, float], None]:
        console = self._console
        if console.json:
            return self._emit if events else _ignore
        if console.settings.quiet:
            return _ignore
        return self._draw if console.shows_bars else self._list

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, progress: Progress) -> None:
        """Show where the operation is."""
        now = self._clock()
        counter = progress.network_bytes if progress.phase == "network" else progress.done_bytes
        if progress.phase != self._phase:
            self._rate = Rate()
        rate = self._rate.add(now, counter)
        self._show(progress, now, rate)
        self._phase = progress.phase

    def _is_due(self, progress: Progress, now: float, interval_s: float) -> bool:
        """Whether this report is to be shown; what ends a phase always is, once."""
        ends = progress.done_bytes == progress.total_bytes != self._last_done
        if progress.phase == self._phase and now - self._last < interval_s and not ends:
            return False
        self._last, self._last_done = now, progress.done_bytes
        return True

    def _emit(self, progress: Progress, now: float, rate: float) -> None:
        if self._is_due(progress, now, EVENT_INTERVAL_S):
            self._console.event(
                "progress",
                phase=progress.phase,
                done_bytes=progress.done_bytes,
                total_bytes=progress.total_bytes,
                network_bytes=progress.network_bytes,
                peers=progress.peers,
                rate=round(rate),
            )

    def _list(self, progress: Progress, now: float, rate: float) -> None:
        if now - self._started < BAR_DELAY_S:
            return
        if progress.phase == self._phase and now - self._last < LINE_INTERVAL_S:
            return
        self._last = now
        self._console.note(f"{progress.phase}: {describe(progress, rate)}")

    def _draw(self, progress: Progress, now: float, rate: float) -> None:
        if self._bar is None:
            if now - self._started < BAR_DELAY_S:
                return
            self._bar = _Bar()
        if self._is_due(progress, now, REDRAW_INTERVAL_S):
            self._bar.show(progress, rate)


def describe(progress: Progress, rate: float) -> str:
    """Return amounts, rate, time left and peers as one line."""
    parts = [f"{format_bytes(progress.done_bytes)} of {format_bytes(progress.total_bytes)}"]
    if progress.total_bytes:
        parts.append(f"{progress.done_bytes / progress.total_bytes:.0%}")
    if rate > 0:
        left = (progress.total_bytes - progress.done_bytes) / rate
        parts += [format_rate(rate), f"ETA {_clock_time(left)}"]
    if progress.peers:
        parts.append(f"{progress.peers} peer{'' if progress.peers == 1 else 's'}")
    return ", ".join(parts)


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(min(round(seconds), 359_999), 60)  # 99:59:59: further is guesswork
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _ignore(progress: Progress, now: float, rate: float) -> None:
    """Show nothing."""


class _Bar:
    """A rich progress bar on stderr; drawn by its caller, without a thread of its own."""

    def __init__(self) -> None:
        from rich.console import Console as Terminal
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar: Bar = Progress(
            TextColumn("{task.description:<9}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=Terminal(stderr=True, highlight=False),
            auto_refresh=False,
            transient=True,
            expand=True,
        )
        self._task: TaskID = self._bar.add_task("", numbers="")
        self._bar.start()

    def show(self, progress: Progress, rate: float) -> None:
        """Draw one state."""
        self._bar.update(
            self._task,
            description=progress.phase,
            completed=progress.done_bytes,
            total=progress.total_bytes or None,
            numbers=describe(progress, rate),
            refresh=True,
        )

    def close(self) -> None:
        """Take the bar away and give the cursor back."""
        self._bar.stop()

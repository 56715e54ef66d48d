"""Long work that a cancelled task can stop, with progress that is not a flood."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from sbp2p.calls import ThreadCalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbp2p.calls import Calls

T = TypeVar("T")

PROGRESS_INTERVAL_S: Final = 0.1
"""Between two progress reports; a person reads ten a second at most."""


class StoppedError(Exception):
    """What stoppable work raises when `should_stop` said so."""


async def run_stoppable(
    work: Callable[[Callable[[], bool]], T],
    *,
    calls: Calls | None = None,
    stopped: type[Exception] | tuple[type[Exception], ...] = StoppedError,
) -> T:
    """Run `work(should_stop)` as a blocking call and return its result; nothing outlives this.

    When the caller is cancelled, `should_stop` turns true, the call is waited for, and the
    exception by which it says that it stopped (`stopped`) gives way to the cancellation.
    """
    calls = calls or ThreadCalls()
    stop = threading.Event()
    results: list[T] = []

    async def watch() -> None:
        try:
            await trio.sleep_forever()
        finally:
            stop.set()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                results.append(await calls.run_to_end(work, stop.is_set))
            except stopped:
                await trio.lowlevel.checkpoint()  # the cancellation that stopped it
                raise
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
    return results[0]


def throttled(
    report: Callable[[int, int], None], calls: Calls | None = None
) -> Callable[[int, int], None]:
    """Return a callback for a blocking call that calls `report(done, total)` in the event loop.

    At most every PROGRESS_INTERVAL_S, and always for the last one.
    """
    tell = (calls or ThreadCalls()).tell
    last = [0.0]

    def call(done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total or now - last[0] >= PROGRESS_INTERVAL_S:
            last[0] = now
            tell(report, done, total)

    return call

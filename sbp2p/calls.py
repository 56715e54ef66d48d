"""Blocking calls: in worker threads, or, for simulations, right where they are made.

Files and SQLite block, so they are called through a `Calls`, and the event loop stays free. Under a
virtual clock a thread is trouble twice over: while it runs the event loop is idle, so the clock
jumps; and when it ends is the machine's choice, so no run can be repeated. There the same calls run
inline and take no virtual time.

Cancellation: `run` abandons the call, which goes on to its end with nobody to take its result, so
that a cancelled task ends within a second although a thread that waits for a disk cannot be
stopped; what it touches must be thread-safe, and it must own the memory it works on. `run_to_end`
waits for the call whatever happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

# as a mapping: the stubs that come with multiaddr's dependency trio-typing know only the old name
_ABANDON: Final[dict[str, Any]] = {"abandon_on_cancel": True}


class Calls(Protocol):
    """Where blocking calls run."""

    async def run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Return `call(*arguments)`; if cancelled, the call may still run to its end."""

    async def run_to_end(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Return `call(*arguments)`; a cancellation waits until the call has ended."""

    def tell(self, report: Callable[..., object], *arguments: Any) -> None:
        """From within a call: run `report(*arguments)` in the event loop, and wait for it."""


class ThreadCalls:
    """Runs calls in worker threads.

    Args:
        at_once: how many together; as many as trio's pool has if None.
    """

    def __init__(self, at_once: int | None = None) -> None:
        self._limiter = None if at_once is None else trio.CapacityLimiter(at_once)

    async def run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Return `call(*arguments)` from a worker thread."""
        return await trio.to_thread.run_sync(call, *arguments, limiter=self._limiter, **_ABANDON)

    async def run_to_end(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Return `call(*arguments)` from a worker thread, which is waited for."""
        return await trio.to_thread.run_sync(call, *arguments, limiter=self._limiter)

    def tell(self, report: Callable[..., object], *arguments: Any) -> None:
        """Run `report(*arguments)` in the thread of the event loop."""
        trio.from_thread.run_sync(report, *arguments)


class InlineCalls:
    """Runs calls in the event loop: a simulation under a virtual clock is then repeatable."""

    async def run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Return `call(*arguments)`, which takes no virtual time."""
        await trio.lowlevel.checkpoint()
        return call(*arguments)

    async def run_to_end(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Return `call(*arguments)`, which takes no virtual time."""
        return await self.run(call, *arguments)

    def tell(self, report: Callable[..., object], *arguments: Any) -> None:
        """Run `report(*arguments)` on the spot."""
        report(*arguments)

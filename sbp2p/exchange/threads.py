"""Blocking calls: in worker threads, or, for simulations, right where they are made.

A cancelled task must end within a second, and a thread that waits for a disk cannot be stopped. So
the call is abandoned: it runs to its end and its result is dropped. Everything that the exchange
calls this way is thread-safe and owns the memory it works on.
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


class ThreadCalls:
    """Runs calls in worker threads, so many at once."""

    def __init__(self, at_once: int) -> None:
        self._limiter = trio.CapacityLimiter(at_once)

    async def run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Return `call(*arguments)` from a worker thread."""
        return await trio.to_thread.run_sync(call, *arguments, limiter=self._limiter, **_ABANDON)


class InlineCalls:
    """Runs calls in the event loop: a simulation under a virtual clock is then repeatable."""

    async def run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Return `call(*arguments)`, which takes no virtual time."""
        await trio.lowlevel.checkpoint()
        return call(*arguments)

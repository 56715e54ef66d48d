"""Blocking calls in worker threads, left alone when their caller is cancelled.

A cancelled task must end within a second, and a thread that waits for a disk cannot be stopped. So
the call is abandoned: it runs to its end and its result is dropped. Everything that the exchange
calls this way is thread-safe and owns the memory it works on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

# as a mapping: the stubs that come with multiaddr's dependency trio-typing know only the old name
_ABANDON: Final[dict[str, Any]] = {"abandon_on_cancel": True}


async def in_thread(limiter: trio.CapacityLimiter, call: Callable[..., _T], *arguments: Any) -> _T:
    """Return `call(*arguments)` from a worker thread."""
    return await trio.to_thread.run_sync(call, *arguments, limiter=limiter, **_ABANDON)

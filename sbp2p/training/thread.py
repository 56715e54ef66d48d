"""A trio program on a thread of its own, which code that is not async calls into.

Theory of operation: the thread runs `trio.run` around one `async with`. A call goes in by trio's
`run_sync_soon`, runs as a task, and comes back as a `Call` that can be waited for with a time limit
and given up. Who waits, waits on a lock, so Ctrl-C is raised right there.

Rules: what ends the program (an error in it, or `stop`) ends every call that is under way; an error
of the program is raised by these calls and all later ones. `stop` cancels everything and waits for
the thread: what is in the `async with` ends as it does for any cancellation. The thread is a daemon
for one case alone: a second Ctrl-C while it is waited for.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from sbp2p.exchange.unwrap import unwrapped_errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

Inner = TypeVar("Inner")
Result = TypeVar("Result")


class Call(Generic[Result]):
    """A call into a thread: done with a result or an error, or not yet."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self.future: Future[Result] = Future()
        self._cancel = cancel

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is done, at most so long; return whether it is."""
        try:
            self.future.exception(timeout_s)
        except TimeoutError:
            return False
        return True

    def result(self) -> Result:
        """Wait for the result, or raise what the call raised; Ctrl-C meanwhile gives it up."""
        try:
            return self.future.result()
        except KeyboardInterrupt:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Give the call up, if it is still under way."""
        self._cancel()


class TrioThread(Generic[Inner]):
    """Runs one async context manager on a thread.

    Args:
        open_: makes what is entered, in that thread.
        name: of the thread.
    """

    def __init__(self, open_: Callable[[], AbstractAsyncContextManager[Inner]], name: str) -> None:
        self._open = open_
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ready: Future[Inner] = Future()
        self._scope = trio.CancelScope()
        self._stopped = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._failure: BaseException | None = None
        self._calls: set[Future[Any]] = set()

    def start(self) -> Inner:
        """Start the thread; return what was entered, or raise why it could not be."""
        self._thread.start()
        try:
            return self._ready.result()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything and wait until the thread has; may be called again."""
        self._stopped.set()
        self._soon(self._scope.cancel)
        self._thread.join()

    @property
    def failure(self) -> BaseException | None:
        """What ended the program, if it was not `stop`."""
        return self._failure

    def call(self, work: Callable[[Inner], Awaitable[Result]]) -> Call[Result]:
        """Begin `work(inner)` as a task in the thread."""
        scope = trio.CancelScope()
        call: Call[Result] = Call(lambda: self._soon(scope.cancel))
        self._calls.add(call.future)
        call.future.add_done_callback(self._calls.discard)

        def begin() -> None:
            if self._nursery is not None:
                self._nursery.start_soon(self._serve, scope, work, call.future)

        if not self._soon(begin):
            self._end(call.future)
        return call

    async def _serve(
        self,
        scope: trio.CancelScope,
        work: Callable[[Inner], Awaitable[Result]],
        future: Future[Result],
    ) -> None:
        try:
            with scope:
                future.set_result(await work(self._ready.result()))
        except Exception as error:  # it is the caller's, who waits in another thread
            future.set_exception(error)
        if scope.cancelled_caught:
            self._end(future)

    def _end(self, future: Future[Any]) -> None:
        """End a call that was given up, or that is under way when everything ends."""
        if not future.done():
            future.set_exception(self._failure or RuntimeError("the node has ended"))

    def _soon(self, function: Callable[[], object]) -> bool:
        """Run a function in the thread; return whether there still is one."""
        if self._token is None:
            return False
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:
            return False
        return True

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # raised again in the thread that waits
            self._failure = error
        for future in (self._ready, *tuple(self._calls)):
            self._end(future)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with unwrapped_errors(), self._scope:
            if self._stopped.is_set():  # it had no token to be told by
                return
            async with self._open() as inner, trio.open_nursery() as nursery:
                self._nursery = nursery
                self._ready.set_result(inner)
                try:
                    await trio.sleep_forever()
                finally:
                    self._nursery = None

"""Training with peers from code that is not async: a node on a thread of its own.

    with sbp2p.background(namespace="digits", peers=[...]) as swarm:
        for batch in batches:
            train(model, batch)
            swarm.step(model, samples=len(batch))

Theory of operation: `step` copies the model (a plugin's snapshot), and the node's thread publishes
the copy, waits for the neighbours, and merges. The model itself is touched in the caller's thread
alone, inside `step`, so a training loop needs no locks. How long `step` may take is the caller's:

| `wait_s` | the call returns | the model is then |
|---|---|---|
| None | when the round has ended, by its deadline at the latest | the merged one |
| 0 | at once; the round goes on beside the training | the last round's, and the training since |
| n | when the round has ended, after n seconds at the latest | as above, whichever it was |

A round that goes on is not repeated: the next `step` takes its result if it is there, adds what the
training changed since the copy was made (`plugins/progress.py`), and begins the next round with
that. Samples of steps that could not begin a round are counted with those of the next one.

Errors: what ended the node, and what a round raised, is raised by the next call, with its hint; the
model is then as it was. Leaving the block ends the node and its thread, whatever is under way. In a
forked process, after the block, in an async program, and for a second `step` at the same time there
is a RuntimeError that says what to do. Who is there may be asked from any thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import trio

from sbp2p.plugins import Snapshot, wrap

from .thread import TrioThread
from .values import StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from sbp2p.checkpoint.reader import RawTensor
    from sbp2p.merge.method import Method
    from sbp2p.namespace import Bootstrapped, Member, Namespace, RoundResult
    from sbp2p.node import Node
    from sbp2p.plugins import Plugin
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.round_record import Option

    from .thread import Call

_T = TypeVar("_T")

HISTORY_MAX: Final = 1000
"""Rounds that are remembered; each is about 1 kB for each peer."""


@dataclass(frozen=True, slots=True)
class _Round:
    """A round under way."""

    before: Mapping[str, RawTensor]
    copy: Snapshot
    call: Call[RoundResult | None]


class Background:
    """A node in a namespace, beside a training loop. Made by `background`; a context manager."""

    def __init__(
        self,
        open_: Callable[[], AbstractAsyncContextManager[tuple[Node, Namespace]]],
        *,
        namespace: str,
        method: Method | str,
        options: Mapping[str, Option] | None = None,
    ) -> None:
        self._open = open_
        self._method = method
        self._options = options
        self._name = namespace
        self._thread: TrioThread[tuple[Node, Namespace]] | None = None
        self._was_open = False
        self._process = os.getpid()
        self._busy = threading.Lock()
        self._round: _Round | None = None
        self._samples = 0
        self._history: deque[RoundResult] = deque(maxlen=HISTORY_MAX)

    # -- the block --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if _runs_trio():
            raise RuntimeError("this blocks; in an async program use Node and node.namespace")
        if self._was_open:
            raise RuntimeError("this was open already: call sbp2p.background for each block")
        self._was_open = True
        self._process = os.getpid()
        thread = TrioThread(self._open, f"sbp2p {self._name}")
        try:
            thread.start()
            self._thread = thread
        except BaseException:
            thread.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread, self._thread = self._thread, None
        self._round = None
        if thread is None or os.getpid() != self._process:
            return
        thread.stop()
        if kind is None and thread.failure is not None:
            raise thread.failure

    def _open_thread(self) -> TrioThread[tuple[Node, Namespace]]:
        if os.getpid() != self._process:
            raise RuntimeError(
                "a forked process does not have the node that its parent opened: open one of its "
                "own, or use the parent's alone"
            )
        if self._thread is None:
            raise RuntimeError("the node runs inside the `with` block only")
        return self._thread

    @contextmanager
    def _alone(self) -> Iterator[TrioThread[tuple[Node, Namespace]]]:
        """Let one caller at a time touch its model and the round under way."""
        thread = self._open_thread()
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("another thread is inside a step: one at a time")
        try:
            yield thread
        finally:
            self._busy.release()

    @property
    def is_open(self) -> bool:
        """Whether the node runs: inside the block."""
        return self._thread is not None and os.getpid() == self._process

    @property
    def is_waiting(self) -> bool:
        """Whether a round goes on beside the training."""
        return self._round is not None

    # -- training ---------------------------------------------------------------------------------

    def step(self, model: Any, *, samples: int = 1, wait_s: float | None = None) -> StepResult:
        """Publish the model, merge it with the neighbours', and change it to the result.

        Args:
            model: what `sbp2p.wrap` takes: a module, a dict of arrays, an estimator, a plugin.
            samples: how many it was trained on since the last step; methods may weigh by it, and
                none counts as one.
            wait_s: seconds to wait for the round at most; to its own deadline if None.

        Raises:
            MergeError: the model cannot be shared, or too few models could be merged.
            Sbp2pError: what else a round ran into, this one or the one before.
            ValueError: a negative number.
        """
        if samples < 0:
            raise ValueError("samples cannot be negative")
        return self._step(model, samples, wait_s, begins=True)

    def collect(self, model: Any, *, wait_s: float | None = None) -> StepResult:
        """Change the model to the result of the round that is under way, and begin no other.

        For the end of a training that did not wait for its rounds. Arguments and errors are those
        of `step`.
        """
        return self._step(model, 0, wait_s, begins=False)

    def _step(self, model: Any, samples: int, wait_s: float | None, *, begins: bool) -> StepResult:
        if wait_s is not None and wait_s < 0:
            raise ValueError("wait_s cannot be negative")
        begun = time.monotonic()
        end = None if wait_s is None else begun + wait_s
        plugin = wrap(model)
        finished: list[RoundResult | None] = []
        with self._alone() as thread:
            self._samples += samples
            if self._round is not None and self._has_ended(self._round, end):
                finished.append(self._take(plugin, trained=True))
            if begins and self._round is None:
                this = self._round = self._begin(thread, plugin)
                if self._has_ended(this, end):
                    finished.append(self._take(plugin, trained=False))
        return StepResult(
            finished=tuple(each for each in finished if each is not None),
            is_waiting=self._round is not None,
            seconds=time.monotonic() - begun,
        )

    def _begin(self, thread: TrioThread[tuple[Node, Namespace]], plugin: Plugin) -> _Round:
        before = plugin.tensors()
        copy, samples = Snapshot(before), max(1, self._samples)
        method, options = self._method, self._options
        self._samples = 0

        async def work(inner: tuple[Node, Namespace]) -> RoundResult | None:
            namespace = inner[1]
            if namespace.role.sends:
                await namespace.publish(copy, samples=samples)
            if not namespace.role.receives:
                return None
            return await namespace.merge(copy, using=method, options=options, samples=samples)

        return _Round(before, copy, thread.call(work))

    def _has_ended(self, this: _Round, end: float | None) -> bool:
        try:
            return this.call.wait(None if end is None else max(0.0, end - time.monotonic()))
        except KeyboardInterrupt:
            this.call.cancel()
            self._round = None
            raise

    def _take(self, plugin: Plugin, *, trained: bool) -> RoundResult | None:
        """Change the model to what a round made of it, keeping what was trained meanwhile."""
        this, self._round = self._round, None
        if this is None or (result := this.call.result()) is None:
            return None
        if result.merged:
            tensors = this.copy.tensors()
            if trained:
                from sbp2p.plugins.progress import carry_over

                tensors = carry_over(tensors, this.before, plugin.tensors())
            plugin.load(tensors)
        self._history.append(result)
        return result

    def bootstrap(self, model: Any, *, timeout_s: float | None = None) -> Bootstrapped:
        """Change the model to the one that the others have now; a newcomer's first call.

        Args:
            model: as for `step`; it need not have a state yet if its plugin can make one.
            timeout_s: give up after this; the configuration's time if None.

        Raises:
            NotFoundError: nobody had one in time, or none that fits.
            MergeError: it is not this model's; nothing was changed.
        """
        plugin, copy = wrap(model), Snapshot({})

        async def work(inner: tuple[Node, Namespace]) -> Bootstrapped:
            return await inner[1].bootstrap(copy, timeout_s=timeout_s)

        with self._alone() as thread:
            done = thread.call(work).result()
            plugin.load(copy.tensors())
        return done

    def start_from(self, model: Any) -> None:
        """Take the model's state as what the first round starts from, before it is trained.

        For methods that look at what the round before ended with: the outer optimisers, clipping,
        task arithmetic. Every peer has to start from the same model; `bootstrap` sees to it, too.
        """
        copy = Snapshot(wrap(model).tensors())
        with self._alone() as thread:
            thread.call(lambda inner: inner[1].start_from(copy)).result()

    # -- the others -------------------------------------------------------------------------------

    def wait_for_peers(
        self, wanted: int | Iterable[PeerId | str], *, timeout_s: float | None = None
    ) -> tuple[Member, ...]:
        """Wait until so many other members, or these, are there; return all that are.

        Raises:
            PeerUnreachableError: the time is over; says who is missing.
        """
        thread = self._open_thread()
        return thread.call(
            lambda inner: inner[1].wait_for_peers(wanted, timeout_s=timeout_s)
        ).result()

    @property
    def members(self) -> tuple[Member, ...]:
        """The other nodes that are in the namespace now."""
        return self._ask(lambda _, namespace: namespace.members)

    @property
    def peers(self) -> tuple[PeerId, ...]:
        """Their peer ids."""
        return tuple(member.peer_id for member in self.members)

    @property
    def peer_id(self) -> PeerId:
        """Who this node is."""
        return self._ask(lambda node, _: node.peer_id)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where others can reach this node: what they give as `peers`."""
        return self._ask(lambda node, _: tuple(address.text for address in node.addresses))

    @property
    def history(self) -> tuple[RoundResult, ...]:
        """The last rounds that finished, oldest first; also after the block."""
        return tuple(self._history)

    def _ask(self, question: Callable[[Node, Namespace], _T]) -> _T:
        async def work(inner: tuple[Node, Namespace]) -> _T:
            return question(*inner)

        return self._open_thread().call(work).result()


def _runs_trio() -> bool:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True

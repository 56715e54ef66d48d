"""One attempt to merge a set of inputs, which ends with a result, or with who must be left out."""

from __future__ import annotations

import threading
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import torch

from sbp2p.cores import usable_cores
from sbp2p.errors import MergeError
from sbp2p.merge.coefficients import Coefficients
from sbp2p.merge.digest import model_digest, tensor_digest
from sbp2p.merge.dtypes import Kind, float_format
from sbp2p.merge.exact import LinearSum
from sbp2p.merge.group import SourceGroup
from sbp2p.merge.method import LinearMethod, Method, Scope
from sbp2p.merge.opened import ROW_BYTES_MIN, Opened
from sbp2p.merge.policies import Policy
from sbp2p.merge.quarantine import Fault, Faults, NotFiniteError
from sbp2p.merge.tasks import Opening, Piece, Tasks
from sbp2p.merge.worker import ROW_BYTES_MAX, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sbp2p.merge.plan import Plan
    from sbp2p.merge.tensors import Input, Sink, Source

_BUFFERS: Final = 256 * 1024 * 1024
"""Bytes of all buffers together, where the number of inputs allows."""
_LOOK_S: Final = 0.05
"""Seconds between two looks at `should_stop` and two reports of progress."""


class MergeStoppedError(MergeError):
    """`should_stop` said so; the result is not finished."""


class Attempt:
    """Merges inputs by a plan. `run` is called once."""

    def __init__(
        self,
        plan: Plan,
        inputs: Sequence[Input],
        method: Method,
        *,
        base: Source | None,
        local: Source | None,
        sink: Sink,
        threads: int | None,
        progress: Callable[[int, int], None] | None,
        should_stop: Callable[[], bool] | None,
        done: Collection[str],
    ) -> None:
        """Take inputs in canonical order, with weights whose sum is 1."""
        self._plan = plan
        self._inputs = inputs
        self._method = method
        self._base = base
        self._local = local
        self._sink = sink
        self._threads = threads or usable_cores() + 1
        self._progress = progress
        self._should_stop = should_stop
        todo = [
            number
            for number, item in enumerate(plan.items)
            if not {item.spec.name, *item.twins} <= set(done)
        ]
        self._complete = len(todo) == len(plan.items)
        self._tasks = Tasks(todo)
        self._total = sum(plan.items[number].spec.nbytes for number in todo)
        self._opened: dict[int, Opened] = {}
        self._leaves: dict[int, dict[int, bytes]] = {number: {} for number in todo}
        self._whole: Coefficients | object = None
        self._faults = Faults()
        self._error: BaseException | None = None
        self._stopping = False
        self._changed = threading.Condition()
        self._written = 0
        self._running = 0
        rows = len(inputs) + 2
        share = _BUFFERS // (rows * self._threads) // ROW_BYTES_MIN * ROW_BYTES_MIN
        self._row_bytes = max(ROW_BYTES_MIN, min(ROW_BYTES_MAX, share))
        self._weights = torch.tensor([float(each.weight) for each in inputs], dtype=torch.float64)
        self.bytes_read = 0
        self.bytes_written = 0

    def run(self) -> list[Fault]:
        """Merge everything; return the inputs that must be left out for another attempt."""
        self._survey_model()
        workers = [
            threading.Thread(target=self._work, name=f"sbp2p merge {number}", daemon=True)
            for number in range(self._threads)
        ]
        self._running = len(workers)
        try:
            for worker in workers:
                worker.start()
            self._watch()
        finally:
            self._stopping = True
            self._tasks.close()
            for worker in workers:
                if worker.ident is not None:
                    worker.join()
        if self._error is not None:
            raise self._error
        return self._faults.all()

    def counted(self) -> tuple[Fraction, ...] | None:
        """Return what each input was multiplied by, if that is the same for the whole model."""
        whole = self._whole
        if not isinstance(whole, Coefficients):
            return None
        own = whole.numerators[: len(self._inputs)]
        return tuple(Fraction(each, whole.denominator) for each in own)

    def digest(self) -> bytes:
        """Return the digest of the result; b"" when some of it was done before."""
        if not self._complete:
            return b""
        digests = {}
        for number, item in enumerate(self._plan.items):
            pieces = self._leaves[number]
            digest = tensor_digest(pieces[start] for start in sorted(pieces))
            for name in (item.spec.name, *item.twins):
                digests[name] = digest
        return model_digest(self._plan.specs(), digests)

    def _watch(self) -> None:
        """Wait for the threads, and meanwhile ask and tell the caller."""
        while True:
            with self._changed:
                over = self._changed.wait_for(lambda: not self._running, _LOOK_S)
                written = self._written
            if self._progress is not None:
                self._progress(written, self._total)
            if over:
                return
            self._ask()

    def _ask(self) -> None:
        if self._should_stop is not None and self._should_stop():
            raise MergeStoppedError("the merge was stopped")

    def _check(self) -> None:
        if self._stopping:
            raise MergeStoppedError("the merge was stopped")

    # -- surveys ----------------------------------------------------------------------------------

    def _survey_model(self) -> None:
        """Have a method look at the whole model, or at nothing, in the calling thread."""
        if self._method.scope is Scope.TENSOR:
            return
        tensors = []
        if self._method.scope is Scope.MODEL:
            tensors = sorted(
                (item.spec.name, number)
                for number, item in enumerate(self._plan.items)
                if item.policy is Policy.MERGE
            )
        try:
            self._whole = self._survey([number for _, number in tensors], self._ask)
        except NotFiniteError as error:
            self._faults.add(error.fault)

    def _survey(self, numbers: Sequence[int], check: Callable[[], None]) -> object:
        specs = [(number, self._plan.items[number].spec) for number in numbers]
        group = SourceGroup(self._inputs, self._base, specs, check=check)
        try:
            if not isinstance(self._method, LinearMethod):
                return self._method.survey(group)
            return self._coefficients(self._method, group)
        finally:
            with self._changed:
                self.bytes_read += group.bytes_read

    def _coefficients(self, method: LinearMethod, group: SourceGroup) -> Coefficients:
        values = method.coefficients(group)
        if len(values) not in (group.count, group.count + int(group.base)):
            raise MergeError(f"merge method {method.name} gave {len(values)} coefficients")
        try:
            return Coefficients.of(values)
        except ValueError as error:
            raise MergeError(f"merge method {method.name}: {error}") from error

    # -- in the threads ---------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            worker = Worker(self._inputs, self._base, self._local, self._sink, self._row_bytes)
            while (task := self._tasks.take()) is not None:
                self._check()
                if isinstance(task, Opening):
                    self._open(task.number)
                else:
                    self._piece(worker, task)
            with self._changed:
                self.bytes_read += worker.bytes_read
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
            self._tasks.close()
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _open(self, number: int) -> None:
        opened = self._prepare(number)
        self._opened[number] = opened
        self._tasks.opened(opened.pieces(number, self._row_bytes))

    def _prepare(self, number: int) -> Opened:
        item = self._plan.items[number]
        if item.kind is not Kind.FLOATING or item.policy in (Policy.LOCAL, Policy.EQUAL):
            return Opened(item, (), None, self._weights)
        survey = self._whole
        if item.policy is Policy.MEAN:
            survey = Coefficients.of([each.weight for each in self._inputs])
        elif self._method.scope is Scope.TENSOR and not self._faults:
            try:
                survey = self._survey([number], self._check)
            except NotFiniteError as error:
                self._faults.add(error.fault)
        sources = [each.source for each in self._inputs]
        if isinstance(survey, Coefficients):
            with_base = len(survey.numerators) > len(sources)
        else:
            with_base = item.policy is Policy.MERGE
        if with_base and self._base is not None:
            sources.append(self._base)
        formats = [float_format(source.specs()[item.spec.name].dtype) for source in sources]
        dtypes = tuple(each.torch for each in formats)
        if self._faults:
            return Opened(item, dtypes, None, self._weights)
        if isinstance(survey, Coefficients):
            how = LinearSum(survey, formats, float_format(item.spec.dtype))
            return Opened(item, dtypes, how, self._weights)
        if isinstance(self._method, LinearMethod):
            raise AssertionError("a linear method has coefficients")
        return Opened(item, dtypes, self._method, self._weights, survey)

    def _piece(self, worker: Worker, piece: Piece) -> None:
        opened = self._opened[piece.number]
        if self._faults:
            self._inspect(worker, opened, piece)
            return
        try:
            digests = worker.merge(opened, piece)
        except NotFiniteError as error:
            self._faults.add(error.fault)
            self._inspect(worker, opened, piece)
            return
        size = (piece.stop - piece.start) * opened.unit
        with self._changed:
            self._leaves[piece.number][piece.start] = digests
            self._written += size
            self.bytes_written += size * (1 + len(opened.item.twins))

    def _inspect(self, worker: Worker, opened: Opened, piece: Piece) -> None:
        for fault in worker.inspect(opened, piece):
            self._faults.add(fault)

"""Merges models of any size in bounded memory, exactly, in several threads.

Theory of operation. The inputs are put in the order of their keys, which depends on their content
alone. `plan` decides from names what the result has. An `attempt` hands pieces of tensors to
threads (`tasks`, `worker`): each reads a piece of every input, computes the result's piece, writes
it to the sink, and goes on. Memory is a few MiB for each input and thread, whatever the size of the
models. A result is the same bit for bit for any order of the inputs, number of threads, and size of
the pieces: linear methods are defined by exact arithmetic (`exact`), and elementwise ones see the
same columns in the same order.

| what happens | then |
|---|---|
| an input has a NaN or an infinity | it is left out, and the merge begins anew (`quarantine`) |
| fewer inputs are left than the method needs | MergeError that names who was left out, and why |
| names, shapes or dtypes differ | see `plan` |
| `should_stop` says so | MergeStoppedError; the sink is not finished |
| a source, the sink or the method fails | its own error; the threads have ended by then |
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import torch

from sbp2p.errors import MergeError
from sbp2p.merge import method as methods
from sbp2p.merge.attempt import Attempt, MergeStoppedError
from sbp2p.merge.plan import Model, make_plan
from sbp2p.merge.policies import Policies
from sbp2p.merge.report import MergeReport, Rejection

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sbp2p.merge.method import Method, Names
    from sbp2p.merge.tensors import Input, Sink, Source

__all__ = ["MergeReport", "MergeStoppedError", "Rejection", "compute_alone", "merge"]


def compute_alone() -> None:
    """Have torch compute on the calling thread: for a process that does nothing but merge.

    A merge has threads of its own, and torch's would only stand in their way. Where a model trains
    in the same process, torch's threads are the trainer's.
    """
    torch.set_num_threads(1)


def merge(
    inputs: Sequence[Input],
    method: Method | str,
    *,
    sink: Sink,
    base: Source | None = None,
    local: Source | None = None,
    policies: Policies | None = None,
    names: Names = "strict",
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    done: Collection[str] = (),
) -> MergeReport:
    """Merge models into a sink.

    Args:
        inputs: in any order. Weights count relative to each other; not all of them may be 0.
        method: a method, or the name of one.
        sink: where the result goes; `finish` is called when all is written.
        base: the model that the inputs were made from, for methods that want one.
        local: for names "keep-local", the policy `local`, and booleans that are tied.
        policies: what becomes of each kind of tensor; the defaults if None.
        names: what to do with tensors that not all inputs have alike; see `plan`.
        threads: how many; one more than there are cores if None.
        progress: called by this thread with bytes written and in total, a few times a second.
        should_stop: asked by this thread a few times a second; true ends the merge.
        done: names of tensors that an earlier merge of these inputs has written; skipped, unless an
            input turns out to be bad.

    Returns:
        What was done, and the digest of the result.

    Raises:
        MergeError: see above; MergeStoppedError for `should_stop`.
        CheckpointError: an input cannot be read.
    """
    how = methods.get(method) if isinstance(method, str) else method
    if how.needs_base and base is None:
        raise MergeError(
            f"merge method {how.name} needs a base model",
            hint="say which model the inputs were made from: `base=`, or --base in a shell",
        )
    policies = policies or Policies()
    with how.merging():
        left = sorted(inputs, key=lambda each: (each.key, each.label, each.weight))
        rejected: list[Rejection] = []
        read = written = 0
        while True:
            _require(left, how, rejected)
            total = sum((each.weight for each in left), Fraction(0))
            weighted = [replace(each, weight=each.weight / total) for each in left]
            models = [Model(each.label, each.source) for each in weighted]
            plan = make_plan(models, base, local, policies, names)
            specs = plan.specs()
            sink.begin(specs)
            attempt = Attempt(
                plan,
                weighted,
                how,
                base=base,
                local=local,
                sink=sink,
                threads=threads,
                progress=progress,
                should_stop=should_stop,
                done=() if rejected else done,
            )
            faults = attempt.run()
            read += attempt.bytes_read
            written += attempt.bytes_written
            if not faults:
                break
            for fault in faults:
                bad = left[fault.input]
                sink.reject(bad.label, bad.key, fault.name, fault.reason)
                rejected.append(Rejection(bad.label, bad.key, fault.name, fault.reason))
            gone = {fault.input for fault in faults}
            left = [each for number, each in enumerate(left) if number not in gone]
        sink.finish()
        return MergeReport(
            used=tuple((each.label, each.weight) for each in weighted),
            counted=attempt.counted(),
            rejected=tuple(sorted(rejected, key=lambda each: (each.key, each.label))),
            tensors=len(specs),
            dropped=plan.dropped,
            kept=plan.kept,
            tied=tuple((item.spec.name, *item.twins) for item in plan.items if item.twins),
            bytes_read=read,
            bytes_written=written,
            digest=attempt.digest(),
        )


def _require(left: Sequence[Input], how: Method, rejected: Sequence[Rejection]) -> None:
    """Raise MergeError when too few inputs are left."""
    wanted = max(1, how.inputs_min)
    if len(left) >= wanted and any(each.weight for each in left):
        return
    reasons = "; ".join(f"{each.label} has {each.reason}" for each in rejected)
    if len(left) >= wanted:
        raise MergeError("every input has the weight 0" + (f": {reasons}" if reasons else ""))
    have = f"{len(left)} sound ones are left: {reasons}" if rejected else f"{len(left)} were given"
    raise MergeError(f"merge method {how.name} needs {wanted} inputs, and {have}")

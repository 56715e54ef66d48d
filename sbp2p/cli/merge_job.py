"""One merge of files into files: what `sbp2p merge` runs in a thread, with nothing of a node."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from sbp2p.merge.engine import merge
from sbp2p.merge.files import FileSink
from sbp2p.merge.files_layout import Plan, plan
from sbp2p.merge.files_model import OpenModel, content_key
from sbp2p.merge.plan import Model, make_plan
from sbp2p.merge.policies import Policy
from sbp2p.merge.tensors import Input

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from fractions import Fraction
    from pathlib import Path

    from sbp2p.merge.engine import MergeReport, Rejection
    from sbp2p.merge.method import Method, Names
    from sbp2p.merge.policies import Policies

    from .merge_inputs import Located

_TORCH_NAMES: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """How to merge, and where to."""

    method: Method
    options: Mapping[str, object]
    names: Names
    policies: Policies
    policy_texts: tuple[str, ...]
    dtype: str
    """`keep`, or what the result's floating tensors are to be."""
    output: Path
    max_shard_bytes: int | None
    threads: int | None
    restart: bool


@dataclass(frozen=True, slots=True)
class Weighted:
    """One input and its weight."""

    located: Located
    weight: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A merge that is finished."""

    report: MergeReport
    digest: bytes
    """Of the result, also of what an earlier run did."""
    left_out: tuple[Rejection, ...]
    """Inputs that an earlier run had left out."""
    output: Path
    size: int
    """Bytes of all files of the result."""
    resumed: int
    """Tensors that an earlier run had done."""
    seconds: float
    used: tuple[Located, ...]
    """The inputs that take part, in the order in which they were given."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a merge would read and write."""

    sizes: tuple[int, ...]
    """Bytes of the tensors of each input, then of the base if there is one."""
    tensors: int
    plan: Plan
    extras: tuple[str, ...]
    """Other files that are copied."""


class Opened:
    """The models of a job, open. A context manager."""

    def __init__(self, job: Job, inputs: Sequence[Weighted], base: Located | None) -> None:
        """Open all of them; raises CheckpointError and MergeError."""
        self._job = job
        self._weighted = inputs
        with ExitStack() as stack:
            self.models = [stack.enter_context(OpenModel(each.located.files)) for each in inputs]
            self.base = None if base is None else stack.enter_context(OpenModel(base.files))
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def like(self) -> OpenModel:
        """The model that the result is to be like: the base, or else the first input."""
        return self.base or self.models[0]

    @property
    def local(self) -> OpenModel | None:
        """The first input, if something of the result is to be as it is there."""
        rules = (policy for _, policy in self._job.policies.rules)
        wanted = self._job.names == "keep-local" or Policy.LOCAL in rules
        return self.models[0] if wanted else None

    def inputs(self) -> list[Input]:
        """Return what the engine takes, in the order in which the inputs were given."""
        return [
            Input(
                model.source,
                each.located.label,
                content_key(model.source) if each.located.cid is None else each.located.cid.digest,
                each.weight,
            )
            for model, each in zip(self.models, self._weighted, strict=True)
        ]

    def request(self, inputs: Sequence[Input]) -> dict[str, object]:
        """Return all that decides the result, as a journal holds it."""
        job, base = self._job, self.base
        return {
            "inputs": [
                [each.label, each.key.hex(), str(each.weight), model.stamp()]
                for each, model in zip(inputs, self.models, strict=True)
            ],
            "base": None if base is None else base.stamp(),
            "method": job.method.name,
            "options": {key: str(value) for key, value in sorted(job.options.items())},
            "names": job.names,
            "policies": list(job.policy_texts),
            "dtype": job.dtype,
            "max-shard-size": job.max_shard_bytes,
        }

    def extras(self) -> dict[str, Path | bytes]:
        """Return what is copied beside the tensors; a config.json tells of another dtype."""
        found: dict[str, Path | bytes] = dict(self.like.files.companions())
        config = found.get("config.json")
        if self._job.dtype in _TORCH_NAMES and config is not None and not isinstance(config, bytes):
            found["config.json"] = _with_dtype(config.read_bytes(), _TORCH_NAMES[self._job.dtype])
        return found


def _with_dtype(config: bytes, dtype: str) -> bytes:
    """Return a Hugging Face configuration that tells of a dtype, where it told of one."""
    try:
        content: Any = json.loads(config)
    except (ValueError, RecursionError):
        return config
    keys = [key for key in ("torch_dtype", "dtype") if isinstance(content, dict) and key in content]
    if not keys:
        return config
    return (json.dumps({**content, **dict.fromkeys(keys, dtype)}, indent=2) + "\n").encode()


def preview(job: Job, inputs: Sequence[Weighted], base: Located | None) -> Preview:
    """Open everything, and say what would be done; raises CheckpointError and MergeError."""
    with Opened(job, inputs, base) as opened:
        specs = make_plan(
            [
                Model(each.located.label, model.source)
                for each, model in zip(inputs, opened.models, strict=True)
            ],
            None if opened.base is None else opened.base.source,
            None if opened.local is None else opened.local.source,
            job.policies,
            job.names,
        ).specs()
        models = [*opened.models, *([opened.base] if opened.base is not None else [])]
        return Preview(
            tuple(model.size for model in models),
            len(specs),
            plan(specs, opened.like.style(), job.max_shard_bytes),
            tuple(opened.extras()),
        )


def work(
    job: Job,
    weighted: Sequence[Weighted],
    base: Located | None,
    progress: Callable[[int, int], None],
    should_stop: Callable[[], bool],
) -> Outcome:
    """Merge into files, going on with what an earlier run left.

    Raises:
        CheckpointError, MergeError: the models cannot be merged.
        StoreError: the disk failed; what was done is kept.
        MergeStoppedError: `should_stop` said so; what was done is kept.
    """
    started = time.perf_counter()
    with Opened(job, weighted, base) as opened:
        inputs = opened.inputs()
        sink = FileSink(
            job.output,
            request=opened.request(inputs),
            style=opened.like.style(),
            max_shard_bytes=job.max_shard_bytes,
            extras=opened.extras(),
            restart=job.restart,
        )
        with sink:
            out = {(each.label, each.key) for each in sink.rejected}
            kept = [n for n, each in enumerate(inputs) if (each.label, each.key) not in out]
            resumed = len(sink.done)
            size = sum(model.size for model in opened.models)
            report = merge(
                [inputs[n] for n in kept],
                job.method,
                sink=sink,
                base=None if opened.base is None else opened.base.source,
                local=None if opened.local is None else opened.local.source,
                policies=job.policies,
                names=job.names,
                threads=job.threads,
                progress=lambda done, total: progress(done * size // max(total, 1), size),
                should_stop=should_stop,
                done=frozenset(sink.done),
            )
            gone = {each.label for each in report.rejected}
            return Outcome(
                report=report,
                digest=sink.digest(),
                left_out=sink.rejected,
                output=sink.output,
                size=sink.size,
                resumed=0 if gone else resumed,
                seconds=time.perf_counter() - started,
                used=tuple(weighted[n].located for n in kept if inputs[n].label not in gone),
            )

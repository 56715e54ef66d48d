"""What is merged: models read a piece of a tensor at a time, and where the result goes.

Framework-free: tensors are little-endian bytes with a dtype as safetensors names it. A source may
be far larger than memory, so it is asked for pieces; a sink is written in pieces, in any order,
each byte once. Both are called from several threads at the same time.

Error cases: a source that cannot give its bytes raises a CheckpointError, a dtype whose elements
have no known size is a MergeError.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, Self, runtime_checkable

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.checkpoint.formats.safetensors import DTYPE_BITS
from sbp2p.checkpoint.reader import PathLike, RawTensor, TensorReader
from sbp2p.errors import MergeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

BITS: Final = MappingProxyType({**DTYPE_BITS, "C32": 32, "C128": 128})
"""Bits of an element by dtype: what safetensors knows, and torch's other two complex ones."""

KEY_BYTES: Final = 32
"""Bytes of the content key of an input: a BLAKE3 digest."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a tensor is, without its data; `shape` is outermost first, () for a single number."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Return how many elements it has: 1 for shape (), 0 when a dimension is 0."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the bytes that it takes; raises MergeError when nobody knows its dtype."""
        if (bits := BITS.get(self.dtype)) is None:
            raise MergeError(
                f"tensor {shown(self.name)} is {self.dtype}, whose elements have no known size",
                hint="quantised tensors cannot be merged; merge the model that they were made from",
            )
        return (self.elements * bits + 7) // 8


class Source(Protocol):
    """One model, readable a piece of a tensor at a time, from any thread."""

    def specs(self) -> Mapping[str, TensorSpec]:
        """Return every tensor by name; the same answer each time, read once by the engine."""

    def read_into(self, name: str, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` (writable bytes) with the tensor's bytes from `offset` on.

        Raises:
            CheckpointError: they cannot be read, or are not what they were when it was opened.
        """


class Sink(Protocol):
    """Where a result goes.

    `begin`, `reject` and `finish` are called by one thread, `write` by several, in any order, each
    byte once. When an input turns out to be bad midway, the engine calls `reject` for it, and then
    `begin` again: what was written until then is void.
    """

    def begin(self, specs: Mapping[str, TensorSpec]) -> None:
        """Take notice of every tensor of the result; the bytes written before count no more."""

    def reject(self, label: str, key: bytes, tensor: str, reason: str) -> None:
        """Take notice that an input is left out, and why."""

    def write(self, name: str, offset: int, data: memoryview) -> None:
        """Store a piece of a tensor; `data` is reused by the caller when this returns."""

    def finish(self) -> None:
        """Make the result visible: everything was written. Not called when a merge fails."""


@runtime_checkable
class TiedSource(Protocol):
    """A source that knows that some of its tensors are one: a change to one changes the other."""

    def ties(self) -> Mapping[str, str]:
        """Return, for every tensor that is another one, the name that comes first of them all."""


class MemorySource(Source):
    """A model whose tensors are in memory. Two with the same `data` object are one tensor."""

    def __init__(self, tensors: Mapping[str, RawTensor]) -> None:
        """Look at tensors by name; the bytes are neither copied nor changed. Raises MergeError."""
        self._data = {name: tensor.data.cast("B") for name, tensor in tensors.items()}
        self._specs = {
            name: TensorSpec(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()
        }
        self._ties: dict[str, str] = {}
        first: dict[object, str] = {}
        for name in sorted(tensors):
            tensor = tensors[name]
            leader = first.setdefault((id(tensor.data), tensor.dtype, tensor.shape), name)
            if leader != name:
                self._ties[name] = leader
        for name, spec in self._specs.items():
            if (have := self._data[name].nbytes) != spec.nbytes:
                raise MergeError(f"tensor {shown(name)} has {have} bytes, not {spec.nbytes}")

    def specs(self) -> Mapping[str, TensorSpec]:
        """Return every tensor by name."""
        return self._specs

    def ties(self) -> Mapping[str, str]:
        """Return the tensors that share their `data` with one whose name comes earlier."""
        return self._ties

    def read_into(self, name: str, offset: int, buffer: memoryview) -> None:
        """Copy bytes of a tensor, from `offset` on."""
        buffer[:] = self._data[name][offset : offset + buffer.nbytes]


class FileSource(Source):
    """A model in files: whatever `TensorReader` opens. A context manager."""

    def __init__(self, path: PathLike | Sequence[PathLike]) -> None:
        """Open what `path` means; raises CheckpointError, or MergeError for a quantised tensor."""
        self._reader = TensorReader(path)
        try:
            self._specs = {name: self._spec(name) for name in self._reader.names()}
        except BaseException:
            self.close()
            raise

    def _spec(self, name: str) -> TensorSpec:
        span = self._reader.span(name)
        spec = TensorSpec(name, span.dtype, span.shape)
        if spec.nbytes != span.length:
            raise MergeError(f"tensor {shown(name)} has {span.length} bytes, not {spec.nbytes}")
        return spec

    @property
    def reader(self) -> TensorReader:
        """The files that were opened."""
        return self._reader

    def specs(self) -> Mapping[str, TensorSpec]:
        """Return every tensor by name, in order of file and offset."""
        return self._specs

    def read_into(self, name: str, offset: int, buffer: memoryview) -> None:
        """Read bytes of a tensor, from `offset` on; raises CheckpointError."""
        self._reader.read_into(name, offset, buffer)

    def close(self) -> None:
        """Close the files; may be called again."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class MemorySink(Sink):
    """Gathers the result in memory: `tensors` when the merge is done."""

    def __init__(self) -> None:
        self._specs: Mapping[str, TensorSpec] = {}
        self._data: dict[str, memoryview] = {}
        self.tensors: dict[str, RawTensor] = {}

    def begin(self, specs: Mapping[str, TensorSpec]) -> None:
        """Make room for every tensor."""
        self._specs = specs
        self._data = {name: memoryview(bytearray(spec.nbytes)) for name, spec in specs.items()}

    def write(self, name: str, offset: int, data: memoryview) -> None:
        """Copy a piece of a tensor into its place."""
        self._data[name][offset : offset + data.nbytes] = data

    def reject(self, label: str, key: bytes, tensor: str, reason: str) -> None:
        """Do nothing: the report says it."""

    def finish(self) -> None:
        """Show the result as `tensors`."""
        self.tensors = {
            name: RawTensor(name, spec.dtype, spec.shape, self._data[name])
            for name, spec in self._specs.items()
        }


@dataclass(frozen=True, slots=True)
class Input:
    """One model that takes part in a merge.

    `key` names its content (the digest of a manifest): the inputs are put in order of their keys,
    so that a result cannot depend on the order in which they came. `weight` is relative to the
    others' and not negative; how stale a model is, or how many samples it saw, is in it already.
    """

    source: Source
    label: str
    key: bytes
    weight: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(self.key)}")
        if self.weight < 0:
            raise ValueError(f"the weight of {self.label} is negative")

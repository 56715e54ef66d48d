"""One thread of a merge: reads a piece of each input, computes it, writes and hashes the result.

Theory of operation: a thread owns a buffer for a piece of each input, and reuses it. A piece is
computed chunk by chunk, of at most CHUNK numbers, which stay in the cache of the core; torch runs
operations on so few numbers on the calling thread. Reading, torch, hashing and writing all release
the interpreter lock, so as many threads as cores keep all of them busy, and a few more keep the
disk busy, too.

Error cases: an input that is not finite raises NotFiniteError, and so do the surveys; whatever the
sources, the sink and the method raise passes through.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.errors import MergeError
from sbp2p.merge.digest import leaves
from sbp2p.merge.dtypes import TORCH, Kind, float_format, view
from sbp2p.merge.exact import LinearSum
from sbp2p.merge.extent import Extent, Workspace, peak_of
from sbp2p.merge.group import computable
from sbp2p.merge.method import CHUNK, ElementwiseMethod, Place
from sbp2p.merge.policies import Policy, combine_integers
from sbp2p.merge.quarantine import Fault, NotFiniteError, base_is_bad, describe
from sbp2p.merge.rounding import store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.merge.opened import Opened
    from sbp2p.merge.tasks import Piece
    from sbp2p.merge.tensors import Input, Sink, Source


class Rows:
    """A buffer per model, and what was read into it, as tensors."""

    def __init__(self, count: int, size: int) -> None:
        self._buffer = memoryview(bytearray(count * size))
        self._count = count
        self._size = size
        self.bytes_read = 0

    def read(
        self, number: int, source: Source, name: str, start: int, stop: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Read elements of a tensor; the result is overwritten by the next read of `number`."""
        size = (stop - start) * dtype.itemsize
        at = number * self._size
        part = self._buffer[at : at + size]
        source.read_into(name, start * dtype.itemsize, part)
        self.bytes_read += size
        return view(part, dtype)

    def block(self, count: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the first rows as one tensor of shape (count, length), what was read last."""
        return view(self._buffer, dtype).view(self._count, -1)[:count, :length]


class Worker:
    """What one thread needs; its methods are called by that thread alone."""

    def __init__(
        self,
        inputs: Sequence[Input],
        base: Source | None,
        local: Source | None,
        sink: Sink,
        row_bytes: int,
    ) -> None:
        """Make the buffers, each of `row_bytes`."""
        self._inputs = inputs
        self._base = base
        self._local = local
        self._sink = sink
        self._rows = Rows(len(inputs) + 1, row_bytes)
        self._result = bytearray(row_bytes)
        self._space = Workspace()
        # a thread inherits whether tiny numbers count as zero; exact sums need them
        torch.set_flush_denormal(False)

    @property
    def bytes_read(self) -> int:
        """Return how many bytes of inputs this thread has read."""
        return self._rows.bytes_read

    def merge(self, opened: Opened, piece: Piece) -> bytes:
        """Merge and write a piece, and return the digests of its leaves."""
        item = opened.item
        kind = item.kind
        if item.policy is Policy.LOCAL:
            data = self._copy(opened, piece)
        elif item.policy is Policy.EQUAL:
            data = self._equal(opened, piece)
        elif kind is Kind.FLOATING:
            data = self._floats(opened, piece)
        else:
            data = self._integers(opened, piece)
        offset = piece.start * opened.unit
        for name in (item.spec.name, *item.twins):
            self._sink.write(name, offset, data)
        return leaves(data)

    def inspect(self, opened: Opened, piece: Piece) -> list[Fault]:
        """Only look whether the inputs are finite, and return what is not."""
        if opened.item.kind is not Kind.FLOATING or opened.item.policy is Policy.LOCAL:
            return []
        faults = []
        for number, row in enumerate(self._read_floats(opened, piece)[: len(self._inputs)]):
            try:
                for start in range(0, row.numel(), CHUNK):
                    part = computable(row[start : start + CHUNK])
                    self._extent(opened, piece, number, part, start)
            except NotFiniteError as error:
                faults.append(error.fault)
        return faults

    # -- floating numbers -------------------------------------------------------------------------

    def _read_floats(self, opened: Opened, piece: Piece) -> list[torch.Tensor]:
        name = opened.item.spec.name
        rows = []
        for number, dtype in enumerate(opened.dtypes):
            source = self._base if number == len(self._inputs) else self._inputs[number].source
            if source is None:
                raise AssertionError("a base is read, and there is none")
            rows.append(self._rows.read(number, source, name, piece.start, piece.stop, dtype))
        return rows

    def _extent(
        self, opened: Opened, piece: Piece, number: int, row: torch.Tensor, start: int
    ) -> Extent:
        """Measure a row; raises NotFiniteError."""
        extent = self._space.extent(row)
        if math.isfinite(extent.peak):
            return extent
        name = opened.item.spec.name
        if number == len(self._inputs):
            raise base_is_bad(row, piece.start + start, name)
        element, reason = describe(row, piece.start + start, name)
        raise NotFiniteError(Fault(piece.number, element, number, name, reason))

    def _floats(self, opened: Opened, piece: Piece) -> memoryview:
        target = float_format(opened.item.spec.dtype)
        size = (piece.stop - piece.start) * target.bytes
        data = memoryview(self._result)[:size]
        out = view(data, target.torch)
        rows = self._read_floats(opened, piece)
        how = opened.how
        if how is None:
            raise AssertionError("nothing is merged once an input is bad")
        if isinstance(how, LinearSum) and how.takes(opened.dtypes):
            block = self._rows.block(len(rows), out.numel(), opened.dtypes[0])
            if how.compute_block(block, out, self._space):
                return data
        wide = isinstance(how, LinearSum) or how.by_rows
        step = CHUNK if wide else max(1, CHUNK // len(rows))
        for start in range(0, out.numel(), step):
            stop = min(start + step, out.numel())
            chunk = [computable(row[start:stop]) for row in rows]
            extents = [
                self._extent(opened, piece, number, row, start) for number, row in enumerate(chunk)
            ]
            if isinstance(how, LinearSum):
                how.compute(chunk, extents, out[start:stop], self._space)
            else:
                place = Place(opened.item.spec, piece.start + start, piece.start + stop)
                store(self._combined(opened, how, chunk, place), target, out[start:stop])
        return data

    def _combined(
        self,
        opened: Opened,
        method: ElementwiseMethod,
        chunk: Sequence[torch.Tensor],
        place: Place,
    ) -> torch.Tensor:
        count, size = len(self._inputs), chunk[0].numel()
        values = torch.empty((count, size), dtype=torch.float64)
        for row, value in zip(chunk, values, strict=False):
            value.copy_(row)
        base = chunk[count].double() if len(chunk) > count else None
        result = method.combine(values, base, opened.weights, opened.survey, place)
        if result.shape != (size,) or result.dtype != torch.float64:
            raise MergeError(f"merge method {method.name} returned {result.dtype} {result.shape}")
        if math.isnan(peak_of(result)):
            raise MergeError(
                f"merge method {method.name} made a NaN in {shown(place.tensor.name)} out of "
                "finite numbers",
                hint="try it without that tensor, or with another method",
            )
        return result

    # -- everything else --------------------------------------------------------------------------

    def _integers(self, opened: Opened, piece: Piece) -> memoryview:
        spec = opened.item.spec
        dtype = TORCH[spec.dtype]
        if dtype is torch.bool:
            dtype = torch.uint8
        size = (piece.stop - piece.start) * dtype.itemsize
        data = memoryview(self._result)[:size]
        out = view(data, dtype)
        rows = [
            self._rows.read(number, each.source, spec.name, piece.start, piece.stop, dtype)
            for number, each in enumerate(self._inputs)
        ]
        local = None
        if self._local is not None and self._local.specs().get(spec.name) == spec:
            last = len(self._inputs)
            local = self._rows.read(last, self._local, spec.name, piece.start, piece.stop, dtype)
        step = max(1, CHUNK // (len(rows) + 1))
        for start in range(0, out.numel(), step):
            part = slice(start, start + step)
            own = None if local is None else local[part]
            combine_integers([row[part] for row in rows], opened.item.policy, own, out[part])
        return data

    def _equal(self, opened: Opened, piece: Piece) -> memoryview:
        spec = opened.item.spec
        first: torch.Tensor | None = None
        for number, each in enumerate(self._inputs):
            row = self._bytes(number, each.source, opened, piece)
            if first is None:
                first = row
            elif not torch.equal(first, row):
                raise MergeError(
                    f"tensor {shown(spec.name)} is not the same in {each.label} and in "
                    f"{self._inputs[0].label}",
                    hint="say what becomes of it: a policy such as majority, max or local",
                )
        size = piece.stop - piece.start
        data = memoryview(self._result)[:size]
        if first is not None:
            view(data, torch.uint8).copy_(first)
        return data

    def _copy(self, opened: Opened, piece: Piece) -> memoryview:
        if self._local is None:
            raise AssertionError("a plan keeps what is local only when there is something")
        size = piece.stop - piece.start
        data = memoryview(self._result)[:size]
        view(data, torch.uint8).copy_(self._bytes(0, self._local, opened, piece))
        return data

    def _bytes(self, number: int, source: Source, opened: Opened, piece: Piece) -> torch.Tensor:
        name = opened.item.spec.name
        return self._rows.read(number, source, name, piece.start, piece.stop, torch.uint8)


ROW_BYTES_MAX: Final = 512 * 1024
"""Bytes of an input that are read at a time. Eight of these and what is computed from them stay in
the last cache; with 4 MiB, merging 8 models of float32 took 1.3 times as much CPU time."""

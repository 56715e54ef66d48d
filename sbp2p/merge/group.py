"""The inputs as methods see them: float64, in canonical order, streamed a chunk at a time."""

from __future__ import annotations

import math
from array import array
from itertools import chain
from typing import TYPE_CHECKING, Final

import torch

from sbp2p.errors import MergeError
from sbp2p.merge.dtypes import float_format, numbers, view
from sbp2p.merge.extent import peak_of
from sbp2p.merge.method import BASE, CHUNK, Base, Group, Place
from sbp2p.merge.quarantine import Fault, NotFiniteError, base_is_bad, describe
from sbp2p.merge.sums import fold_dot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from fractions import Fraction

    from sbp2p.merge.tensors import Input, Source, TensorSpec

_READ: Final = 8 * CHUNK
"""Numbers that are read at a time."""


def computable(row: torch.Tensor) -> torch.Tensor:
    """Return a row in a dtype that torch compares and converts fast: 8-bit floats as float32."""
    return row.to(torch.float32) if row.dtype.itemsize == 1 else row


class SourceGroup(Group):
    """A group over sources; for one thread."""

    def __init__(
        self,
        inputs: Sequence[Input],
        base: Source | None,
        tensors: Sequence[tuple[int, TensorSpec]],
        *,
        check: Callable[[], None],
    ) -> None:
        """Show inputs in the order given.

        Args:
            inputs: in canonical order, with weights whose sum is 1.
            base: the base model.
            tensors: what is surveyed, each with its number in reading order.
            check: called now and then; raises to stop.
        """
        self._inputs = tuple(inputs)
        self._base = base
        self._tensors = tuple(tensors)
        self._check = check
        self.bytes_read = 0

    @property
    def count(self) -> int:
        """Return how many inputs there are."""
        return len(self._inputs)

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Return the content keys."""
        return tuple(each.key for each in self._inputs)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return who the inputs are."""
        return tuple(each.label for each in self._inputs)

    @property
    def weights(self) -> tuple[Fraction, ...]:
        """Return the weights."""
        return tuple(each.weight for each in self._inputs)

    @property
    def base(self) -> bool:
        """Return whether there is a base model."""
        return self._base is not None

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Return what is surveyed."""
        return tuple(spec for _, spec in self._tensors)

    def pieces(self, which: int | Base) -> Iterator[tuple[Place, torch.Tensor]]:
        """Stream one input's values."""
        for number, spec in self._tensors:
            for start, row in self._rows(which, spec):
                if not math.isfinite(peak_of(row)):
                    element, reason = describe(row, start, spec.name)
                    if isinstance(which, Base):
                        raise base_is_bad(row, start, spec.name)
                    raise NotFiniteError(Fault(number, element, which, spec.name, reason))
                yield Place(spec, start, start + row.numel()), row.to(torch.float64, copy=True)

    def _rows(self, which: int | Base, spec: TensorSpec) -> Iterator[tuple[int, torch.Tensor]]:
        source = self._source(which)
        stored = source.specs()[spec.name].dtype
        number_format = float_format(stored)
        total = numbers(spec)
        buffer = bytearray(min(_READ, total) * number_format.bytes)
        values = view(buffer, number_format.torch)
        for at in range(0, total, _READ):
            self._check()
            size = min(_READ, total - at)
            source.read_into(
                spec.name,
                at * number_format.bytes,
                memoryview(buffer)[: size * number_format.bytes],
            )
            self.bytes_read += size * number_format.bytes
            for start in range(0, size, CHUNK):
                yield at + start, computable(values[start : min(start + CHUNK, size)])

    def _source(self, which: int | Base) -> Source:
        if isinstance(which, Base):
            if self._base is None:
                raise ValueError("there is no base model")
            return self._base
        return self._inputs[which].source

    def gram(self, relative: bool = False) -> list[list[float]]:
        """Return the inner products, summed over chunks of fixed size, then exactly."""
        if relative and not self.base:
            raise ValueError("there is no base model")
        order: list[int | Base] = [*range(self.count)]
        if self.base:
            order.append(BASE)
        size = self.count if relative or not self.base else self.count + 1
        try:
            half = self._products(order, size, relative=relative)
        except (OverflowError, ValueError):  # fsum's words for an infinite sum
            half = [[math.inf]]
        if not all(map(math.isfinite, chain.from_iterable(half))):
            raise MergeError(
                "the inputs have numbers so large that their inner products are beyond float64",
                hint="use a method without angles, such as mean or median",
            )
        return [[half[max(i, j)][min(i, j)] for j in range(size)] for i in range(size)]

    def _products(
        self, order: Sequence[int | Base], size: int, *, relative: bool
    ) -> list[list[float]]:
        """Return the lower half of the products."""
        sums = [[array("d") for _ in range(i + 1)] for i in range(size)]
        for chunk in zip(*(self.pieces(each) for each in order), strict=True):
            rows = [values for _, values in chunk]
            if relative:
                for row in rows[:-1]:
                    row.sub_(rows[-1])
            for i in range(size):
                for j in range(i + 1):
                    sums[i][j].append(fold_dot(rows[i], rows[j]))
        return [[math.fsum(each) for each in row] for row in sums]

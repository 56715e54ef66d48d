"""Inputs for tests of merge methods: a group in memory, and a method run over it chunk by chunk."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import torch

from sbp2p.merge.method import BASE, CHUNK, Base, LinearMethod, Method, Place, Scope
from sbp2p.merge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def key_of(index: int) -> bytes:
    return bytes([index]) * 32


class ListGroup:
    """What the engine shows a method, of one tensor "t", cut into pieces of any size."""

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        base: torch.Tensor | None = None,
        weights: Sequence[int] | None = None,
        *,
        chunk: int = CHUNK,
        keys: Sequence[bytes] | None = None,
        name: str = "t",
    ) -> None:
        self.inputs = [each.double().flatten() for each in inputs]
        self.start = None if base is None else base.double().flatten()
        self.chunk = chunk
        shares = weights or [1] * len(inputs)
        self.weights = tuple(Fraction(each, sum(shares)) for each in shares)
        self.keys = tuple(keys or [key_of(index) for index in range(len(inputs))])
        self.tensors = (TensorSpec(name, "F64", tuple(inputs[0].shape)),)

    @property
    def count(self) -> int:
        return len(self.inputs)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"input {index}" for index in range(self.count))

    @property
    def base(self) -> bool:
        return self.start is not None

    def places(self) -> Iterator[Place]:
        size = self.inputs[0].numel()
        for start in range(0, size, self.chunk):
            yield Place(self.tensors[0], start, min(size, start + self.chunk))

    def pieces(self, which: int | Base) -> Iterator[tuple[Place, torch.Tensor]]:
        values = self.base_values() if which is BASE else self.inputs[which]
        for place in self.places():
            yield place, values[place.start : place.stop].clone()

    def base_values(self) -> torch.Tensor:
        assert self.start is not None
        return self.start

    def gram(self, relative: bool = False) -> list[list[float]]:
        if relative:
            rows = [each - self.base_values() for each in self.inputs]
        else:
            rows = [*self.inputs, *([self.base_values()] if self.base else [])]
        return [[math.fsum((a * b).tolist()) for b in rows] for a in rows]


def run(method: Method, group: ListGroup) -> torch.Tensor:
    """Merge as the engine does, but to float64 and without its exact sums."""
    assert method.scope in (Scope.NONE, Scope.TENSOR, Scope.MODEL)
    with method.merging():
        if isinstance(method, LinearMethod):
            factors = [float(each) for each in method.coefficients(group)]
            rows = group.inputs + ([group.base_values()] if len(factors) > group.count else [])
            return sum(
                (row * factor for row, factor in zip(rows, factors, strict=True)),
                torch.zeros_like(rows[0]),
            )
        survey = method.survey(group)
        weights = torch.tensor([float(each) for each in group.weights], dtype=torch.float64)
        parts = []
        for place in group.places():
            cut = slice(place.start, place.stop)
            values = torch.stack([each[cut] for each in group.inputs])
            base = None if group.start is None else group.start[cut].clone()
            parts.append(method.combine(values, base, weights, survey, place))
        return torch.cat(parts)


def noise(seed: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    """Return normal float64 noise, the same every time."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random, dtype=torch.float64) * scale


def fine_tunes(
    count: int, elements: int, *, seed: int = 0
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a base, and models that share some of what they are more than it."""
    base = noise(seed, elements)
    common = noise(seed + 1, elements, scale=0.01)
    return base, [
        base + common + noise(seed + 2 + index, elements, scale=0.01) for index in range(count)
    ]

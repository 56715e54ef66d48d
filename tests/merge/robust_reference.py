"""What the robust methods are, said slowly: exact rationals, and no shortcut that the code takes.

Models are lists of numbers; `MODELS` of one weight each would be scalars. A `ListGroup` shows
such models to a method, as the engine would, in pieces as small as a test likes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING

import torch

from sbp2p.merge.method import BASE, Base, ElementwiseMethod, LinearMethod, Method, Place
from sbp2p.merge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Model = list[float]
Exact = list[Fraction]


@dataclass(frozen=True)
class ListGroup:
    """Models in memory, in canonical order."""

    models: list[Model]
    base_model: Model | None = None
    piece: int = 32_768
    weights: tuple[Fraction, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.weights:
            object.__setattr__(self, "weights", (Fraction(1, self.count),) * self.count)

    @property
    def count(self) -> int:
        return len(self.models)

    @property
    def keys(self) -> tuple[bytes, ...]:
        return tuple(index.to_bytes(32, "big") for index in range(self.count))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"model {index}" for index in range(self.count))

    @property
    def base(self) -> bool:
        return self.base_model is not None

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("weight", "F64", (len(self.models[0]),)),)

    def pieces(self, which: int | Base) -> Iterator[tuple[Place, torch.Tensor]]:
        model = self.base_model if which is BASE else self.models[which]
        assert model is not None
        for start in range(0, len(model), self.piece):
            values = torch.tensor(model[start : start + self.piece], dtype=torch.float64)
            yield Place(self.tensors[0], start, start + len(values)), values

    def gram(self, relative: bool = False) -> list[list[float]]:
        raise AssertionError("the robust methods take their own inner products")


def coefficients(method: Method, group: ListGroup) -> list[Fraction]:
    """Return the coefficients of a linear method, the base's too if it gives one."""
    assert isinstance(method, LinearMethod)
    return [Fraction(each) for each in method.coefficients(group)]


def merged(method: Method, models: list[Model], base: Model | None = None) -> Exact:
    """Return what a method makes of models, before the engine rounds it."""
    group = ListGroup(models, base)
    if isinstance(method, LinearMethod):
        found = coefficients(method, group)
        rows = [exact(each) for each in [*models, *([base] if base is not None else [])]]
        return [
            sum((c * x for c, x in zip(found, column, strict=False)), Fraction())
            for column in zip(*rows, strict=True)
        ]
    assert isinstance(method, ElementwiseMethod)
    survey = method.survey(group)
    values = torch.tensor(models, dtype=torch.float64)
    under = None if base is None else torch.tensor(base, dtype=torch.float64)
    weights = torch.full((group.count,), 1 / group.count, dtype=torch.float64)
    place = Place(group.tensors[0], 0, len(models[0]))
    return exact(method.combine(values, under, weights, survey, place).tolist())


def exact(model: Iterable[float]) -> Exact:
    return [Fraction(each) for each in model]


def mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction()) / len(values)


def mean_of(models: Sequence[Exact]) -> Exact:
    return [mean(column) for column in zip(*models, strict=True)]


def squared(a: Exact, b: Exact) -> Fraction:
    return sum(((x - y) ** 2 for x, y in zip(a, b, strict=True)), Fraction())


def trimmed(values: Sequence[Fraction], f: int) -> Fraction:
    return mean(sorted(values)[f : len(values) - f])


def nearest(values: Sequence[Fraction], centre: Fraction, keep: int) -> Fraction:
    return mean(sorted(values, key=lambda value: (abs(value - centre), value))[:keep])


def around_median(values: Sequence[Fraction], f: int) -> Fraction:
    return nearest(values, median(values), len(values) - f)


def phocas(values: Sequence[Fraction], f: int) -> Fraction:
    return nearest(values, trimmed(values, f), len(values) - f)


def krum_scores(models: Sequence[Exact], f: int) -> list[Fraction]:
    neighbours = max(1, len(models) - f - 2)
    scores = []
    for index, model in enumerate(models):
        others = [*models[:index], *models[index + 1 :]]
        scores.append(sum(sorted(squared(model, other) for other in others)[:neighbours]))
    return [Fraction(score) for score in scores]


def krum_order(models: Sequence[Exact], f: int) -> list[int]:
    scores = krum_scores(models, f)
    return sorted(range(len(models)), key=lambda index: (scores[index], index))


def bulyan(models: Sequence[Exact], f: int) -> Exact:
    left = list(models)
    chosen = [left.pop(krum_order(left, f)[0]) for _ in range(len(models) - 2 * f)]
    result = []
    for column in zip(*chosen, strict=True):
        centre = min(sorted(column), key=lambda m: sum(abs(x - m) for x in column))
        result.append(nearest(column, centre, len(chosen) - 2 * f))
    return result


def faba(models: Sequence[Exact], f: int) -> list[int]:
    left = list(range(len(models)))
    for _ in range(f):
        centre = mean_of([models[index] for index in left])
        left.remove(max(left, key=lambda index: (squared(models[index], centre), index)))
    return left


def minimum_diameter(models: Sequence[Exact], f: int) -> Fraction:
    """Return the least squared diameter of n - f models."""
    keep = len(models) - f
    return min(
        max((squared(a, b) for a, b in combinations(chosen, 2)), default=Fraction())
        for chosen in combinations(models, keep)
    )


def clipped(
    models: Sequence[Exact], base: Exact, tau: Fraction | None, steps: int
) -> list[Decimal]:
    """Return the base after clipped steps towards the models, in 60 digits."""
    with localcontext() as context:
        context.prec = 60

        def number(value: Fraction) -> Decimal:
            return Decimal(value.numerator) / value.denominator

        rows = [[number(each) for each in model] for model in models]
        point = [number(each) for each in base]
        for _ in range(steps):
            moves = [[x - p for x, p in zip(row, point, strict=True)] for row in rows]
            lengths = [sum((x * x for x in move), Decimal()).sqrt() for move in moves]
            radius = sorted(lengths)[(len(rows) - 1) // 2] if tau is None else number(tau)
            scales = [
                min(Decimal(1), radius / length) if length else Decimal(1) for length in lengths
            ]
            point = [
                p
                + sum((s * m[i] for s, m in zip(scales, moves, strict=True)), Decimal()) / len(rows)
                for i, p in enumerate(point)
            ]
        return point

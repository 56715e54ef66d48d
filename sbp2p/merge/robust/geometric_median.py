"""The geometric median: the point with the least sum of distances to the models. Robust FedAvg.

Theory of operation: the smoothed Weiszfeld iteration of Pillutla et al. 2022 (RFA,
arXiv:1912.13445, algorithm 2): z becomes the mean of the models, each weighted by one over its
distance to z. Every z is a linear combination of the models, and its distances follow from their
inner products, so the models are read once, however many iterations there are, and the engine
computes the combination exactly.

Inner products are taken about the coordinate-wise median, which is also where the iteration starts:
a hostile model a trillion times farther off than the others costs them no digit, and no iteration.
A distance counts as at least `smoothing` times the median distance from there, so that no weight is
infinite when z falls on a model. There the iteration also crawls, so the models nearest to where
it begins and to where it ended are tried: if the others' pulls on one do not outweigh its own
weight, it is the geometric median, and the result bit for bit. A model that is infinitely far away
(rule 4 of `geometry`) gets weight 0.

Only additions, multiplications, divisions and square roots of float64, and exactly rounded sums:
the coefficients are the same bits on every peer.

Error cases: inputs that are all farther apart than float64 can tell are a MergeError.
"""

from __future__ import annotations

from fractions import Fraction
from math import fsum, isfinite, sqrt
from typing import TYPE_CHECKING, Final

from sbp2p.errors import MergeError
from sbp2p.merge.method import LinearMethod, MethodDoc, Scope, register
from sbp2p.merge.robust.geometry import inner_products
from sbp2p.merge.robust.hostile import Share, flag_of, number_of, whole_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.merge.method import Group
    from sbp2p.merge.robust.geometry import Matrix

_SMOOTHING: Final = "1e-6"
_ITERATIONS: Final = 1000
"""At most. 30 mostly do; near a model that is almost the median, 300. Each is n^2 products."""

_EVEN: Final = 1 + 1e-9
"""Pulls that outweigh a model by less come from rounding; models on a line are exactly even."""

_SETTLED: Final = 1e-14
"""Change of every coefficient below which another iteration changes nothing that matters."""


def distances_from(products: Matrix, point: Sequence[float]) -> list[float]:
    """Return the distance of each input from a linear combination of them.

    Args:
        products: inner products of the inputs about a centre.
        point: coefficients of the differences to that centre.
    """
    rows = [fsum(a * b for a, b in zip(row, point, strict=True)) for row in products]
    norm = fsum(a * b for a, b in zip(rows, point, strict=True))
    squares = (products[i][i] - 2 * row + norm for i, row in enumerate(rows))
    return [sqrt(max(square, 0.0)) for square in squares]


def weiszfeld(
    products: Matrix, weights: Sequence[float], smoothing: float, iterations: int
) -> list[Fraction]:
    """Return the coefficients of the geometric median; their sum is 1.

    Args:
        products: inner products about the coordinate-wise median, finite.
        weights: of the inputs, not negative.
        smoothing: the least distance that counts, as a multiple of the median one.
        iterations: at most.
    """
    count = len(products)
    distances = [sqrt(products[i][i]) for i in range(count)]
    if (here := _at_nearest(products, weights, distances)) is not None:
        return here
    typical = sorted(distances)[(count - 1) // 2] or min(d for d in distances if d)
    least = smoothing * typical
    point: list[float] = []
    for _ in range(iterations):
        pulls = [w / max(d, least) for w, d in zip(weights, distances, strict=True)]
        total_pull = fsum(pulls)
        before, point = point, [pull / total_pull for pull in pulls]
        if before and max(abs(a - b) for a, b in zip(before, point, strict=True)) < _SETTLED:
            break
        distances = distances_from(products, point)
    return _at_nearest(products, weights, distances) or _shares(point)


def _at_nearest(
    products: Matrix, weights: Sequence[float], distances: Sequence[float]
) -> list[Fraction] | None:
    """Return the coefficients of the input with the least distance if it is the median."""
    which = min(range(len(distances)), key=lambda each: (distances[each], each))
    row = products[which]
    squares = [products[i][i] - 2 * row[i] + row[which] for i in range(len(products))]
    equal = [w if square <= 0 else 0.0 for w, square in zip(weights, squares, strict=True)]
    pulls = [
        w / sqrt(square) if square > 0 else 0.0 for w, square in zip(weights, squares, strict=True)
    ]
    others = [i for i, pull in enumerate(pulls) if pull]
    pull = fsum(
        pulls[i] * pulls[j] * (products[i][j] - row[i] - row[j] + row[which])
        for i in others
        for j in others
    )
    return _shares(equal) if pull <= fsum(equal) ** 2 * _EVEN else None


def _shares(weights: Sequence[float]) -> list[Fraction]:
    """Return weights as shares of their sum, exactly."""
    exact = [Fraction(each) for each in weights]
    return [each / sum(exact) for each in exact]


@register
class GeometricMedian(LinearMethod):
    """The smoothed geometric median of whole models.

    Args:
        smoothing: the least distance that counts, as a share of the median distance.
        iterations: at most.
        weighted: let weights count; the breakdown point is then half of the weight.
    """

    name = "geometric-median"
    doc = MethodDoc(
        paper="Pillutla et al. 2022, Robust aggregation for federated learning, arXiv:1912.13445",
        assumes="nothing about directions; far hostile inputs pull no more than near ones",
        breakdown="f < n/2",
    )
    scope = Scope.MODEL

    def __init__(
        self,
        smoothing: Share = _SMOOTHING,
        iterations: int | str = _ITERATIONS,
        weighted: bool | str = False,
    ) -> None:
        self._smoothing = float(number_of(smoothing, "smoothing"))
        if not 0 < self._smoothing <= 1:
            raise ValueError(f"smoothing is {smoothing}, which is not in (0, 1]")
        self._iterations = whole_of(iterations, "iterations", 1)
        self._weighted = flag_of(weighted, "weighted")

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return the coefficients of the geometric median; their sum is 1."""
        products = inner_products(group, centre="median")
        near = [i for i in range(group.count) if isfinite(products[i][i])]
        weights = [float(group.weights[i]) if self._weighted else 1.0 for i in near]
        if not any(weights):
            raise MergeError(
                "the inputs are all too far apart for the range of float64",
                hint="look at them: no model has weights of 1e144",
            )
        inner = [[products[i][j] for j in near] for i in near]
        found = weiszfeld(inner, weights, self._smoothing, self._iterations)
        result = [Fraction()] * group.count
        for which, coefficient in zip(near, found, strict=True):
            result[which] = coefficient
        return result

"""SLERP of two models, and of any number: averages on the sphere, tensor by tensor.

A tensor is a direction with a length. `slerp` goes along the great circle between two directions,
w_1 of the way: x_0 sin(w_0 a) / sin a + x_1 sin(w_1 a) / sin a for the angle a between them.
`multi-slerp` is the same for n: the point m = sum_i a_i x_i / |x_i| of the sphere to which the sum
of weighted arcs is least (spherical weighted average, Karcher mean), applied to the models as SLERP
applies its two factors: sum_i a_i x_i. For two it is SLERP. `karcher` gives m the weighted mean of
the lengths instead. All three are linear once the angles are known, and every step of the search
stays in the span of the inputs: their inner products are all it needs. No torch here.

Where there is no arc the result is the weighted mean: directions that are (nearly) parallel, among
them identical inputs, that point (nearly) away from each other, or that have no length.
"""

from __future__ import annotations

from abc import abstractmethod
from fractions import Fraction
from math import fsum, sqrt
from typing import TYPE_CHECKING, Final, Literal

from sbp2p.errors import MergeError
from sbp2p.merge.method import LinearMethod, MethodDoc, Scope, register
from sbp2p.merge.models.angles import PI, arc_cosine, cosine, sine
from sbp2p.merge.models.numbers import Number, exact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.merge.method import Group

PARALLEL: Final = 1 - 1e-10
"""Cosine above which an arc counts as straight; SLERP and the mean then differ by less than 1e-10
of the length. Others take 0.9995, which most fine-tunes of one base reach: they never see SLERP."""

OPPOSITE: Final = -0.9995
"""Cosine below which two directions point away from each other: factors would grow past 30."""

_QUARTER: Final = PI / 2

_STEPS_MAX: Final = 64
"""Steps of the search; each gains about two digits for directions less than a right angle apart."""

_STILL: Final = 1e-15
"""Change of every factor in a step at which the search has ended."""


class _Spherical(LinearMethod):
    """What the three have in common: where the sphere's centre is, and when there is no arc."""

    scope = Scope.TENSOR

    def __init__(
        self, origin: Literal["zero", "base"] = "zero", parallel: Number = PARALLEL
    ) -> None:
        """Put the centre at zero or at the base, and take arcs above a cosine for straight."""
        if origin not in ("zero", "base"):
            raise ValueError(f"origin is {origin!r}, not 'zero' or 'base'")
        self.needs_base = origin == "base"
        self._parallel = float(exact(parallel, "parallel"))

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return the factor of each input, and what is left of 1 for a base that is the centre."""
        gram = group.gram(relative=self.needs_base)
        squares = [gram[index][index] for index in range(group.count)]
        cosines = [
            [cosine(gram[i][j], squares[i], squares[j]) for j in range(group.count)]
            for i in range(group.count)
        ]
        apart = [cosines[i][j] for i in range(group.count) for j in range(i)]
        found: Sequence[Fraction | float] | None = None
        if min(squares) > 0 and not all(cos > self._parallel for cos in apart):
            found = self._factors([float(weight) for weight in group.weights], cosines, squares)
        factors = group.weights if found is None else found
        if not self.needs_base:
            return factors
        return [*factors, 1 - sum((Fraction(factor) for factor in factors), Fraction(0))]

    @abstractmethod
    def _factors(
        self, weights: list[float], cosines: list[list[float]], squares: list[float]
    ) -> list[float] | None:
        """Return the factor of each input, or None where there is no arc."""


@register
class Slerp(_Spherical):
    """Go along the great circle between two models, as far as the second one's weight says."""

    name = "slerp"
    doc = MethodDoc(
        paper="Shoemake, Animating Rotation with Quaternion Curves, 1985, SIGGRAPH 19(3)",
        assumes="two models, each tensor of about the same length in both",
        breakdown="0: one arbitrary input moves the result arbitrarily far",
    )
    inputs_min = 2

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return the two factors; raises MergeError for more than two inputs."""
        if group.count != 2:
            raise MergeError(
                f"slerp merges two models, not {group.count}", hint="multi-slerp takes any number"
            )
        return super().coefficients(group)

    def _factors(
        self, weights: list[float], cosines: list[list[float]], squares: list[float]
    ) -> list[float] | None:
        cos = cosines[0][1]
        if cos < OPPOSITE:
            return None
        angle = arc_cosine(cos)
        whole = sine(angle)
        return [sine(weight * angle) / whole for weight in weights]


@register
class MultiSlerp(_Spherical):
    """SLERP of any number of models: the weighted average on the sphere."""

    name = "multi-slerp"
    doc = MethodDoc(
        paper="Buss and Fillmore, Spherical Averages and Applications to Spherical Splines and "
        "Interpolation, 2001, ACM TOG 20(2)",
        assumes="directions less than a right angle apart; tensors of about the same length in all",
        breakdown="0: one arbitrary input moves the result arbitrarily far",
    )

    def _factors(
        self, weights: list[float], cosines: list[list[float]], squares: list[float]
    ) -> list[float] | None:
        return karcher_mean(weights, cosines)


@register
class Karcher(_Spherical):
    """The Karcher mean of the directions, with the weighted mean of the lengths."""

    name = "karcher"
    doc = MethodDoc(
        paper="Karcher, Riemannian center of mass and mollifier smoothing, 1977, CPAM 30(5)",
        assumes="directions less than a right angle apart",
        breakdown="0: one arbitrary input moves the result arbitrarily far",
    )

    def _factors(
        self, weights: list[float], cosines: list[list[float]], squares: list[float]
    ) -> list[float] | None:
        if (factors := karcher_mean(weights, cosines)) is None:
            return None
        lengths = [sqrt(square) for square in squares]
        mean = fsum(weight * length for weight, length in zip(weights, lengths, strict=True))
        return [factor * mean / length for factor, length in zip(factors, lengths, strict=True)]


def karcher_mean(weights: list[float], cosines: list[list[float]]) -> list[float] | None:
    """Return factors a of unit vectors whose sum is their weighted average on the sphere.

    Gradient descent with the logarithm and exponential of the sphere (Buss and Fillmore 2001,
    algorithm A1), in coordinates of the unit vectors, which `cosines` has the inner products of.
    None when the vectors cancel, and there is no point to start from.
    """
    if (found := _on_sphere(weights, cosines)) is None:
        return None
    for _ in range(_STEPS_MAX):
        dots = [_dot(row, found) for row in cosines]
        if min(dots) < OPPOSITE:
            return None
        pulls = [w * _arc_over_sine(dot) for w, dot in zip(weights, dots, strict=True)]
        along = _dot(pulls, dots)
        tangent = [pull - along * at for pull, at in zip(pulls, found, strict=True)]
        step = sqrt(max(0.0, _square(tangent, cosines)))
        stretch = sine(step) / step if step > 0 else 1.0
        stay = sine(_QUARTER - step) if step < _QUARTER else -sine(step - _QUARTER)
        moved = [stay * at + stretch * t for at, t in zip(found, tangent, strict=True)]
        if (after := _on_sphere(moved, cosines)) is None:
            return None
        change = max(abs(a - b) for a, b in zip(after, found, strict=True))
        found = after
        if change <= _STILL:
            break
    return found


def _on_sphere(factors: list[float], cosines: list[list[float]]) -> list[float] | None:
    square = _square(factors, cosines)
    if square < 1e-12:
        return None
    length = sqrt(square)
    return [factor / length for factor in factors]


def _square(factors: list[float], cosines: list[list[float]]) -> float:
    return _dot(factors, [_dot(row, factors) for row in cosines])


def _dot(a: list[float], b: list[float]) -> float:
    return fsum(x * y for x, y in zip(a, b, strict=True))


def _arc_over_sine(cos: float) -> float:
    """Return angle / sine of the angle, whose limit at 0 is 1."""
    cos = max(-1.0, min(1.0, cos))
    if (rest := 1.0 - cos) < 1e-6:
        return 1.0 + rest / 3.0 + 2.0 * rest * rest / 15.0
    angle = arc_cosine(cos)
    return angle / sine(angle)

"""Methods that limit how far one input can move the result away from a base.

* `centered-clipping`: Karimireddy et al. 2021. From the base on, the result moves by the mean of
  the differences to the inputs, each shortened to the radius tau; again and again. In a
  decentralised round the base is the local model (He et al. 2022 call it self-centered clipping),
  or the last result that all agree upon.
* `norm-clipped-mean`: one such step. Sun et al. 2019.

Theory of operation: each iterate is the base plus a linear combination of the differences to it, so
distances follow from the inner products about the base: the models are read once. Coefficients are
exact rationals but for the factors tau/distance, which are float64; without clipping the result is
exactly the mean.

An input at any distance moves the result by at most its weight times tau in each iteration; one
that is infinitely far away (rule 4 of `geometry`) not at all. tau is a number, in units of the
weights' own norm, or "auto": the median distance from the current point (of two the lower), which
hostile inputs cannot choose while they are fewer than half.

Identical inputs do not come out as they are if they are farther than tau from the base: that is
what clipping means.
"""

from __future__ import annotations

from fractions import Fraction
from math import isfinite
from typing import TYPE_CHECKING, Final

from sbp2p.merge.method import LinearMethod, MethodDoc, Scope, register
from sbp2p.merge.robust.geometric_median import distances_from
from sbp2p.merge.robust.geometry import inner_products
from sbp2p.merge.robust.hostile import Share, flag_of, number_of, whole_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.merge.method import Group
    from sbp2p.merge.robust.geometry import Matrix

_ITERATIONS: Final = 3
"""Of centered clipping: what its paper's experiments need from a base a round old is 1 to 3."""

_ITERATIONS_MAX: Final = 20
"""Each adds 53 bits to the denominators of the coefficients."""


def radius_of(tau: Share) -> float | None:
    """Return tau as a number, or None for "auto"; raises ValueError unless it is positive."""
    if tau == "auto":
        return None
    radius = float(number_of(tau, "tau"))
    if radius <= 0:
        raise ValueError(f"tau is {tau}, which is not positive")
    return radius


def clip(
    products: Matrix, weights: Sequence[Fraction], tau: float | None, iterations: int
) -> list[Fraction]:
    """Return the coefficients of the inputs' differences to the base after clipped steps.

    Args:
        products: inner products about the base; infinite where an input is too far away.
        weights: of the inputs; their sum is 1.
        tau: the radius in the norm of the products, or None for the median distance.
        iterations: how many steps.
    """
    count = len(products)
    near = [i for i in range(count) if isfinite(products[i][i])]
    inner = [[products[i][j] for j in near] for i in near]
    point = [Fraction()] * len(near)
    for _ in range(iterations):
        distances = distances_from(inner, [float(each) for each in point])
        far = [float("inf")] * (count - len(near))
        radius = sorted([*distances, *far])[(count - 1) // 2] if tau is None else tau
        steps = [
            weights[which] * (Fraction(radius / distance) if distance > radius else 1)
            for which, distance in zip(near, distances, strict=True)
        ]
        rest = 1 - sum(steps)
        point = [rest * old + step for old, step in zip(point, steps, strict=True)]
    result = [Fraction()] * count
    for which, coefficient in zip(near, point, strict=True):
        result[which] = coefficient
    return result


class _Clipped(LinearMethod):
    """The base plus clipped differences to it."""

    scope = Scope.MODEL
    needs_base = True

    def __init__(self, tau: Share, iterations: int, weighted: bool | str) -> None:
        self._radius = radius_of(tau)
        self._iterations = iterations
        self._weighted = flag_of(weighted, "weighted")

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return the coefficients of the inputs, and of the base; their sum is 1."""
        count = group.count
        weights = group.weights if self._weighted else [Fraction(1, count)] * count
        products = inner_products(group, centre="base")
        found = clip(products, weights, self._radius, self._iterations)
        return [*found, 1 - sum(found)]


@register
class CenteredClipping(_Clipped):
    """Clipped steps from the base towards the inputs.

    Args:
        tau: how far one input may pull, as a norm over the whole model; "auto" for the median
            distance from where the step begins.
        iterations: how many steps, at most 20.
        weighted: let weights count.
    """

    name = "centered-clipping"
    doc = MethodDoc(
        paper="Karimireddy et al. 2021, Learning from history for Byzantine robust optimization, "
        "arXiv:2012.10333",
        assumes="a base near the honest inputs: the last result, or the own model",
        breakdown="f < n/2; each hostile input moves the result by tau/n at most, each step",
    )

    def __init__(
        self,
        tau: Share = "auto",
        iterations: int | str = _ITERATIONS,
        weighted: bool | str = False,
    ) -> None:
        steps = whole_of(iterations, "iterations", 1)
        if steps > _ITERATIONS_MAX:
            raise ValueError(f"iterations is {steps}, which is more than {_ITERATIONS_MAX}")
        super().__init__(tau, steps, weighted)


@register
class NormClippedMean(_Clipped):
    """The base plus the mean of the inputs' differences to it, none of them longer than tau.

    Args:
        tau: the longest difference that is not shortened, as a norm over the whole model; "auto"
            for the median one.
        weighted: let weights count.
    """

    name = "norm-clipped-mean"
    doc = MethodDoc(
        paper="Sun et al. 2019, Can you really backdoor federated learning?, arXiv:1911.07963",
        assumes="a base near the honest inputs; hostile ones that need length to do harm",
        breakdown="f < n/2; each hostile input moves the result by tau/n at most",
    )

    def __init__(self, tau: Share = "auto", weighted: bool | str = False) -> None:
        super().__init__(tau, 1, weighted)

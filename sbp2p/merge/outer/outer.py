"""An optimiser around a merge method: what both the momentum and the adaptive ones share.

Theory of operation: the inner method merges as it always does, in float64. Base less merged is the
pseudo-gradient g: the direction against which an optimiser steps, as it would against a gradient.
The rule (see `Outer.step`) turns g and the state at a place into an update; the result is
base - update, rounded once by the engine. With a linear inner method g is summed up from the
differences to the base, so models that equal it give exactly 0, which adaptive rules need.

The inner method may be any: a robust one under momentum withstands what it withstands alone. The
state is this object's: one for each peer and namespace, used for one merge at a time, saved with
`state` and loaded with `load_state`. Peers with equal inputs, base and state get equal results.

Error cases: a merge without a base is refused by the engine; one that fails leaves the state as it
was; a state that does not fit is a MergeError.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import contextmanager
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import TYPE_CHECKING, Final, cast

from sbp2p.merge.method import ElementwiseMethod, LinearMethod, get
from sbp2p.merge.outer.state import OuterState, Precision

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from sbp2p.merge.method import Group, Method, Place

STATISTICS: Final = ("*running_mean", "*running_var")
"""Globs of tensors that are measured and not trained: they are as merged, without a step. Momentum
would carry a variance below 0, and the model would be NaN from then on."""

BREAKDOWN: Final = "that of the inner method; 0 for the mean"


class Outer(ElementwiseMethod):
    """Takes a step of an optimiser along what an inner method merged."""

    needs_base = True

    def __init__(
        self, inner: Method | str, initial: Mapping[str, float], precision: Precision
    ) -> None:
        self._inner = get(inner) if isinstance(inner, str) else inner
        if isinstance(self._inner, Outer):
            raise ValueError(f"{self._inner.name} is an outer optimiser, too: one is enough")
        self.scope = self._inner.scope
        self.inputs_min = self._inner.inputs_min
        self._state = OuterState(initial, precision)

    @abstractmethod
    def step(
        self, gradient: torch.Tensor, slots: dict[str, torch.Tensor], step: int
    ) -> torch.Tensor:
        """Return what is taken off the base: (m,) float64; replace what changes in `slots`.

        Each product and sum is an operation of its own, because torch's fused ones round
        differently in a vector and in its scalar tail, and bits would depend on the chunks.
        """

    def state(self) -> dict[str, torch.Tensor]:
        """Return a copy of what is remembered: "slot/tensor" and "step/tensor" to tensors."""
        return self._state.save()

    def load_state(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Go on from what `state` returned; raises MergeError, and then nothing has changed."""
        self._state.load(saved)

    @contextmanager
    def merging(self) -> Iterator[None]:
        """Remember a merge that runs within this, if it ends well."""
        self._state.begin()
        yield
        self._state.settle()

    def survey(self, group: Group) -> object:
        """Return what the inner method wants to know: its coefficients, if it is linear."""
        if not isinstance(self._inner, LinearMethod):
            return self._inner.survey(group)
        coefficients = [Fraction(each) for each in self._inner.coefficients(group)]
        mine = coefficients[: group.count]
        # what the base's own factor is short of making it 1 in sum: 0 for every kind of mean
        return [float(each) for each in mine], float(1 - sum(coefficients))

    def combine(
        self,
        values: torch.Tensor,
        base: torch.Tensor | None,
        weights: torch.Tensor,
        survey: object,
        place: Place,
    ) -> torch.Tensor:
        """Return base - update, and write the state at this place."""
        base = cast("torch.Tensor", base)  # the engine keeps needs_base
        gradient = self._gradient(values, base, weights, survey, place)
        if any(fnmatchcase(place.tensor.name, glob) for glob in STATISTICS):
            return base - gradient
        taken, slots = self._state.read(place)
        update = self.step(gradient, slots, taken + 1)
        self._state.write(place, slots)
        return base - (update + 0.0)  # a base of -0.0 stays one: -0.0 - -0.0 is 0.0

    def _gradient(
        self,
        values: torch.Tensor,
        base: torch.Tensor,
        weights: torch.Tensor,
        survey: object,
        place: Place,
    ) -> torch.Tensor:
        """Return base - merged."""
        if isinstance(self._inner, LinearMethod):
            return _linear(values, base, *cast("tuple[list[float], float]", survey))
        return base - self._inner.combine(values, base, weights, survey, place)


def _linear(
    values: torch.Tensor, base: torch.Tensor, factors: list[float], rest: float
) -> torch.Tensor:
    """Return base - sum_i c_i x_i - c_base base, as the sum of c_i (base - x_i) + rest * base."""
    gradient = base * rest
    for row, factor in zip(values, factors, strict=True):
        gradient.sub_(row.sub_(base).mul_(factor))
    return gradient

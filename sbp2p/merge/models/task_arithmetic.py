"""Task arithmetic: what each input learned is added to the base. No torch here.

The result is base + scale * sum_i v_i (x_i - base). The weights v_i are relative: n equal ones are
1 each, so that task vectors add up as in the paper; with `average` they are 1/n each. Linear in the
inputs and the base, so the engine's result is the correctly rounded one, whatever cancels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p.merge.method import LinearMethod, MethodDoc, register
from sbp2p.merge.models.numbers import Number, exact, whole_weights

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from sbp2p.merge.method import Group


@register
class TaskArithmetic(LinearMethod):
    """Add the task vectors of the inputs to the base."""

    name = "task-arithmetic"
    doc = MethodDoc(
        paper="Ilharco et al., Editing Models with Task Arithmetic, 2023, arXiv:2212.04089",
        assumes="inputs fine-tuned from the base for tasks that barely interfere; a tuned scale",
        breakdown="0: one arbitrary input moves the result arbitrarily far",
    )
    needs_base = True

    def __init__(self, scale: Number = 1, *, average: bool = False) -> None:
        """Scale the sum of the task vectors (the paper's lambda), or their weighted mean."""
        self._scale = exact(scale, "scale")
        self._average = average

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return scale * v_i, and what is left of 1 for the base."""
        weights = group.weights if self._average else whole_weights(group)
        mine = [self._scale * weight for weight in weights]
        return [*mine, 1 - sum(mine)]

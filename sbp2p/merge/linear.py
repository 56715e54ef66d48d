"""Methods whose result is a weighted sum with weights known beforehand. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbp2p.merge.method import LinearMethod, MethodDoc, register

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from sbp2p.merge.method import Group

METHODS: Final = {"mean": "sbp2p.merge.linear"}


@register
class Mean(LinearMethod):
    """The weighted mean; with equal weights, the mean."""

    name = "mean"
    doc = MethodDoc(
        paper="the arithmetic mean; averaging of models: McMahan et al. 2017, arXiv:1602.05629",
        assumes="models that were trained from one start, or a short way apart",
        breakdown="0: one arbitrary input moves the result arbitrarily far",
    )

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return the weights."""
        return group.weights

"""Model stock: how far to go from the base to the mean, told by how well the inputs agree.

Per tensor: with cos the mean cosine between the task vectors of two inputs and n inputs, the ratio
is t = n cos / (1 + (n - 1) cos), and the result is t * mean + (1 - t) * base. Task vectors that
agree (cos = 1) give the mean, unrelated ones (cos = 0) the base. No torch here.

Outside the paper, whose angles are acute: a negative cosine gives t = 0, the base, where the
formula would step away from the inputs, without bound near cos = -1 / (n - 1). A task vector of
zero has no direction; its pairs count as cos = 0.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import fsum
from typing import TYPE_CHECKING

from sbp2p.merge.method import LinearMethod, MethodDoc, Scope, register
from sbp2p.merge.models.angles import cosine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.merge.method import Group


@register
class ModelStock(LinearMethod):
    """Go from the base towards the mean as far as the inputs agree, tensor by tensor."""

    name = "model-stock"
    doc = MethodDoc(
        paper="Jang et al., Model Stock: All we need is just a few fine-tuned models, 2024, "
        "arXiv:2403.19522",
        assumes="inputs fine-tuned from the base on the same task, equally far from it",
        breakdown="0: one arbitrary input moves the result arbitrarily far",
    )
    scope = Scope.TENSOR
    needs_base = True
    inputs_min = 2

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return the ratio times each weight, and what is left of 1 for the base."""
        gram = group.gram(relative=True)
        cosines = [
            cosine(gram[i][j], gram[i][i], gram[j][j])
            for i, j in combinations(range(group.count), 2)
        ]
        mean = Fraction(fsum(cosines)) / len(cosines)
        ratio = Fraction(0)
        if mean > 0:
            # a float, so that the engine's exact sums keep small denominators
            ratio = Fraction(float(group.count * mean / (1 + (group.count - 1) * mean)))
        return [*(ratio * weight for weight in group.weights), 1 - ratio]

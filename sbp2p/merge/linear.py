"""Methods whose result is a weighted sum with weights known beforehand. No torch here.

The weights are those of the inputs: equal ones, samples seen, rows of a mixing matrix, decayed by
staleness. Which of them are right is the caller's business; these methods differ in what they
promise about them.
"""

from __future__ import annotations

from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from sbp2p.errors import MergeError
from sbp2p.merge.coefficients import as_shown
from sbp2p.merge.method import LinearMethod, MethodDoc, register

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.merge.method import Group

METHODS: Final = MappingProxyType(
    dict.fromkeys(("mean", "fedavg", "ema", "gossip"), "sbp2p.merge.linear")
)
"""Name of a method to the module that registers it."""

_BREAKDOWN: Final = "0: one arbitrary input moves the result arbitrarily far"


@register
class Mean(LinearMethod):
    """The mean of the inputs, by their weights: equal unless they say otherwise."""

    name = "mean"
    doc = MethodDoc(
        paper="the arithmetic mean; with Metropolis-Hastings weights: Xiao, Boyd, Kim, "
        "Distributed average consensus with least-mean-square deviation, 2007",
        assumes="models that were trained from one start, or that are a short way apart",
        breakdown=_BREAKDOWN,
    )

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return the weights."""
        return group.weights


@register
class FedAvg(Mean):
    """The mean by samples: the weight of an input is how many samples it was trained on."""

    name = "fedavg"
    doc = MethodDoc(
        paper="McMahan et al., Communication-Efficient Learning of Deep Networks from "
        "Decentralized Data, 2017, arXiv:1602.05629",
        assumes="the inputs' weights are their numbers of samples, told truly; one start",
        breakdown=_BREAKDOWN + "; who lies about samples needs not even that",
    )


@register
class ExponentialMovingAverage(LinearMethod):
    """decay times the base, which is the average so far, plus 1 - decay times the inputs' mean."""

    name = "ema"
    doc = MethodDoc(
        paper="Polyak, Juditsky, Acceleration of stochastic approximation by averaging, 1992; "
        "Tarvainen, Valpola, Mean teachers are better role models, 2017, arXiv:1703.01780",
        assumes="the base is the average so far; decay near 1 for many short steps",
        breakdown=_BREAKDOWN + ", damped by 1 - decay",
    )
    needs_base = True

    def __init__(self, decay: Fraction | float | str = Fraction(99, 100)) -> None:
        """Take how much of the average so far stays, from 0 to 1: 0.99 is 99/100."""
        try:
            self._decay = as_shown(decay)
        except (ValueError, ZeroDivisionError, OverflowError) as error:
            raise MergeError(f"decay is no number: {decay}") from error
        if not 0 <= self._decay <= 1:
            raise MergeError(f"decay is {decay}, not between 0 and 1")

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return (1 - decay) times each weight, then decay for the base."""
        return [*((1 - self._decay) * weight for weight in group.weights), self._decay]


@register
class Gossip(LinearMethod):
    """The mean of two: one exchange of pairwise gossip."""

    name = "gossip"
    doc = MethodDoc(
        paper="Boyd, Ghosh, Prabhakar, Shah, Randomized gossip algorithms, 2006",
        assumes="pairs that meet at random, on a connected graph; both sides take the result",
        breakdown=_BREAKDOWN,
    )
    inputs_min = 2

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return the weights of the two; raises MergeError when there are more."""
        if group.count != 2:
            raise MergeError(
                f"gossip is between two models, not {group.count}", hint="use mean for more"
            )
        return group.weights

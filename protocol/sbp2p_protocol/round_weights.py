"""How much each contribution counts: exact fractions that add up to 1.

Theory of operation: three ways, by what the method of the round asks for (protocol/round.md):

* MIXING: a neighbour's Metropolis-Hastings weight, multiplied by its decay. What is then left of 1,
  for neighbours that are missing and for what decay took, is the own model's. So the weights of a
  round are those of the graph without the edges that failed: still symmetric if both ends miss each
  other, so that the mean of all models stays what it is.
* SAMPLES: in proportion to samples times decay, the own model's with the samples of this peer.
* EQUAL: in proportion to decay; equal if nothing is late. For methods that look for outliers.

For the last two, what is missing is left out, and the others share its weight. If nobody has any
samples, all count the same.

Error cases: LocalProtocolError for a negative number of samples, or a row that is none.
"""

from __future__ import annotations

from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING

from sbp2p_protocol.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.rounds import Taken


class Weighting(Enum):
    """What contributions are weighted by."""

    MIXING = "mixing"
    SAMPLES = "samples"
    EQUAL = "equal"


def weigh(
    weighting: Weighting,
    taken: Iterable[Taken],
    *,
    own: PeerId,
    samples: int = 1,
    row: Mapping[PeerId, Fraction],
    includes_own: bool = True,
    samples_max: int | None = None,
) -> dict[PeerId, Fraction]:
    """Return the weight of each contribution, the own first, then in the order of `taken`.

    Args:
        weighting: by what.
        taken: what counts in the round.
        own: this peer.
        samples: that this peer trained on.
        row: mixing weights of the topology; a peer that it does not name has weight 0.
        includes_own: False for a leech, which has no model of its own in the merge.
        samples_max: what more samples than that count as, so that a claim is bounded.

    Returns:
        weights over 0 that add up to 1; empty if nothing is there to be merged.
    """
    taken = tuple(taken)
    parts: dict[PeerId, Fraction] = {}
    if includes_own:
        parts[own] = _own_part(weighting, samples, samples_max)
    for each in taken:
        if weighting is Weighting.SAMPLES:
            share = Fraction(_counted(each.update.samples, samples_max))
        elif weighting is Weighting.EQUAL:
            share = Fraction(1)
        else:
            share = row.get(each.peer, Fraction(0))
        if share * each.decay > 0:
            parts[each.peer] = share * each.decay
    if weighting is Weighting.MIXING and includes_own:
        parts[own] = 1 - sum(parts.values(), Fraction(0))
        if parts[own] < 0:
            raise LocalProtocolError("mixing weights of neighbours add up to more than 1")
        return {peer: part for peer, part in parts.items() if part}
    total = sum(parts.values(), Fraction(0))
    if not total and weighting is Weighting.SAMPLES:
        return weigh(Weighting.EQUAL, taken, own=own, row=row, includes_own=includes_own)
    return {peer: part / total for peer, part in parts.items() if part}


def _own_part(weighting: Weighting, samples: int, samples_max: int | None) -> Fraction:
    if weighting is Weighting.MIXING:
        return Fraction(0)  # what the others leave
    return Fraction(_counted(samples, samples_max) if weighting is Weighting.SAMPLES else 1)


def _counted(samples: int, samples_max: int | None) -> int:
    if samples < 0:
        raise LocalProtocolError(f"{samples} samples")
    return samples if samples_max is None else min(samples, samples_max)

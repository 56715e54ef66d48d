"""DARE: drop elements of task vectors at random, and scale up what is left.

Each element of a task vector x_i - base stays with probability `density` and is divided by it, so
that the expected task vector is the whole one. `dare` adds the results up, as task arithmetic does;
`dare-ties` elects signs and takes the mean of those that agree, as TIES does after its trimming.

What is dropped must be the same for every peer, whatever the order of the inputs, the pieces and
the threads. So the choice is a function of what is chosen from: SplitMix64 (Steele et al. 2014) of
a counter, the element's index, that starts where a BLAKE3 digest of seed, content key of the input
and tensor name says. The generator is not secret: who picks the seed after seeing the inputs picks
the mask. The division is in float64, where float16's range does not end it (1 / density of a value
near 65504 is no number there).

Computed in float64 and rounded once; sums run in an order fixed by the inputs' keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import torch
from blake3 import blake3

from sbp2p.merge.method import ElementwiseMethod, MethodDoc, register
from sbp2p.merge.models.numbers import Number, exact, share, whole_weights
from sbp2p.merge.models.ties import disjoint_mean, fold_rows, moved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.merge.method import Group, Place

_GAMMA: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB


@dataclass(frozen=True, slots=True)
class _Voters:
    """The inputs' content keys, and what each counts in a sum: (n, 1) float64."""

    keys: tuple[bytes, ...]
    weights: torch.Tensor


@register
class Dare(ElementwiseMethod):
    """Drop at random, rescale, and add up."""

    name = "dare"
    doc = MethodDoc(
        paper="Yu et al., Language Models are Super Mario: Absorbing Abilities from Homologous "
        "Models as a Free Lunch, 2024, arXiv:2311.03099",
        assumes="inputs fine-tuned from the base with small changes (within about 0.005)",
        breakdown="0: one arbitrary input moves the result arbitrarily far",
    )
    needs_base = True

    def __init__(self, density: Number = "0.5", seed: int = 0, scale: Number = 1) -> None:
        """Keep each element with probability `density`, chosen by `seed`; scale the sum."""
        self._density = share(density, "density")
        self._seed = int(seed)
        self._scale = float(exact(scale, "scale"))

    def survey(self, group: Group) -> object:
        """Return the keys and weights, for there is nothing else to know beforehand."""
        shares = [[float(weight)] for weight in whole_weights(group)]
        return _Voters(group.keys, torch.tensor(shares, dtype=torch.float64))

    def combine(
        self,
        values: torch.Tensor,
        base: torch.Tensor | None,
        weights: torch.Tensor,
        survey: object,
        place: Place,
    ) -> torch.Tensor:
        """Return base + scale * what `_mixed` makes of the thinned task vectors."""
        base = cast("torch.Tensor", base)  # the engine keeps needs_base
        voters = cast("_Voters", survey)
        values.sub_(base)
        if self._density < 1:
            drop = dropped(self._seed, voters.keys, place, self._density)
            values.masked_fill_(drop, 0.0).div_(float(self._density))
        return moved(base, self._mixed(values, voters.weights).mul_(self._scale))

    def _mixed(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return fold_rows(rows.mul_(weights))


@register
class DareTies(Dare):
    """Drop at random, rescale, elect signs and merge."""

    name = "dare-ties"
    doc = MethodDoc(
        paper="Yu et al. 2024, arXiv:2311.03099, with the election of Yadav et al. 2023, "
        "arXiv:2306.01708",
        assumes="inputs fine-tuned from the base with small changes (within about 0.005)",
        breakdown="0: one arbitrary input wins every vote that its magnitudes are large enough for",
    )

    def _mixed(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return disjoint_mean(rows, weights[:, 0])


def dropped(seed: int, keys: Sequence[bytes], place: Place, density: Number) -> torch.Tensor:
    """Return which elements of a place are dropped, each with probability 1 - density.

    Args:
        seed: any integer.
        keys: the content keys of n inputs.
        place: the tensor's name and the indices of its m elements are what counts.
        density: above 0, up to 1; the probability is exact to 2**-64.

    Returns:
        (n, m) bool.
    """
    name = place.tensor.name.encode("utf-8", "surrogatepass")
    firsts = []
    for key in keys:
        digest = blake3(b"sbp2p dare\0%d\0" % seed + key + name).digest(length=8)
        first = int.from_bytes(digest, "little") + (place.start + 1) * _GAMMA
        firsts.append([_signed(first)])
    counter = torch.arange(place.stop - place.start, dtype=torch.int64).mul_(_signed(_GAMMA))
    state = counter + torch.tensor(firsts, dtype=torch.int64)
    _mix(state, 30, _MIX_1)
    _mix(state, 27, _MIX_2)
    state.bitwise_xor_(_logical_shift(state, 31))
    bound = int(share(density, "density") * 2**64)
    if bound >= 2**64:
        return torch.zeros_like(state, dtype=torch.bool)
    # uniform over the signed range as over the unsigned one
    return state >= bound - 2**63


def _mix(state: torch.Tensor, bits: int, factor: int) -> None:
    state.bitwise_xor_(_logical_shift(state, bits)).mul_(_signed(factor))


def _logical_shift(state: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right with zeros coming in; torch's shift of signed numbers repeats the sign."""
    return (state >> bits).bitwise_and_(2 ** (64 - bits) - 1)


def _signed(number: int) -> int:
    """Return the signed number of the same 64 bits."""
    return (number + 2**63) % 2**64 - 2**63

"""What becomes of each kind of tensor, and the policies for what is not a floating number.

| kind | default | others |
|---|---|---|
| floating, complex | `merge`: the method | `mean`, `equal`, `local` |
| counters (`num_batches_tracked`, `step`) | `max` | `min`, `median`, `majority`, `equal`, `local` |
| other integers | `equal` | `max`, `min`, `median`, `majority`, `local` |
| boolean | `majority` | `max` (any), `min` (all), `equal`, `local` |
| opaque (F8_E8M0, F4, F6) | `equal` | `local` |

`merge` and `mean` are the weighted ones; the others give every input one voice, whatever its
weight. `majority` is the value that most inputs have, element by element; of several, the least one
(so False), unless a local model is given and has one of them. `median` is the lower one, which
fewer than half of the inputs cannot move out of what the others have. `local` takes the local
model's tensor as it is.

Running statistics of batch normalisation are floating, so the method merges them as it does the
weights: a robust method keeps them robust.

Error cases: tensors under `equal` that differ, and a policy that a kind does not have, are a
MergeError that names the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import torch

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.errors import MergeError
from sbp2p.merge.dtypes import FLOATS, Kind, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.merge.tensors import TensorSpec


class Policy(Enum):
    """What becomes of a tensor."""

    MERGE = "merge"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    MEDIAN = "median"
    MAJORITY = "majority"
    EQUAL = "equal"
    LOCAL = "local"


_ORDERED: Final = frozenset({Policy.MAX, Policy.MIN, Policy.MAJORITY, Policy.EQUAL, Policy.LOCAL})
ALLOWED: Final = {
    Kind.FLOATING: frozenset({Policy.MERGE, Policy.MEAN, Policy.EQUAL, Policy.LOCAL}),
    Kind.INTEGER: _ORDERED | {Policy.MEDIAN},
    Kind.BOOLEAN: _ORDERED,
    Kind.OPAQUE: frozenset({Policy.EQUAL, Policy.LOCAL}),
}


@dataclass(frozen=True, slots=True)
class Policies:
    """Which policy each tensor gets: that of the first rule whose glob matches its name, or else
    the default of its kind.

    `dtype` is what floating tensors (not complex ones) become; the inputs may then have different
    floating dtypes. None keeps the dtype, which must be the same in all inputs.
    """

    rules: tuple[tuple[str, Policy], ...] = ()
    counters: Policy = Policy.MAX
    integers: Policy = Policy.EQUAL
    booleans: Policy = Policy.MAJORITY
    counter_names: tuple[str, ...] = ("*num_batches_tracked", "step", "*.step")
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in FLOATS:
            raise MergeError(
                f"{self.dtype} is no floating dtype", hint=f"one of {', '.join(FLOATS)}"
            )

    def policy_of(self, spec: TensorSpec) -> Policy:
        """Return what becomes of a tensor; raises MergeError."""
        kind = kind_of(spec.dtype)
        ruled = (policy for glob, policy in self.rules if fnmatchcase(spec.name, glob))
        policy = next(ruled, None) or self._default(spec, kind)
        if policy not in ALLOWED[kind]:
            raise MergeError(
                f"tensor {shown(spec.name)} is {spec.dtype}: its policy cannot be {policy.value}",
                hint=f"one of {', '.join(sorted(each.value for each in ALLOWED[kind]))}",
            )
        return policy

    def _default(self, spec: TensorSpec, kind: Kind) -> Policy:
        if kind is Kind.FLOATING:
            return Policy.MERGE
        if kind is Kind.INTEGER:
            counts = any(fnmatchcase(spec.name, each) for each in self.counter_names)
            return self.counters if counts else self.integers
        return self.booleans if kind is Kind.BOOLEAN else Policy.EQUAL


_SIGNED: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNSIGNED: Final = frozenset({torch.uint8, torch.uint16, torch.uint32, torch.uint64})


def combine_integers(
    rows: Sequence[torch.Tensor], policy: Policy, local: torch.Tensor | None, out: torch.Tensor
) -> None:
    """Combine (m,) integers or booleans of one dtype under MAX, MIN, MEDIAN or MAJORITY.

    torch has few operations on wide unsigned integers: their top bit is flipped, and they are
    compared as signed ones.
    """
    dtype = out.dtype
    signed = _SIGNED[dtype.itemsize]
    flip = torch.iinfo(signed).min if dtype in _UNSIGNED else 0
    values = torch.stack([row.view(signed) ^ flip for row in rows])
    if policy is Policy.MAX:
        result = values.amax(0)
    elif policy is Policy.MIN:
        result = values.amin(0)
    elif policy is Policy.MEDIAN:
        result = values.sort(0).values[(len(rows) - 1) // 2]
    else:
        result = _majority(values, None if local is None else local.view(signed) ^ flip)
    out.copy_((result ^ flip).view(dtype))


def _majority(values: torch.Tensor, local: torch.Tensor | None) -> torch.Tensor:
    votes = torch.zeros(values.shape, dtype=torch.int32)
    for row in values:
        votes += values == row
    most = votes.amax(0)
    winners = votes == most
    worst = torch.iinfo(values.dtype).max
    least = torch.where(winners, values, worst).amin(0)
    if local is None:
        return least
    is_one = (winners & (values == local)).any(0)
    return torch.where(is_one, local, least)

"""A tensor that is being merged: all that its pieces need, decided once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sbp2p.merge.digest import LEAF
from sbp2p.merge.dtypes import TORCH, Kind, float_format, numbers
from sbp2p.merge.method import CHUNK
from sbp2p.merge.policies import Policy
from sbp2p.merge.tasks import Piece

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from sbp2p.merge.exact import LinearSum
    from sbp2p.merge.method import ElementwiseMethod
    from sbp2p.merge.plan import Item


@dataclass(frozen=True, slots=True)
class Opened:
    """A tensor, and how its numbers are computed."""

    item: Item
    dtypes: tuple[torch.dtype, ...]
    """Of the numbers of each input, and of the base when it is read; floating tensors only."""
    how: LinearSum | ElementwiseMethod | None
    weights: torch.Tensor
    survey: object = None

    @property
    def computed(self) -> bool:
        """Return whether the tensor is merged as numbers, not as bytes."""
        return self.item.policy not in (Policy.LOCAL, Policy.EQUAL)

    @property
    def unit(self) -> int:
        """Return the bytes of what `Piece` counts: of a number, or 1."""
        if not self.computed:
            return 1
        if self.item.kind is Kind.FLOATING:
            return float_format(self.item.spec.dtype).bytes
        return TORCH[self.item.spec.dtype].itemsize

    @property
    def length(self) -> int:
        """Return how many of them the tensor has."""
        if not self.computed:
            return self.item.spec.nbytes
        if self.item.kind is Kind.FLOATING:
            return numbers(self.item.spec)
        return self.item.spec.elements

    def pieces(self, number: int, row_bytes: int) -> Iterator[Piece]:
        """Cut the tensor so that a piece of any model takes `row_bytes` at most.

        Pieces begin at whole chunks and leaves; that asks for rows of ROW_BYTES_MIN.
        """
        widest = max([self.unit, *(dtype.itemsize for dtype in self.dtypes)])
        grain = max(CHUNK, LEAF // self.unit)
        step = row_bytes // widest // grain * grain
        for start in range(0, self.length, step):
            yield Piece(number, start, min(start + step, self.length))


ROW_BYTES_MIN: Final = max(LEAF, CHUNK) * 8
"""A chunk of float64, or a leaf of 8-bit floats that are merged out of float64."""

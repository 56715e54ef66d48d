"""`topk:FRACTION`: of each tensor the elements that changed most since the parent.

They get their new values exactly, the others keep the parent's; so the update is the parent with
some bits changed, and is packed as that. Without a parent there is nothing to choose by, and the
tensor travels as it is: the first update of a peer, or one now and then for newcomers.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Final

import torch

from sbp2p.merge.compress.arrays import flat, is_finite, like
from sbp2p.merge.compress.codec import register
from sbp2p.merge.compress.packed import Packed, PackedCodec, Subject, pack_whole
from sbp2p.merge.dtypes import TORCH

if TYPE_CHECKING:
    from sbp2p.merge.compress.codec import Codec

_TEXT_MAX: Final = 16


class TopK(PackedCodec):
    """The largest changes.

    Args:
        fraction: of the elements of each tensor, over 0, at most 1, as text: 0.01.
    """

    uses_parent = True
    shares_parent = True

    def __init__(self, fraction: str) -> None:
        digits = fraction.replace(".", "", 1)
        if len(fraction) > _TEXT_MAX or not (digits.isascii() and digits.isdigit()):
            raise ValueError(f"{fraction[:_TEXT_MAX]!a} is not a fraction such as 0.01")
        self._text = fraction
        self.fraction = Fraction(fraction)
        if not 0 < self.fraction <= 1:
            raise ValueError(f"{fraction} is not over 0 and at most 1")

    @property
    def text(self) -> str:
        """`topk:FRACTION`."""
        return f"topk:{self._text}"

    def pack(self, subject: Subject) -> Packed | None:
        """Choose elements, and pack the bits that change."""
        if subject.parent is None:  # all of it, with what was left out so far
            return self._said(subject, subject.wish.to(TORCH[subject.spec.dtype]))
        changes = (subject.wish - subject.base()).abs()
        if not is_finite(changes):
            return None
        most = ceil(self.fraction * changes.numel())
        chosen = largest(changes, most)
        values = flat(subject.parent).clone()
        values[chosen] = subject.wish[chosen].to(TORCH[subject.spec.dtype])
        return self._said(subject, values)

    def _said(self, subject: Subject, values: torch.Tensor) -> Packed | None:
        result = like(subject.spec, values)
        whole = pack_whole(subject.spec, result, subject.parent, tries_planes=False)
        return subject.packed(whole.packing, whole.parts, values)


def largest(values: torch.Tensor, most: int) -> torch.Tensor:
    """Return the places of the largest values over 0, at most `most`; of equal ones the first."""
    if int(values.count_nonzero()) <= most:
        return values.nonzero().view(-1)
    # a third of the time of torch.topk, which sorts what it need not
    least = values.kthvalue(values.numel() - most + 1).values
    above = (values > least).nonzero().view(-1)
    equal = (values == least).nonzero().view(-1)[: most - above.numel()]
    return torch.cat((above, equal))


def _make(options: list[str]) -> Codec:
    if len(options) != 1:
        raise ValueError("say which fraction: topk:0.01")
    return TopK(options[0])


register("topk", _make)

"""`int8`: 256 elements at a time as integers from -127 to 127 and one scale.

With a parent it is the difference that is rounded, so the error is some 1/127 of the largest change
in each block, not of the largest weight (Dettmers and others, 8-bit optimizers via block-wise
quantization, 2022, for the blocks). If few elements changed at all, they are said exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from sbp2p.merge.compress.arrays import flat, is_finite, like, raw
from sbp2p.merge.compress.codec import register
from sbp2p.merge.compress.packed import (
    BLOCK,
    Packed,
    PackedCodec,
    Subject,
    dequantised,
    pack_whole,
)
from sbp2p.merge.dtypes import TORCH

if TYPE_CHECKING:
    from sbp2p.merge.compress.codec import Codec

_FEW: Final = {2: 0.9, 4: 0.125, 8: 0.0625}
"""Up to which share of changed elements, by their bytes, bits are shorter than integers for all."""

_SLICE: Final = 1024 * BLOCK
"""Elements that are rounded together: what they need stays in the processor's cache."""


class Int8(PackedCodec):
    """Eight bits an element, and four bytes for each block."""

    uses_parent = True

    @property
    def text(self) -> str:
        """`int8`."""
        return "int8"

    def pack(self, subject: Subject) -> Packed | None:
        """Round the difference to the parent, or the values themselves."""
        if (packed := self._exact(subject)) is not None:
            return packed
        count = subject.wish.numel()
        numbers = torch.empty(count, dtype=torch.int8)
        scales = torch.empty((count + BLOCK - 1) // BLOCK, dtype=torch.float32)
        result = torch.empty(count, dtype=TORCH[subject.spec.dtype])
        for start in range(0, count, _SLICE):
            here = slice(start, start + _SLICE)
            blocks = slice(start // BLOCK, (start + _SLICE) // BLOCK)
            base = subject.base(here)
            numbers[here], scales[blocks] = quantised(subject.wish[here] - base)
            values = dequantised(numbers[here], scales[blocks], base.dtype)
            result[here] = base + values if subject.parent is not None else values
        if not is_finite(scales):
            return None
        name = subject.spec.name
        parts = (raw(f"int8:{name}", numbers), raw(f"scale:{name}", scales))
        packing = "int8" if subject.parent is None else "int8-delta"
        return subject.packed(packing, parts, result)

    def _exact(self, subject: Subject) -> Packed | None:
        """Pack the bits that changed if they are so few that they are shorter than bytes for all.

        After a small step most elements of a 16-bit tensor have the bits that they had.
        """
        if subject.parent is None:
            return None
        values = subject.wish.to(TORCH[subject.spec.dtype])
        # NaN differs from itself: what has one in the parent is counted as changed
        changed = int((values != flat(subject.parent)).count_nonzero())
        if changed > _FEW[values.element_size()] * values.numel():
            return None
        result = like(subject.spec, values)
        whole = pack_whole(subject.spec, result, subject.parent, tries_planes=False)
        return subject.packed(whole.packing, whole.parts, values)


def quantised(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return integers, I8, and F32 scales of blocks, so that their products are near the values."""
    count = values.numel()
    blocks = torch.zeros((count + BLOCK - 1) // BLOCK * BLOCK, dtype=values.dtype)
    blocks[:count] = values
    blocks = blocks.view(-1, BLOCK)
    scales = (blocks.abs().amax(1) / 127).to(torch.float32)
    by = scales.to(values.dtype).unsqueeze(1)
    # a block of zeros has scale 0: divided by anything it stays 0
    numbers = blocks.div_(torch.where(by > 0, by, torch.ones_like(by)))
    rounded = numbers.round_().clamp_(-127, 127).to(torch.int8)
    return rounded.view(-1)[:count].contiguous(), scales


def _make(options: list[str]) -> Codec:
    if options:
        raise ValueError("it has no options")
    return Int8()


register("int8", _make)

"""`fp16` and `bf16`: F64 and F32 in 16 bits; what rounding left out is said next time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbp2p.merge.compress.arrays import raw
from sbp2p.merge.compress.codec import register
from sbp2p.merge.compress.packed import Packed, PackedCodec, Subject
from sbp2p.merge.dtypes import TORCH

if TYPE_CHECKING:
    from sbp2p.merge.compress.codec import Codec

_DTYPES: Final = {"fp16": "F16", "bf16": "BF16"}


class Cast(PackedCodec):
    """Half precision: half of F32's bytes, and what is 16 bits wide already is left alone.

    A tensor with values that F16 does not reach (65,504) travels as it is.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._dtype = TORCH[_DTYPES[name]]

    @property
    def text(self) -> str:
        """`fp16` or `bf16`."""
        return self._name

    def pack(self, subject: Subject) -> Packed | None:
        """Round to 16 bits."""
        if subject.spec.dtype in ("F16", "BF16"):
            return None
        half = subject.wish.to(self._dtype)
        part = raw(f"cast:{subject.spec.name}", half, subject.spec.shape)
        return subject.packed("cast", (part,), half.to(TORCH[subject.spec.dtype]))


def _make(name: str, options: list[str]) -> Codec:
    if options:
        raise ValueError("it has no options")
    return Cast(name)


register("fp16", lambda options: _make("fp16", options))
register("bf16", lambda options: _make("bf16", options))

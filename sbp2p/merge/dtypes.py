"""What the dtypes of safetensors are to torch, and how bytes become tensors without copying.

| kind | dtypes | here |
|---|---|---|
| floating | F64 F32 BF16 F16 F8_E4M3 F8_E5M2, both with FNUZ | computed with, rounded once |
| complex | C128 C64 C32 | pairs of floating numbers: twice as many elements of the part's dtype |
| integer | I8 to I64, U8 to U64 | a policy |
| boolean | BOOL | a policy |
| opaque | F8_E8M0 (scales: no zero, no sign), F4, F6_E2M3, F6_E3M2 | never computed with |

NumPy plays no part: it has no bfloat16 and no 8-bit floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import torch

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.errors import MergeError
from sbp2p.merge.tensors import BITS

if TYPE_CHECKING:
    from sbp2p.merge.tensors import TensorSpec


class Kind(Enum):
    """What can be done with the elements of a tensor."""

    FLOATING = "floating"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary floating-point format: what rounding needs to know."""

    dtype: str
    torch: torch.dtype
    precision: int
    """Bits of the significand, the hidden one counted."""
    exponent_min: int
    """The smallest normal number is 2**exponent_min."""
    largest: float
    infinite: bool
    """Whether there are infinities; without, what is too large becomes the largest number."""
    signed_zero: bool = True

    @property
    def bytes(self) -> int:
        """Return the bytes of an element."""
        return self.torch.itemsize


FLOATS: Final = {
    each.dtype: each
    for each in (
        FloatFormat("F64", torch.float64, 53, -1022, torch.finfo(torch.float64).max, True),
        FloatFormat("F32", torch.float32, 24, -126, torch.finfo(torch.float32).max, True),
        FloatFormat("BF16", torch.bfloat16, 8, -126, torch.finfo(torch.bfloat16).max, True),
        FloatFormat("F16", torch.float16, 11, -14, 65504.0, True),
        FloatFormat("F8_E4M3", torch.float8_e4m3fn, 4, -6, 448.0, False),
        FloatFormat("F8_E5M2", torch.float8_e5m2, 3, -14, 57344.0, True),
        FloatFormat("F8_E4M3FNUZ", torch.float8_e4m3fnuz, 4, -7, 240.0, False, False),
        FloatFormat("F8_E5M2FNUZ", torch.float8_e5m2fnuz, 3, -15, 57344.0, False, False),
    )
}
_PARTS: Final = {"C128": "F64", "C64": "F32", "C32": "F16"}
_INTEGERS: Final = {
    "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16,
    "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64,
}  # fmt: skip
_OTHERS: Final = {
    "BOOL": torch.bool,
    "C128": torch.complex128,
    "C64": torch.complex64,
    "C32": torch.complex32,
}
if hasattr(torch, "float8_e8m0fnu"):  # from torch 2.7 on
    _OTHERS["F8_E8M0"] = torch.float8_e8m0fnu
TORCH: Final = {**{name: each.torch for name, each in FLOATS.items()}, **_INTEGERS, **_OTHERS}
"""Every dtype of safetensors that torch has one for."""
NAMES: Final = {value: name for name, value in TORCH.items()}


def kind_of(dtype: str) -> Kind:
    """Return what can be done with a dtype; raises MergeError when nobody knows it."""
    if dtype in FLOATS or dtype in _PARTS:
        return Kind.FLOATING
    if dtype in _INTEGERS:
        return Kind.INTEGER
    if dtype == "BOOL":
        return Kind.BOOLEAN
    if dtype in BITS:
        return Kind.OPAQUE
    raise MergeError(f"no tensor of dtype {dtype} can be merged")


def float_format(dtype: str) -> FloatFormat:
    """Return the format of a floating dtype, or of the parts of a complex one."""
    return FLOATS[_PARTS.get(dtype, dtype)]


def numbers(spec: TensorSpec) -> int:
    """Return how many floating numbers a floating tensor has: two for a complex element."""
    return spec.elements * 2 if spec.dtype in _PARTS else spec.elements


def name_of(dtype: torch.dtype, tensor: str) -> str:
    """Return what safetensors calls a dtype of torch; raises MergeError."""
    if (found := NAMES.get(dtype)) is None:
        raise MergeError(
            f"tensor {shown(tensor)} is {dtype}, which cannot be merged",
            hint="dequantise it, or leave it out",
        )
    return found


def view(buffer: bytearray | memoryview, dtype: torch.dtype) -> torch.Tensor:
    """Return a 1-D tensor over writable memory, which it shares."""
    if not len(buffer):  # frombuffer refuses it
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype)

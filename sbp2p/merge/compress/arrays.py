"""Tensors of the border as torch's, and back, without copying where memory allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.merge.dtypes import NAMES, TORCH

if TYPE_CHECKING:
    from sbp2p.merge.tensors import TensorSpec

COMPRESSIBLE: Final = frozenset(("F64", "F32", "F16", "BF16"))
"""Dtypes that lossy codecs look into; the others travel whole, or as bits that changed."""

ELEMENT_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "C64": 8, "I64": 8, "I32": 4}
"""What the bytes of a tensor are grouped by when bits are compared; 1 for other dtypes."""


def writable(data: memoryview) -> memoryview:
    """Return bytes that torch may look at without a warning: copied if they are read-only."""
    return memoryview(bytearray(data)) if data.readonly else data.cast("B")


def flat_bytes(data: memoryview) -> torch.Tensor:
    """Return bytes as a 1-D U8 tensor."""
    if not data.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(writable(data), dtype=torch.uint8)


def flat(tensor: RawTensor) -> torch.Tensor:
    """Return the elements of a tensor as a 1-D tensor of its dtype."""
    dtype = TORCH[tensor.dtype]
    if not tensor.data.nbytes:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(writable(tensor.data), dtype=dtype)


def data_of(values: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor's elements, copied."""
    data = bytearray(values.numel() * values.element_size())
    if data:
        flat_values = values.detach().contiguous().reshape(-1)
        torch.frombuffer(data, dtype=torch.uint8).copy_(flat_values.view(torch.uint8))
    return memoryview(data)


def raw(name: str, values: torch.Tensor, shape: tuple[int, ...] | None = None) -> RawTensor:
    """Return a tensor's elements as bytes; `shape` if it is not the values' own."""
    form = tuple(values.shape) if shape is None else shape
    return RawTensor(name, NAMES[values.dtype], form, data_of(values))


def like(spec: TensorSpec, values: torch.Tensor) -> RawTensor:
    """Return elements as the tensor that `spec` describes."""
    return raw(spec.name, values, spec.shape)


def is_finite(values: torch.Tensor) -> bool:
    """Tell whether there is neither NaN nor an infinity."""
    if not values.numel():
        return True
    # NaN is passed on by both; a tenth of the time of isfinite().all()
    least, most = torch.aminmax(values)
    return bool(least.isfinite() & most.isfinite())


def working_dtype(dtype: str) -> torch.dtype:
    """Return what differences of a dtype are computed in: F32, or F64 for itself."""
    return torch.float64 if dtype == "F64" else torch.float32

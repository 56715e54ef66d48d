"""Tensors to be compressed: every dtype, awkward values, and steps as training makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.merge.compress.arrays import raw
from sbp2p.merge.dtypes import TORCH
from sbp2p_protocol.dag_cbor import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

PARENTED = ("delta", "int8", "topk:0.05")
CODECS = ("lossless", "fp16", "bf16", *PARENTED)


def of(**values: torch.Tensor) -> dict[str, RawTensor]:
    """Return a model of these tensors."""
    return {name: raw(name, value) for name, value in values.items()}


def random_bits(dtype: str, count: int, seed: int) -> torch.Tensor:
    """Return elements of any bits that a dtype has: NaN with payloads, infinities, -0."""
    generator = torch.Generator().manual_seed(seed)
    size = count * TORCH[dtype].itemsize
    most = 2 if dtype == "BOOL" else 256
    data = torch.randint(most, (size,), generator=generator, dtype=torch.uint8)
    return data.view(TORCH[dtype])


def weights(count: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return what looks like the weights of a layer."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, generator=generator) * 0.02).to(dtype)


def step(count: int, size: float, seed: int = 1) -> torch.Tensor:
    """Return what looks like a step of Adam at a learning rate of `size`, in F32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator).clamp(-3, 3) * size


def same(one: Mapping[str, RawTensor], other: Mapping[str, RawTensor]) -> bool:
    """Tell whether two models have the same tensors, bit for bit."""
    return one.keys() == other.keys() and all(
        (one[name].dtype, one[name].shape, bytes(one[name].data))
        == (other[name].dtype, other[name].shape, bytes(other[name].data))
        for name in one
    )


def to_bytes(tensors: Mapping[str, RawTensor]) -> bytes:
    """Return tensors as one dag-cbor item, for mutations."""
    return encode(
        {
            name: [tensor.dtype, list(tensor.shape), bytes(tensor.data)]
            for name, tensor in tensors.items()
        }
    )


def from_bytes(data: bytes) -> dict[str, RawTensor] | None:
    """Return what `to_bytes` made, or None if it is no longer that."""
    value = decode(data)
    if not isinstance(value, dict):
        return None
    found = {}
    for name, row in value.items():
        match row:
            case [str(dtype), list(shape), bytes(content)]:
                dimensions = tuple(each for each in shape if isinstance(each, int))
                found[name] = RawTensor(name, dtype, dimensions, memoryview(content))
            case _:
                return None
    return found

"""Small models for the engine's tests."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from blake3 import blake3

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.merge.digest import digest_of
from sbp2p.merge.dtypes import NAMES, TORCH, view
from sbp2p.merge.engine import merge
from sbp2p.merge.tensors import Input, MemorySink, MemorySource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from sbp2p.merge.method import Method
    from sbp2p.merge.report import MergeReport

Tensors = dict[str, torch.Tensor]


def raw(name: str, tensor: torch.Tensor) -> RawTensor:
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    data = bytearray(flat.numel())
    view(data, torch.uint8).copy_(flat)
    return RawTensor(name, NAMES[tensor.dtype], tuple(tensor.shape), memoryview(data))


def source(tensors: Mapping[str, torch.Tensor]) -> MemorySource:
    """Make a source; the same tensor object under two names is tied."""
    known: dict[int, RawTensor] = {}
    result = {}
    for name, tensor in tensors.items():
        first = known.setdefault(id(tensor), raw(name, tensor))
        result[name] = RawTensor(name, first.dtype, first.shape, first.data)
    return MemorySource(result)


def inputs(
    models: Sequence[Mapping[str, torch.Tensor]],
    weights: Sequence[Fraction | int] | None = None,
    labels: Sequence[str] | None = None,
) -> list[Input]:
    sources = [source(model) for model in models]
    return [
        Input(
            each,
            labels[number] if labels else f"model {number}",
            digest_of(each),
            Fraction(weights[number]) if weights else Fraction(1),
        )
        for number, each in enumerate(sources)
    ]


def merged(
    given: Sequence[Input], method: Method | str = "mean", **options: Any
) -> tuple[dict[str, RawTensor], MergeReport]:
    sink = MemorySink()
    report = merge(given, method, sink=sink, **options)
    return sink.tensors, report


def tensor(found: RawTensor) -> torch.Tensor:
    """Return a raw tensor as torch's."""
    dtype = TORCH[found.dtype]
    if not found.data.nbytes:
        return torch.empty(found.shape, dtype=dtype)
    return torch.frombuffer(found.data, dtype=dtype).reshape(found.shape)


def noise(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def key(text: str) -> bytes:
    return blake3(text.encode()).digest()

"""Tiny models for the namespace's tests, as plugins without a framework."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.plugins.plugin import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence


def floats(values: Sequence[float], name: str = "w") -> RawTensor:
    """Return an F32 tensor."""
    data = struct.pack(f"<{len(values)}f", *values)
    return RawTensor(name, "F32", (len(values),), memoryview(data))


def model(*values: float, **more: Sequence[float]) -> Snapshot:
    """Return a model with one tensor `w`, and others by name."""
    tensors = {"w": floats(values)} | {name: floats(each, name) for name, each in more.items()}
    return Snapshot(tensors)


def values_of(plugin: Snapshot, name: str = "w") -> list[float]:
    """Return the values of a tensor."""
    data = bytes(plugin.tensors()[name].data)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def bits_of(plugin: Snapshot) -> dict[str, bytes]:
    """Return all of a model."""
    return {name: bytes(tensor.data) for name, tensor in plugin.tensors().items()}

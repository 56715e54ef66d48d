"""Where torch keeps the numbers of a model: what can be shared, copied out and written in place.

Theory of operation: a slot is one named place that is read into bytes and written from bytes.
`TensorSlot` is a tensor on any device, with whatever strides. `NumberSlot` is a counter that an
optimizer keeps as a number or as a tensor with one element. Reading copies once, straight into the
bytes; writing is `copy_` without autograd, so parameters stay the objects that they are.

Tensors whose memory overlaps are told apart by their addresses (`listed_once`): the same elements
under two names are tied, and one that lies wholly within another is a view; both are listed under
the one name that covers them, and follow it when that is written.

Error cases (MergeError): a tensor without a shape yet, without data, without strided memory of its
own, of a dtype that cannot travel, made for inference alone, or one that overlaps another in part.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch.nn.parameter import is_lazy

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.checkpoint.load import TORCH_DTYPES
from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import MergeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .plugin import Spec

_TORCH_NAMES: Final = {**TORCH_DTYPES, "C128": "complex128"}
_DTYPES: Final[dict[str, torch.dtype]] = {
    name: getattr(torch, known) for name, known in _TORCH_NAMES.items() if hasattr(torch, known)
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


class Slot(Protocol):
    """One named place of a model."""

    @property
    def spec(self) -> Spec:
        """Return its dtype and shape, as they travel."""

    def read(self, name: str) -> RawTensor:
        """Return a copy of what is in it."""

    def write(self, tensor: RawTensor) -> None:
        """Put the elements of a tensor of the same spec into it, in place."""


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """A tensor: on any device, with any strides."""

    tensor: torch.Tensor

    @property
    def spec(self) -> Spec:
        """Return its dtype and shape."""
        return _NAMES[self.tensor.dtype], tuple(self.tensor.shape)

    def read(self, name: str) -> RawTensor:
        """Return a copy of its elements, in row-major order."""
        return raw_of(name, self.tensor)

    def write(self, tensor: RawTensor) -> None:
        """Copy the elements in, to wherever they lie."""
        with torch.no_grad():
            self.tensor.copy_(tensor_of(tensor))


@dataclass(frozen=True, slots=True)
class NumberSlot:
    """A number in a dictionary: an int or a bool as I64, a float as F64; a counter as I64.

    Optimizers count their steps in float32 tensors; as integers they are counters for a merge, too.
    """

    owner: dict[Any, Any]
    key: Any

    @property
    def spec(self) -> Spec:
        """Return its dtype, without dimensions."""
        return ("F64" if isinstance(self.owner[self.key], float) else "I64"), ()

    def read(self, name: str) -> RawTensor:
        """Return the number."""
        dtype = _DTYPES[self.spec[0]]
        value = self.owner[self.key]
        number = value.item() if isinstance(value, torch.Tensor) else value
        return raw_of(name, torch.tensor(number).to(dtype))

    def write(self, tensor: RawTensor) -> None:
        """Replace the number, or fill the tensor that holds it."""
        value, number = self.owner[self.key], tensor_of(tensor).item()
        if isinstance(value, torch.Tensor):
            with torch.no_grad():
                value.fill_(number)
        else:
            self.owner[self.key] = type(value)(number)


def raw_of(name: str, tensor: torch.Tensor) -> RawTensor:
    """Copy a tensor's elements out, from whatever device, into bytes of their own."""
    if sys.byteorder != "little":
        raise MergeError("tensors travel little-endian, and this machine is not")
    data = bytearray(tensor.numel() * tensor.element_size())
    if data:
        target = torch.frombuffer(data, dtype=tensor.dtype).reshape(tensor.shape)
        with torch.no_grad():
            target.copy_(tensor)
    return RawTensor(name, _NAMES[tensor.dtype], tuple(tensor.shape), memoryview(data))


def tensor_of(tensor: RawTensor) -> torch.Tensor:
    """Return a CPU tensor over a tensor's bytes: not a copy, unless they cannot be written.

    Raises:
        MergeError: this version of torch has no such dtype.
    """
    if (dtype := _DTYPES.get(tensor.dtype)) is None:
        raise MergeError(
            f"tensor {shown(tensor.name)} is {tensor.dtype}, which this torch has no dtype for",
            hint="use the version of torch that the peers use",
        )
    if not tensor.data.nbytes:
        return torch.empty(tensor.shape, dtype=dtype)
    # torch warns of a buffer that it could write to and must not
    data = bytearray(tensor.data) if tensor.data.readonly else tensor.data
    return torch.frombuffer(data, dtype=dtype).reshape(tensor.shape)


def check_shareable(name: str, tensor: torch.Tensor) -> None:
    """Raise MergeError when a tensor cannot be copied out as bytes and written in place."""
    if is_lazy(tensor):
        _refuse(name, "has no shape yet", "run one batch through the model before you share it")
    if tensor.is_meta:
        _refuse(name, "has no data: it is on the meta device", "load or initialise the model first")
    if hasattr(tensor, "ds_id"):  # how DeepSpeed marks parameters that it has taken apart
        _refuse(name, "is sharded over processes", "gather the model first")
    if tensor.layout != torch.strided or type(tensor.data) is not torch.Tensor:
        kind = f"{type(tensor.data).__name__}, {str(tensor.layout).removeprefix('torch.')}"
        _refuse(name, f"is not a plain tensor ({kind})", "share the whole model, not a part of one")
    if tensor.dtype not in _NAMES:
        kind = str(tensor.dtype).removeprefix("torch.")
        _refuse(name, f"is {kind}, which cannot travel", "convert it to another dtype")
    if tensor.is_inference():
        _refuse(name, "was made in inference mode and cannot be changed", "clone it outside")
    if _overlaps_itself(tensor):
        _refuse(name, "is an expanded view, in which elements share memory", "clone it first")


def _refuse(name: str, what: str, hint: str) -> None:
    raise MergeError(f"tensor {shown(name)} {what}", hint=f"{hint}, or leave it out: exclude=[...]")


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach += stride * (size - 1)
    return False


@dataclass(frozen=True, slots=True)
class _Extent:
    """The addresses of one tensor, from its first byte to behind its last."""

    name: str
    device: str
    start: int
    end: int
    dense: bool
    geometry: tuple[object, ...]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> _Extent:
        size = tensor.element_size()
        last = sum(
            (count - 1) * step for count, step in zip(tensor.shape, tensor.stride(), strict=True)
        )
        start = tensor.data_ptr()
        end = start + (last + 1) * size
        geometry = (start, tensor.dtype, tuple(tensor.shape), tensor.stride())
        return cls(
            name, str(tensor.device), start, end, tensor.numel() * size == end - start, geometry
        )

    def covers(self, other: _Extent) -> bool:
        return self.geometry == other.geometry or (self.dense and other.end <= self.end)


def listed_once(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors without those whose elements all belong to another one.

    Of several names for the same elements the first one stays.

    Raises:
        MergeError: two overlap in part, so that neither stands for the other.
    """
    extents = [_Extent.of(name, tensor) for name, tensor in tensors.items() if tensor.numel()]
    # stable: of equal extents the dense one comes first, then the one that was named first
    extents.sort(key=lambda one: (one.device, one.start, -one.end, not one.dense))
    dropped: set[str] = set()
    cover: _Extent | None = None
    for extent in extents:
        if cover is None or cover.device != extent.device or extent.start >= cover.end:
            cover = extent
        elif cover.covers(extent):
            dropped.add(extent.name)
        else:
            raise MergeError(
                f"tensors {shown(cover.name)} and {shown(extent.name)} share a part of their "
                "memory",
                hint="give one memory of its own (.clone()), or leave it out: exclude=[...]",
            )
    return {name: tensor for name, tensor in tensors.items() if name not in dropped}

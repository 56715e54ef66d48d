"""What the built-in codecs share: a packing for each tensor, and decoding by it.

| packing | parts | the tensor is |
|---|---|---|
| `raw` | `raw:NAME` | that part |
| `same` | | the parent's |
| `bits` | `bits:NAME` | the parent's with some bits changed (`bits.py`) |
| `planes` | `bits:NAME` | bits from nothing (`bits.py`) |
| `cast` | `cast:NAME` | that part, F16 or BF16, as its own dtype |
| `int8` | `int8:NAME`, `scale:NAME` | for each 256 elements, integers times one scale |
| `int8-delta` | `int8:NAME`, `scale:NAME` | the same, added to the parent's |

A packing says all that decoding needs to know, so any of these codecs decodes any update of the
others. All arithmetic is elementwise, each operation rounded by itself in F32 (F64 for F64), so the
result is the same on every machine.

What lossy codecs cannot say travels without loss, as `raw` or `bits`: tensors that are not F64,
F32, F16 or BF16, tensors of fewer than RAW_BELOW elements (norms and biases: few bytes, and
sensitive), and those that hold NaN or Inf, which the merge must see to turn the model down.
"""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from typing import TYPE_CHECKING, Final

import torch

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import CheckpointError, MergeError
from sbp2p.merge.compress.arrays import (
    COMPRESSIBLE,
    ELEMENT_BYTES,
    data_of,
    flat,
    flat_bytes,
    is_finite,
    like,
    raw,
    working_dtype,
)
from sbp2p.merge.compress.bits import pack_bits, unpack_bits
from sbp2p.merge.compress.codec import Codec, Encoded, check_size
from sbp2p.merge.compress.content import content_digest
from sbp2p.merge.compress.description import DESCRIPTION, Description
from sbp2p.merge.compress.feedback import Feedback
from sbp2p.merge.dtypes import TORCH
from sbp2p.merge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

RAW_BELOW: Final = 256
"""Elements of a tensor below which nothing of it is lost."""

BLOCK: Final = 256
"""Elements that share a scale in `int8`: 1.6 % of scales."""

_THREADS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Packed:
    """One tensor of an update: its parts, what they decode to, and what is left out of it."""

    packing: str
    parts: tuple[RawTensor, ...]
    result: RawTensor
    residual: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A tensor that is being packed.

    Attributes:
        spec: what it is.
        tensor: itself.
        parent: the parent's tensor of this name if it has the same dtype and shape.
        wish: what is to be said: its values and the residual, flat, in the working dtype.
    """

    spec: TensorSpec
    tensor: RawTensor
    parent: RawTensor | None
    wish: torch.Tensor

    def base(self, part: slice = slice(None)) -> torch.Tensor:
        """Return the parent's values in the working dtype; zeros without a parent."""
        if self.parent is None:
            return torch.zeros_like(self.wish[part])
        return flat(self.parent)[part].to(self.wish.dtype)

    def packed(
        self, packing: str, parts: tuple[RawTensor, ...], result: torch.Tensor
    ) -> Packed | None:
        """Return the outcome, or None if it is not finite: then it was not possible."""
        said = result.to(self.wish.dtype)
        if not is_finite(said):
            return None
        return Packed(packing, parts, like(self.spec, result), self.wish - said)


class PackedCodec(Codec):
    """A codec that packs each tensor by itself; subclasses say how, in `pack`."""

    @abstractmethod
    def pack(self, subject: Subject) -> Packed | None:
        """Pack a tensor that may lose something; None if this codec cannot."""

    def encode(
        self,
        tensors: Mapping[str, RawTensor],
        parent: Mapping[str, RawTensor] | None = None,
        state: Feedback | None = None,
    ) -> Encoded:
        """Return the update that stands for `tensors`."""
        parent = parent if self.uses_parent else None
        parent_digest = None if parent is None else content_digest(parent)
        residuals: Mapping[str, RawTensor] = {} if state is None else state.residuals
        if state is not None and parent_digest == state.digest:
            residuals = {}  # what was left out is what the parent lacks
        names = list(tensors)

        def pack(name: str) -> Packed:
            return self._pack(tensors[name], (parent or {}).get(name), residuals.get(name), name)

        with ThreadPoolExecutor(min(_THREADS_MAX, cpu_count() or 1)) as pool:
            packed = dict(zip(names, pool.map(pack, names), strict=True))
        result = {name: each.result for name, each in packed.items()}
        digest = content_digest(result)
        rows = {
            name: (TensorSpec(name, tensors[name].dtype, tensors[name].shape), each.packing)
            for name, each in packed.items()
        }
        description = Description(self.text, digest, parent_digest, rows)
        parts = {part.name: part for each in packed.values() for part in each.parts}
        left = {name: each.residual for name, each in packed.items() if each.residual is not None}
        return Encoded(
            {**parts, DESCRIPTION: description.to_tensor()},
            result,
            Feedback({name: raw(name, each) for name, each in left.items()}, digest)
            if self.lossy
            else None,
            {"codec": self.text},
        )

    def _pack(
        self, tensor: RawTensor, parent: RawTensor | None, residual: RawTensor | None, name: str
    ) -> Packed:
        spec = TensorSpec(name, tensor.dtype, tensor.shape)
        if tensor.data.nbytes != spec.nbytes:
            raise MergeError(f"tensor {shown(name)} has {tensor.data.nbytes} bytes")
        if parent is not None and (parent.dtype, parent.shape) != (tensor.dtype, tensor.shape):
            parent = None
        if parent is not None and residual is None and is_same(parent, tensor):
            return Packed("same", (), parent)
        if self.lossy and tensor.dtype in COMPRESSIBLE and spec.elements >= RAW_BELOW:
            wish = flat(tensor).to(working_dtype(tensor.dtype))
            if residual is not None and residual.data.nbytes == wish.nbytes:
                wish = wish + flat(residual)
            if is_finite(wish):
                packed = self.pack(Subject(spec, tensor, parent, wish))
                if packed is not None:
                    return packed
        return pack_whole(spec, tensor, parent, tries_planes=not self.lossy)

    def decode(
        self,
        tensors: Mapping[str, RawTensor],
        parent: Mapping[str, RawTensor] | None = None,
        *,
        bytes_max: int | None = None,
    ) -> dict[str, RawTensor]:
        """Return the model that an update stands for; raises CheckpointError."""
        description = Description.read(tensors)
        check_size(description.nbytes, tensors, parent, bytes_max)
        if description.parent is not None:
            if parent is None or content_digest(parent) != description.parent:
                raise CheckpointError(
                    "an update that says what changed since a version that is not here",
                    hint="fetch the version that it names as its parent, decoded, first",
                )
        else:
            parent = None
        rows = description.tensors

        def unpack(name: str) -> RawTensor:
            spec, packing = rows[name]
            return _unpack(spec, packing, tensors, (parent or {}).get(name))

        with ThreadPoolExecutor(min(_THREADS_MAX, cpu_count() or 1)) as pool:
            found = dict(zip(rows, pool.map(unpack, rows), strict=True))
        if content_digest(found) != description.digest:
            raise CheckpointError("an update that does not decode to what its publisher meant")
        return found


def pack_whole(
    spec: TensorSpec, tensor: RawTensor, parent: RawTensor | None, *, tries_planes: bool
) -> Packed:
    """Pack a tensor without loss: as bits that changed if that is shorter, or as it is."""
    if (parent is not None or tries_planes) and tensor.data.nbytes:
        width = ELEMENT_BYTES.get(spec.dtype, 1)
        old = None if parent is None else flat_bytes(parent.data)
        payload = pack_bits(flat_bytes(tensor.data), old, width)
        if len(payload) < tensor.data.nbytes:
            part = RawTensor(f"bits:{spec.name}", "U8", (len(payload),), memoryview(payload))
            return Packed("planes" if parent is None else "bits", (part,), tensor)
    return Packed("raw", (RawTensor(f"raw:{spec.name}", *_form(tensor)),), tensor)


def is_same(one: RawTensor, other: RawTensor) -> bool:
    """Tell whether two tensors have the same bytes."""
    # a comparison of memoryviews goes element by element: 30 times slower
    return one.data is other.data or bool(torch.equal(flat_bytes(one.data), flat_bytes(other.data)))


def _form(tensor: RawTensor) -> tuple[str, tuple[int, ...], memoryview]:
    return tensor.dtype, tensor.shape, tensor.data


# -- decoding --------------------------------------------------------------------------------------


def _unpack(
    spec: TensorSpec, packing: str, parts: Mapping[str, RawTensor], parent: RawTensor | None
) -> RawTensor:
    """Return one tensor of an update; raises CheckpointError."""
    if packing in ("same", "bits", "int8-delta"):
        if parent is None or (parent.dtype, parent.shape) != (spec.dtype, spec.shape):
            raise _fault(spec, "is said to be like the parent's, which there is not")
    else:
        parent = None
    if packing == "same" and parent is not None:
        return parent
    if packing == "raw":
        found = _part(parts, "raw", spec, spec.dtype, spec.shape, spec.nbytes)
        return RawTensor(spec.name, *_form(found))
    if packing in ("bits", "planes"):
        return _unpack_bits(spec, parts, parent)
    if spec.dtype not in COMPRESSIBLE:
        raise _fault(spec, f"is packed as {packing!a}, and cannot be")
    if packing == "cast":
        return _unpack_cast(spec, parts)
    if packing in ("int8", "int8-delta"):
        return _unpack_int8(spec, parts, parent)
    raise _fault(spec, f"is packed as {packing!a}, which is unknown here")


def _fault(spec: TensorSpec, reason: str) -> CheckpointError:
    return CheckpointError(f"a malformed update: tensor {shown(spec.name)} {reason}")


def _part(
    parts: Mapping[str, RawTensor],
    part: str,
    spec: TensorSpec,
    dtype: str,
    shape: tuple[int, ...],
    nbytes: int,
) -> RawTensor:
    """Return a part that must have this form; raises CheckpointError."""
    found = parts.get(f"{part}:{spec.name}")
    if found is None or (*_form(found)[:2], found.data.nbytes) != (dtype, shape, nbytes):
        raise _fault(spec, f"has no part {part!r} as it should be")
    return found


def _unpack_bits(
    spec: TensorSpec, parts: Mapping[str, RawTensor], parent: RawTensor | None
) -> RawTensor:
    found = parts.get(f"bits:{spec.name}")
    width = ELEMENT_BYTES.get(spec.dtype, 1)
    if found is None or found.dtype != "U8" or not spec.nbytes or spec.nbytes % width:
        raise _fault(spec, "has no bits")
    old = None if parent is None else flat_bytes(parent.data)
    values = unpack_bits(found.data.cast("B"), old, spec.nbytes, width)
    return RawTensor(spec.name, spec.dtype, spec.shape, data_of(values))


def _unpack_cast(spec: TensorSpec, parts: Mapping[str, RawTensor]) -> RawTensor:
    found = parts.get(f"cast:{spec.name}")
    if found is None or found.dtype not in ("F16", "BF16"):
        raise _fault(spec, "has no part 'cast' as it should be")
    found = _part(parts, "cast", spec, found.dtype, spec.shape, 2 * spec.elements)
    return like(spec, flat(found).to(TORCH[spec.dtype]))


def _unpack_int8(
    spec: TensorSpec, parts: Mapping[str, RawTensor], parent: RawTensor | None
) -> RawTensor:
    count = spec.elements
    blocks = (count + BLOCK - 1) // BLOCK
    numbers = _part(parts, "int8", spec, "I8", (count,), count)
    scales = _part(parts, "scale", spec, "F32", (blocks,), 4 * blocks)
    dtype = working_dtype(spec.dtype)
    values = dequantised(flat(numbers), flat(scales), dtype)
    if parent is not None:
        values = flat(parent).to(dtype) + values
    return like(spec, values.to(TORCH[spec.dtype]))


def dequantised(numbers: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return integers times the scales of their blocks, each product rounded once."""
    count = numbers.numel()
    blocks = torch.zeros(scales.numel() * BLOCK, dtype=dtype)
    blocks[:count] = numbers
    return (blocks.view(-1, BLOCK) * scales.to(dtype).unsqueeze(1)).view(-1)[:count]

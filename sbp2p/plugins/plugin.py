"""What a plugin is: a model as named tensors, taken out as bytes and put back in place.

Theory of operation: the network and the merge engine know `RawTensor` (a name, a dtype as
safetensors spells it, a shape, little-endian bytes) and nothing of any framework. A plugin wraps a
model without changing what it is: `tensors` copies its state out, `load` puts a state back in.
There is no torch here, so that a third party's plugin needs none either.

Rules that every plugin keeps, and `check_tensors` helps with:

1. The same architecture gives the same names on every peer and in every process, in the same order.
2. `tensors` is a snapshot: training that goes on does not change it. Memory that several names
   share (tied weights) is listed once, under its first name.
3. `load` is all or nothing: every name, dtype, shape and length is checked before anything changes.
4. `load` changes in place: the objects that an optimizer, a compiled graph or other code holds are
   still the model's afterwards.

Neither is called from two threads at a time, nor while the model is being trained.

Error cases: what cannot be shared, and tensors that are not this model's, are a MergeError that
names the tensor and says what to do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.checkpoint.formats.safetensors import DTYPE_BITS
from sbp2p.errors import MergeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sbp2p.checkpoint.reader import RawTensor

Spec = tuple[str, tuple[int, ...]]
"""A dtype as safetensors spells it, and a shape."""

ELEMENT_BYTES: Final = {
    **{dtype: bits // 8 for dtype, bits in DTYPE_BITS.items() if bits % 8 == 0},
    "C128": 16,
}
"""Bytes of an element, for dtypes of whole bytes; and one that safetensors does not have."""

_NAMED_MAX: Final = 5
"""Tensors that an error names; a wrong architecture would fill the screen."""


@runtime_checkable
class Plugin(Protocol):
    """A model as named tensors."""

    def tensors(self) -> Mapping[str, RawTensor]:
        """Return a copy of the model's state, which later training does not change.

        Raises:
            MergeError: something in the model cannot be shared as it is; it says what, and what to
                do about it.
        """

    def load(self, tensors: Mapping[str, RawTensor]) -> None:
        """Make these the model's state: in place, and all of them or none.

        Args:
            tensors: what `tensors` returns at a peer: the same names, dtypes and shapes.

        Raises:
            MergeError: they are not this model's; nothing was changed.
        """


class Snapshot:
    """A plugin around tensors alone: what is loaded replaces what is there.

    It stands for a model where the model itself must not be touched, as in another thread.
    """

    def __init__(self, tensors: Mapping[str, RawTensor]) -> None:
        self._tensors = dict(tensors)

    def tensors(self) -> Mapping[str, RawTensor]:
        """Return the tensors as they were given or loaded."""
        return self._tensors

    def load(self, tensors: Mapping[str, RawTensor]) -> None:
        """Replace the tensors; without any before, whatever comes is taken. Raises MergeError."""
        if self._tensors:
            check_tensors(tensors, specs_of(self._tensors))
        self._tensors = dict(tensors)


def specs_of(tensors: Mapping[str, RawTensor]) -> dict[str, Spec]:
    """Return the dtype and the shape of each tensor."""
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


def check_tensors(tensors: Mapping[str, RawTensor], expected: Mapping[str, Spec]) -> None:
    """Raise MergeError unless these are exactly the expected tensors, and well formed."""
    check_names(tensors, expected)
    for name, (dtype, shape) in expected.items():
        given = tensors[name]
        if given.dtype != dtype:
            raise MergeError(
                f"tensor {shown(name)} is {given.dtype}, and {dtype} in this model",
                hint="every peer has to use the same dtypes",
            )
        if given.shape != shape:
            raise MergeError(
                f"tensor {shown(name)} has the shape {given.shape}, and {shape} in this model",
                hint="every peer has to build its model alike",
            )
        check_length(given)


def check_names(names: Iterable[str], expected: Iterable[str]) -> None:
    """Raise MergeError unless both name the same tensors."""
    have, wanted = set(names), set(expected)
    if missing := _listed(wanted - have):
        raise MergeError(f"the model has tensors that did not come: {missing}", hint=_SAME)
    if extra := _listed(have - wanted):
        raise MergeError(f"tensors came that the model does not have: {extra}", hint=_SAME)


_SAME: Final = "every peer has to build its model alike, and wrap it with the same options"


def check_length(tensor: RawTensor) -> None:
    """Raise MergeError unless a tensor has as many bytes as its dtype and shape say."""
    size = ELEMENT_BYTES.get(tensor.dtype)
    if size is None:
        raise MergeError(
            f"tensor {shown(tensor.name)} is {tensor.dtype}, which no plugin can load",
            hint="quantised tensors cannot be merged; share the model that they were made from",
        )
    wanted = math.prod(tensor.shape) * size
    if tensor.data.nbytes != wanted:
        raise MergeError(
            f"tensor {shown(tensor.name)} has {tensor.data.nbytes} bytes, not {wanted}",
            hint="whoever made it is at fault: a decoder or a merge method",
        )


def _listed(names: set[str]) -> str:
    first = [shown(name) for name in sorted(names)[:_NAMED_MAX]]
    more = len(names) - len(first)
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")

"""A dictionary of NumPy arrays as a plugin; arrays keep their place in memory.

Error cases (MergeError): arrays of structures, objects, texts or times, of a byte order that is not
the wire's, of a dtype that nobody else has (long double), arrays that cannot be written, and arrays
of which two share a part of their memory.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import numpy as np

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.checkpoint.load import NUMPY_DTYPES
from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import MergeError

from .choice import chosen
from .plugin import Spec, check_length, check_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence
    from typing import Any

    Array = np.ndarray[Any, Any]

_DTYPES: Final = {
    name: np.dtype(known) for name, known in {**NUMPY_DTYPES, "C128": "complex128"}.items()
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


class NumpyArrays:
    """Wraps a dictionary from names to arrays.

    An empty one takes whatever it is given: a newcomer that has nothing yet.

    Args:
        arrays: the dictionary itself, whose arrays are changed in place.
        only: names or globs of the arrays to share; all if empty.
        exclude: names or globs of those that stay as they are.
    """

    def __init__(
        self,
        arrays: MutableMapping[str, Array],
        *,
        only: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> None:
        self._arrays = arrays
        self._only, self._exclude = only, exclude

    def tensors(self) -> Mapping[str, RawTensor]:
        """Return a copy of the arrays; raises MergeError for what cannot be shared."""
        return {name: raw_of(name, array) for name, array in self._shared().items()}

    def load(self, tensors: Mapping[str, RawTensor]) -> None:
        """Write arrays in place, all or none; raises MergeError when they are not these."""
        if not self._arrays:
            self._arrays.update({name: array_of(tensor) for name, tensor in tensors.items()})
            return
        arrays = self._shared()
        check_tensors(tensors, {name: spec_of(array) for name, array in arrays.items()})
        for name, array in arrays.items():
            array[...] = view_of(tensors[name])

    def _shared(self) -> dict[str, Array]:
        picked = chosen(self._arrays, self._only, self._exclude)
        for name, array in picked.items():
            check_array(name, array)
            if not array.flags.writeable:
                raise MergeError(
                    f"array {shown(name)} is read-only, so nothing can be loaded into it",
                    hint="copy it first, or leave it out: exclude=[...]",
                )
        return listed_once(picked)


def check_array(name: str, array: object) -> None:
    """Raise MergeError unless the elements of an array can travel as bytes."""
    if not isinstance(array, np.ndarray):
        raise MergeError(
            f"{shown(name)} is a {type(array).__name__}, which cannot be changed in place",
            hint="make it an array: numpy.array(...)",
        )
    if array.dtype.newbyteorder("=") in _NAMES and not array.dtype.isnative:
        raise MergeError(
            f"array {shown(name)} has the byte order of another machine ({array.dtype.str})",
            hint="convert it: array.astype(array.dtype.newbyteorder('='))",
        )
    if array.dtype not in _NAMES:
        what = "structured" if array.dtype.names else str(array.dtype)
        raise MergeError(
            f"array {shown(name)} is {what}, which cannot travel",
            hint="give arrays of numbers, each field as an array of its own",
        )


def listed_once(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays without those that are another one's elements under a second name.

    Raises:
        MergeError: two share a part of their memory.
    """
    order = {name: number for number, name in enumerate(arrays)}
    dropped: set[str] = set()
    near: list[str] = []
    for name in sorted(arrays, key=lambda each: (_addresses(arrays[each])[0], order[each])):
        array = arrays[name]
        start = _addresses(array)[0]
        near = [other for other in near if _addresses(arrays[other])[1] > start]
        for other in near:
            rival = arrays[other]
            if not np.shares_memory(array, rival):
                continue
            if array.strides != rival.strides or spec_of(array) != spec_of(rival):
                raise MergeError(
                    f"arrays {shown(other)} and {shown(name)} share a part of their memory",
                    hint="copy one of them, or leave it out: exclude=[...]",
                )
            dropped.add(max(other, name, key=order.__getitem__))
        near.append(name)
    return {name: array for name, array in arrays.items() if name not in dropped}


def _addresses(array: Array) -> tuple[int, int]:
    """Return where an array's first byte lies, and where its last one ends."""
    steps = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
    first = array.ctypes.data
    if not array.size:
        return first, first
    return first + sum(min(step, 0) for step in steps), (
        first + sum(max(step, 0) for step in steps) + array.itemsize
    )


def spec_of(array: Array) -> Spec:
    """Return an array's dtype as it travels, and its shape."""
    return _NAMES[array.dtype], array.shape


def raw_of(name: str, array: Array) -> RawTensor:
    """Copy an array's elements out, in row-major order."""
    if sys.byteorder != "little":
        raise MergeError("tensors travel little-endian, and this machine is not")
    data = bytearray(array.nbytes)
    if data:
        np.frombuffer(data, dtype=array.dtype).reshape(array.shape)[...] = array
    return RawTensor(name, *spec_of(array), memoryview(data))


def view_of(tensor: RawTensor) -> Array:
    """Return an array over a tensor's bytes, not a copy; raises MergeError."""
    check_length(tensor)
    if (dtype := _DTYPES.get(tensor.dtype)) is None:
        raise MergeError(
            f"tensor {shown(tensor.name)} is {tensor.dtype}, which NumPy has no dtype for",
            hint="let the peers share float32",
        )
    return np.frombuffer(tensor.data, dtype=dtype).reshape(tensor.shape)


def array_of(tensor: RawTensor) -> Array:
    """Return an array of its own with a tensor's elements; raises MergeError."""
    return view_of(tensor).copy()

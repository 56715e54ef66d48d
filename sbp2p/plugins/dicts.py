"""Which plugin a dictionary gets: by what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sbp2p.errors import MergeError

if TYPE_CHECKING:
    from .plugin import Plugin


def wrap_dict(values: dict[str, Any], **options: Any) -> Plugin:
    """Return a `TensorDict` or `NumpyArrays` for a dictionary; raises MergeError for others."""
    # by name: nothing is imported for a dictionary of something else
    homes = {home for value in values.values() for home in _homes(value)}
    if "torch" in homes and "numpy" not in homes:
        from .torch_tensors import TensorDict

        return TensorDict(values, **options)
    if "numpy" in homes and "torch" not in homes:
        from .numpy_arrays import NumpyArrays

        return NumpyArrays(values, **options)
    if not values:
        raise MergeError(
            "an empty dict does not say what will be in it",
            hint="say it: TensorDict({}) from sbp2p.plugins.torch_tensors, or NumpyArrays({}) from "
            "sbp2p.plugins.numpy_arrays",
        )
    kinds = ", ".join(sorted({type(value).__name__ for value in values.values()}))
    raise MergeError(
        f"no plugin wraps a dict of {kinds}", hint="give tensors alone, or NumPy arrays alone"
    )


def _homes(value: object) -> set[str]:
    names = {(kind.__module__, kind.__name__) for kind in type(value).__mro__}
    found = set()
    if ("torch", "Tensor") in names:
        found.add("torch")
    if names & {("numpy", "ndarray"), ("numpy", "generic")}:
        found.add("numpy")
    return found

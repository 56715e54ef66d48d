"""A dictionary of torch tensors as a plugin; tensors keep their place in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.errors import MergeError

from .choice import chosen
from .plugin import check_length, check_tensors
from .slots import TensorSlot, check_shareable, listed_once, tensor_of

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from sbp2p.checkpoint.reader import RawTensor

    from .slots import Slot


class TensorDict:
    """Wraps a dictionary from names to tensors, such as a state dict.

    An empty one takes whatever it is given: a newcomer that has nothing yet.

    Args:
        tensors: the dictionary itself, which is filled or changed in place.
        only: names or globs of the tensors to share; all if empty.
        exclude: names or globs of those that stay as they are.
    """

    def __init__(
        self,
        tensors: MutableMapping[str, torch.Tensor],
        *,
        only: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> None:
        self._tensors = tensors
        self._only, self._exclude = only, exclude

    def tensors(self) -> Mapping[str, RawTensor]:
        """Return a copy of the tensors; raises MergeError for what cannot be shared."""
        return {name: slot.read(name) for name, slot in self._slots().items()}

    def load(self, tensors: Mapping[str, RawTensor]) -> None:
        """Write tensors in place, all or none; raises MergeError when they are not these."""
        if not self._tensors:
            for tensor in tensors.values():
                check_length(tensor)
            self._tensors.update({name: tensor_of(raw).clone() for name, raw in tensors.items()})
            return
        write_slots(self._slots(), tensors)

    def _slots(self) -> Mapping[str, Slot]:
        things: Mapping[Any, Any] = self._tensors
        for name, tensor in things.items():
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                raise MergeError(
                    f"{shown(str(name))} is a {type(tensor).__name__}, not a tensor with a name",
                    hint="give a dict of tensors alone",
                )
        return tensor_slots(chosen(self._tensors, self._only, self._exclude))


def tensor_slots(tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorSlot]:
    """Return a slot for each tensor, shared memory once; raises MergeError."""
    for name, tensor in tensors.items():
        check_shareable(name, tensor)
    return {name: TensorSlot(tensor) for name, tensor in listed_once(tensors).items()}


def write_slots(slots: Mapping[str, Slot], tensors: Mapping[str, RawTensor]) -> None:
    """Write every slot, or raise MergeError before the first one is touched."""
    check_tensors(tensors, {name: slot.spec for name, slot in slots.items()})
    for name, slot in slots.items():
        slot.write(tensors[name])

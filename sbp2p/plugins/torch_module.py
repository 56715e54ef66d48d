"""A torch module as a plugin: parameters and buffers, and the optimizer's state by choice.

Theory of operation: what is shared is what `state_dict` says, under its names, taken as the live
tensors and not as copies. Wrappers that change no weights are looked through, so that a compiled or
data-parallel model and a plain one are the same model to their peers: `torch.compile`
(`_orig_mod.`), DataParallel and DistributedDataParallel (`module.`).

Error cases (MergeError): besides those of `slots`, a module whose state dict has something that is
no tensor (extra state), or tensors that are made anew for it and so cannot be written in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.errors import MergeError

from .choice import chosen
from .optimizer_state import OptimizerState
from .plugin import check_tensors
from .torch_tensors import tensor_slots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sbp2p.checkpoint.reader import RawTensor

    from .slots import Slot

_COMPILED: Final = "_orig_mod."
"""What torch.compile puts into the names of a module that it wraps."""


class TorchModule:
    """Wraps a module: parameters, buffers that are saved, and tied tensors once.

    Args:
        module: it stays as it is; its tensors are written in place, on whatever devices they are.
        optimizer: share its state, too, under the names of the parameters it belongs to
            (`optimizer.NAME.exp_avg`); its settings, such as the learning rate, stay local.
        only: names or globs of the tensors to share; all if empty.
        exclude: names or globs of those that stay local, such as `head.*`.
        frozen: whether parameters that are not trained (`requires_grad` is off) are shared.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        only: Sequence[str] = (),
        exclude: Sequence[str] = (),
        frozen: bool = True,
    ) -> None:
        self._module = unwrapped(module)
        self._optimizer = None if optimizer is None else OptimizerState(optimizer, self._names)
        self._only, self._exclude, self._frozen = only, exclude, frozen

    def tensors(self) -> Mapping[str, RawTensor]:
        """Return a copy of the state; raises MergeError for what cannot be shared."""
        slots = self._slots()
        return {name: slot.read(name) for name, slot in slots.items()}

    def load(self, tensors: Mapping[str, RawTensor]) -> None:
        """Write the state in place, all or none; raises MergeError when it is not this model's.

        Parameters stay the same objects, and `requires_grad` what it is. An optimizer that has made
        no step yet takes the state that it is given.
        """
        slots = self._slots()
        expected = {name: slot.spec for name, slot in slots.items()}
        fresh = None
        if self._optimizer is not None and self._optimizer.is_fresh:
            fresh, tensors = self._optimizer.prepare(tensors)
        check_tensors(tensors, expected)
        for name, slot in slots.items():
            slot.write(tensors[name])
        if fresh is not None and self._optimizer is not None:
            self._optimizer.begin(fresh)

    def live(self) -> list[torch.Tensor]:
        """Return the module's own tensors that are shared, without those of the optimizer."""
        slots = tensor_slots(chosen(self._state(), self._only, self._exclude))
        return [slot.tensor for slot in slots.values()]

    def _slots(self) -> dict[str, Slot]:
        """Return where everything that is shared lies, by name."""
        slots: dict[str, Slot] = dict(
            tensor_slots(chosen(self._state(), self._only, self._exclude))
        )
        if self._optimizer is not None:
            for name, slot in self._optimizer.slots().items():
                if name in slots:
                    raise MergeError(f"{shown(name)} is a tensor of the model and of its optimizer")
                slots[name] = slot
        return slots

    def _state(self) -> dict[str, torch.Tensor]:
        """Return the live tensors of the state dict; extra state only if it is left out."""
        state = self._module.state_dict(keep_vars=True)
        parameters = dict(self._module.named_parameters(remove_duplicate=False))
        own = [*parameters.values(), *(each for _, each in self._module.named_buffers())]
        identities = {id(tensor) for tensor in own}
        left = [name.replace(_COMPILED, "") for name in state]
        left = list(chosen(dict.fromkeys(left), self._only, self._exclude))
        found: dict[str, torch.Tensor] = {}
        for full, value in state.items():
            name = full.replace(_COMPILED, "")
            if name in left and not isinstance(value, torch.Tensor):
                raise MergeError(
                    f"{shown(name)} is extra state, a {type(value).__name__} and not a tensor",
                    hint="it can stay local: exclude=['*_extra_state']",
                )
            if name in left and id(value) not in identities and not _shares(value, own):
                raise MergeError(
                    f"tensor {shown(name)} is made anew for each state dict, so nothing can be "
                    "written to it",
                    hint="share a dict of the tensors that the model keeps, or leave it out: "
                    "exclude=[...]",
                )
            if self._frozen or full not in parameters or parameters[full].requires_grad:
                found[name] = value
        return found

    def _names(self) -> dict[int, str]:
        """Return the name of each parameter by its identity."""
        return {
            id(parameter): name.replace(_COMPILED, "")
            for name, parameter in self._module.named_parameters()
        }


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside wrappers that change no weights."""
    for part in module.modules():
        if type(part).__name__ == "FullyShardedDataParallel":
            raise MergeError(
                "the module's weights are sharded over processes, so none of them has the model",
                hint="gather them first, or train with DistributedDataParallel",
            )
    while True:
        inner: Any = getattr(module, "_orig_mod", None)
        if isinstance(module, (DataParallel, DistributedDataParallel)):
            inner = module.module
        if not isinstance(inner, torch.nn.Module):
            return module
        module = inner


def _shares(tensor: torch.Tensor, own: list[torch.Tensor]) -> bool:
    """Whether a tensor lies where one of the module's lies: a hook may have detached it."""
    if tensor.is_meta or not tensor.numel():
        return tensor.is_meta
    return any(each.data_ptr() == tensor.data_ptr() for each in own if not each.is_meta)

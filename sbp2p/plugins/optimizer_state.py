"""The state of a torch optimizer under the names of the parameters that it belongs to.

torch numbers the parameters of an optimizer in the order of its groups, which differs between
programs that group them differently; names do not. Tensors travel as they are, counters of steps as
integers (so that a merge takes the furthest and does not average them), numbers as numbers. What
groups hold (learning rate, betas) is a setting and stays local.

An optimizer without any state, one that has made no step, takes the state that it is given, as
torch's own `load_state_dict` does: factors of a parameter on the parameter's device, counters on
the CPU unless the optimizer wants them beside the parameter.

Error cases (MergeError): parameters that are not the module's, state that is neither a tensor nor a
number (L-BFGS keeps lists), and state for a parameter that is not there or has another shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.errors import MergeError

from .plugin import check_length
from .slots import NumberSlot, TensorSlot, check_shareable, tensor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sbp2p.checkpoint.reader import RawTensor

    from .slots import Slot

PREFIX: Final = "optimizer."
"""Begins the name of every tensor of an optimizer."""

_STEP: Final = "step"
"""What every optimizer of torch calls its count of steps, kept as a float32 tensor."""

Fresh = list[tuple[torch.Tensor, str, Any]]


class OptimizerState:
    """What an optimizer remembers of each parameter."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, names: Callable[[], Mapping[int, str]]
    ) -> None:
        self._optimizer = optimizer
        self._names = names

    @property
    def is_fresh(self) -> bool:
        """Whether it has made no step and remembers nothing."""
        return not any(self._optimizer.state.values())

    def slots(self) -> dict[str, Slot]:
        """Return where everything lies, by name; raises MergeError."""
        found: dict[str, Slot] = {}
        for name, (parameter, _) in self._parameters().items():
            state: dict[str, Any] = self._optimizer.state.get(parameter, {})
            for key in sorted(state):
                full = f"{PREFIX}{name}.{key}"
                if (slot := _slot(full, state, key)) is not None:
                    found[full] = slot
        return found

    def prepare(self, tensors: Mapping[str, RawTensor]) -> tuple[Fresh, dict[str, RawTensor]]:
        """Make state for an optimizer that has none; return it and the tensors that are not its.

        Raises:
            MergeError: state for a parameter that is not there, or that cannot be its.
        """
        parameters = self._parameters()
        fresh: Fresh = []
        others: dict[str, RawTensor] = {}
        for full, tensor in tensors.items():
            name, _, key = full.removeprefix(PREFIX).rpartition(".")
            if not full.startswith(PREFIX):
                others[full] = tensor
            elif name not in parameters:
                raise MergeError(
                    f"{shown(full)} is state of a parameter that this optimizer does not have",
                    hint="every peer has to give its optimizer the same parameters",
                )
            else:
                parameter, group = parameters[name]
                fresh.append((parameter, key, self._value(full, key, tensor, parameter, group)))
        return fresh, others

    def begin(self, fresh: Fresh) -> None:
        """Let the optimizer remember what `prepare` made."""
        for parameter, key, value in fresh:
            self._optimizer.state[parameter][key] = value

    def _parameters(self) -> dict[str, tuple[torch.Tensor, dict[str, Any]]]:
        """Return each parameter and its group by the parameter's name, in order of names."""
        names = self._names()
        found: dict[str, tuple[torch.Tensor, dict[str, Any]]] = {}
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if (name := names.get(id(parameter))) is None:
                    raise MergeError(
                        "the optimizer has a parameter that the module does not have",
                        hint="share the module that the optimizer was made for",
                    )
                found[name] = (parameter, group)
        return dict(sorted(found.items()))

    def _value(
        self,
        full: str,
        key: str,
        tensor: RawTensor,
        parameter: torch.Tensor,
        group: Mapping[str, Any],
    ) -> Any:
        check_length(tensor)
        if not _fits(tensor.shape, tuple(parameter.shape)):
            raise MergeError(
                f"{shown(full)} has the shape {tensor.shape}, its parameter "
                f"{tuple(parameter.shape)}",
                hint="every peer has to build its model alike, and use the same optimizer",
            )
        if key == _STEP and (tensor.shape or tensor.dtype not in ("I64", "F64")):
            raise MergeError(
                f"{shown(full)} is {tensor.dtype} of shape {tensor.shape}, and no count of steps",
                hint="whoever made it is at fault",
            )
        value = tensor_of(tensor)
        if key != _STEP:
            return value.to(device=parameter.device, copy=True)
        if not type(self._optimizer).__module__.startswith("torch."):
            return value.item()
        beside = group.get("capturable") or group.get("fused")
        return value.to(dtype=torch.float32, device=parameter.device if beside else "cpu")


def _slot(full: str, state: dict[str, Any], key: str) -> Slot | None:
    value = state[key]
    match value:
        case None:  # SGD without momentum
            return None
        case torch.Tensor():
            check_shareable(full, value)
            return NumberSlot(state, key) if key == _STEP else TensorSlot(value)
        case int() | float():
            return NumberSlot(state, key)
    raise MergeError(
        f"{shown(full)} is a {type(value).__name__}, neither a tensor nor a number",
        hint="this optimizer's state cannot be shared; share the module alone",
    )


def _fits(shape: tuple[int, ...], parameter: tuple[int, ...]) -> bool:
    """Whether state of this shape can belong to a parameter: as large, a number, or a factor."""
    if shape in (parameter, ()):
        return True
    return len(shape) <= len(parameter) and all(each in (1, *parameter) for each in shape)

"""What an outer optimiser remembers from round to round: a few numbers for each parameter.

Theory of operation: two generations. A merge reads the last one and writes the next, piece by
piece, from several threads, each piece another place. `settle` makes the next one the last when the
merge has ended well; `begin` forgets what a merge that failed has left. So a merge that is tried
again starts from what the failed one started from.

Kept by tensor name: an entry "slot/name" for each slot ("momentum", "second"), of the tensor's
shape (a complex one's with a last dimension of 2), and "step/name", the steps taken so far: a 0-dim
int64 tensor. In float32 by choice of memory (as optimisers keep it), in float64 on request; either
is rounded the same way everywhere.

Error cases: entries that are none of these, or of another shape than the tensor's, are a
MergeError that names them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal

import torch

from sbp2p.errors import MergeError
from sbp2p.merge.dtypes import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbp2p.merge.method import Place
    from sbp2p.merge.tensors import TensorSpec

STEP: Final = "step"

Precision = Literal["F32", "F64"]


@dataclass(slots=True)
class _Memory:
    """One generation of one tensor."""

    step: int
    slots: dict[str, torch.Tensor] = field(default_factory=dict)


class OuterState:
    """Slots for each tensor, the last generation and the next."""

    def __init__(self, initial: Mapping[str, float], precision: Precision = "F32") -> None:
        """Begin with no tensors; `initial` has each slot's value before the first step."""
        if precision not in ("F32", "F64"):
            raise ValueError(f"precision is {precision!r}, not 'F32' or 'F64'")
        self._initial = dict(initial)
        self._dtype = torch.float32 if precision == "F32" else torch.float64
        self._last: dict[str, _Memory] = {}
        self._open: dict[str, tuple[_Memory, _Memory]] = {}
        self._lock = Lock()

    def begin(self) -> None:
        """Forget what was written since `settle`."""
        self._open = {}

    def settle(self) -> None:
        """Make what was written the state that the next merge reads; other tensors keep theirs."""
        self._last.update({name: following for name, (_, following) in self._open.items()})
        self._open = {}

    def read(self, place: Place) -> tuple[int, dict[str, torch.Tensor]]:
        """Return how many steps were taken, and each slot at a place: new (m,) float64 tensors."""
        memory = self._at(place.tensor)[0]
        return memory.step, {
            slot: values.view(-1)[place.start : place.stop].double()
            for slot, values in memory.slots.items()
        }

    def write(self, place: Place, slots: Mapping[str, torch.Tensor]) -> None:
        """Set the slots of the next generation at a place, rounded once."""
        memory = self._at(place.tensor)[1]
        for slot, values in slots.items():
            memory.slots[slot].view(-1)[place.start : place.stop] = values

    def _at(self, spec: TensorSpec) -> tuple[_Memory, _Memory]:
        with self._lock:
            if (found := self._open.get(spec.name)) is None:
                last = self._last.get(spec.name) or _Memory(0, self._fresh(spec))
                if any(values.shape != (shape := _shape(spec)) for values in last.slots.values()):
                    raise MergeError(
                        f"the outer optimiser's state of {spec.name} is not of shape {shape}",
                        hint="a model of another shape begins with a new state",
                    )
                slots = {slot: values.clone() for slot, values in last.slots.items()}
                found = self._open[spec.name] = last, _Memory(last.step + 1, slots)
            return found

    def _fresh(self, spec: TensorSpec) -> dict[str, torch.Tensor]:
        return {
            slot: torch.full(_shape(spec), value, dtype=self._dtype)
            for slot, value in self._initial.items()
        }

    def save(self) -> dict[str, torch.Tensor]:
        """Return a copy of the last generation, to be stored in any way that stores tensors."""
        saved: dict[str, torch.Tensor] = {}
        for name, memory in self._last.items():
            saved[f"{STEP}/{name}"] = torch.tensor(memory.step, dtype=torch.int64)
            saved.update({f"{slot}/{name}": v.clone() for slot, v in memory.slots.items()})
        return saved

    def load(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Replace everything by what `save` returned; raises MergeError and changes nothing."""
        loaded: dict[str, _Memory] = {}
        for key, tensor in saved.items():
            slot, _, name = key.partition("/")
            memory = loaded.setdefault(name, _Memory(0))
            if slot == STEP and tensor.shape == () and tensor.dtype == torch.int64:
                memory.step = int(tensor)
            elif slot in self._initial and tensor.is_floating_point():
                memory.slots[slot] = tensor.detach().to(self._dtype, copy=True).contiguous()
            else:
                raise MergeError(
                    f"{key!r} is no entry of this outer optimiser's state",
                    hint="load a state into the kind of optimiser that saved it",
                )
        for name, memory in loaded.items():
            if f"{STEP}/{name}" not in saved or memory.slots.keys() != self._initial.keys():
                raise MergeError(f"the outer optimiser's state of {name!r} is not complete")
        self._last, self._open = loaded, {}


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    return spec.shape if numbers(spec) == spec.elements else (*spec.shape, 2)

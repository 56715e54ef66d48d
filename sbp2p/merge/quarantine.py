"""Inputs with a NaN or an infinity: who has one, and where.

Theory of operation: every floating number of every input is looked at while it is merged, never
before, as looking costs as much as merging. When the first bad one turns up, what was written so
far may hold something of that input. The rest of the models is then only looked at, so that all bad
inputs are known at once; then the merge begins anew without them. So bad inputs cost at most one
more pass, however many they are, and the result is what it would be had they never been given.

An input that is bad in any tensor that is merged is left out of all of them: half of a model is no
model. Which of its bad numbers is named does not depend on threads: the first, in the order in
which the tensors are read.

Error cases: a base model with a NaN is a MergeError at once; nothing can be merged relative to it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.errors import MergeError

if TYPE_CHECKING:
    import torch


class NotFiniteError(Exception):
    """An input has a NaN or an infinity; never leaves the engine."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.reason)
        self.fault = fault


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """Where an input is not finite: number of the tensor in reading order, number in the tensor."""

    tensor: int
    element: int
    input: int
    name: str
    reason: str


class Faults:
    """The first fault of each input; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[int, Fault] = {}

    def __bool__(self) -> bool:
        return bool(self._first)

    def add(self, fault: Fault) -> None:
        """Take notice of a fault."""
        with self._lock:
            known = self._first.setdefault(fault.input, fault)
            self._first[fault.input] = min(known, fault)

    def all(self) -> list[Fault]:
        """Return the first fault of each bad input, in order of inputs."""
        return [self._first[number] for number in sorted(self._first)]


def describe(row: torch.Tensor, start: int, name: str) -> tuple[int, str]:
    """Return which number of a tensor is the first bad one, and what to say of it."""
    wide = row.double()
    where = int((~wide.isfinite()).nonzero()[0])
    value = wide[where].item()
    what = "a NaN" if value != value else "an infinity"
    return start + where, f"{what} in {shown(name)}, element {start + where}"


def base_is_bad(row: torch.Tensor, start: int, name: str) -> MergeError:
    """Return the error for a base model that is not finite."""
    return MergeError(
        f"the base model has {describe(row, start, name)[1]}",
        hint="nothing can be merged relative to it; give a sound base model",
    )

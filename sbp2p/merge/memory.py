"""Merges the state of torch modules that are in memory."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import torch

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.errors import MergeError
from sbp2p.merge.coefficients import as_shown
from sbp2p.merge.digest import digest_of
from sbp2p.merge.dtypes import TORCH, name_of, view
from sbp2p.merge.engine import merge
from sbp2p.merge.tensors import Input, Sink, Source, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sbp2p.merge.method import Method, Names
    from sbp2p.merge.policies import Policies
    from sbp2p.merge.report import MergeReport


class TorchSource(Source):
    """A model as torch tensors, such as a `state_dict`: on any device, views and tied ones too."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Look at tensors by name; those on the CPU and contiguous are not copied.

        Raises:
            MergeError: a tensor is sparse, quantised, on no device, or of a dtype without a name.
        """
        self._specs: dict[str, TensorSpec] = {}
        self._data: dict[str, torch.Tensor] = {}
        self._ties: dict[str, str] = {}
        first: dict[object, str] = {}
        for name in sorted(tensors):
            tensor = tensors[name]
            if tensor.layout is not torch.strided or tensor.is_meta:
                raise MergeError(f"tensor {shown(name)} has no dense data that could be merged")
            spec = TensorSpec(name, name_of(tensor.dtype, name), tuple(tensor.shape))
            place = (tensor.device, tensor.data_ptr(), spec.dtype, spec.shape, tensor.stride())
            leader = first.setdefault(place, name) if tensor.numel() else name
            if leader != name:
                self._ties[name] = leader
                self._data[name] = self._data[leader]
            else:
                dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
                self._data[name] = dense.view(-1).view(torch.uint8)
            self._specs[name] = spec
        self._specs = {name: self._specs[name] for name in tensors}

    def specs(self) -> Mapping[str, TensorSpec]:
        """Return every tensor by name, in the order given."""
        return self._specs

    def ties(self) -> Mapping[str, str]:
        """Return the tensors that are another one, whose name comes earlier."""
        return self._ties

    def read_into(self, name: str, offset: int, buffer: memoryview) -> None:
        """Copy bytes of a tensor, from `offset` on."""
        data = self._data[name][offset : offset + buffer.nbytes]
        view(buffer, torch.uint8).copy_(data)


class TorchSink(Sink):
    """Gathers the result as torch tensors: `tensors` when the merge is done."""

    def __init__(self) -> None:
        self._specs: Mapping[str, TensorSpec] = {}
        self._data: dict[str, torch.Tensor] = {}
        self.tensors: dict[str, torch.Tensor] = {}

    def begin(self, specs: Mapping[str, TensorSpec]) -> None:
        """Make room for every tensor; raises MergeError when torch has no dtype for one."""
        self._specs = specs
        self._data = {}
        for name, spec in specs.items():
            if spec.dtype not in TORCH:
                raise MergeError(f"tensor {shown(name)} is {spec.dtype}, which torch does not have")
            self._data[name] = torch.empty(spec.nbytes, dtype=torch.uint8)

    def reject(self, label: str, key: bytes, tensor: str, reason: str) -> None:
        """Do nothing: the report says it."""

    def write(self, name: str, offset: int, data: memoryview) -> None:
        """Copy a piece of a tensor into its place."""
        self._data[name][offset : offset + data.nbytes].copy_(view(data, torch.uint8))

    def finish(self) -> None:
        """Show the result as `tensors`."""
        self.tensors = {
            name: self._data[name].view(TORCH[spec.dtype]).reshape(spec.shape)
            for name, spec in self._specs.items()
        }


def merge_in_memory(
    states: Sequence[Mapping[str, torch.Tensor]],
    method: Method | str = "mean",
    weights: Sequence[Fraction | float] | None = None,
    base: Mapping[str, torch.Tensor] | None = None,
    *,
    local: Mapping[str, torch.Tensor] | None = None,
    labels: Sequence[str] | None = None,
    policies: Policies | None = None,
    names: Names = "strict",
    threads: int | None = None,
    on_report: Callable[[MergeReport], None] | None = None,
) -> dict[str, torch.Tensor]:
    """Merge state dicts into a new one, on the CPU; the inputs are not changed.

    Args:
        states: name to tensor, in any order of models.
        method: a method, or the name of one.
        weights: one for each model, relative to each other; equal if None. 0.1 is a tenth.
        base: the model that the others were made from.
        local: see `engine.merge`.
        labels: who each model is, for messages; "model 1" and so on if None.
        policies: what becomes of each kind of tensor.
        names: what to do with tensors that not all models have alike.
        threads: see `engine.merge`.
        on_report: called with what was done: also which models were left out, and why.

    Returns:
        The merged tensors; those that are tied in every model are one tensor.

    Raises:
        MergeError: the models cannot be merged as asked.
    """
    count = len(states)
    given = [Fraction(1)] * count if weights is None else [as_shown(each) for each in weights]
    called = [f"model {number}" for number in range(1, count + 1)] if labels is None else labels
    sources = [TorchSource(state) for state in states]
    inputs = [
        Input(source, label, digest_of(source), weight)
        for source, label, weight in zip(sources, called, given, strict=True)
    ]
    sink = TorchSink()
    report = merge(
        inputs,
        method,
        sink=sink,
        base=None if base is None else TorchSource(base),
        local=None if local is None else TorchSource(local),
        policies=policies,
        names=names,
        threads=threads,
    )
    if on_report is not None:
        on_report(report)
    for leader, *twins in report.tied:
        sink.tensors.update((twin, sink.tensors[leader]) for twin in twins)
    return sink.tensors

"""State dicts of real modules, merged in memory."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from sbp2p.errors import MergeError
from sbp2p.merge.memory import merge_in_memory

if TYPE_CHECKING:
    from sbp2p.merge.report import MergeReport


class Tied(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        for _ in range(seed):
            self.norm(torch.randn(4, 6))


def test_modules_with_buffers_and_tied_weights() -> None:
    modules = [Tied(seed) for seed in (1, 2, 4)]
    reports: list[MergeReport] = []
    merged = merge_in_memory(
        [each.state_dict() for each in modules], "fedavg", [10, 20, 70], on_report=reports.append
    )
    target = Tied(0)
    target.load_state_dict(merged)
    assert merged["head.weight"] is merged["embed.weight"]
    assert merged["norm.num_batches_tracked"].item() == 4
    assert merged["norm.num_batches_tracked"].shape == ()
    weights = [Fraction(1, 10), Fraction(1, 5), Fraction(7, 10)]
    flat = [each.norm.running_var.tolist() for each in modules if each.norm.running_var is not None]
    for got, column in zip(
        merged["norm.running_var"].tolist(), zip(*flat, strict=True), strict=True
    ):
        real = sum((Fraction(x) * w for x, w in zip(column, weights, strict=True)), Fraction(0))
        assert got == torch.tensor(float(real), dtype=torch.float64).float().item()
    assert sorted(reports[0].used) == [
        ("model 1", weights[0]), ("model 2", weights[1]), ("model 3", weights[2])
    ]  # fmt: skip


def test_views_conjugates_and_strides_are_read_as_they_look() -> None:
    base = torch.arange(24, dtype=torch.float32).view(4, 6)
    complex_base = torch.tensor([1 + 2j, 3 - 1j])
    state = {
        "transposed": base.t(),
        "strided": base[:, ::2],
        "expanded": torch.tensor([7.0]).expand(5),
        "conjugate": complex_base.conj(),
        "part": base[1],
        "grad": torch.ones(2, requires_grad=True),
    }
    merged = merge_in_memory([state, state])
    for name, tensor in state.items():
        assert torch.equal(merged[name], tensor), name
        assert not merged[name].requires_grad
    merged["part"].zero_()
    assert base[1].sum() > 0
    assert list(merged) == list(state)


def test_what_has_no_plain_data_is_refused() -> None:
    with pytest.raises(MergeError, match="no dense data"):
        merge_in_memory([{"s": torch.eye(3).to_sparse()}])
    with pytest.raises(MergeError, match="no dense data"):
        merge_in_memory([{"m": torch.empty(2, device="meta")}])


def test_inputs_are_not_changed_and_may_be_few() -> None:
    state = {"w": torch.tensor([-0.0, 1e-45, 3.0])}
    before = state["w"].clone()
    merged = merge_in_memory([state])
    assert torch.equal(merged["w"].view(torch.int32), before.view(torch.int32))
    merged["w"].add_(1)
    assert torch.equal(state["w"], before)
    with pytest.raises(ValueError, match="argument"):
        merge_in_memory([state], weights=[1, 2])


def test_tiny_numbers_count_even_where_they_are_zero_to_torch() -> None:
    tiny = [{"w": torch.tensor([2.0**-149])}, {"w": torch.tensor([3 * 2.0**-149])}]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor always counts with tiny numbers")
    try:
        merged = merge_in_memory(tiny)
    finally:
        torch.set_flush_denormal(False)
    assert merged["w"].view(torch.int32).item() == 2


def test_weights_are_the_numbers_that_they_look_like() -> None:
    models = [{"w": torch.tensor([value])} for value in (1.0, 2.0, 3.0)]
    reports: list[MergeReport] = []
    by_float = merge_in_memory(models, weights=[0.1, 0.2, 0.7], on_report=reports.append)
    exact = merge_in_memory(models, weights=[1, 2, 7], on_report=reports.append)
    assert torch.equal(by_float["w"], exact["w"])
    assert reports[0].used == reports[1].used
    with pytest.raises(ValueError, match="nan"):
        merge_in_memory(models[:1], weights=[float("nan")])

"""What was trained while a merge was under way is added to its result, exactly where it can be."""

from __future__ import annotations

import pytest
import torch

from sbp2p.errors import MergeError
from sbp2p.plugins import wrap
from sbp2p.plugins.progress import carry_over
from sbp2p.plugins.slots import raw_of, tensor_of

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]


def moved(merged: torch.Tensor, before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    states = ({"x": raw_of("x", each)} for each in (merged, before, now))
    return tensor_of(carry_over(*states)["x"])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_progress_is_added_to_what_was_merged(dtype: torch.dtype) -> None:
    merged = torch.tensor([1.0, 2.0, -4.0]).to(dtype)
    before = torch.tensor([0.5, 1.0, 1.0]).to(dtype)
    now = torch.tensor([0.5, 1.5, 3.0]).to(dtype)
    assert moved(merged, before, now).double().tolist() == [1.0, 2.5, -2.0]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_elements_that_were_not_trained_are_the_merged_ones_bit_for_bit(dtype: torch.dtype) -> None:
    merged = torch.tensor([-0.0, torch.nan, 0.1, 0.0]).to(dtype)
    before = torch.tensor([0.25, 0.3, torch.nan, 1.0]).to(dtype)
    now = before.clone()
    now[3] = 2.0
    found = moved(merged, before, now)
    assert raw_of("", found[:3]).data == raw_of("", merged[:3]).data
    assert found[3].double() == 1.0


def test_the_sum_is_rounded_once() -> None:
    merged = torch.tensor([1.0], dtype=torch.bfloat16)
    before = torch.tensor([256.0], dtype=torch.bfloat16)
    now = torch.tensor([258.0], dtype=torch.bfloat16)
    assert moved(merged, before, now).item() == 3.0


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16]
)
def test_counters_keep_what_they_counted(dtype: torch.dtype) -> None:
    values = [torch.tensor(each, dtype=dtype) for each in (12, 10, 13)]
    assert moved(*values).item() == 15


def test_complex_numbers_move_in_both_parts() -> None:
    values = [torch.tensor([each]) for each in (1 + 1j, 2 + 3j, 2 + 4j)]
    assert moved(*values).tolist() == [1 + 2j]


def test_flags_are_the_new_ones_where_they_changed() -> None:
    merged = torch.tensor([True, True, False])
    before = torch.tensor([False, True, False])
    now = torch.tensor([False, False, True])
    assert moved(merged, before, now).tolist() == [True, False, True]


def test_large_tensors_are_moved_in_pieces() -> None:
    size = 150_001
    merged, before = torch.zeros(size), torch.arange(float(size))
    assert torch.equal(moved(merged, before, before + 1), torch.ones(size))


def test_state_that_is_new_stays_and_what_did_not_change_is_not_copied() -> None:
    before = wrap({"a": torch.ones(2)}).tensors()
    now = wrap({"a": torch.ones(2), "b": torch.ones(1)}).tensors()
    merged = wrap({"a": torch.zeros(2)}).tensors()
    found = carry_over(merged, before, now)
    assert found["a"] is merged["a"]
    assert found["b"] is now["b"]


def test_another_model_is_named() -> None:
    before, now = ({"a": raw_of("a", torch.ones(size))} for size in (2, 3))
    with pytest.raises(MergeError, match="'a' is another one"):
        carry_over(before, before, now)

"""Counters, other integers, booleans and what torch cannot compute with."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import MergeError
from sbp2p.merge.dtypes import TORCH
from sbp2p.merge.policies import Policies, Policy, combine_integers
from sbp2p.merge.tensors import Input, MemorySource, TensorSpec
from tests.merge.merge_inputs import inputs, key, merged, source, tensor

INTEGERS = ["U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"]


def bounds(dtype: str) -> tuple[int, int]:
    bits = int(dtype[1:])
    return (0, 2**bits - 1) if dtype[0] == "U" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@pytest.mark.parametrize("dtype", INTEGERS)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_integers_of_every_width_follow_their_policy(dtype: str, data: st.DataObject) -> None:
    low, high = bounds(dtype)
    some = st.one_of(st.integers(low, high), st.sampled_from([low, high, 0, 1]))
    rows = data.draw(st.lists(st.tuples(some, some, some), min_size=1, max_size=6))
    own = data.draw(st.tuples(some, some, some))
    size = int(dtype[1:]) // 8

    def pack(row: tuple[int, ...]) -> torch.Tensor:
        raw = b"".join(each.to_bytes(size, "little", signed=dtype[0] == "I") for each in row)
        return torch.frombuffer(bytearray(raw), dtype=TORCH[dtype])

    def run(policy: Policy, local: torch.Tensor | None = None) -> list[int]:
        out = torch.empty(3, dtype=TORCH[dtype])
        combine_integers([pack(row) for row in rows], policy, local, out)
        raw = bytes(out.view(torch.uint8).tolist())
        return [
            int.from_bytes(raw[at : at + size], "little", signed=dtype[0] == "I")
            for at in range(0, 3 * size, size)
        ]

    columns = list(zip(*rows, strict=True))
    assert run(Policy.MAX) == [max(column) for column in columns]
    assert run(Policy.MIN) == [min(column) for column in columns]
    assert run(Policy.MEDIAN) == [sorted(column)[(len(column) - 1) // 2] for column in columns]
    winners = [
        [
            value
            for value, votes in Counter(column).items()
            if votes == max(Counter(column).values())
        ]
        for column in columns
    ]
    assert run(Policy.MAJORITY) == [min(each) for each in winners]
    assert run(Policy.MAJORITY, pack(own)) == [
        mine if mine in each else min(each) for mine, each in zip(own, winners, strict=True)
    ]


def test_counters_are_the_largest_and_other_integers_must_agree() -> None:
    models = [
        {"bn.num_batches_tracked": torch.tensor(n), "ids": torch.arange(4)} for n in (7, 9, 8)
    ]
    tensors, _ = merged(inputs(models))
    assert tensor(tensors["bn.num_batches_tracked"]).item() == 9
    assert tensor(tensors["bn.num_batches_tracked"]).shape == ()
    models[1]["ids"] = torch.tensor([0, 1, 2, 4])
    given_inputs = inputs(models, labels=["alice", "bob", "carol"])
    with pytest.raises(MergeError, match="'ids' is not the same in"):
        merged(given_inputs)
    policies = Policies(rules=(("id*", Policy.MAJORITY),))
    tensors, _ = merged(given_inputs, policies=policies)
    assert tensor(tensors["ids"]).tolist() == [0, 1, 2, 3]


def test_booleans_go_by_majority_and_ties_by_the_local_model() -> None:
    masks = [[True, True, False, False], [True, False, True, False]]
    models = [{"m": torch.tensor(mask)} for mask in masks]
    tensors, _ = merged(inputs(models))
    assert tensors["m"].dtype == "BOOL"
    assert tensor(tensors["m"]).tolist() == [True, False, False, False]
    tensors, _ = merged(inputs(models), local=source(models[0]))
    assert tensor(tensors["m"]).tolist() == [True, True, False, False]
    for policy, right in ((Policy.MAX, [1, 1, 1, 0]), (Policy.MIN, [1, 0, 0, 0])):
        tensors, _ = merged(inputs(models), policies=Policies(booleans=policy))
        assert tensor(tensors["m"]).tolist() == [bool(each) for each in right]


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2", "F8_E8M0"])
def test_what_cannot_be_computed_with_must_agree(dtype: str) -> None:
    def given_input(last: int) -> Input:
        spec = TensorSpec("scales", dtype, (8,))
        data = memoryview(bytearray(range(spec.nbytes - 1)) + bytearray([last]))
        model = MemorySource({"scales": RawTensor("scales", dtype, (8,), data)})
        return Input(model, f"model {last}", key(f"{last}"))

    tensors, _ = merged([given_input(5), given_input(5)])
    assert tensors["scales"].data[-1] == 5
    with pytest.raises(MergeError, match="'scales' is not the same in model"):
        merged([given_input(5), given_input(6)])
    with pytest.raises(MergeError, match="its policy cannot be max"):
        merged([given_input(5)], policies=Policies(rules=(("*", Policy.MAX),)))


def test_policies_that_mean_nothing_are_refused() -> None:
    with pytest.raises(MergeError, match="I8 is no floating dtype"):
        Policies(dtype="I8")
    with pytest.raises(MergeError, match="its policy cannot be max"):
        Policies(rules=(("w", Policy.MAX),)).policy_of(TensorSpec("w", "F32", ()))
    with pytest.raises(MergeError, match="no tensor of dtype Q4_K"):
        Policies().policy_of(TensorSpec("w", "Q4_K", ()))

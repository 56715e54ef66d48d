"""Sources and sinks, digests, names of dtypes, and how methods are found."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import CheckpointError, MergeError
from sbp2p.merge import method as methods
from sbp2p.merge.digest import LEAF, digest_of, leaves
from sbp2p.merge.engine import merge
from sbp2p.merge.linear import ExponentialMovingAverage, Mean
from sbp2p.merge.sums import fold_dot, fold_sum, sum_rows
from sbp2p.merge.tensors import BITS, FileSource, Input, MemorySink, MemorySource, TensorSpec
from tests.merge.merge_inputs import key, noise, source, tensor

if TYPE_CHECKING:
    from pathlib import Path


def test_sizes_of_tensors() -> None:
    assert TensorSpec("a", "F32", ()).nbytes == 4
    assert TensorSpec("a", "BF16", (3, 0)).nbytes == 0
    assert TensorSpec("a", "F4", (5,)).nbytes == 3
    assert TensorSpec("a", "C128", (2,)).nbytes == 32
    with pytest.raises(MergeError, match="Q4_K"):
        TensorSpec("a", "Q4_K", (256,)).nbytes  # noqa: B018


def test_files_are_read_by_the_piece_and_merged(tmp_path: Path) -> None:
    models = [{"w": noise((300,), n), "b": noise((4,), n, torch.bfloat16)} for n in range(2)]
    for number, model in enumerate(models):
        save_file(model, tmp_path / f"{number}.safetensors")
    with (
        FileSource(tmp_path / "0.safetensors") as one,
        FileSource(tmp_path / "1.safetensors") as two,
    ):
        assert digest_of(one) == digest_of(source(models[0]))
        buffer = bytearray(40)
        one.read_into("w", 20, memoryview(buffer))
        assert torch.equal(torch.frombuffer(buffer, dtype=torch.float32), models[0]["w"][5:15])
        with pytest.raises(ValueError, match="1200 bytes"):
            one.read_into("w", 1190, memoryview(buffer))
        sink = MemorySink()
        merge([Input(one, "one", key("1")), Input(two, "two", key("2"))], "mean", sink=sink)
        exact = (models[0]["w"].double() + models[1]["w"].double()) / 2
        assert torch.equal(tensor(sink.tensors["w"]), exact.float())
        (tmp_path / "1.safetensors").write_bytes(b"changed")
        with pytest.raises(CheckpointError, match="changed"):
            merge([Input(two, "two", key("2"))], "mean", sink=sink)


def test_memory_that_does_not_fit_its_shape_is_refused() -> None:
    with pytest.raises(MergeError, match="has 3 bytes, not 4"):
        MemorySource({"w": RawTensor("w", "F32", (1,), memoryview(bytearray(3)))})


def test_an_input_has_a_key_and_a_weight() -> None:
    empty = MemorySource({})
    with pytest.raises(ValueError, match="32 bytes"):
        Input(empty, "alice", b"short")
    with pytest.raises(ValueError, match="alice is negative"):
        Input(empty, "alice", key("a"), Fraction(-1))


@given(st.integers(0, 3), st.integers(0, 5))
def test_leaves_do_not_depend_on_how_a_tensor_is_cut(first: int, rest: int) -> None:
    data = memoryview(bytes(range(256)) * ((first + 2) * LEAF // 256) + b"x" * rest)
    assert leaves(data[: first * LEAF]) + leaves(data[first * LEAF :]) == leaves(data)


def test_a_digest_tells_names_dtypes_shapes_and_bytes_apart() -> None:
    ones = torch.ones(4)
    models = [
        {"w": ones},
        {"v": ones},
        {"w": ones.view(2, 2)},
        {"w": ones.view(torch.int32)},
        {"w": -ones},
        {"w": ones, "v": ones},
    ]
    assert len({digest_of(source(model)) for model in models}) == len(models)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400))
@settings(max_examples=50, deadline=None)
def test_folded_sums_are_near_the_real_ones(values: list[float]) -> None:
    real = float(sum(map(Fraction, values), Fraction(0)))
    slack = 2.0**-48 * sum(map(abs, values))
    column = torch.tensor(values, dtype=torch.float64)
    assert abs(fold_sum(column.clone()) - real) <= slack
    assert abs(fold_dot(column, torch.ones_like(column)) - real) <= slack
    assert abs(sum_rows(column.unsqueeze(1)).item() - real) <= 2.0**-44 * sum(map(abs, values))


# -- methods --------------------------------------------------------------------------------------


def test_every_method_says_what_it_is() -> None:
    for name in methods.names():
        try:
            found = methods.get(name)
        except MergeError as error:
            assert "missing" in str(error) or "required" in str(error)  # noqa: PT017
            continue
        assert found.name == name
        for text in (found.doc.paper, found.doc.assumes, found.doc.breakdown):
            assert len(text) > 1
        assert found.inputs_min >= 1


def test_unknown_names_and_options_are_errors_that_help() -> None:
    with pytest.raises(MergeError, match="avarage") as caught:
        methods.get("avarage")
    assert "mean" in caught.value.hint
    with pytest.raises(MergeError, match="ema"):
        methods.get("ema", decya=0.5)
    with pytest.raises(MergeError, match="not between 0 and 1"):
        methods.get("ema", decay=1.5)
    assert isinstance(methods.get("ema", decay="0.9"), ExponentialMovingAverage)


def test_a_name_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_registered", {})
    methods.register(ExponentialMovingAverage)
    methods.register(ExponentialMovingAverage)
    with pytest.raises(ValueError, match="already"):
        methods.register(Mean, "ema")
    assert isinstance(methods.get("ema"), ExponentialMovingAverage)


def test_all_dtypes_of_safetensors_have_a_size() -> None:
    assert {"F64", "F32", "F16", "BF16", "F8_E8M0", "BOOL", "C64"} <= BITS.keys()

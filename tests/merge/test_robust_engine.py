"""Robust methods in the engine: the same bytes for any order and threads, whoever claims what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from blake3 import blake3

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import MergeError
from sbp2p.merge import robust
from sbp2p.merge.engine import MergeReport, merge
from sbp2p.merge.method import Method, get
from sbp2p.merge.tensors import Input, MemorySink, MemorySource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[np.generic]]

ROOT = Path(__file__).parents[2]
_DTYPES = {"float16": "F16", "float32": "F32", "float64": "F64", "int64": "I64"}
NAMES = sorted(robust.METHODS)


def source(arrays: Arrays) -> MemorySource:
    return MemorySource(
        {
            name: RawTensor(
                name, _DTYPES[str(array.dtype)], array.shape, memoryview(array.tobytes())
            )
            for name, array in arrays.items()
        }
    )


def inputs(models: Sequence[Arrays], weights: Sequence[int] | None = None) -> list[Input]:
    """Return models as inputs, each with a key that its content decides."""
    return [
        Input(
            source(model),
            f"peer {number}",
            blake3(b"".join(array.tobytes() for array in model.values())).digest(),
            Fraction(weights[number] if weights else 1),
        )
        for number, model in enumerate(models)
    ]


def run(
    method: Method, given: Sequence[Input], base: Arrays | None = None, threads: int = 1
) -> tuple[dict[str, bytes], MergeReport]:
    sink = MemorySink()
    under = None if base is None else source(base)
    report = merge(given, method, sink=sink, base=under, threads=threads)
    return {name: bytes(each.data) for name, each in sink.tensors.items()}, report


def crowd(count: int = 7, size: int = 50) -> tuple[list[Arrays], Arrays]:
    """Return models of three floating dtypes near a base, and the base."""
    rng = np.random.default_rng(7)
    shapes = {"wide": (size, "float32"), "half": (3, "float16"), "double": (4, "float64")}
    centre = {name: rng.normal(size=shape) for name, (shape, _) in shapes.items()}

    def model(spread: float) -> Arrays:
        return {
            name: (centre[name] + spread * rng.normal(size=shape)).astype(dtype)
            for name, (shape, dtype) in shapes.items()
        }

    return [model(0.01) for _ in range(count)], model(0.0)


@pytest.mark.parametrize("name", NAMES)
def test_any_order_and_any_number_of_threads_gives_the_same_bytes(name: str) -> None:
    models, base = crowd(size=33_000)  # more than a piece
    given = inputs(models)
    first, report = run(get(name), given, base)
    assert len(report.used) == 7
    for order, threads in ((given[::-1], 1), (given[3:] + given[:3], 3), (given, 2)):
        again, other = run(get(name), order, base, threads)
        assert again == first
        assert other.digest == report.digest


def test_another_vector_unit_gives_the_same_bytes() -> None:
    """torch adds in another order with another vector unit; here no order is left to it."""
    models, base = crowd(size=5000)
    here = {name: run(get(name), inputs(models), base)[1].digest.hex() for name in NAMES}
    code = "import tests.merge.test_robust_engine as t; t.print_digests()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "ATEN_CPU_CAPABILITY": "default",
            "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in (".", "protocol", "keys")),
        },
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout) == here


def print_digests() -> None:
    """Print the digest of a merge by each method; run in another process."""
    models, base = crowd(size=5000)
    found = {name: run(get(name), inputs(models), base)[1].digest.hex() for name in NAMES}
    sys.stdout.write(json.dumps(found))


@pytest.mark.parametrize("name", NAMES)
def test_identical_inputs_come_out_bit_for_bit(name: str) -> None:
    models, _ = crowd(1)
    model = models[0]
    model["double"][:] = [-0.0, 0.1, 5e-324, -1.7e308]
    merged, _ = run(get(name), inputs([model] * 7), model)
    assert merged == {key: array.tobytes() for key, array in model.items()}


@pytest.mark.parametrize("name", [each for each in NAMES if "clip" not in each])
def test_what_is_identical_does_not_depend_on_the_base(name: str) -> None:
    models, base = crowd(1)
    merged, _ = run(get(name), inputs(models * 7), base)
    assert merged == {key: array.tobytes() for key, array in models[0].items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_with_nan_is_left_out_and_named(name: str) -> None:
    models, base = crowd(8)
    sound, _ = run(get(name), inputs(models[:7]), base)
    models[7]["half"][1] = np.nan
    merged, report = run(get(name), inputs(models), base)
    assert merged == sound
    assert [(each.label, each.tensor) for each in report.rejected] == [("peer 7", "half")]


def test_what_is_left_after_nan_must_be_enough() -> None:
    models, _ = crowd(7)
    assert run(get("krum", f=2), inputs(models))
    models[2]["half"][0] = np.inf
    with pytest.raises(MergeError, match="n >= 2f"):
        run(get("krum", f=2), inputs(models))


@pytest.mark.parametrize("name", NAMES)
def test_a_claimed_weight_counts_for_nothing(name: str) -> None:
    models, base = crowd()
    fair, _ = run(get(name), inputs(models), base)
    claimed, _ = run(get(name), inputs(models, [1, 1, 10**9, 1, 1, 1, 1]), base)
    assert claimed == fair


def test_krum_is_one_input_bit_for_bit() -> None:
    models, _ = crowd()
    merged, _ = run(get("krum"), inputs(models))
    assert merged in [{key: array.tobytes() for key, array in each.items()} for each in models]


def test_ties_go_by_key_whatever_came_first() -> None:
    """Two pairs that are equally close: Krum's scores tie, exactly."""
    values = [0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 30.0, 31.0]
    models: list[Arrays] = [{"weight": np.array([each], np.float32)} for each in values]
    given = inputs(models)
    found = {run(get("krum", f=2), order)[0]["weight"] for order in (given, given[::-1])}
    tied = min(given[2:6], key=lambda each: each.key)
    assert found == {models[given.index(tied)]["weight"].tobytes()}


@pytest.mark.parametrize("name", NAMES)
def test_counters_follow_their_policy_and_empty_tensors_stay(name: str) -> None:
    models, base = crowd()
    for number, model in enumerate([*models, base]):
        model["norm.num_batches_tracked"] = np.array(number % 5, np.int64)
        model["empty"] = np.zeros((0, 3), np.float32)
        model["scale"] = np.array(1.5, np.float32)
    merged, _ = run(get(name), inputs(models), base)
    assert merged["norm.num_batches_tracked"] == np.int64(4).tobytes()
    assert merged["empty"] == b""
    assert merged["scale"] == np.float32(1.5).tobytes()


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "geometric-median", "krum", "faba"])
def test_the_largest_and_smallest_numbers_of_a_dtype_pass_through(name: str) -> None:
    top, bottom = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal
    models: list[Arrays] = [{"w": np.array([top, bottom, -top], np.float32)} for _ in range(5)]
    models += [{"w": np.array([-top, 1.0, top], np.float32)}]
    merged, _ = run(get(name), inputs(models))
    assert merged["w"] == models[0]["w"].tobytes()

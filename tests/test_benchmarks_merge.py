"""What the merge benchmark computes, without running it."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import merge, merge_data
from benchmarks.harness import Sample
from sbp2p.checkpoint.reader import TensorReader

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]


def rows(*seconds: float, rss_mb: float = 512.0) -> list[Sample]:
    return [Sample(seconds=value, rss_mb={"process": rss_mb}) for value in seconds]


def test_targets_hold_for_the_worst_dtype() -> None:
    samples = {
        "F32": {
            "mean sbp2p": rows(1, 2),
            "mean mergekit": rows(4, 8),
            "read cold": rows(0.8, 0.9),
            "mean sbp2p cold": rows(1, 1, rss_mb=2048.0),
            "ties sbp2p": rows(1),
            "ties mergekit": rows(100),
        },
        "BF16": {"mean sbp2p": rows(1, 2), "mean mergekit": rows(1.5, 3)},
    }
    found = {claim.name: claim for claim in merge.claims_of(samples)}
    assert found["ratio_vs_mergekit_mean"].value == 1.5
    assert found["ratio_vs_mergekit_mean"].ok is False
    assert found["ratio_vs_mergekit_ties"].value == 100
    assert found["mean_over_read_speed_cold"].value == pytest.approx(0.85)
    assert found["mean_over_read_speed_cold"].ok
    assert found["peak_rss_gib"].value == 2.0
    assert found["peak_rss_gib"].ok is False
    assert "ratio_vs_torch_mean" not in found


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
@pytest.mark.parametrize("mib", [64, 1024])
def test_models_have_their_size_and_one_large_embedding(dtype: str, mib: int) -> None:
    shape = merge_data.shape_of(mib * merge_data.MIB, dtype)
    sizes = {
        name: int(np.prod(dimensions)) * merge_data.WIDTH[dtype]
        for name, dimensions in shape.tensors().items()
    }
    assert 0.99 < sum(sizes.values()) / (mib * merge_data.MIB) <= 1
    assert max(sizes, key=lambda name: sizes[name]) == "model.embed_tokens.weight"
    if mib == 1024:
        assert max(sizes.values()) >= 128 * merge_data.MIB


def nearest(exact: Fraction, dtype: str) -> float:
    """Return the number of a dtype next to a fraction, ties to even, by trying those around it."""
    step = 1 if dtype == "F32" else 1 << 16
    bits = int(np.float32(float(exact)).view(np.uint32)) // step * step
    found = []
    for near in (bits - step, bits, bits + step):
        value = float(np.uint32(near).view(np.float32))
        found.append((abs(Fraction(value) - exact), near // step % 2, value))
    return min(found)[2]


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
@given(numerator=st.integers(-(2**60), 2**60).filter(bool), power=st.integers(-70, -40))
def test_results_are_rounded_once(dtype: str, numerator: int, power: int) -> None:
    exact = np.ldexp(np.array([numerator], np.longdouble), power)
    found = merge_data.from_bits(merge_data.round_once(exact, dtype), dtype)[0]
    assert float(found) == nearest(Fraction(numerator) * Fraction(2) ** power, dtype)


def test_a_result_is_compared_with_what_was_computed_another_way(tmp_path: Path) -> None:
    size = 24 * merge_data.MIB
    merge_data.make(tmp_path, size, "BF16")
    with TensorReader(tmp_path / "input0") as reader:
        assert len(reader.names()) == len(merge_data.shape_of(size, "BF16").tensors())
    found = merge_data.check(tmp_path, tmp_path / "base", "mean")
    assert found["different"] > found["compared"] // 2
    assert 0 < found["worst"] < 1
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("method", "inputs", "right"),
    [
        ("mean", [[1.0, 2.0], [3.0, 5.0]], [2.0, 3.5]),
        ("median", [[1.0], [9.0], [2.0], [4.0]], [3.0]),
        ("ties", [[1.0] + [0.0] * 9, [0.9] + [0.0] * 9, [-0.5] + [0.0] * 9], [0.95] + [0.0] * 9),
    ],
)
def test_right_results(method: str, inputs: Sequence[Sequence[float]], right: list[float]) -> None:
    base = np.zeros(len(right), np.float32)
    found = merge_data.expected(np.array(inputs, np.float32), base, method)
    assert found.astype(np.float64).tolist() == pytest.approx(right)


def test_the_benchmark_explains_itself() -> None:
    command = [sys.executable, "-m", "benchmarks.merge", "--help"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--quick" in finished.stdout
    assert "--json" in finished.stdout

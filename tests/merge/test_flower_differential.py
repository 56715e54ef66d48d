"""The same robust merges by Flower: equal where it is right, and a test for each way it differs.

Flower runs once, in its own environment (`make merge-peers-deps`), over all cases below. The table
"where Flower differs" in docs/merge-methods.md has a row for each test of the second half.
"""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbp2p.errors import MergeError
from sbp2p.merge.method import get
from tests.merge.robust_reference import ListGroup, Model, coefficients, merged

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-merge-peers/bin/python"
PEER = ROOT / "tests/interop/py/flower_merges.py"

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        not PYTHON.exists(), reason="Flower is not installed: run `make merge-peers-deps`"
    ),
]


@dataclass(frozen=True)
class Case:
    """A merge of models of one tensor."""

    rule: str
    models: list[Model]
    options: dict[str, Any] = field(default_factory=dict)
    samples: list[int] = field(default_factory=list)
    dtype: str = "float32"


def draw(seed: int, count: int, size: int = 40) -> list[Model]:
    """Return float32 models that lie apart."""
    values = np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)
    return [[float(x) for x in row] for row in values]


def whole(*values: float) -> list[Model]:
    """Return models of one weight."""
    return [[value] for value in values]


SEEDS = range(8)
RIGHT: dict[object, Case] = {}
for seed in SEEDS:
    nine = draw(seed, 9)
    RIGHT["median", seed] = Case("FedMedian", draw(seed, 5 + seed))
    RIGHT["trimmed-mean", seed] = Case("FedTrimmedAvg", draw(seed, 10 + seed), {"beta": 0.25})
    RIGHT["krum", seed] = Case("Krum", nine, {"num_malicious_nodes": 3})
    RIGHT["older krum", seed] = Case("aggregate_krum", nine, {"num_malicious": 3, "to_keep": 0})
    RIGHT["multi-krum", seed] = Case(
        "MultiKrum", nine, {"num_malicious_nodes": 2, "num_nodes_to_select": 5}
    )
    RIGHT["bulyan", seed] = Case("aggregate_bulyan", draw(seed, 15), {"num_malicious": 3})

OFFSET = 4096.0
CLOSE = [
    [OFFSET + x / 64 for x in row] for row in np.random.default_rng(3).integers(-8, 8, (9, 40))
]
TIED = whole(0, 1, 10, 11, 20, 21, 30, 31)
DIFFERENT: dict[object, Case] = {
    "nan in one": Case("FedMedian", [[1.0, math.nan], [2.0, 2.0], [3.0, 3.0]]),
    "too few": Case("Krum", whole(1, 2, 100, 100), {"num_malicious_nodes": 2}),
    "close": Case("Krum", CLOSE, {"num_malicious_nodes": 3}),
    "claimed": Case(
        "MultiKrum",
        whole(1, 1.5, 2, 2.5, 3),
        {"num_malicious_nodes": 1, "num_nodes_to_select": 4},
        samples=[1, 1, 1, 10**12, 1],
    ),
    "trims nobody": Case("FedTrimmedAvg", whole(0, 0, 0, 1000), {"beta": 0.2}),
    "29 of 100": Case("FedTrimmedAvg", whole(*[0.0] * 71, *[1000.0] * 29), {"beta": 0.29}),
    "forwards": Case("FedTrimmedAvg", draw(1, 20, 400), {"beta": 0.1}),
    "backwards": Case("FedTrimmedAvg", draw(1, 20, 400)[::-1], {"beta": 0.1}),
    "tie": Case("Krum", TIED, {"num_malicious_nodes": 2}),
    "tie, other order": Case("Krum", TIED[::-1], {"num_malicious_nodes": 2}),
    "overflow": Case("FedMedian", whole(3e38, 3e38)),
    "at once": Case("Bulyan", whole(0, 2, 8, 15, 25, 26, 28), {"num_malicious_nodes": 1}),
    "one by one": Case("aggregate_bulyan", whole(0, 2, 8, 15, 25, 26, 28), {"num_malicious": 1}),
    "bulyan of six": Case("Bulyan", whole(1, 2, 3, 4, 5, 6), {"num_malicious_nodes": 1}),
    "counter": Case("FedMedian", whole(3, 4, 6), dtype="int64"),
}
CASES = {**RIGHT, **DIFFERENT}


@pytest.fixture(scope="module")
def answers() -> dict[object, dict[str, Any]]:
    """Return what Flower made of the cases."""
    jobs = [asdict(case) for case in CASES.values()]
    for job in jobs:
        job["models"] = [[str(x) for x in model] for model in job["models"]]
    done = subprocess.run(
        [PYTHON, "-W", "ignore", PEER],
        input=json.dumps(jobs),
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


def theirs(answers: dict[object, dict[str, Any]], case: object) -> list[float]:
    """Return Flower's result of a case."""
    assert "error" not in answers[case], answers[case]
    return [float(x) for x in answers[case]["result"]]


def ours(name: str, case: object, **options: object) -> list[float]:
    """Return our result of a case, as float64."""
    return [float(x) for x in merged(get(name, **options), CASES[case].models)]


# ---- where it is right: to the rounding of float32


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "options", "case"),
    [
        ("median", {}, "median"),
        ("trimmed-mean", {"beta": 0.25}, "trimmed-mean"),
        ("krum", {"f": 3}, "krum"),
        ("krum", {"f": 3}, "older krum"),
        ("multi-krum", {"f": 2, "m": 5}, "multi-krum"),
        ("bulyan", {"f": 3}, "bulyan"),
    ],
)
def test_the_same(
    answers: dict[object, dict[str, Any]],
    name: str,
    options: dict[str, object],
    case: str,
    seed: int,
) -> None:
    mine = ours(name, (case, seed), **options)
    exactly = "krum" in case and case != "multi-krum"
    assert mine == pytest.approx(
        theirs(answers, (case, seed)), rel=0 if exactly else 1e-5, abs=0 if exactly else 1e-6
    )


# ---- where it differs


def test_one_nan_is_the_median_there(answers: dict[object, dict[str, Any]]) -> None:
    assert math.isnan(theirs(answers, "nan in one")[1])


def test_krum_of_too_few_takes_the_colluding_pair_there(
    answers: dict[object, dict[str, Any]],
) -> None:
    assert theirs(answers, "too few") == [100]
    with pytest.raises(MergeError, match="n >= 2f"):
        ours("krum", "too few", f=2)


def test_krum_of_models_that_are_close_takes_any_of_them_there(
    answers: dict[object, dict[str, Any]],
) -> None:
    """There distances are ||x||^2 + ||y||^2 - 2<x, y> in float32, which is noise."""
    here = coefficients(get("krum", f=3), ListGroup(CLOSE)).index(Fraction(1))
    assert CLOSE.index(theirs(answers, "close")) != here


def test_multi_krum_weights_by_what_clients_claim_there(
    answers: dict[object, dict[str, Any]],
) -> None:
    assert theirs(answers, "claimed") == pytest.approx([2.5])
    mine = coefficients(get("multi-krum", f=1, m=4), ListGroup(CASES["claimed"].models))
    assert max(mine) == pytest.approx(0.25)


def test_a_trimmed_mean_may_trim_nobody_there(answers: dict[object, dict[str, Any]]) -> None:
    assert theirs(answers, "trims nobody") == [250]
    with pytest.raises(MergeError, match="leaves nobody out"):
        ours("trimmed-mean", "trims nobody", beta=0.2)


def test_29_of_100_are_28_there(answers: dict[object, dict[str, Any]]) -> None:
    assert theirs(answers, "29 of 100")[0] > 20
    assert ours("trimmed-mean", "29 of 100", beta=0.29) == [0]


def test_another_order_of_clients_has_other_bits_there(
    answers: dict[object, dict[str, Any]],
) -> None:
    assert theirs(answers, "forwards") != theirs(answers, "backwards")
    mine = ours("trimmed-mean", "forwards", beta=0.1)
    assert mine == ours("trimmed-mean", "backwards", beta=0.1)


def test_ties_go_by_the_order_of_arrival_there(answers: dict[object, dict[str, Any]]) -> None:
    """Here by content key, which is the same for every peer, whatever it received first."""
    assert theirs(answers, "tie") != theirs(answers, "tie, other order")


def test_the_median_of_two_large_numbers_is_infinite_there(
    answers: dict[object, dict[str, Any]],
) -> None:
    assert theirs(answers, "overflow") == [math.inf]
    assert ours("median", "overflow") == [3e38]


def test_bulyan_selects_all_at_once_there(answers: dict[object, dict[str, Any]]) -> None:
    """The paper's Krum selects one, and looks again at those that are left."""
    assert ours("bulyan", "one by one", f=1) == pytest.approx(theirs(answers, "one by one"))
    assert theirs(answers, "at once") != theirs(answers, "one by one")


def test_bulyan_of_too_few_is_nothing_and_no_error_there(
    answers: dict[object, dict[str, Any]],
) -> None:
    assert answers["bulyan of six"] == {"result": None, "dtype": None}
    with pytest.raises(MergeError, match="n >= 4f"):
        ours("bulyan", "bulyan of six", f=1)


def test_counters_become_floats_there(answers: dict[object, dict[str, Any]]) -> None:
    assert answers["counter"]["dtype"] == "float64"

"""A model with a NaN is left out as if it had never been given, and whose it is is said."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
import torch

from sbp2p.errors import MergeError
from sbp2p.merge import attempt
from sbp2p.merge.opened import ROW_BYTES_MIN
from tests.merge.merge_inputs import Tensors, inputs, merged, noise, source, tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbp2p.merge.tensors import TensorSpec

NAMES = ["alice", "bob", "carol", "dave"]
SIZE = 70_000


def model(seed: int) -> Tensors:
    return {
        "early": noise((30,), seed),
        "large": noise((SIZE,), seed + 1),
        "late": noise((10,), seed + 2, torch.bfloat16),
        "tiny": noise((4,), seed + 3, torch.float8_e5m2),
        "count.num_batches_tracked": torch.tensor(seed),
    }


def bad(seed: int, name: str, at: int, value: float) -> Tensors:
    tensors = model(seed)
    wide = tensors[name].float()
    wide[at] = value
    tensors[name] = wide.to(tensors[name].dtype)
    return tensors


@pytest.mark.parametrize("method", ["mean", "krum"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("early", 3, float("nan")),
        ("large", SIZE - 1, float("inf")),
        ("late", 0, float("-inf")),
        ("tiny", 2, float("nan")),
    ],
)
def test_the_result_is_that_of_the_others(
    method: str, threads: int, name: str, at: int, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "ROW_BYTES_MAX", ROW_BYTES_MIN)
    sound = [model(100), model(300), model(400), model(500)]
    given = inputs([*sound, bad(200, name, at, value)], labels=[*NAMES, "mallory"])
    _, report = merged(given, method, threads=threads)
    _, right = merged(inputs(sound, labels=NAMES), method)
    assert report.digest == right.digest
    assert report.used == right.used
    (rejection,) = report.rejected
    assert (rejection.label, rejection.tensor) == ("mallory", name)
    what = "NaN" if value != value else "infinity"
    assert rejection.reason.endswith(f"{what} in {name!r}, element {at}")


def test_who_is_bad_does_not_depend_on_threads() -> None:
    models = [model(1), bad(2, "late", 1, float("nan")), bad(3, "large", 7, float("nan")), model(4)]
    models[2]["large"][SIZE - 1] = float("inf")
    seen = set()
    for threads in (1, 2, 4):
        for order in (models, models[::-1]):
            labels = NAMES if order is models else NAMES[::-1]
            _, report = merged(inputs(order, labels=labels), threads=threads)
            seen.add(report.rejected)
            # all four, all four to know who is bad, then the two
            assert report.bytes_read <= 10 * sum(each.nbytes for each in models[0].values())
    (rejected,) = seen
    assert {each.label: each.reason for each in rejected} == {
        "bob": "a NaN in 'late', element 1",
        "carol": "a NaN in 'large', element 7",
    }


def test_weights_are_shared_among_the_others() -> None:
    given = inputs([model(1), bad(2, "early", 0, float("nan")), model(3)], [1, 5, 3], NAMES[:3])
    _, report = merged(given)
    assert dict(report.used) == {"alice": Fraction(1, 4), "carol": Fraction(3, 4)}


def test_too_few_sound_models_are_an_error_that_names_the_others() -> None:
    given = inputs([bad(1, "early", 0, float("nan")), bad(2, "late", 3, float("inf"))], None, NAMES)
    with pytest.raises(MergeError) as caught:
        merged(given)
    assert "alice has a NaN in 'early', element 0" in str(caught.value)
    assert "bob has an infinity in 'late', element 3" in str(caught.value)
    assert "0 sound ones are left" in str(caught.value)


def test_a_base_with_a_nan_is_an_error_at_once() -> None:
    given = inputs([model(1), model(2)])
    for method in ("ema", "task-arithmetic", "ties"):
        with pytest.raises(MergeError, match="the base model has a NaN in 'large', element 5"):
            merged(given, method, base=source(bad(3, "large", 5, float("nan"))))


def test_names_are_looked_at_again_without_the_bad_one() -> None:
    broken: Tensors = {"large": bad(2, "large", 9, float("nan"))["large"]}
    given = inputs([model(1), broken, model(3)], labels=NAMES[:3])
    tensors, report = merged(given, names="intersection")
    assert set(tensors) == set(model(1))
    assert report.dropped == ()
    assert [each.label for each in report.rejected] == ["bob"]


def test_the_sink_hears_of_it_before_it_begins_anew() -> None:
    from sbp2p.merge.engine import merge

    calls: list[tuple[object, ...]] = []

    class Listening:
        def begin(self, specs: Mapping[str, TensorSpec]) -> None:
            calls.append(("begin", len(specs)))

        def reject(self, label: str, key: bytes, tensor: str, reason: str) -> None:
            calls.append(("reject", label, tensor))

        def write(self, name: str, offset: int, data: memoryview) -> None:
            if calls[-1] != ("write", len(calls)):
                calls.append(("write", len(calls) + 1))

        def finish(self) -> None:
            calls.append(("finish",))

    given = inputs([model(1), bad(2, "late", 9, float("nan"))], labels=NAMES[:2])
    merge(given, "mean", sink=Listening(), threads=1)
    kept = [call for call in calls if call[0] != "write"]
    assert kept == [("begin", 5), ("reject", "bob", "late"), ("begin", 5), ("finish",)]
    assert calls[-2][0] == "write"


def test_what_the_local_model_keeps_is_not_looked_at() -> None:
    odd = bad(5, "early", 1, float("nan"))
    odd["own"] = torch.tensor([float("nan")])
    tensors, report = merged(inputs([model(1), model(2)]), names="keep-local", local=source(odd))
    assert report.kept == ("own",)
    assert not report.rejected
    assert torch.isnan(tensor(tensors["own"])).all()
    assert torch.isfinite(tensor(tensors["early"])).all()

"""Whole merges: the same bits in any order, by any number of threads, in pieces of any size."""

from __future__ import annotations

import itertools
import struct
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import MergeError
from sbp2p.merge import attempt
from sbp2p.merge.digest import digest_of
from sbp2p.merge.engine import MergeStoppedError
from sbp2p.merge.method import (
    BASE,
    ElementwiseMethod,
    Group,
    LinearMethod,
    MethodDoc,
    Place,
    Scope,
    get,
)
from sbp2p.merge.opened import ROW_BYTES_MIN
from sbp2p.merge.policies import Policies, Policy
from sbp2p.merge.sums import sum_rows
from sbp2p.merge.tensors import Input, MemorySource
from tests.merge.merge_inputs import Tensors, inputs, key, merged, noise, source, tensor
from tests.merge.merge_oracle import ORACLES, exact_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

DOC = MethodDoc("none", "nothing", "0")
FLOATING = [
    torch.float64, torch.float32, torch.bfloat16, torch.float16,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.complex64, torch.complex128,
]  # fmt: skip


def varied(seed: int) -> Tensors:
    """A model with a tensor of each kind; one has more than one piece of any size."""
    model = {
        f"{number}": noise((3, 5), seed + number, dtype) for number, dtype in enumerate(FLOATING)
    }
    model["large"] = noise((70_001,), seed + 100)
    model["half"] = noise((300, 300), seed + 200, torch.bfloat16)
    model["scalar"] = torch.tensor(0.1 * seed)
    model["empty"] = torch.empty((0, 4))
    model["ids"] = torch.arange(9)
    model["bn.num_batches_tracked"] = torch.tensor(seed)
    model["mask"] = noise((50,), seed + 300) > 0
    model["embed"] = model["head"] = noise((40, 7), seed + 400)
    return model


MODELS = [varied(1000 * number) for number in range(1, 4)]


class Middle(ElementwiseMethod):
    """Elementwise, over the whole model: the sum of rows, times a survey."""

    name = "middle"
    doc = DOC
    scope = Scope.MODEL

    def survey(self, group: Group) -> object:
        gram = group.gram()
        return gram[0][0] / (gram[0][0] + gram[-1][-1])

    def combine(
        self,
        values: torch.Tensor,
        base: torch.Tensor | None,
        weights: torch.Tensor,
        survey: object,
        place: Place,
    ) -> torch.Tensor:
        assert isinstance(survey, float)
        return sum_rows(values).mul_(survey)


class Scaled(LinearMethod):
    """Linear, with coefficients from each tensor's products."""

    name = "scaled"
    doc = DOC
    scope = Scope.TENSOR

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        gram = group.gram()
        total = sum(gram[i][i] for i in range(group.count)) or 1.0
        return [gram[i][i] / total for i in range(group.count)]


@pytest.mark.parametrize("method", ["mean", "median", Middle(), Scaled()])
def test_order_threads_and_pieces_change_nothing(
    method: str | Middle | Scaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = inputs(MODELS, [1, 2, 4])
    tensors, report = merged(given, method, threads=1)
    assert report.tensors == len(MODELS[0])
    assert digest_of(MemorySource(tensors)) == report.digest
    monkeypatch.setattr(attempt, "ROW_BYTES_MAX", ROW_BYTES_MIN)
    for order, threads in zip(itertools.permutations(given), (1, 2, 3, 5, 2, 1), strict=True):
        again, other = merged(order, method, threads=threads)
        assert other.digest == report.digest
        assert {name: bytes(each.data) for name, each in again.items()} == {
            name: bytes(each.data) for name, each in tensors.items()
        }


def test_how_many_threads_torch_has_changes_nothing() -> None:
    before = torch.get_num_threads()
    digests = set()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            digests |= {merged(inputs(MODELS), each)[1].digest for each in ("mean", "median")}
    finally:
        torch.set_num_threads(before)
    assert len(digests) == 2


@pytest.mark.parametrize("method", ["mean", "median"])
@pytest.mark.parametrize("copies", [1, 2, 7])
def test_identical_models_come_back_bit_by_bit(method: str, copies: int) -> None:
    model = dict(MODELS[0])
    model["special"] = torch.tensor(
        [-0.0, 0.0, 2.0**-149, -(2.0**-149), torch.finfo(torch.float32).max, 1 / 3]
    )
    tensors, report = merged(inputs([model] * copies), method)
    assert report.digest == digest_of(source(model))
    assert bytes(tensors["special"].data) == bytes(model["special"].view(torch.uint8).tolist())


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=8, max_size=8),
    st.lists(st.fractions(0, 100, max_denominator=30), min_size=2, max_size=2),
)
@settings(max_examples=12, deadline=None)
def test_a_weighted_mean_is_the_exact_one(codes: list[int], weights: list[Fraction]) -> None:
    oracle = ORACLES["F32"]
    codes = [code if oracle.is_finite(code) else 1 for code in codes]
    rows = [codes[:4], codes[4:]]
    models = [
        {"w": torch.frombuffer(bytearray(oracle.pack(row)), dtype=torch.float32)} for row in rows
    ]
    if not sum(weights):
        with pytest.raises(MergeError, match="weight 0"):
            merged(inputs(models, weights))
        return
    tensors, report = merged(inputs(models, weights))
    exact = [each / sum(weights) for each in weights]
    assert oracle.unpack(tensors["w"].data) == [
        exact_sum(oracle, list(column), exact, oracle) for column in zip(*rows, strict=True)
    ]
    assert sum(weight for _, weight in report.used) == 1


def test_who_was_chosen_is_told() -> None:
    models = [{"w": torch.full((8,), value)} for value in (1.0, 1.25, 0.75, 1.5, 100.0)]
    _, report = merged(inputs(models), get("krum", f=1))
    assert sorted(report.counted or ()) == [0, 0, 0, 0, 1]
    chosen = [
        label for (label, _), part in zip(report.used, report.counted or (), strict=True) if part
    ]
    assert chosen != ["model 4"]
    _, report = merged(inputs(models), "mean")
    assert report.counted == (Fraction(1, 5),) * 5
    _, report = merged(inputs(models), "median")
    assert report.counted is None


@pytest.mark.parametrize("method", ["slerp", "model-stock", "karcher", "multi-slerp"])
def test_products_beyond_float64_are_an_error_of_the_merge(method: str) -> None:
    models = [{"w": torch.full((8,), value, dtype=torch.float64)} for value in (1e300, -2e300)]
    base = source({"w": torch.zeros(8, dtype=torch.float64)})
    with pytest.raises(MergeError, match="beyond float64"):
        merged(inputs(models), method, base=base)


def test_shapes_stay_and_tied_tensors_stay_tied() -> None:
    tensors, report = merged(inputs(MODELS))
    assert tensors["scalar"].shape == ()
    assert tensors["empty"].shape == (0, 4)
    assert report.tied == (("embed", "head"),)
    assert bytes(tensors["embed"].data) == bytes(tensors["head"].data)
    untied = dict(MODELS[0], head=MODELS[0]["head"].clone())
    assert merged(inputs([untied, *MODELS[1:]]))[1].tied == ()


def test_complex_numbers_are_merged_part_by_part() -> None:
    values = [torch.tensor([1 + 2j, -3j]), torch.tensor([2 - 1j, 5 + 0j])]
    tensors, _ = merged(inputs([{"z": value} for value in values]))
    assert tensor(tensors["z"]).tolist() == [1.5 + 0.5j, 2.5 - 1.5j]
    halves = [Input(half(value), f"{value}", key(f"{value}")) for value in (1.0, 2.0)]
    tensors, _ = merged(halves)
    assert struct.unpack("<ee", tensors["z"].data) == (1.5, -1.5)


def half(value: float) -> MemorySource:
    data = memoryview(bytearray(struct.pack("<ee", value, -value)))
    return MemorySource({"z": RawTensor("z", "C32", (1,), data)})


def test_a_wider_dtype_can_be_asked_for() -> None:
    models = [{"w": torch.tensor([1.0], dtype=torch.float16)}, {"w": torch.tensor([1.0 + 2**-20])}]
    with pytest.raises(MergeError, match=r"'w' is F"):
        merged(inputs(models))
    tensors, _ = merged(inputs(models), policies=Policies(dtype="F32"))
    assert tensor(tensors["w"]).tolist() == [1 + 2**-21]
    tensors, _ = merged(inputs(models), policies=Policies(dtype="BF16"))
    assert tensor(tensors["w"]).dtype is torch.bfloat16


# -- names ----------------------------------------------------------------------------------------


def test_every_difference_of_names_is_named() -> None:
    first: Tensors = {"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)}
    second: Tensors = {"a": torch.zeros(2), "b": torch.zeros(4), "d": torch.zeros(1)}
    given = inputs([first, second], labels=["alice", "bob"])
    with pytest.raises(MergeError) as caught:
        merged(given)
    text = str(caught.value)
    assert "bob lacks 'c'" in text
    assert "alice lacks 'd'" in text
    assert "'b' is F32 [" in text
    assert "intersection" in caught.value.hint
    tensors, report = merged(given, names="intersection")
    assert list(tensors) == ["a"]
    assert sorted(report.dropped) == ["b", "c", "d"]


def test_a_list_of_differences_is_short() -> None:
    many: Tensors = {f"layer {number}": torch.zeros(1) for number in range(100)}
    with pytest.raises(MergeError, match="and 92 more"):
        merged(inputs([many, {}], labels=["alice", "bob"]))


def test_what_differs_can_stay_as_it_is_here() -> None:
    mine: Tensors = {"head": torch.ones(5), "body": torch.zeros(3)}
    theirs: Tensors = {"head": torch.ones(9), "body": torch.full((3,), 3.0), "extra": torch.ones(1)}
    with pytest.raises(MergeError, match="local model"):
        merged(inputs([mine, theirs]), names="keep-local")
    tensors, report = merged(inputs([mine, theirs]), names="keep-local", local=source(mine))
    assert tensor(tensors["head"]).tolist() == [1.0] * 5
    assert tensor(tensors["body"]).tolist() == [1.5] * 3
    assert report.kept == ("head",)
    assert report.dropped == ("extra",)


def test_a_base_must_have_what_is_merged() -> None:
    given = inputs(MODELS[:2])
    with pytest.raises(MergeError, match="needs a base model"):
        merged(given, "ema")
    with pytest.raises(MergeError, match="the base model lacks '0'"):
        merged(given, "ema", base=source({}))
    floats = {name: each for name, each in MODELS[2].items() if name != "ids"}
    tensors, _ = merged(given, "task-arithmetic", base=source(floats))
    a, b, base = (model["large"].double() for model in MODELS)
    assert torch.equal(tensor(tensors["large"]), (a + b - base).float())


def test_groups_stream_what_they_say() -> None:
    seen: dict[object, list[tuple[str, int, int]]] = {}

    class Look(LinearMethod):
        name = "look"
        doc = DOC
        scope = Scope.MODEL

        def coefficients(self, group: Group) -> Sequence[Fraction | float]:
            assert group.base
            assert list(group.keys) == sorted(group.keys)
            assert sum(group.weights) == 1
            assert [each.name for each in group.tensors] == sorted(
                each.name for each in group.tensors
            )
            for which in (*range(group.count), BASE):
                seen[which] = [
                    (place.tensor.name, place.start, place.stop)
                    for place, values in group.pieces(which)
                    if values.shape == (place.stop - place.start,)
                ]
            flat = [
                torch.cat([values for _, values in group.pieces(which)])
                for which in (*range(group.count), BASE)
            ]
            for relative in (False, True):
                rows = [row - flat[-1] for row in flat[:-1]] if relative else flat
                right = [[float((a * b).sum()) for b in rows] for a in rows]
                assert torch.allclose(
                    torch.tensor(group.gram(relative)), torch.tensor(right), rtol=1e-12
                )
            return group.weights

    merged(inputs(MODELS[:2]), Look(), base=source(MODELS[2]))
    places = list(seen.values())
    assert places[0] == places[1] == places[2]
    assert ("7", 0, 15) in places[0]
    assert ("8", 0, 30) in places[0], "complex numbers are two"


# -- how it ends ----------------------------------------------------------------------------------


def test_progress_ends_with_everything() -> None:
    told: list[tuple[int, int]] = []
    _, report = merged(inputs(MODELS), progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1]
    assert report.bytes_written == sum(each.nbytes for each in MODELS[0].values())
    assert report.bytes_read == 3 * (report.bytes_written - MODELS[0]["head"].nbytes)


def test_it_can_be_stopped() -> None:
    with pytest.raises(MergeStoppedError):
        merged(inputs([{"w": noise((4_000_000,), 1)}] * 2), Middle(), should_stop=lambda: True)


def test_what_was_done_before_is_not_done_again() -> None:
    tensors, report = merged(inputs(MODELS), done=["large", "half"])
    assert report.digest == b""
    assert not any(tensors["large"].data)
    assert any(tensors["0"].data)


def test_errors_of_methods_pass_through() -> None:
    class Broken(ElementwiseMethod):
        name = "broken"
        doc = DOC

        def combine(
            self,
            values: torch.Tensor,
            base: torch.Tensor | None,
            weights: torch.Tensor,
            survey: object,
            place: Place,
        ) -> torch.Tensor:
            return values[0] / 0.0 * 0.0

    class Strange(LinearMethod):
        name = "strange"
        doc = DOC

        def coefficients(self, group: Group) -> Sequence[Fraction | float]:
            return [float("nan")] * group.count

    with pytest.raises(MergeError, match="broken made a NaN in '0'"):
        merged(inputs(MODELS), Broken())
    with pytest.raises(MergeError, match="coefficient is nan"):
        merged(inputs(MODELS), Strange())
    with pytest.raises(MergeError, match="no merge method is called 'avarage'"):
        merged(inputs(MODELS), "avarage")


def test_too_few_models_are_an_error() -> None:
    with pytest.raises(MergeError, match="mean needs 1 inputs, and 0 were given"):
        merged([])
    with pytest.raises(MergeError, match="gossip is between two"):
        merged(inputs(MODELS), "gossip")


def test_policies_are_for_floating_tensors_too() -> None:
    rules = (("large", Policy.LOCAL), ("0", Policy.MEAN), ("1", Policy.EQUAL))
    same = [dict(model, **{"1": MODELS[0]["1"]}) for model in MODELS]
    tensors, _ = merged(
        inputs(same), "median", local=source(MODELS[2]), policies=Policies(rules=rules)
    )
    mean, _ = merged(inputs(same))
    assert torch.equal(tensor(tensors["large"]), MODELS[2]["large"])
    assert tensors["0"].data == mean["0"].data
    with pytest.raises(MergeError, match="'1' is not the same in"):
        merged(inputs(MODELS), policies=Policies(rules=rules[1:]))
    with pytest.raises(MergeError, match="'large' is to be the local one"):
        merged(inputs(MODELS), policies=Policies(rules=rules))

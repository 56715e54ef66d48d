"""Model merges and outer steps in the engine: every dtype, any order, any number of threads."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p.errors import MergeError
from sbp2p.merge import models, outer
from sbp2p.merge.engine import merge
from sbp2p.merge.memory import TorchSink, TorchSource, merge_in_memory
from sbp2p.merge.method import CHUNK, ElementwiseMethod, Group, MethodDoc, get
from sbp2p.merge.outer.outer import Outer
from sbp2p.merge.tensors import Input
from tests.merge.model_samples import key_of, noise

State = dict[str, torch.Tensor]
EVERY = sorted([*models.METHODS, *outer.METHODS])
BASED = [name for name in EVERY if get(name).needs_base]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def state(seed: int, dtype: torch.dtype = torch.float32) -> State:
    return {
        "weight": (noise(seed, 7, 9) / 8 + noise(0, 7, 9)).to(dtype),
        "bias": (noise(seed + 50, 4) / 8 + noise(1, 4)).to(dtype),
        "alone": (noise(seed + 70) / 8 + 1).to(dtype),
        "none": torch.zeros(0, 3, dtype=dtype),
        "num_batches_tracked": torch.tensor(seed),
    }


def inputs_of(name: str, dtype: torch.dtype = torch.float32) -> list[State]:
    return [state(seed, dtype) for seed in range(2, 4 if name == "slerp" else 6)]


def bits(merged: State) -> dict[str, bytes]:
    return {
        name: bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())
        for name, tensor in merged.items()
    }


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_method_merges_every_dtype(name: str, dtype: torch.dtype) -> None:
    merged = merge_in_memory(inputs_of(name, dtype), name, base=state(1, dtype))
    assert all(tensor.isfinite().all() for tensor in merged.values())
    assert merged["weight"].dtype is dtype
    assert merged["alone"].shape == ()
    assert merged["none"].shape == (0, 3)
    assert int(merged["num_batches_tracked"]) == len(inputs_of(name)) + 1


@pytest.mark.parametrize("name", EVERY)
def test_order_and_threads_change_no_bit(name: str) -> None:
    inputs = inputs_of(name)
    weights = [1.0, 2.0, 3.0, 5.0][: len(inputs)]
    base = state(1)
    expected = bits(merge_in_memory(inputs, name, weights, base, threads=1))
    for order in list(permutations(range(len(inputs))))[1::9]:
        moved = merge_in_memory(
            [inputs[index] for index in order],
            name,
            [weights[index] for index in order],
            base,
            threads=3,
        )
        assert bits(moved) == expected


@pytest.mark.parametrize("name", [name for name in EVERY if name not in {"slerp", "fedprox"}])
def test_a_tensor_of_several_chunks(name: str) -> None:
    size = 3 * CHUNK + 17
    base = {"t": noise(1, size).bfloat16()}
    inputs = [{"t": (base["t"].double() + noise(seed, size) / 50).bfloat16()} for seed in (2, 3)]
    expected = bits(merge_in_memory(inputs, name, base=base, threads=1))
    assert bits(merge_in_memory(inputs[::-1], name, base=base, threads=2)) == expected


@pytest.mark.parametrize("name", [name for name in BASED if name in models.METHODS])
def test_inputs_that_are_the_base_give_its_bytes(name: str) -> None:
    base = state(1, torch.bfloat16)
    if name != "task-arithmetic":  # -0.0 is 0.0 to exact sums with a negative coefficient
        base["bias"][0] = -0.0
    assert bits(merge_in_memory([base] * 3, name, base=base)) == bits(base)


@pytest.mark.parametrize("name", ["slerp", "multi-slerp", "karcher", "model-stock"])
@settings(max_examples=6)
@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=20),
    st.integers(1, 1000),
)
def test_identical_inputs_are_the_result(name: str, values: list[float], weight: int) -> None:
    model = {"t": torch.tensor(values)}
    merged = merge_in_memory([model] * 2, name, [1, weight], {"t": torch.ones(len(values))})
    assert bits(merged) == bits(model)


@settings(max_examples=6)
@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=20))
def test_the_average_of_identical_task_vectors_is_the_model(values: list[float]) -> None:
    model = {"t": torch.tensor(values)}
    base = {"t": torch.full((len(values),), 3.0)}
    merged = merge_in_memory([model] * 3, get("task-arithmetic", average=True), base=base)
    assert bits(merged) == bits(model)


@pytest.mark.parametrize("name", BASED)
def test_without_a_base(name: str) -> None:
    with pytest.raises(MergeError, match="needs a base"):
        merge_in_memory(inputs_of(name), name)


@pytest.mark.parametrize("name", ["task-arithmetic", "ties", "dare", "fedadam"])
def test_eight_bits_and_complex_numbers(name: str) -> None:
    def model(seed: int) -> State:
        return {
            "eight": noise(seed, 40).to(torch.float8_e4m3fn),
            "complex": torch.complex(noise(seed, 5, 8), noise(seed + 9, 5, 8)),
        }

    method = get(name)
    merged = merge_in_memory([model(1), model(2)], method, base=model(3))
    assert merged["eight"].dtype is torch.float8_e4m3fn
    assert merged["complex"].shape == (5, 8)
    if isinstance(method, Outer):
        assert method.state()["momentum/complex"].shape == (5, 8, 2)
        merge_in_memory([model(1), model(2)], method, base=merged)


def test_a_bad_input_is_left_out_and_named() -> None:
    bad = state(9)
    bad["weight"][3, 3] = float("nan")
    reports: list[object] = []
    good = [state(2), state(3)]
    merged = merge_in_memory(
        [*good, bad], "ties", base=state(1), labels=["a", "b", "mallory"], on_report=reports.append
    )
    clean = merge_in_memory(good, "ties", base=state(1))
    del merged["num_batches_tracked"], clean["num_batches_tracked"]
    assert bits(merged) == bits(clean)
    assert "mallory" in repr(reports)


def test_dare_drops_by_key_and_not_by_place_among_the_inputs() -> None:
    def merged(*seeds: int) -> torch.Tensor:
        sink = TorchSink()
        merge(
            [Input(TorchSource(state(seed)), f"{seed}", key_of(seed)) for seed in seeds],
            get("dare", scale=len(seeds)),
            sink=sink,
            base=TorchSource(state(1)),
        )
        return sink.tensors["weight"]

    delta = [merged(seed).double() - state(1)["weight"].double() for seed in (2, 3)]
    both = merged(2, 3).double() - state(1)["weight"].double()
    assert torch.equal((delta[0] != 0) | (delta[1] != 0), both != 0)


# ---- outer steps


@pytest.mark.parametrize("name", ["fedavgm", "diloco", "fedadagrad", "fedadam", "fedyogi"])
def test_peers_that_merge_the_same_stay_the_same(name: str) -> None:
    peers = [get(name), get(name)]
    bases = [state(1), state(1)]
    for round_number in range(3):
        inputs = [state(10 * round_number + seed) for seed in (2, 3, 4)]
        bases = [
            merge_in_memory(inputs, peers[0], base=bases[0], threads=1),
            merge_in_memory(inputs[::-1], peers[1], base=bases[1], threads=3),
        ]
        assert bits(bases[0]) == bits(bases[1])
    first, second = (peer.state() for peer in peers if isinstance(peer, Outer))
    assert bits(first) == bits(second)
    assert int(first["step/weight"]) == 3


def test_an_input_that_is_left_out_half_way_leaves_no_trace_in_the_state() -> None:
    size = 40 * CHUNK  # so that much is computed before the bad element is reached
    base, good, bad = ({"t": noise(seed, 1).expand(size).float()} for seed in (1, 2, 3))
    bad = {"t": bad["t"].clone()}
    bad["t"][-1] = float("inf")
    clean, troubled = get("diloco"), get("diloco")
    assert isinstance(clean, Outer)
    assert isinstance(troubled, Outer)
    expected = merge_in_memory([good], clean, base=base)
    assert bits(merge_in_memory([good, bad], troubled, base=base)) == bits(expected)
    assert bits(troubled.state()) == bits(clean.state())


def test_a_merge_that_fails_leaves_the_state() -> None:
    method = get("diloco")
    assert isinstance(method, Outer)
    merge_in_memory([state(2)], method, base=state(1))
    before = bits(method.state())
    bad = state(3)
    bad["weight"][0, 0] = float("nan")
    with pytest.raises(MergeError):
        merge_in_memory([bad], method, base=state(1))
    assert bits(method.state()) == before


def test_statistics_are_merged_and_not_stepped() -> None:
    def model(variance: float) -> State:
        return {"running_var": torch.tensor([variance]), "w": torch.tensor([variance])}

    method = get("fedadam", rate=5)
    base = model(1.0)
    for _ in range(5):
        base = merge_in_memory([model(0.01), model(0.03)], method, base=base)
        assert base["running_var"].tolist() == pytest.approx([0.02])
    assert base["w"].item() < 0


class Survey(ElementwiseMethod):
    """Shows the group of the engine to a test."""

    name = "survey"
    doc = MethodDoc("none", "nothing", "0")

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, ...]] = []

    def survey(self, group: Group) -> object:
        self.seen.append(group.keys)
        return None

    def combine(self, values: torch.Tensor, *_: object) -> torch.Tensor:
        return values[0]


def test_outer_steps_ask_the_inner_method_what_it_asks() -> None:
    inner = Survey()
    merge_in_memory([state(2), state(3)], get("diloco", inner=inner), base=state(1))
    assert len(inner.seen) == 1

"""The same merges by mergekit: equal where it is right, and a test for each way that it differs.

mergekit runs once, in its own environment (`make merge-peers-deps`), over all cases below. The
table "where mergekit differs" in docs/merge-models.md has a row for each test of the second half.
"""

from __future__ import annotations

import json
import math
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sbp2p.merge.engine import merge
from sbp2p.merge.memory import TorchSink, merge_in_memory
from sbp2p.merge.method import Method, get
from sbp2p.merge.tensors import FileSource, Input
from tests.merge.model_samples import ListGroup, fine_tunes, key_of, noise, run

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-merge-peers/bin/python"
PEER = ROOT / "tests/interop/py/mergekit_merges.py"

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        not PYTHON.exists(), reason="mergekit is not installed: run `make merge-peers-deps`"
    ),
]


@dataclass(frozen=True)
class Case:
    """A merge of tensors; with `base` the first one is the base."""

    method: str
    inputs: list[torch.Tensor]
    parameters: dict[str, Any] = field(default_factory=dict)
    base: bool = False


@dataclass(frozen=True)
class Answers:
    """What mergekit made of the cases."""

    results: dict[str, torch.Tensor]
    refusals: dict[str, str]
    folder: Path


def single(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def tuned(count: int = 3) -> list[torch.Tensor]:
    """Return a base and fine-tunes of it, as float32."""
    base, inputs = fine_tunes(count, 2000)
    return [base.float(), *(each.float() for each in inputs)]


def units() -> list[torch.Tensor]:
    vectors = [noise(index, 500) for index in range(3)]
    return [(each / each.norm()).float() for each in vectors]


WEIGHTED = {"weight": [0.5, 0.75, 1.75]}
SHARES = [2, 3, 7]
WIDE = [noise(index, 20_000).float() for index in range(4)]
CLOSE = [noise(1, 500).float(), (noise(1, 500) + noise(2, 500, scale=0.02)).float()]
STEP = 1e-4
HALF = torch.full((8,), 60_000.0, dtype=torch.float16)
NOT_A_NUMBER = single(1.0, math.nan)

CASES = {
    "linear": Case("linear", tuned()[1:], WEIGHTED),
    "slerp": Case("slerp", WIDE[:2], {"t": 0.3}, base=True),
    "task arithmetic": Case("task_arithmetic", tuned(), {**WEIGHTED, "lambda": 0.4}, base=True),
    "ties": Case("ties", tuned(), {**WEIGHTED, "density": 0.2, "lambda": 0.7}, base=True),
    "ties whole": Case("ties", tuned(), {"weight": 1.0, "density": 1.0}, base=True),
    "dare": Case("dare_linear", tuned(), {"weight": 1.0, "density": 1.0}, base=True),
    "dare ties": Case(
        "dare_ties", tuned(), {"weight": 1.0, "density": 1.0, "normalize": True}, base=True
    ),
    "breadcrumbs": Case(
        "breadcrumbs", tuned(), {**WEIGHTED, "density": 0.5, "gamma": 0.1}, base=True
    ),
    "model stock": Case("model_stock", tuned(), base=True),
    "karcher": Case("karcher", units()),
    # where it differs
    "same three": Case("linear", [WIDE[0]] * 3, {"weight": 1.0}),
    "only one": Case("linear", [WIDE[0]], {"weight": 0.3}),
    "forwards": Case("linear", WIDE, {"weight": 1.0}),
    "backwards": Case("linear", WIDE[::-1], {"weight": 1.0}),
    "bf16 task": Case(
        "task_arithmetic",
        [WIDE[0].bfloat16(), *((WIDE[0] + each / 100).bfloat16() for each in WIDE[1:])],
        {"weight": 0.3},
        base=True,
    ),
    "f16 task": Case("task_arithmetic", [-HALF, HALF, HALF], {"weight": 0.5}, base=True),
    "f16 stock": Case("model_stock", [0 * HALF, HALF, HALF], base=True),
    "f16 multislerp": Case("multislerp", [HALF, HALF], {"weight": 1.0}),
    "fp8": Case("linear", [single(1, 2).to(torch.float8_e4m3fn)] * 2, {"weight": 1.0}),
    "nan": Case("linear", [NOT_A_NUMBER, single(1.0, 1.0)], {"weight": 1.0}),
    "counter": Case("linear", [torch.tensor(3), torch.tensor(4)], {"weight": 1.0}),
    "tied vote": Case(
        "ties", [single(0), single(1), single(-1)], {"weight": 1.0, "density": 1.0}, base=True
    ),
    "tied sizes": Case(
        "ties", [single(0, 0, 0, 0), single(1, 1, 1, -1)], {"weight": 1.0, "density": 0.5}, True
    ),
    "29 of 100": Case(
        "ties",
        [torch.zeros(100), torch.arange(1.0, 101.0)],
        {"weight": 1.0, "density": 0.29},
        base=True,
    ),
    "dare once": Case("dare_linear", tuned(1), {"weight": 1.0, "density": 0.5}, base=True),
    "dare again": Case("dare_linear", tuned(1), {"weight": 1.0, "density": 0.5}, base=True),
    "dare rescaled": Case(
        "dare_linear",
        [torch.zeros(64), torch.arange(1.0, 65.0)],
        {"weight": 1.0, "density": 0.5},
        base=True,
    ),
    "small steps": Case(
        "model_stock", [single(0, 0), single(STEP, 0), single(STEP, STEP)], {}, True
    ),
    "opposed": Case(
        "model_stock", [single(0, 0), single(1, 0), single(-0.9, math.sqrt(0.19))], {}, True
    ),
    "close": Case("slerp", CLOSE, {"t": 0.5}, base=True),
    "three units": Case("multislerp", units(), {"weight": [0.2, 0.3, 0.5]}),
}


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 32,
    "dtype": "bfloat16",
}
LAYER = "model.layers.0"
SHAPES = {
    "model.embed_tokens.weight": (40, 16),
    "lm_head.weight": (40, 16),
    "model.norm.weight": (16,),
    **{f"{LAYER}.self_attn.{part}_proj.weight": (16, 16) for part in "qkvo"},
    **{f"{LAYER}.mlp.{part}_proj.weight": (32, 16) for part in ("gate", "up")},
    f"{LAYER}.mlp.down_proj.weight": (16, 32),
    f"{LAYER}.input_layernorm.weight": (16,),
    f"{LAYER}.post_attention_layernorm.weight": (16,),
}


def make_model(folder: Path, seed: int) -> Path:
    """Write a llama of 4,000 parameters as transformers saves one."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    base = {name: noise(number, *shape) for number, (name, shape) in enumerate(SHAPES.items())}
    tensors = {
        name: (each + noise(seed * 100 + number, *each.shape, scale=0.1)).bfloat16()
        for number, (name, each) in enumerate(base.items())
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def folder_case(folder: Path) -> dict[str, Any]:
    models = [make_model(folder / f"model{seed}", seed) for seed in range(1, 4)]
    return {
        "name": "folders",
        "output": str(folder / "merged"),
        "config": {
            "merge_method": "linear",
            "models": [{"model": str(each), "parameters": {"weight": 1.0}} for each in models],
        },
    }


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("mergekit")
    inputs = {
        f"{name}/{index}": each.clone()
        for name, case in CASES.items()
        for index, each in enumerate(case.inputs)
    }
    save_file(inputs, folder / "inputs.safetensors")
    cases = [
        {
            "name": name,
            "method": case.method,
            "parameters": case.parameters,
            "base": case.base,
            "count": len(case.inputs),
        }
        for name, case in CASES.items()
    ]
    (folder / "cases.json").write_text(json.dumps([*cases, folder_case(folder)]))
    subprocess.run([PYTHON, PEER, folder], check=True, timeout=120, capture_output=True)
    return Answers(
        load_file(folder / "results.safetensors"),
        json.loads((folder / "refusals.json").read_text()),
        folder,
    )


def ours(method: Method, name: str, weights: list[int] | None = None) -> torch.Tensor:
    """Merge a case's inputs; in float64, before it is rounded."""
    case = CASES[name]
    if case.base:
        return run(method, ListGroup(case.inputs[1:], case.inputs[0], weights))
    return run(method, ListGroup(case.inputs, weights=weights))


def merged(method: Method | str, name: str, weights: list[float] | None = None) -> torch.Tensor:
    """Merge a case's inputs by the engine, in their dtype."""
    states = [{"t": each} for each in CASES[name].inputs]
    if CASES[name].base:
        return merge_in_memory(states[1:], method, weights, states[0])["t"]
    return merge_in_memory(states, method, weights)["t"]


def assert_same(got: torch.Tensor, theirs: torch.Tensor) -> None:
    """Compare with what was computed in float32."""
    torch.testing.assert_close(got, theirs.double(), rtol=2e-6, atol=2e-6)


# ---- where it is right


def test_linear(answers: Answers) -> None:
    assert_same(ours(get("mean"), "linear", SHARES), answers.results["linear"])


def test_slerp(answers: Answers) -> None:
    # here the way is told by the weights: 0.3 of it is 7 to 3
    case = ListGroup(CASES["slerp"].inputs, weights=[7, 3])
    assert_same(run(get("slerp"), case), answers.results["slerp"])


def test_task_arithmetic(answers: Answers) -> None:
    # weights of 0.5, 0.75 and 1.75 are 1 on average, as ours always are
    merged = ours(get("task-arithmetic", scale=0.4), "task arithmetic", SHARES)
    assert_same(merged, answers.results["task arithmetic"])


@pytest.mark.parametrize(
    ("name", "options", "weights"),
    [
        ("ties", {"density": 0.2, "scale": 0.7}, SHARES),
        ("ties whole", {"density": 1}, None),
    ],
)
def test_ties(
    answers: Answers, name: str, options: dict[str, object], weights: list[int] | None
) -> None:
    assert_same(ours(get("ties", **options), name, weights), answers.results[name])


@pytest.mark.parametrize("name", ["dare", "dare ties"])
def test_dare_that_drops_nothing(answers: Answers, name: str) -> None:
    merged = ours(get(name.replace(" ", "-"), density=1), name)
    assert_same(merged, answers.results[name])


def test_breadcrumbs(answers: Answers) -> None:
    merged = ours(get("breadcrumbs", density=0.5, outliers=0.1), "breadcrumbs", SHARES)
    assert_same(merged, answers.results["breadcrumbs"])


def test_model_stock(answers: Answers) -> None:
    assert_same(ours(get("model-stock"), "model stock"), answers.results["model stock"])


def test_karcher(answers: Answers) -> None:
    assert_same(ours(get("karcher"), "karcher"), answers.results["karcher"])


def test_folders_of_models(answers: Answers) -> None:
    sink = TorchSink()
    with ExitStack() as stack:
        sources = [
            stack.enter_context(FileSource(answers.folder / f"model{number}"))
            for number in range(1, 4)
        ]
        inputs = [Input(each, "", key_of(number)) for number, each in enumerate(sources)]
        merge(inputs, "mean", sink=sink)
    (file,) = (answers.folder / "merged").glob("*.safetensors")
    theirs = load_file(file)
    assert theirs.keys() == sink.tensors.keys() == SHAPES.keys()
    for name, tensor in theirs.items():
        assert sink.tensors[name].dtype is tensor.dtype is torch.bfloat16
        torch.testing.assert_close(sink.tensors[name], tensor, rtol=2**-8, atol=0)


# ---- where it differs


def test_identical_models_change_there(answers: Answers) -> None:
    assert int((answers.results["same three"] != WIDE[0]).sum()) > 1000
    assert torch.equal(merged("mean", "same three"), WIDE[0])


def test_one_model_changes_there(answers: Answers) -> None:
    assert int((answers.results["only one"] != WIDE[0]).sum()) > 1000
    assert torch.equal(merged("mean", "only one", [0.3]), WIDE[0])


def test_the_order_matters_there(answers: Answers) -> None:
    assert int((answers.results["forwards"] != answers.results["backwards"]).sum()) > 1000
    assert torch.equal(merged("mean", "forwards"), merged("mean", "backwards"))


def test_a_mean_of_float32_is_not_rounded_right_there(answers: Answers) -> None:
    exact = (torch.stack(WIDE).double().sum(0) / 4).float()
    assert int((answers.results["forwards"] != exact).sum()) > 1000
    assert torch.equal(merged("mean", "forwards"), exact)


def test_task_vectors_of_bfloat16_are_rounded_on_the_way_there(answers: Answers) -> None:
    base, *inputs = (each.double() for each in CASES["bf16 task"].inputs)
    exact = base + 0.3 * sum((each - base for each in inputs), torch.zeros_like(base))
    theirs = answers.results["bf16 task"].double()
    mine = merged(get("task-arithmetic", scale="0.3"), "bf16 task").double()
    off = (theirs - exact).abs() / exact.abs()
    assert float(off.max()) > 0.1
    assert int((theirs != mine).sum()) > 100
    assert float(((mine - exact).abs() / exact.abs()).max()) <= 2**-8


def test_float16_overflows_on_the_way_there(answers: Answers) -> None:
    assert answers.results["f16 task"].isinf().all()
    assert torch.equal(merged(get("task-arithmetic", scale="0.5"), "f16 task"), HALF)
    assert answers.results["f16 stock"].isnan().all()
    assert torch.equal(merged("model-stock", "f16 stock"), HALF)
    assert answers.results["f16 multislerp"].isnan().all()
    assert torch.equal(merged("multi-slerp", "f16 multislerp"), HALF)


def test_eight_bit_floats_are_refused_there(answers: Answers) -> None:
    assert "Float8" in answers.refusals["fp8"]
    assert torch.equal(merged("mean", "fp8").float(), single(1, 2))


def test_a_nan_goes_into_the_result_there_and_its_model_is_left_out_here(
    answers: Answers,
) -> None:
    assert answers.results["nan"].isnan().any()
    assert merged("mean", "nan").tolist() == [1.0, 1.0]


def test_counters_that_differ_are_refused_there_and_the_largest_here(answers: Answers) -> None:
    assert "counter" in answers.refusals
    states = [{"num_batches_tracked": each} for each in CASES["counter"].inputs]
    assert int(merge_in_memory(states)["num_batches_tracked"]) == 4


def test_a_tied_vote_is_positive_there_and_nobody_wins_here(answers: Answers) -> None:
    assert answers.results["tied vote"].tolist() == [1.0]
    assert ours(get("ties", density=1), "tied vote").tolist() == [0.0]


def test_equal_magnitudes_stay_by_position_there_and_together_here(answers: Answers) -> None:
    assert int(answers.results["tied sizes"].count_nonzero()) == 2
    assert ours(get("ties", density=0.5), "tied sizes").tolist() == [1.0, 1.0, 1.0, -1.0]


def test_29_of_100_are_28_there(answers: Answers) -> None:
    assert int(answers.results["29 of 100"].count_nonzero()) == 28
    assert int(ours(get("ties", density=0.29), "29 of 100").count_nonzero()) == 29


def test_dare_drops_by_a_generator_of_the_process_there_and_by_content_here(
    answers: Answers,
) -> None:
    assert not torch.equal(answers.results["dare once"], answers.results["dare again"])
    assert torch.equal(ours(get("dare"), "dare once"), ours(get("dare"), "dare again"))


def test_dare_keeps_the_sum_of_magnitudes_there_and_the_expectation_here(
    answers: Answers,
) -> None:
    delta = CASES["dare rescaled"].inputs[1].double()
    theirs = answers.results["dare rescaled"].double()
    ratios = set((theirs / delta)[theirs != 0].tolist())
    assert not any(abs(ratio - 2) < 1e-3 for ratio in ratios)
    assert math.isclose(float(theirs.sum()), float(delta.sum()), rel_tol=1e-6)
    mine = ours(get("dare", density=0.5), "dare rescaled")
    assert set((mine / delta)[mine != 0].tolist()) == {2.0}


def test_small_steps_have_no_angle_there(answers: Answers) -> None:
    ratio = 2 * math.sqrt(0.5) / (1 + math.sqrt(0.5))
    step = float(single(STEP))
    expected = torch.tensor([ratio * step, ratio * step / 2], dtype=torch.float64)
    merged = ours(get("model-stock"), "small steps")
    torch.testing.assert_close(merged, expected, rtol=1e-6, atol=0)
    assert float(answers.results["small steps"][0]) < 0.03 * float(expected[0])


def test_opposed_steps_are_amplified_there_and_none_are_taken_here(answers: Answers) -> None:
    assert float(answers.results["opposed"].norm()) > 3
    assert ours(get("model-stock"), "opposed").tolist() == [0.0, 0.0]


def test_slerp_of_fine_tunes_is_the_mean_there(answers: Answers) -> None:
    a, b = (each.double() for each in CASES["close"].inputs)
    assert float(a @ b / (a.norm() * b.norm())) > 0.9995
    mean = (a + b) / 2
    torch.testing.assert_close(answers.results["close"].double(), mean, rtol=1e-6, atol=1e-7)
    group = ListGroup([a, b])
    arc = run(get("slerp"), group)
    assert float((arc - mean).norm() / mean.norm()) > 1e-5
    straight = run(get("slerp", parallel=0.9995), group)
    torch.testing.assert_close(straight, mean, rtol=1e-12, atol=1e-12)


def test_multislerp_is_the_scaled_mean_there(answers: Answers) -> None:
    case = CASES["three units"]
    mean = sum(
        (w * each.double() for w, each in zip([0.2, 0.3, 0.5], case.inputs, strict=True)),
        torch.zeros(500, dtype=torch.float64),
    )
    theirs = answers.results["three units"].double()
    torch.testing.assert_close(theirs, mean / mean.norm(), rtol=1e-4, atol=1e-6)
    assert float((ours(get("multi-slerp"), "three units", [2, 3, 5]) - theirs).norm()) > 1e-3

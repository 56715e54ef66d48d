"""Torch modules and dicts of tensors as plugins: every dtype and layout, all or nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from sbp2p.errors import MergeError, NotFoundError
from sbp2p.plugins import Plugin, wrap
from sbp2p.plugins.slots import raw_of, tensor_of
from sbp2p.plugins.torch_module import TorchModule
from sbp2p.plugins.torch_tensors import TensorDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbp2p.checkpoint.reader import RawTensor

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32,
    torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


class WithExtraState(nn.Linear):
    """Keeps something beside its tensors, as the state dict has it."""

    def get_extra_state(self) -> dict[str, int]:
        return {"a": 1}


class FullyShardedDataParallel(nn.Linear):
    """Named as torch's, which needs a process group to be made."""

    def __init__(self) -> None:
        super().__init__(1, 1)


class Net(nn.Module):
    """Two layers that share weights, batch norm, and buffers of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(6, 4, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(0.5, dtype=torch.bfloat16))
        self.register_buffer("cache", torch.zeros(3), persistent=False)
        self.register_buffer("nothing", torch.zeros(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.embed(x) + self.head(x))
        return found


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    model(inputs).square().sum().backward()
    if optimizer is not None:
        optimizer.step()
    model.zero_grad()


def same(left: Mapping[str, RawTensor], right: Mapping[str, RawTensor]) -> bool:
    return list(left) == list(right) and all(
        (left[name].dtype, left[name].shape, left[name].data.tobytes())
        == (right[name].dtype, right[name].shape, right[name].data.tobytes())
        for name in left
    )


def number(dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor with all bit patterns of the first two elements' bytes."""
    size = torch.empty((), dtype=dtype).element_size()
    if dtype == torch.bool:
        return torch.tensor([[True, False], [False, True]])
    return torch.arange(4 * size, dtype=torch.uint8).view(dtype).reshape(2, 2).clone()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_survives_bit_for_bit(dtype: torch.dtype) -> None:
    whole = number(dtype)
    source = {"a": whole, "b": whole[0, 0].clone(), "c": torch.empty(0, 2, dtype=dtype)}
    target = {name: torch.zeros_like(tensor) for name, tensor in source.items()}
    wrap(target).load(wrap(source).tensors())
    for name, tensor in source.items():
        assert target[name].dtype == dtype
        assert target[name].shape == tensor.shape
        assert raw_of("", target[name]).data == raw_of("", tensor).data


def test_strides_do_not_matter_on_either_side() -> None:
    source = torch.arange(24.0).reshape(2, 3, 4)
    target = torch.zeros(24).as_strided((2, 3, 4), (1, 2, 6))
    wrap({"x": target}).load(wrap({"x": source}).tensors())
    assert torch.equal(target, source)
    assert torch.equal(tensor_of(wrap({"x": target}).tensors()["x"]), source)
    every_second = torch.arange(10.0)[::2]
    assert tensor_of(wrap({"x": every_second}).tensors()["x"]).tolist() == [0, 2, 4, 6, 8]


def test_conjugated_and_negated_views_are_read_as_they_look() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    assert tensor_of(wrap({"x": numbers.conj()}).tensors()["x"]).tolist() == [1 - 2j, 3 + 4j]
    assert tensor_of(wrap({"x": numbers.conj().imag}).tensors()["x"]).tolist() == [-2.0, 4.0]


def test_a_module_shares_what_its_state_dict_says_and_tied_weights_once() -> None:
    tensors = wrap(Net()).tensors()
    assert list(tensors) == [
        "scale", "nothing", "embed.weight", "norm.weight", "norm.bias", "norm.running_mean",
        "norm.running_var", "norm.num_batches_tracked",
    ]  # fmt: skip
    assert tensors["scale"].dtype == "BF16"
    assert tensors["scale"].shape == ()
    assert tensors["norm.num_batches_tracked"].dtype == "I64"


def test_loading_keeps_parameters_ties_and_the_optimizer_alive() -> None:
    donor, model = Net(), Net()
    train(donor)
    model.embed.weight.requires_grad_(False)
    optimizer = torch.optim.SGD([model.norm.weight], lr=0.1)
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    wrap(model).load(wrap(donor).tensors())
    assert same(wrap(model).tensors(), wrap(donor).tensors())
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.head.weight, donor.head.weight)
    assert not model.embed.weight.requires_grad
    assert model.norm.weight.requires_grad
    assert model.norm.weight.grad_fn is None
    assert optimizer.param_groups[0]["params"][0] is model.norm.weight
    train(model, optimizer)
    assert not torch.equal(model.norm.weight, donor.norm.weight)


def test_a_snapshot_does_not_follow_the_model() -> None:
    model = Net()
    tensors = wrap(model).tensors()
    copies = {name: tensor.data.tobytes() for name, tensor in tensors.items()}
    train(model, torch.optim.SGD(model.parameters(), lr=1.0))
    assert {name: tensor.data.tobytes() for name, tensor in tensors.items()} == copies


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("embed.weight"), "that did not come: 'embed.weight'"),
        (lambda t: t.update(x=t["scale"]), "does not have: 'x'"),
        (lambda t: t.update(scale=replace(t["scale"], dtype="F16")), "'scale' is F16, and BF16"),
        (lambda t: t.update(scale=replace(t["scale"], shape=(1,))), "'scale' has the shape"),
        (lambda t: t.update(scale=replace(t["scale"], data=memoryview(b"x"))), "1 bytes, not 2"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(change: Any, says: str) -> None:
    donor, model = Net(), Net()
    before = wrap(model).tensors()
    tensors = dict(wrap(donor).tensors())
    change(tensors)
    with pytest.raises(MergeError) as caught:
        wrap(model).load(tensors)
    assert says in str(caught.value)
    assert caught.value.hint
    assert same(wrap(model).tensors(), before)


def test_read_only_bytes_can_be_loaded() -> None:
    model = Net()
    tensors = {
        name: replace(tensor, data=memoryview(tensor.data.tobytes()))
        for name, tensor in wrap(Net()).tensors().items()
    }
    wrap(model).load(tensors)
    assert same(wrap(model).tensors(), tensors)


def test_compiled_and_data_parallel_models_are_the_model_inside() -> None:
    model = Net()
    names = list(wrap(model).tensors())
    compiled: Any = torch.compile(model, backend="eager")
    assert list(wrap(compiled).tensors()) == names
    assert list(wrap(nn.DataParallel(model)).tensors()) == names
    inner: Any = torch.compile(nn.Linear(2, 2), backend="eager")
    outer = nn.Sequential(inner)
    assert list(wrap(outer).tensors()) == ["0.weight", "0.bias"]
    wrap(compiled).load(wrap(Net()).tensors())


def test_a_view_within_another_tensor_is_not_listed_and_follows_it() -> None:
    base = torch.zeros(4, 3)
    tensors = {"row": base[1], "base": base, "turned": base.t()}
    assert list(wrap(tensors).tensors()) == ["base"]
    wrap(tensors).load({"base": raw_of("base", torch.arange(12.0).reshape(4, 3))})
    assert tensors["row"].tolist() == [3, 4, 5]


def refused() -> list[Any]:
    line = torch.zeros(6)
    lazy = nn.LazyLinear(3)
    inference = torch.inference_mode()(torch.zeros)(2)
    extra = WithExtraState(1, 1)
    taken_apart: Any = nn.Linear(1, 1)
    taken_apart.weight.ds_id = 1
    anew: Any = nn.Linear(1, 1)
    anew.register_state_dict_post_hook(
        lambda module, state, prefix, _: state.update(weight=module.weight * 2)
    )
    return [
        pytest.param(lazy, "'weight' has no shape yet", id="lazy"),
        pytest.param(nn.Linear(1, 1, device="meta"), "on the meta device", id="meta"),
        pytest.param(extra, "'_extra_state' is extra state, a dict", id="extra"),
        pytest.param(taken_apart, "'weight' is sharded", id="sharded"),
        pytest.param(nn.Sequential(FullyShardedDataParallel()), "are sharded", id="fsdp"),
        pytest.param(anew, "'weight' is made anew", id="anew"),
        pytest.param({"x": torch.eye(2).to_sparse()}, "not a plain tensor", id="sparse"),
        pytest.param({"x": torch.zeros(1).expand(3)}, "expanded view", id="expanded"),
        pytest.param({"x": inference}, "inference mode", id="inference"),
        pytest.param({"x": line[:4], "y": line[2:]}, "'x' and 'y' share a part", id="overlap"),
        pytest.param({"x": torch.zeros(2), "y": 3}, "'y' is a int", id="number"),
    ]


@pytest.mark.parametrize(("model", "says"), refused())
def test_what_cannot_be_shared_is_refused_by_name(model: Any, says: str) -> None:
    with pytest.raises(MergeError) as caught:
        wrap(model).tensors()
    assert says in str(caught.value)
    assert caught.value.hint


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_dtype_that_cannot_travel_is_refused() -> None:
    quantised = torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8)
    with pytest.raises(MergeError, match="is qint8, which cannot travel"):
        wrap({"x": quantised}).tensors()


def test_tensors_can_be_chosen_or_left_out() -> None:
    model = Net()
    assert list(wrap(model, only=["norm.*"], exclude=["*.num_batches_tracked"]).tensors()) == [
        "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
    ]  # fmt: skip
    model.embed.weight.requires_grad_(False)
    assert "embed.weight" not in wrap(model, frozen=False).tensors()
    assert "norm.running_mean" in wrap(model, frozen=False).tensors()
    with pytest.raises(NotFoundError, match="no tensor matches"):
        wrap(model, exclude=["haed.*"]).tensors()
    assert list(wrap(WithExtraState(1, 1), exclude=["_extra_state"]).tensors()) == [
        "weight",
        "bias",
    ]


def test_an_empty_dict_takes_what_comes() -> None:
    tensors = wrap(Net()).tensors()
    empty: dict[str, torch.Tensor] = {}
    TensorDict(empty).load(tensors)
    assert same(wrap(empty).tensors(), tensors)
    with pytest.raises(MergeError, match="an empty dict does not say"):
        wrap({})


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def reordered(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer that numbers the parameters the other way round."""
    return torch.optim.AdamW(list(model.parameters())[::-1], lr=0.01)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def adafactor(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(model.parameters(), lr=0.01)


@pytest.mark.parametrize(
    ("make", "make_other"),
    [(adam, adam), (adam, reordered), (momentum, momentum), (adafactor, adafactor)],
)
def test_an_optimizer_travels_by_names_and_goes_on_as_the_donors(
    make: Any, make_other: Any
) -> None:
    donor, model = Net(), Net()
    donors, own = make(donor), make_other(model)
    train(donor, donors)
    tensors = wrap(donor, optimizer=donors).tensors()
    plugin: Plugin = wrap(model, optimizer=own)
    plugin.load(tensors)  # fresh: it takes the state
    assert same(dict(sorted(plugin.tensors().items())), dict(sorted(tensors.items())))
    for _ in range(2):
        train(donor, donors)
        train(model, own)
    assert torch.equal(model.norm.weight, donor.norm.weight)
    plugin.load(wrap(donor, optimizer=donors).tensors())  # and now in place
    if make is adam:
        assert tensors["optimizer.norm.bias.step"].dtype == "I64"
        assert own.state[model.norm.bias]["step"].dtype == torch.float32


def test_a_plain_sgd_has_no_state_to_share() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    assert list(wrap(model, optimizer=optimizer).tensors()) == list(wrap(model).tensors())


def test_an_optimizer_that_cannot_be_shared_is_refused() -> None:
    model = Net()
    lbfgs: Any = torch.optim.LBFGS(model.parameters())

    def closure() -> Any:
        model.zero_grad()
        loss = model(torch.ones(4, 6)).sum()
        loss.backward()
        return loss.item()

    lbfgs.step(closure)
    with pytest.raises(MergeError, match="neither a tensor nor a number"):
        wrap(model, optimizer=lbfgs).tensors()
    with pytest.raises(MergeError, match="a parameter that the module does not have"):
        wrap(nn.Linear(1, 1), optimizer=adam(model)).tensors()


def test_state_of_an_optimizer_that_does_not_fit_changes_nothing() -> None:
    donor, model = Net(), Net()
    donors, own = adam(donor), adam(model)
    train(donor, donors)
    tensors = dict(wrap(donor, optimizer=donors).tensors())
    before = wrap(model).tensors()
    for name, value, says in (
        ("optimizer.norm.bias.exp_avg", torch.zeros(7), "has the shape"),
        ("optimizer.norm.other.exp_avg", torch.zeros(4), "does not have"),
        ("optimizer.norm.bias.step", torch.zeros((), dtype=torch.complex64), "no count of steps"),
    ):
        with pytest.raises(MergeError, match=says):
            wrap(model, optimizer=own).load({**tensors, name: raw_of(name, value)})
    del tensors["embed.weight"]
    with pytest.raises(MergeError, match="did not come"):
        wrap(model, optimizer=own).load(tensors)
    assert same(wrap(model).tensors(), before)
    assert not own.state


def test_the_same_shape_in_another_model_is_another_name() -> None:
    with pytest.raises(MergeError, match="and 3 more"):
        wrap(nn.Linear(1, 1)).load({**wrap(Net()).tensors(), **wrap(nn.Linear(1, 1)).tensors()})
    assert isinstance(wrap(Net()), TorchModule)

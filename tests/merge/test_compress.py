"""Codecs: what comes back, what is lost and said later, and what they are called."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import CheckpointError, ConfigError, MergeError
from sbp2p.merge.compress import codec as codecs
from sbp2p.merge.compress.arrays import flat, raw
from sbp2p.merge.compress.codec import Codec, decode_update, get_codec, names
from sbp2p.merge.compress.content import content_digest
from sbp2p.merge.compress.description import DESCRIPTION, Description
from sbp2p.merge.compress.feedback import Feedback
from sbp2p.merge.dtypes import TORCH
from sbp2p.merge.memory import merge_in_memory
from tests.merge.compress_samples import (
    CODECS,
    PARENTED,
    of,
    random_bits,
    same,
    step,
    weights,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbp2p.merge.compress.codec import Encoded

LOSSLESS = ("lossless", "delta")
each_codec = pytest.mark.parametrize("name", CODECS)

models = st.dictionaries(
    st.sampled_from(["w", "layer.0.weight", "raw:w", "\u00e9", ""]),
    st.tuples(
        st.sampled_from(sorted(TORCH)),
        st.sampled_from([(), (0,), (1,), (3, 0, 2), (7,), (16, 20), (2, 3, 129)]),
        st.integers(0, 10**6),
    ),
    max_size=4,
)


def made(rows: Mapping[str, tuple[str, tuple[int, ...], int]]) -> dict[str, RawTensor]:
    found = {}
    for name, (dtype, shape, seed) in rows.items():
        count = torch.Size(shape).numel()
        found[name] = raw(name, random_bits(dtype, count, seed), shape)
    return found


def roundtrip(encoded: Encoded, parent: Mapping[str, RawTensor] | None) -> dict[str, RawTensor]:
    decoded = decode_update(encoded.tensors, parent)
    assert same(decoded, encoded.result)
    assert all(decoded[name].name == name for name in decoded)
    return decoded


# -- what comes back -------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(models, models, st.sampled_from(CODECS))
def test_any_bits_of_any_dtype(before: Any, after: Any, name: str) -> None:
    parent, model = made(before), made(after)
    for base in (None, parent):
        encoded = get_codec(name).encode(model, base)
        decoded = roundtrip(encoded, base)
        assert decoded.keys() == model.keys()
        for each, tensor in decoded.items():
            assert (tensor.dtype, tensor.shape) == (model[each].dtype, model[each].shape)
        if name in LOSSLESS:
            assert same(decoded, model)


@each_codec
def test_nan_and_infinities_travel_with_every_bit(name: str) -> None:
    values = weights(600)
    parent = of(w=values.clone())
    values.view(torch.int32)[5] = 0x7FA00123  # a signalling NaN with a payload
    values.view(torch.int32)[6] = -0x5FFEDD  # a quiet one, negative
    values[7], values[8] = float("-inf"), -0.0
    model = of(w=values)
    for base in (None, parent):
        assert same(roundtrip(get_codec(name).encode(model, base), base), model)


@each_codec
def test_what_is_not_weights_is_not_changed(name: str) -> None:
    model = of(
        counter=torch.tensor(12345),
        mask=torch.tensor([True, False] * 300),
        norm=weights(255),
        ids=torch.arange(1000),
        small=weights(1000).to(torch.float8_e4m3fn),
        phase=torch.complex(weights(300), weights(300, 1)),
    )
    assert same(roundtrip(get_codec(name).encode(model), None), model)


@pytest.mark.parametrize("name", PARENTED)
def test_what_did_not_change_takes_almost_no_bytes(name: str) -> None:
    model = of(**{f"layer.{number}": weights(50_000, number) for number in range(4)})
    encoded = get_codec(name).encode(model, model)
    assert encoded.nbytes < 400
    assert same(roundtrip(encoded, model), model)
    one = {**model, "layer.2": raw("layer.2", weights(50_000, 9))}
    assert get_codec(name).encode(one, model).nbytes < 200_000


def test_lossless_is_the_model_itself() -> None:
    model = of(w=weights(5000))
    encoded = get_codec("lossless").encode(model)
    assert dict(encoded.tensors) == model
    assert (encoded.state, dict(encoded.metadata)) == (None, {})
    assert decode_update(model) == model


def test_any_of_them_decodes_what_the_others_made() -> None:
    model, parent = of(w=weights(1000)), of(w=weights(1000, 1))
    for name in PARENTED:
        encoded = get_codec(name).encode(model, parent)
        assert same(get_codec("lossless").decode(encoded.tensors, parent), encoded.result)
        assert same(get_codec("bf16").decode(encoded.tensors, parent), encoded.result)


# -- how small, and how near -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "most"), [(1e-7, 0.006), (1e-6, 0.025), (1e-5, 0.10), (1e-4, 0.30)]
)
def test_how_small_a_step_becomes(size: float, most: float) -> None:
    master = weights(200_000)
    parent = of(w=master.bfloat16())
    model = of(w=(master + step(200_000, size)).bfloat16())
    encoded = get_codec("delta").encode(model, parent)
    assert encoded.nbytes <= most * 400_000
    assert same(roundtrip(encoded, parent), model)


def test_without_a_parent_the_exponents_shrink() -> None:
    model = of(w=weights(200_000, dtype=torch.bfloat16))
    encoded = get_codec("delta").encode(model)
    assert encoded.nbytes < 0.69 * 400_000
    assert same(roundtrip(encoded, None), model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("has_parent", [False, True])
def test_int8_is_near(dtype: torch.dtype, has_parent: bool) -> None:
    master = weights(10_000)
    parent = of(w=master.to(dtype))
    values = (master + step(10_000, 1e-3)).to(dtype)
    base = flat(parent["w"]).double() if has_parent else torch.zeros(10_000).double()
    encoded = get_codec("int8").encode(of(w=values), parent if has_parent else None)
    assert encoded.nbytes < 10_000 * (1 + 4 / 256) + 250
    decoded = flat(roundtrip(encoded, parent)["w"]).double()
    changes = (values.double() - base).abs()
    padded = torch.zeros(10_240, dtype=torch.float64)
    padded[:10_000] = changes
    bound = padded.view(-1, 256).amax(1).repeat_interleave(256)[:10_000] / 127 / 2
    rounding = decoded.abs() * torch.finfo(dtype).eps + 1e-9
    assert bool(((decoded - values.double()).abs() <= bound * 1.001 + rounding).all())


def test_half_precision() -> None:
    values = weights(1000)
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        encoded = get_codec(name).encode(of(w=values))
        assert encoded.nbytes < 2300
        assert torch.equal(flat(roundtrip(encoded, None)["w"]), values.to(dtype).float())
        assert same(encoded.result, roundtrip(encoded, None))
    already = of(w=weights(1000, dtype=torch.bfloat16))
    assert same(get_codec("fp16").encode(already).result, already)
    beyond = of(w=weights(1000) + 70_000)
    assert same(roundtrip(get_codec("fp16").encode(beyond), None), beyond)


def test_topk_says_the_largest_changes_exactly() -> None:
    base = weights(10_000, dtype=torch.bfloat16)
    values = (base.float() + step(10_000, 1e-2)).bfloat16()
    parent = of(w=base)
    encoded = get_codec("topk:0.01").encode(of(w=values), parent)
    decoded = flat(roundtrip(encoded, parent)["w"])
    changed = (decoded != base).nonzero().view(-1)
    assert changed.numel() == 100
    assert torch.equal(decoded[changed], values[changed])
    changes = (values.float() - base.float()).abs()
    others = torch.ones(10_000, dtype=torch.bool)
    others[changed] = False
    assert float(changes[changed].min()) >= float(changes[others].max())
    assert encoded.nbytes < 650


def test_topk_of_equal_changes_takes_the_first() -> None:
    parent = of(w=torch.zeros(1000))
    encoded = get_codec("topk:0.01").encode(of(w=torch.ones(1000)), parent)
    assert flat(encoded.result["w"]).nonzero().view(-1).tolist() == list(range(10))


# -- nothing is lost in the long run ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8"])
def test_the_mean_of_many_updates_is_what_was_meant(name: str) -> None:
    """hivemind#195: what rounding leaves out is said later, so that it does not add up."""
    codec, values = get_codec(name), weights(1000)
    state: Feedback | None = None
    total = torch.zeros(1000, dtype=torch.float64)
    rounds = 64
    for _ in range(rounds):
        encoded = codec.encode(of(w=values), None, state)
        state = encoded.state
        total += flat(encoded.result["w"]).double()
    once = (flat(codec.encode(of(w=values)).result["w"]).double() - values.double()).abs().mean()
    often = (total / rounds - values.double()).abs().mean()
    assert float(once) > 0
    assert float(often) < 1.2 * float(once) / rounds * 2 + 1e-9
    assert state is not None
    left = flat(state.residuals["w"]).double()
    assert torch.allclose(total + left, values.double() * rounds, atol=1e-6)


@pytest.mark.parametrize(("name", "rounds"), [("int8", 4), ("topk:0.1", 10)])
def test_a_chain_of_parents_arrives_at_the_model(name: str, rounds: int) -> None:
    codec = get_codec(name)
    first = codec.encode(of(w=weights(1000)))
    values = weights(1000) + step(1000, 1e-3)
    state, parent = first.state, first.result
    for _ in range(rounds):
        encoded = codec.encode(of(w=values), parent, state)
        parent, state = roundtrip(encoded, parent), encoded.state
    assert torch.allclose(flat(parent["w"]), values, atol=2e-9)


def test_what_another_parent_lacks_is_said_later() -> None:
    """With a parent that is not the last result, what was left out is added."""
    codec, base = get_codec("topk:0.1"), of(w=torch.zeros(1000))
    values = torch.linspace(1, 2, 1000)
    state: Feedback | None = None
    said = torch.zeros(1000, dtype=torch.bool)
    for _ in range(20):
        encoded = codec.encode(of(w=values), base, state)
        state = encoded.state
        said |= flat(encoded.result["w"]) != 0
    assert bool(said.all())


@pytest.mark.parametrize("name", ["int8", "topk:0.05"])
def test_peers_with_a_parent_in_common_lose_nothing(name: str) -> None:
    """The shared model and the mean of what was left out are together the mean of all models."""
    codec, count = get_codec(name), 4
    shared = of(w=weights(2000))
    states: list[Feedback | None] = [None] * count
    meant = flat(shared["w"]).double()
    for number in range(12):
        said, left = [], []
        for peer in range(count):
            learned = step(2000, 1e-3, seed=100 * number + peer)
            meant = meant + learned.double() / count
            model = of(w=flat(shared["w"]) + learned)
            parent = shared if number % 5 else None  # whole now and then, for newcomers
            encoded = codec.encode(model, parent, states[peer])
            states[peer] = encoded.state
            assert encoded.state is not None
            said.append(flat(roundtrip(encoded, parent)["w"]).double())
            left.append(flat(encoded.state.residuals["w"]).double())
        shared = of(w=torch.stack(said).mean(0).float())
        together = flat(shared["w"]).double() + torch.stack(left).mean(0)
        assert torch.allclose(together, meant, atol=1e-7)


def test_the_state_is_not_used_twice() -> None:
    codec, values = get_codec("int8"), weights(1000) + step(1000, 1e-2)
    first = codec.encode(of(w=weights(1000)))
    with_state = codec.encode(of(w=values), first.result, first.state)
    without = codec.encode(of(w=values), first.result, None)
    assert same(with_state.result, without.result)
    other = of(w=weights(1000, 5))
    assert not same(
        codec.encode(of(w=values), other, first.state).result,
        codec.encode(of(w=values), other, None).result,
    )


@each_codec
def test_encoding_changes_nothing_that_it_is_given(name: str) -> None:
    codec = get_codec(name)
    parent, model = of(w=weights(1000, 1)), of(w=weights(1000))
    state = codec.encode(of(w=weights(1000, 2))).state
    given = (parent, model, state.residuals if state else {})
    before = [{each: bytes(tensor.data) for each, tensor in one.items()} for one in given]
    again = [codec.encode(model, parent, state) for _ in range(2)]
    assert same(again[0].tensors, again[1].tensors)
    after = [{each: bytes(tensor.data) for each, tensor in one.items()} for one in given]
    assert after == before


def test_a_state_is_saved_and_read() -> None:
    state = get_codec("int8").encode(of(w=weights(1000), b=weights(300))).state
    assert state is not None
    again = Feedback.from_tensors(state.to_tensors())
    assert again.digest == state.digest
    assert same(again.residuals, state.residuals)
    assert set(state.residuals) == {"w", "b"}
    for broken in ({}, of(w=weights(10)), {**state.to_tensors(), **of(x=torch.arange(3))}):
        with pytest.raises(CheckpointError):
            Feedback.from_tensors(broken)


def test_a_state_of_another_model_is_left_alone() -> None:
    state = get_codec("int8").encode(of(w=weights(1000), gone=weights(500))).state
    encoded = get_codec("int8").encode(of(w=weights(400), new=weights(600)), None, state)
    assert encoded.state is not None
    assert set(encoded.state.residuals) == {"w", "new"}


def test_peers_that_agree_do_not_lose_bits() -> None:
    """hivemind#195: with the default, and with `delta`, the mean of equal models is the model."""
    model = of(w=weights(3000, dtype=torch.bfloat16), b=weights(30))
    for name in LOSSLESS:
        decoded = [roundtrip(get_codec(name).encode(model, model), model) for _ in range(3)]
        states = [{each: flat(tensor) for each, tensor in one.items()} for one in decoded]
        merged = merge_in_memory(states)
        assert same({each: raw(each, value) for each, value in merged.items()}, model)


# -- what they are called --------------------------------------------------------------------------


@each_codec
def test_text_is_read_as_it_is_written(name: str) -> None:
    codec = get_codec(name)
    assert codec.text == name
    assert get_codec(codec.text) == codec
    assert hash(codec) == hash(get_codec(name))
    assert name in repr(codec)
    assert name.partition(":")[0] in names()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gzip", "'gzip' is no codec"),
        ("", "'' is no codec"),
        ("int8:4", "no options"),
        ("lossless:1", "no options"),
        ("fp16:", "no options"),
        ("topk", "say which fraction"),
        ("topk:0", "not over 0"),
        ("topk:1.5", "at most 1"),
        ("topk:-0.1", "not a fraction"),
        ("topk:1e-3", "not a fraction"),
        ("topk:1/3", "not a fraction"),
        ("topk:.", "not a fraction"),
        ("topk:\u00b2", "not a fraction"),
        ("x" * 100, "too long"),
    ],
)
def test_other_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        get_codec(text)


def test_codecs_of_others() -> None:
    class Rot(Codec):
        """Not much of a codec."""

        text = "rot"

        def encode(self, tensors: Any, parent: Any = None, state: Any = None) -> Any:
            rows = Description(self.text, content_digest(tensors), None, {})
            return {**tensors, DESCRIPTION: rows.to_tensor()}

        def decode(self, tensors: Any, parent: Any = None, *, bytes_max: Any = None) -> Any:
            return {name: tensor for name, tensor in tensors.items() if name != DESCRIPTION}

    codecs.register("rot", lambda options: Rot())
    try:
        model = of(w=weights(5))
        assert "rot" in names()
        assert same(decode_update(get_codec("rot").encode(model)), model)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="names another one"):
            codecs.register("rot", lambda options: Rot())
        with pytest.raises(ValueError, match="cannot name"):
            codecs.register("a:b", lambda options: Rot())
    finally:
        del codecs._registered["rot"]


def test_finding_a_codec_imports_no_torch() -> None:
    program = (
        "import sys, sbp2p.merge.compress.codec as codec; codec.names(); "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# -- what is refused -------------------------------------------------------------------------------


def test_a_parent_that_is_not_here() -> None:
    parent, model = of(w=weights(1000)), of(w=weights(1000) + 1e-3)
    for name in PARENTED:
        encoded = get_codec(name).encode(model, parent)
        for wrong in (None, {}, of(w=weights(1000) * 2), of(v=weights(1000))):
            with pytest.raises(CheckpointError, match="a version that is not here"):
                decode_update(encoded.tensors, wrong)


def test_sizes_are_checked_before_anything_is_made() -> None:
    model = of(w=weights(100_000))
    for name in CODECS:
        encoded = get_codec(name).encode(model)
        decode_update(encoded.tensors, None, bytes_max=400_000)
        with pytest.raises(CheckpointError, match="decodes to 400000 bytes: over 399999"):
            decode_update(encoded.tensors, None, bytes_max=399_999)


def test_a_dtype_that_nobody_knows() -> None:
    model = {"w": RawTensor("w", "Q4_0", (256,), memoryview(bytes(144)))}
    assert same(get_codec("lossless").encode(model).result, model)
    for name in ("delta", "int8"):
        with pytest.raises(MergeError, match="Q4_0"):
            get_codec(name).encode(model)


def test_an_update_by_a_codec_that_is_not_here() -> None:
    encoded = get_codec("int8").encode(of(w=weights(1000)))
    description = replace(Description.read(encoded.tensors), codec="brotli")
    with pytest.raises(CheckpointError, match="'brotli' is no codec"):
        decode_update({**encoded.tensors, DESCRIPTION: description.to_tensor()})

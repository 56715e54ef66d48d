"""Updates of hostile peers: refused with a CheckpointError, and never larger than allowed."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import CheckpointError
from sbp2p.merge.compress.codec import EXPANSION_FREE, decode_update, get_codec
from sbp2p.merge.compress.description import DESCRIPTION, Description
from sbp2p.merge.tensors import TensorSpec
from sbp2p_protocol.dag_cbor import decode, encode
from tests.fuzz.mutate import havoc
from tests.merge.compress_samples import PARENTED, of, step, weights

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL = of(w=weights(600) + step(600, 1e-3), b=torch.arange(300, dtype=torch.int32))
PARENT = of(w=weights(600), b=torch.arange(300, dtype=torch.int32))


def update(name: str, parent: Mapping[str, RawTensor] | None = None) -> dict[str, RawTensor]:
    return dict(get_codec(name).encode(MODEL, parent).tensors)


def described(given: Mapping[str, RawTensor], /, **changes: Any) -> dict[str, RawTensor]:
    """Return an update with another description."""
    description = replace(Description.read(given), **changes)
    return {**given, DESCRIPTION: description.to_tensor()}


def row(dtype: str, shape: tuple[int, ...], packing: str) -> dict[str, tuple[TensorSpec, str]]:
    return {"w": (TensorSpec("w", dtype, shape), packing)}


def test_another_result_than_promised() -> None:
    for name in ("bf16", *PARENTED):
        with pytest.raises(CheckpointError, match="not decode to what its publisher meant"):
            decode_update(described(update(name, PARENT), digest=bytes(32)), PARENT)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (row("F32", (2**40,), "raw"), "decodes to 4398046511104 bytes"),
        (row("F32", (2**62, 2**62), "planes"), "decodes to"),
        (row("F32", (600,), "zip"), "packed as 'zip'"),
        (row("F32", (601,), "int8"), "no part 'int8'"),
        (row("F32", (600,), "cast"), "no part 'cast'"),
        (row("F32", (600,), "raw"), "no part 'raw'"),
        (row("F32", (600,), "planes"), "has no bits"),
        (row("F32", (0,), "planes"), "has no bits"),
        (row("I32", (600,), "int8"), "cannot be"),
        (row("F32", (600,), "same"), "like the parent's, which there is not"),
        (row("F32", (600,), "bits"), "like the parent's, which there is not"),
        (row("F32", (600,), "int8-delta"), "like the parent's, which there is not"),
    ],
)
def test_descriptions_that_do_not_fit(rows: Any, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        decode_update(described(update("int8"), tensors=rows))


def test_a_parent_of_another_shape() -> None:
    for packing in ("same", "bits", "int8-delta"):
        tensors = described(update("delta", PARENT), tensors=row("F32", (300, 2), packing))
        with pytest.raises(CheckpointError, match="like the parent's, which there is not"):
            decode_update(tensors, PARENT)


def test_parts_of_another_form() -> None:
    for codec, name in (("int8", "int8:w"), ("int8", "scale:w"), ("delta", "bits:w")):
        tensors = update(codec)
        part = tensors[name]
        shape = (1, *part.shape)
        for wrong in (replace(part, dtype="F64"), replace(part, data=part.data[:-1])):
            with pytest.raises(CheckpointError):
                decode_update({**tensors, name: wrong})
        if codec == "int8":
            with pytest.raises(CheckpointError, match="as it should be"):
                decode_update({**tensors, name: replace(part, shape=shape)})


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.pop("digest"),
        lambda found: found.update(more=1),
        lambda found: found.update(format=2),
        lambda found: found.update(codec="a\nb"),
        lambda found: found.update(codec="x" * 65),
        lambda found: found.update(codec=5),
        lambda found: found.update(digest=b"short"),
        lambda found: found.update(parent=b"short"),
        lambda found: found.update(parent="x"),
        lambda found: found.update(tensors=[]),
        lambda found: found["tensors"].update(w=1),
        lambda found: found["tensors"].update(w=["F32", [600]]),
        lambda found: found["tensors"].update(w=["F32", "600", "raw"]),
        lambda found: found["tensors"].update(w=[1, [600], "raw"]),
        lambda found: found["tensors"].update(w=["F32", [-1], "raw"]),
        lambda found: found["tensors"].update(w=["F32", [True], "raw"]),
        lambda found: found["tensors"].update(w=["F32", [2**63], "raw"]),
        lambda found: found["tensors"].update(w=["F32", [1] * 65, "raw"]),
        lambda found: found["tensors"].update(w=["Q4_0", [600], "raw"]),
        lambda found: found["tensors"].update(w=["F32", [600], "x" * 33]),
        lambda found: found["tensors"].update({"w" * 5000: ["F32", [600], "raw"]}),
    ],
)
def test_descriptions_that_are_none(change: Any) -> None:
    tensors = update("int8")
    value = decode(bytes(tensors[DESCRIPTION].data))
    change(value)
    data = encode(value)
    part = RawTensor(DESCRIPTION, "U8", (len(data),), memoryview(data))
    with pytest.raises(CheckpointError, match="a malformed update"):
        decode_update({**tensors, DESCRIPTION: part})
    for wrong in (replace(tensors[DESCRIPTION], dtype="I8"), replace(part, shape=(1, 1))):
        with pytest.raises(CheckpointError, match="a malformed update"):
            decode_update({**tensors, DESCRIPTION: wrong})


def test_zeros_do_not_become_endless() -> None:
    """A megabyte of zeros takes four bytes, so what an update may become is bounded."""
    count = EXPANSION_FREE // 4 + 1
    tensors = described(update("delta"), tensors=row("F32", (count,), "planes"))
    with pytest.raises(CheckpointError, match="decodes to"):
        decode_update(tensors)
    with pytest.raises(CheckpointError, match="over 2400"):
        decode_update(described(update("delta"), tensors=row("F32", (601,), "raw")), bytes_max=2400)


@pytest.mark.parametrize("name", ["bf16", *PARENTED])
@pytest.mark.parametrize("has_parent", [False, True])
def test_no_mutation_does_anything_else(name: str, has_parent: bool) -> None:
    parent = PARENT if has_parent else None
    tensors = update(name, parent)
    rng = Random(f"{name} {has_parent}")  # noqa: S311
    limit = sum(tensor.data.nbytes for tensor in MODEL.values())
    for _ in range(60):
        chosen = rng.choice(sorted(tensors))
        part = tensors[chosen]
        data = havoc(rng, bytes(part.data), (), ())
        shape = (len(data),) if part.dtype == "U8" else part.shape
        changed = {**tensors, chosen: replace(part, shape=shape, data=memoryview(data))}
        try:
            decoded = decode_update(changed, parent, bytes_max=limit)
        except CheckpointError:
            continue
        # the digest lets nothing through but what means the same
        assert {each: bytes(tensor.data) for each, tensor in decoded.items()} == {
            each: bytes(tensor.data)
            for each, tensor in get_codec(name).encode(MODEL, parent).result.items()
        } or chosen == DESCRIPTION

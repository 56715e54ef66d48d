"""Format parsers on real files, on edited ones, and on garbage."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as save_numpy
from safetensors.torch import save as save_torch

from sbp2p.checkpoint.formats import ByteSource, Inspection, Layout, gguf, inspect, safetensors

TORCH_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32,
    torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip


def header(tensors: dict[str, Any], data: int, *, before: bytes = b"", after: bytes = b"") -> bytes:
    """A safetensors file with this JSON, padded in front and behind, and `data` zero bytes."""
    text = before + json.dumps(tensors).encode() + after
    return len(text).to_bytes(8, "little") + text + bytes(data)


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def look(data: bytes) -> Inspection:
    found = inspect(ByteSource.from_bytes(data))
    if found.layout is not None:
        check_layout(found.layout, len(data))
    return found


def check_layout(layout: Layout, size: int) -> None:
    """What every layout must be, whatever bytes it came from."""
    end = 0
    for offset, length in layout.spans:
        assert offset >= end
        assert length > 0
        end = offset + length
    assert end <= size
    for tensor in layout.tensors or ():
        assert tensor.offset >= 0
        assert tensor.length >= 0
        assert tensor.offset + tensor.length <= size
        tensor.name.encode()


def gguf_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_file(
    tensors: list[tuple[str, tuple[int, ...], int, int]],
    data: int,
    *,
    metadata: list[tuple[str, int, bytes]] | None = None,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A GGUF file; tensors are (name, dimensions innermost first, type, offset)."""
    pairs = metadata or []
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    for key, kind, value in pairs:
        out += gguf_text(key) + struct.pack("<I", kind) + value
    for name, shape, kind, offset in tensors:
        out += gguf_text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        out += struct.pack("<IQ", kind, offset)
    return out + bytes(-len(out) % alignment) + bytes(data)


def torch_file(tensors: dict[str, torch.Tensor]) -> bytes:
    out = io.BytesIO()
    torch.save(tensors, out)
    return out.getvalue()


SAMPLES = {
    "safetensors": save_torch(
        {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(5, dtype=torch.bfloat16)},
        metadata={"format": "pt"},
    ),
    "gguf": gguf_file(
        [("x", (4, 2), 0, 0), ("y", (32,), 2, 32)],
        64,
        metadata=[
            ("general.name", 8, gguf_text("t")),
            ("n", 4, struct.pack("<I", 3)),
            ("tokens", 9, struct.pack("<IQ", 8, 2) + gguf_text("ab") + gguf_text("")),
        ],
    ),
    "pytorch_zip": torch_file({"w": torch.zeros(3, 4), "v": torch.ones(2)}),
}


# -- safetensors --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_every_torch_dtype_is_described_as_saved(dtype: torch.dtype) -> None:
    tensors = {
        "matrix": torch.zeros(3, 2, dtype=torch.uint8).to(dtype),
        "scalar": torch.zeros((), dtype=torch.uint8).to(dtype),
        "empty": torch.zeros(0, 4, dtype=torch.uint8).to(dtype),
    }
    layout = look(save_torch(tensors)).layout
    assert layout is not None
    assert layout.format == "safetensors"
    assert layout.tensors is not None
    found = {t.name: (t.shape, t.length) for t in layout.tensors}
    width = tensors["scalar"].element_size()
    assert found == {"matrix": ((3, 2), 6 * width), "scalar": ((), width), "empty": ((0, 4), 0)}
    assert len(layout.spans) == 2


def test_numpy_file_offsets_point_at_the_values() -> None:
    data = save_numpy({"a": np.arange(4, dtype=np.int32), "b": np.array(7.5)})
    layout = look(data).layout
    assert layout is not None
    assert layout.tensors is not None
    values = {t.name: data[t.offset : t.offset + t.length] for t in layout.tensors}
    assert values == {"a": np.arange(4, dtype=np.int32).tobytes(), "b": np.array(7.5).tobytes()}


def test_unknown_dtype_is_opaque_bytes_and_sub_byte_dtypes_are_counted_in_bits() -> None:
    layout = look(
        header({"q": entry("NEW5", [3, 3], 0, 7), "f": entry("F4", [2, 3], 7, 10)}, 10)
    ).layout
    assert layout is not None
    assert layout.tensors is not None
    assert [(t.dtype, t.length) for t in layout.tensors] == [("NEW5", 7), ("F4", 3)]


def test_no_tensors_and_odd_but_legal_spelling() -> None:
    empty = look(header({}, 0))
    assert empty.layout is not None
    assert empty.layout.spans == ()
    text = (
        b'{ "\\u00e9" : {\n"shape":[ 1 , 2 ], "data_offsets" : [0,2],"dtype":"U8"} ,'
        b' "__metadata__":{} }  '
    )
    odd = look(len(text).to_bytes(8, "little") + text + b"ab").layout
    assert odd is not None
    assert odd.tensors is not None
    assert odd.tensors[0].name == "\u00e9"
    assert odd.tensors[0].shape == (1, 2)


def test_wrong_width_keeps_the_cuts_and_drops_the_descriptions() -> None:
    found = look(header({"a": entry("F32", [3], 0, 8), "b": entry("U8", [4], 8, 12)}, 12))
    assert found.layout is not None
    assert [length for _, length in found.layout.spans] == [8, 4]
    assert found.layout.tensors is None
    assert "'a'" in found.note


U8 = entry("U8", [4], 0, 4)


@pytest.mark.parametrize(
    "data",
    [
        header({"a": entry("U8", [4], 1, 5)}, 5),
        header({"a": U8, "b": entry("U8", [4], 2, 6)}, 6),
        header({"a": U8}, 5),
        header({"a": U8}, 3),
        header({"a": entry("U8", [4], 4, 0)}, 4),
        header({"a": U8}, 4, after=b"x"),
        header({"a": {**U8, "extra": 1}}, 4),
        header({"a": {"dtype": "U8", "shape": [4]}}, 4),
        header({"a": {**U8, "shape": [-4]}}, 4),
        header({"a": {**U8, "shape": [4.0]}}, 4),
        header({"a": {**U8, "shape": [[4]]}}, 4),
        header({"a": {**U8, "shape": [1] * 65}}, 4),
        header({"a": {**U8, "dtype": 4}}, 4),
        header({"a": 4, "b": U8}, 4),
        header({"\ud800": U8}, 4),
        header({"a": U8, "__metadata__": {"n": 1}}, 4),
        b"\x09" + bytes(7) + b'{"a": "\xff' + bytes(20),
        len(b'{"a":{},"a":{}}').to_bytes(8, "little") + b'{"a":{},"a":{}}',
        (lambda t: len(t).to_bytes(8, "little") + t + bytes(4))(
            f'{{"a":{json.dumps(U8)},"a":{json.dumps(U8)}}}'.encode()
        ),
        (200_000).to_bytes(8, "little") + b'{"a":' + b"[" * 199_995,
        (200_000).to_bytes(8, "little") + b'{"a' + b'\\"' * 100_000,
    ],
)
def test_malformed_safetensors_is_opaque_with_a_note(data: bytes) -> None:
    found = look(data)
    assert found.layout is None
    assert "safetensors" in found.note


def reference(data: bytes) -> dict[str, tuple[tuple[int, ...], bytes]] | None:
    """What the safetensors library makes of these bytes; None if it refuses them."""
    try:
        found = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError:
        return None
    return {name: (tuple(info["shape"]), bytes(info["data"])) for name, info in found}


def test_accepts_what_the_reference_accepts_and_nothing_else_but_new_dtypes() -> None:
    rng = random.Random(5)  # noqa: S311
    tensors = {"a": torch.arange(6.0), "b": torch.ones(5).bfloat16(), "c": torch.zeros(0)}
    original = save_torch(tensors, metadata={"f": "p"})
    accepted = 0
    for _ in range(8000):
        data = bytearray(original)
        for _ in range(rng.choice([1, 1, 2])):
            data[rng.randrange(8, len(data))] = rng.choice(b'{}[]":,0123456789 \\abF')
        found = look(bytes(data))
        theirs = reference(bytes(data))
        if found.layout is None or found.layout.tensors is None:
            # the library takes the last of two tensors of one name; the format forbids the second
            assert theirs is None or len(theirs) < len(tensors), found.note
            continue
        if any(t.dtype not in safetensors.DTYPE_BITS for t in found.layout.tensors):
            continue
        accepted += 1
        ours = {
            t.name: (t.shape, bytes(data[t.offset : t.offset + t.length]))
            for t in found.layout.tensors
        }
        assert ours == theirs
    assert accepted > 200


def test_messages_stay_short_whatever_the_names() -> None:
    found = look(header({"n" * 100_000: entry("U8", [4], 1, 5)}, 5))
    assert 0 < len(found.note) < 300


def test_header_longer_than_the_format_allows_is_not_read() -> None:
    reads: list[int] = []

    def pread(length: int, offset: int) -> bytes:
        reads.append(length)
        return ((100_000_001).to_bytes(8, "little") + b"{" + bytes(40))[offset : offset + length]

    found = inspect(ByteSource(1 << 40, pread))
    assert found.layout is None
    assert "100000001" in found.note
    assert max(reads) < 100


def test_other_bytes_are_opaque_without_a_note() -> None:
    for data in (b"", b"{}", b"hello, world", bytes(100), b"PK\x05\x06" + bytes(18)):
        assert look(data) == Inspection(None)


# -- PyTorch zip --------------------------------------------------------------------------------


def test_storages_of_a_torch_archive_lie_where_the_index_says() -> None:
    tensors = {f"t{i}": torch.arange(1000 + i, dtype=torch.int32) for i in range(3)}
    tensors["tied"] = tensors["t0"]
    data = torch_file({**tensors, "empty": torch.zeros(0)})
    layout = look(data).layout
    assert layout is not None
    assert layout.format == "pytorch_zip"
    assert layout.tensors is not None
    stored = {data[t.offset : t.offset + t.length] for t in layout.tensors}
    assert stored == {t.numpy().tobytes() for t in tensors.values()} | {b""}
    assert [t.dtype for t in layout.tensors] == ["STORAGE"] * 4


def test_torch_archive_is_never_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (exec, ("raise SystemExit('unpickled')",))

    out = io.BytesIO()
    torch.save({"w": torch.zeros(4), "bomb": Bomb()}, out)
    layout = look(out.getvalue()).layout
    assert layout is not None
    assert len(layout.spans) == 1


def make_zip(entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return out.getvalue()


def test_plain_zip_layouts() -> None:
    assert look(make_zip({"a.txt": b"x" * 100})) == Inspection(None)
    plain = look(make_zip({"m/data.pkl": b"p", "m/data/0": b"y" * 50, "m/x/data/1": b"z"})).layout
    assert plain is not None
    assert [length for _, length in plain.spans] == [50]
    packed = look(make_zip({"m/data.pkl": b"p", "m/data/0": b"y" * 50}, zipfile.ZIP_DEFLATED))
    assert packed.layout is not None
    assert packed.layout.spans == ()
    two = look(make_zip({"m/data.pkl": b"p", "n/data.pkl": b"p"}))
    assert "more than one" in two.note


def test_zip64_sizes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 20)  # as if every number were over 4 GiB
    data = make_zip({"m/data.pkl": b"p" * 30, "m/data/0": b"y" * 50, "m/data/1": b"z" * 60})
    assert data.count(b"\xff\xff\xff\xff") >= 6
    layout = look(data).layout
    assert layout is not None
    assert [data[at : at + size] for at, size in layout.spans] == [b"y" * 50, b"z" * 60]


def test_zip_with_a_lying_local_header_is_opaque() -> None:
    data = bytearray(make_zip({"m/data.pkl": b"p", "m/data/0": b"y" * 50}))
    data[data.index(b"m/data/0")] = ord("n")
    assert "another name" in look(bytes(data)).note


def test_zip_with_an_empty_storage_outside_the_file_is_opaque() -> None:
    data = bytearray(make_zip({"m/data.pkl": b"p", "m/data/0": b""}))
    extra_length = data.index(b"m/data/0") - 2  # in the local header, right before the name
    data[extra_length : extra_length + 2] = b"\xff\xff"
    assert "empty storage" in look(bytes(data)).note


# -- GGUF ---------------------------------------------------------------------------------------


def test_gguf_lengths_shapes_and_padding() -> None:
    metadata = [
        ("general.alignment", 4, struct.pack("<I", 64)),
        ("tokens", 9, struct.pack("<IQ", 8, 3) + gguf_text("a" * 2_000_000) + gguf_text("") * 2),
        ("scores", 9, struct.pack("<IQ", 6, 5) + bytes(20)),
        ("flag", 7, b"\x01"),
    ]
    data = gguf_file(
        [("b", (32, 2), 2, 64), ("a", (3, 5), 0, 0), ("new", (7,), 99, 128), ("e", (0, 2), 0, 128)],
        170,
        metadata=metadata,
        alignment=64,
    )
    layout = look(data).layout
    assert layout is not None
    assert layout.tensors is not None
    found = {t.name: (t.dtype, t.shape, t.length) for t in layout.tensors}
    assert found == {
        "a": ("F32", (5, 3), 60),
        "b": ("Q4_0", (2, 32), 36),
        "e": ("F32", (2, 0), 0),
        "new": ("GGML_99", (7,), 42),
    }
    start = len(data) - 170
    assert layout.spans == ((start, 64), (start + 64, 64), (start + 128, 42))


def test_gguf_description_that_does_not_fit_keeps_the_cuts() -> None:
    for shape, kind in (((100,), 0), ((33,), 2), ((), 2)):
        found = look(gguf_file([("a", shape, kind, 0), ("b", (8,), 0, 32)], 64))
        assert found.layout is not None
        assert [length for _, length in found.layout.spans] == [32, 32]
        assert found.layout.tensors is None


F32 = ("a", (8,), 0, 0)


@pytest.mark.parametrize(
    "data",
    [
        gguf_file([F32], 32, version=1),
        gguf_file([F32], 32, version=3 << 24),
        gguf_file([F32, F32], 64),
        gguf_file([F32, ("b", (8,), 0, 0)], 64),
        gguf_file([("a", (8,), 0, 4)], 64),
        gguf_file([("a", (8,), 0, 64)], 64),
        gguf_file([("a", (1,) * 9, 0, 0)], 64),
        gguf_file([F32], 32, metadata=[("k", 9, struct.pack("<IQ", 9, 1))]),
        gguf_file([F32], 32, metadata=[("k", 77, b"")]),
        gguf_file([F32], 32, metadata=[("k", 8, struct.pack("<Q", 1 << 63))]),
        gguf_file([F32], 32, metadata=[("k", 9, struct.pack("<IQ", 8, 1 << 60))]),
        gguf_file([F32], 32, metadata=[("general.alignment", 4, struct.pack("<I", 0))]),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
    ],
)
def test_malformed_gguf_is_opaque_with_a_note(data: bytes) -> None:
    found = look(data)
    assert found.layout is None
    assert "gguf" in found.note


def test_ggml_names_that_safetensors_shares_mean_the_same_width() -> None:
    for name, group, width in gguf.GGML_TYPES.values():
        if group == 1:
            assert safetensors.DTYPE_BITS[name] == 8 * width


# -- garbage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_what_they_claim(name: str) -> None:
    layout = look(SAMPLES[name]).layout
    assert layout is not None
    assert layout.format == name
    assert layout.tensors


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=150)
@given(data=st.data())
def test_mutated_files_never_raise(name: str, data: st.DataObject) -> None:
    sample = bytearray(SAMPLES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(sample) - 1))
        match data.draw(st.sampled_from(["set", "cut", "insert", "number"])):
            case "set":
                sample[at] = data.draw(st.integers(0, 255))
            case "cut":
                del sample[at : at + data.draw(st.integers(1, 40))]
            case "insert":
                sample[at:at] = data.draw(st.binary(min_size=1, max_size=16))
            case "number":
                value = data.draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
                sample[at : at + 8] = value.to_bytes(8, "little")
        if not sample:
            break
    look(bytes(sample))


@pytest.mark.parametrize("name", SAMPLES)
def test_truncated_files_never_raise(name: str) -> None:
    for size in range(len(SAMPLES[name])):
        look(SAMPLES[name][:size])


@settings(max_examples=150)
@given(
    magic=st.sampled_from([b"", b"GGUF\x03\0\0\0", b"PK\x03\x04", b"\x40" + bytes(7) + b"{"]),
    rest=st.binary(max_size=300),
)
def test_garbage_never_raises(magic: bytes, rest: bytes) -> None:
    look(magic + rest)


@settings(max_examples=150)
@given(text=st.text(alphabet='{}[]":,\\ 0123dtypeshaU8_off', max_size=120))
def test_json_garbage_never_raises(text: str) -> None:
    data = ("{" + text).encode()
    look(len(data).to_bytes(8, "little") + data + bytes(8))

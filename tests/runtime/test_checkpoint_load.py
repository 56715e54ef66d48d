"""Tensors read back: against what torch, NumPy and safetensors saved, and from files that lie."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sbp2p.checkpoint.load import load_tensors
from sbp2p.checkpoint.reader import TensorReader
from sbp2p.errors import CheckpointError, NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32,
    torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, whatever the dtype."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.numel():
        return True
    return torch.equal(
        a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)
    )


def write_raw(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """Write a safetensors file by hand, with dtypes that no library knows yet."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def sharded(root: Path, shards: dict[str, dict[str, torch.Tensor]]) -> Path:
    weight_map = {}
    for shard, tensors in shards.items():
        save_file(tensors, root / shard)
        weight_map.update(dict.fromkeys(tensors, shard))
    index = root / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def test_every_torch_dtype_loads_as_saved(tmp_path: Path) -> None:
    torch.manual_seed(1)
    saved: dict[str, torch.Tensor] = {}
    for dtype in DTYPES:
        values = torch.randint(0, 2, (3, 5), dtype=torch.uint8).to(dtype)
        saved[f"{dtype}.matrix"] = values
        saved[f"{dtype}.scalar"] = values[0, 0].clone()
        saved[f"{dtype}.empty"] = torch.empty(0, 7, dtype=dtype)
    path = tmp_path / "m.safetensors"
    save_file(saved, path)
    loaded = load_tensors(path)
    reference = load_file(path)
    assert loaded.keys() == saved.keys()
    for name, tensor in saved.items():
        assert same(loaded[name], tensor), name
        assert same(loaded[name], reference[name]), name
    loaded["torch.float32.matrix"].fill_(3.0)  # own memory
    assert same(load_tensors(path)["torch.float32.matrix"], saved["torch.float32.matrix"])


def test_numpy_loads_what_it_has_dtypes_for(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.arange(6).reshape(2, 3), "h": torch.zeros(2, dtype=torch.bfloat16)}, path)
    found = load_tensors(path, ["a"], framework="numpy")
    assert np.array_equal(found["a"], np.arange(6).reshape(2, 3))
    assert found["a"].flags.writeable
    with pytest.raises(CheckpointError, match="'h' is BF16, which numpy"):
        load_tensors(path, framework="numpy")


def test_dtypes_nobody_knows_are_read_as_bytes_and_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    raw = os.urandom(9)
    write_raw(path, {"q": ("INT3_PACKED", [4, 6], raw), "f": ("F4", [2, 2], b"\x12\x34")})
    with TensorReader(path) as reader:
        tensor = reader.read("q")
        assert (tensor.dtype, tensor.shape, bytes(tensor.data)) == ("INT3_PACKED", (4, 6), raw)
        assert len(reader) == 2
        assert "f" in reader
    for name in ("q", "f"):
        with pytest.raises(CheckpointError, match="no dtype"):
            load_tensors(path, [name])


def test_sharded_directory_index_and_list_of_files(tmp_path: Path) -> None:
    a, b = torch.randn(4, 4), torch.randn(3)
    index = sharded(tmp_path, {"m-1.safetensors": {"a": a}, "m-2.safetensors": {"b": b}})
    save_file({"other": torch.ones(1)}, tmp_path / "adapter.safetensors")
    for path in (tmp_path, index, [tmp_path / "m-1.safetensors", tmp_path / "m-2.safetensors"]):
        found = load_tensors(path)
        assert found.keys() == {"a", "b"}
        assert same(found["a"], a)
        assert same(found["b"], b)
    index.unlink()
    assert load_tensors(tmp_path).keys() == {"a", "b", "other"}


def test_an_index_decides_between_two_copies_and_two_copies_alone_are_an_error(
    tmp_path: Path,
) -> None:
    index = sharded(
        tmp_path,
        {"m-1.safetensors": {"a": torch.zeros(2), "b": torch.zeros(2)}},
    )
    save_file({"a": torch.ones(2), "c": torch.ones(2)}, tmp_path / "m-2.safetensors")
    weights = {"a": "m-2.safetensors", "b": "m-1.safetensors"}
    index.write_text(json.dumps({"weight_map": weights}))
    assert load_tensors(tmp_path)["a"].tolist() == [1, 1]
    index.unlink()
    with pytest.raises(CheckpointError, match=r"tensor 'a' is in .*m-1.* and in .*m-2"):
        load_tensors(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"weight_map": {"a": "../../etc/passwd"}}', "beside its index"),
        ('{"weight_map": {"a": ".."}}', "shard"),
        ('{"weight_map": {"a": 3}}', "file that has a name"),
        ('{"weight_map": []}', "not a shard index"),
        ("[" * 100_000, "not a shard index"),
        ("\u00e9", "not a shard index"),
        ('{"weight_map": {"gone": "m.safetensors"}}', "which it has not"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "cannot read"),
    ],
)
def test_a_shard_index_that_lies_is_refused(tmp_path: Path, text: str, message: str) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "m.safetensors")
    (tmp_path / "x.safetensors.index.json").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        load_tensors(tmp_path)


def test_names_and_globs_choose(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    names = ["layers.0.w", "layers.1.w", "head[x]", "norm"]
    save_file({name: torch.zeros(1) for name in names}, path)
    assert load_tensors(path, ["layers.*"]).keys() == {"layers.0.w", "layers.1.w"}
    assert load_tensors(path, "layers.*").keys() == {"layers.0.w", "layers.1.w"}
    assert load_tensors(path, ["head[x]", "norm"]).keys() == {"head[x]", "norm"}
    with pytest.raises(NotFoundError, match=r"no tensor matches 'layers\.2\.w'") as caught:
        load_tensors(path, ["layers.2.w"])
    assert "layers.1.w" in caught.value.hint or "layers.0.w" in caught.value.hint
    with TensorReader(path) as reader, pytest.raises(NotFoundError):
        reader.read("absent")


def gguf_bytes(tensors: dict[str, tuple[int, tuple[int, ...], bytes]]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0)
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        encoded = name.encode()
        head += struct.pack("<Q", len(encoded)) + encoded
        head += struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + data


def test_gguf_plain_tensors_load_and_quantised_ones_are_read_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    plain = torch.randn(2, 3).to(torch.bfloat16)
    raw = plain.view(torch.uint8).numpy().tobytes()
    quantised = os.urandom(18)
    path.write_bytes(gguf_bytes({"w": (30, (2, 3), raw), "q": (2, (1, 32), quantised)}))
    assert same(load_tensors(tmp_path, ["w"])["w"], plain)
    with pytest.raises(CheckpointError, match="Q4_0"):
        load_tensors(tmp_path)
    with TensorReader(path) as reader:
        assert bytes(reader.read("q").data) == quantised
        assert reader.span("q").shape == (1, 32)


def test_torch_archives_are_read_as_storages_and_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    torch.save({"w": torch.arange(4)}, path)
    with pytest.raises(CheckpointError, match="never opens"):
        load_tensors(path)
    with pytest.raises(CheckpointError, match=r"no \.safetensors"):
        load_tensors(tmp_path)
    with TensorReader(path) as reader:
        (name,) = reader.names()
        assert bytes(reader.read(name).data) == torch.arange(4).numpy().tobytes()


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "junk.safetensors").write_bytes(b"junk" * 10)
    (tmp_path / "cut.safetensors").write_bytes((1000).to_bytes(8, "little") + b'{"a"')
    for name in ("junk.safetensors", "cut.safetensors", "absent"):
        with pytest.raises(CheckpointError, match=name):
            load_tensors(tmp_path / name)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe is not a file"):
        load_tensors(tmp_path / "pipe")
    with pytest.raises(ValueError, match="framework"):
        load_tensors(tmp_path, framework="jax")  # type: ignore[arg-type]


def test_what_was_not_fetched_is_not_taken_for_zeros(tmp_path: Path) -> None:
    size = 1 << 20
    whole = tmp_path / "whole.safetensors"
    tensors: dict[str, tuple[str, list[int], bytes]] = {
        name: ("U8", [size], name.encode() * size) for name in "abc"
    }
    write_raw(whole, tensors | {"none": ("U8", [0], b"")})
    header = whole.stat().st_size - 3 * size
    part = tmp_path / ".sbp2p" / "bafy" / "00000000.part"
    part.parent.mkdir(parents=True)
    with whole.open("rb") as source, part.open("wb") as target:
        target.write(source.read(header + size))  # header and a
        target.seek(header + 2 * size - 8192)  # the last two pages of b
        source.seek(header + 2 * size - 8192)
        target.write(source.read())  # and c
    with part.open("rb") as file:
        if os.lseek(file.fileno(), header + size, os.SEEK_HOLE) > header + 2 * size - 8192:
            pytest.skip("this filesystem does not tell where holes are")
    assert set(load_tensors(part, names=["a", "c", "none"])) == {"a", "c", "none"}
    for names in (None, ["b"], ["a", "b"]):
        with pytest.raises(CheckpointError, match="'b' was not fetched"):
            load_tensors(part, names=names)
    sparse = tmp_path / "sparse.safetensors"  # a whole file may have holes: they are its zeros
    part.rename(sparse)
    assert len(load_tensors(sparse)) == 4


def test_a_file_that_changes_under_the_reader_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.zeros(100)}, path)
    with TensorReader(path) as reader:
        os.truncate(path, 200)
        with pytest.raises(CheckpointError, match="changed"):
            reader.read("a")


def test_importing_the_layer_does_not_import_torch_or_numpy() -> None:
    code = (
        "import sys, sbp2p.checkpoint.load, sbp2p.checkpoint.verify\n"
        "print(sorted({'torch', 'numpy', 'safetensors', 'trio'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

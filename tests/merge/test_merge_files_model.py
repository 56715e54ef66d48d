"""Models in files as inputs: what is opened, what they are called by, what lies beside them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sbp2p.errors import CheckpointError
from sbp2p.merge.files import FileSink
from sbp2p.merge.files_model import SAMPLE_BYTES, ModelFiles, OpenModel, content_key
from tests.merge.test_merge_files import SPECS, content, specs_of, write_rest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sbp2p.merge.tensors import TensorSpec


def model(folder: Path, specs: Mapping[str, TensorSpec] = SPECS, shard: int | None = None) -> Path:
    extras = {"config.json": b"{}", "sub/tokenizer.txt": b"a b"}
    with FileSink(folder, request={}, max_shard_bytes=shard, extras=extras) as sink:
        sink.begin(specs)
        write_rest(sink, specs)
    return folder


def key_of(files: ModelFiles) -> bytes:
    with OpenModel(files) as opened:
        return content_key(opened.source)


def test_the_same_tensors_have_the_same_key_wherever_they_lie(tmp_path: Path) -> None:
    whole = model(tmp_path / "whole")
    shards = model(tmp_path / "shards", shard=5000)
    turned = model(tmp_path / "turned", dict(reversed(SPECS.items())))
    keys = {key_of(ModelFiles(path)) for path in (whole, shards, turned)}
    keys.add(key_of(ModelFiles(whole / "model.safetensors")))
    assert len(keys) == 1
    assert len(keys.pop()) == 32


@pytest.mark.parametrize("place", [0, SAMPLE_BYTES - 1])
def test_another_number_makes_another_key(tmp_path: Path, place: int) -> None:
    specs = specs_of(("big", "F32", (3000,)), ("small", "F32", (2,)))
    folder = model(tmp_path / "model", specs)
    before = key_of(ModelFiles(folder))
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    start = data.index(content(specs["big"]))
    data[start + place] ^= 1
    file.write_bytes(data)
    assert key_of(ModelFiles(folder)) != before
    assert key_of(ModelFiles(model(tmp_path / "name", specs_of(("b", "F32", (3000,)))))) != before


def test_what_lies_beside_the_weights(tmp_path: Path) -> None:
    folder = model(tmp_path / "model", shard=5000)
    for name in (".hidden", "pytorch_model.bin", "__pycache__/x.pyc"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"")
    (folder / "linked.json").symlink_to(folder / "config.json")
    found = ModelFiles(folder).companions()
    assert set(found) == {"config.json", "linked.json", "sub/tokenizer.txt"}
    assert ModelFiles(folder / "model-00001-of-00002.safetensors").companions() == {}


def test_a_version_is_its_files_and_not_what_lies_beside_them(tmp_path: Path) -> None:
    folder = model(tmp_path / "model", shard=5000)
    (folder / "stray.safetensors").write_bytes(b"not ours")
    names = tuple(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "stray.safetensors"
    )
    with OpenModel(ModelFiles(folder, names)) as opened:
        assert set(opened.source.specs()) == set(SPECS)
        assert opened.style().index == "model.safetensors.index.json"
    index = "model.safetensors.index.json"
    without = tuple(name for name in names if name != index)
    with OpenModel(ModelFiles(folder, without)) as opened:
        assert set(opened.source.specs()) == set(SPECS)
        assert opened.style().index is None
    assert set(ModelFiles(folder, names).companions()) == {"config.json", "sub/tokenizer.txt"}
    with pytest.raises(CheckpointError, match="and no"):
        OpenModel(ModelFiles(folder, ("config.json",)))


def test_a_stamp_tells_of_a_change(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    with OpenModel(ModelFiles(folder)) as opened:
        before = opened.stamp()
        assert json.loads(json.dumps(before)) == before
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes())
    with OpenModel(ModelFiles(folder)) as opened:
        assert opened.stamp() != before

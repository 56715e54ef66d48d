"""Publishing: what stays the same between versions, and what a part of one needs."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tracemalloc
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from sbp2p.checkpoint import publish
from sbp2p.checkpoint.hashing import HashingStoppedError
from sbp2p.checkpoint.load import load_tensors
from sbp2p.checkpoint.publish import PublishedTree, publish_tree
from sbp2p.checkpoint.select import Selection, select_blocks
from sbp2p.config import StoreConfig
from sbp2p.errors import CheckpointError, NotFoundError
from sbp2p.store import Store
from sbp2p_protocol.cid import verify_block
from sbp2p_protocol.limits import BLOCK_MAX, KIB, MIB
from sbp2p_protocol.tensor_index import TensorEntry, parse_index_root, read_tensor_index
from sbp2p_protocol.tree import TreeWalker

if TYPE_CHECKING:
    from pathlib import Path


def model(seed: int = 0, layers: int = 6) -> dict[str, torch.Tensor]:
    """A model of about 20 MB: big matrices, and small norms and biases between them."""
    rng = torch.Generator().manual_seed(seed)
    tensors = {"embed": torch.randn(4000, 256, generator=rng)}
    for i in range(layers):
        tensors[f"layers.{i}.attention"] = torch.randn(512, 512, generator=rng)
        tensors[f"layers.{i}.mlp"] = torch.randn(1024, 512, generator=rng).bfloat16()
        tensors[f"layers.{i}.bias"] = torch.randn(512, generator=rng)
        tensors[f"layers.{i}.norm"] = torch.randn(256, generator=rng)
    return tensors


def save(root: Path, tensors: dict[str, torch.Tensor], **metadata: str) -> Path:
    root.mkdir(exist_ok=True)
    save_file(tensors, root / "model.safetensors", metadata=metadata)
    (root / "config.json").write_text('{"hidden": 512}')
    return root


def new_bytes(old: PublishedTree, new: PublishedTree) -> int:
    """Bytes that a node with `old` has to fetch for `new`."""
    return sum(
        new.table.length(i)
        for i in range(len(new.table))
        if old.table.index(new.table.digest(i)) is None
    )


def entries_of(tree: PublishedTree) -> list[TensorEntry]:
    nodes = dict(tree.nodes)
    assert tree.tensors is not None
    root = nodes[tree.tensors]
    return read_tensor_index(root, [nodes[page] for page in parse_index_root(root)], tree.table)


# -- the tree -----------------------------------------------------------------------------------


def test_the_nodes_alone_give_the_table_back(tmp_path: Path) -> None:
    root = save(tmp_path / "m", model())
    (root / "empty").write_bytes(b"")
    (root / "tokenizer").mkdir()
    (root / "tokenizer" / "\u4e2d.json").write_text("[]")
    tree = publish_tree(root)
    nodes = dict(tree.nodes)
    for cid, data in tree.nodes:
        verify_block(cid, data)
    walker = TreeWalker(tree.root)
    while not walker.done:
        for cid in walker.needed():
            walker.receive_node(cid, nodes[cid])
    walked = walker.finish()
    assert walked.files == tree.table.files
    assert [walked.digest(i) for i in range(len(walked))] == [
        tree.table.digest(i) for i in range(len(tree.table))
    ]
    assert [f.path for f in walked.files] == [
        "config.json", "empty", "model.safetensors", "tokenizer/\u4e2d.json",
    ]  # fmt: skip
    assert tree.notes == ()
    assert tree.base == root


def test_same_bytes_give_the_same_root(tmp_path: Path) -> None:
    root = save(tmp_path / "m", model())
    copy = shutil.copytree(root, tmp_path / "copy")
    first, second = publish_tree(root, workers=1), publish_tree(copy, workers=4)
    assert (first.root, first.tensors) == (second.root, second.tensors)
    alone = publish_tree(root / "model.safetensors")
    renamed = shutil.copy(root / "model.safetensors", tmp_path / "weights.dat")
    by_name = publish_tree(renamed)
    assert alone.table.files[0].cid == by_name.table.files[0].cid == first.table.files[1].cid
    assert [f.path for f in by_name.table.files] == ["weights.dat"]


def test_the_tensor_index_describes_every_tensor(tmp_path: Path) -> None:
    tensors = model() | {"scalar": torch.tensor(1.5), "none": torch.zeros(0, 3)}
    tree = publish_tree(save(tmp_path / "m", tensors))
    entries = {entry.name: entry for entry in entries_of(tree)}
    assert tree.tensor_count == len(entries) == len(tensors)
    data = (tmp_path / "m" / "model.safetensors").read_bytes()
    for name, tensor in tensors.items():
        entry = entries[name]
        raw = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        assert data[entry.offset : entry.offset + entry.length] == raw
        assert entry.shape == tuple(tensor.shape)


def test_one_name_in_two_files_has_two_entries(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"w": torch.zeros(4)}, tmp_path / name)
    found = entries_of(publish_tree(tmp_path))
    assert [(e.name, e.file) for e in found] == [("w", "a.safetensors"), ("w", "b.safetensors")]


def test_a_tensor_that_cannot_be_indexed_costs_only_its_file_the_index(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(4)}, tmp_path / "good.safetensors")
    save_file({"n" * 5000: torch.zeros(4)}, tmp_path / "long.safetensors")
    tree = publish_tree(tmp_path)
    assert [entry.file for entry in entries_of(tree)] == ["good.safetensors"]
    assert any("long.safetensors is not in the tensor index" in note for note in tree.notes)
    (tmp_path / "good.safetensors").unlink()
    assert publish_tree(tmp_path).tensors is None


def test_malformed_files_are_published_as_bytes_with_a_note(tmp_path: Path) -> None:
    data = (1000).to_bytes(8, "little") + b'{"a"' + bytes(3 * MIB)
    (tmp_path / "broken.safetensors").write_bytes(data)
    (tmp_path / "zero.safetensors").write_bytes(b"")
    (tmp_path / "old.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    tree = publish_tree(tmp_path)
    assert tree.tensors is None
    assert len(tree.notes) == 2
    assert tree.notes[0].startswith("broken.safetensors looks like safetensors")
    assert [f.count for f in tree.table.files] == [4, 1, 0]


# -- what a new version costs -------------------------------------------------------------------


def test_resharded_and_renamed_keeps_ninety_nine_percent(tmp_path: Path) -> None:
    tensors = model()
    old = publish_tree(save(tmp_path / "old", tensors))
    root = tmp_path / "new"
    root.mkdir()
    names = sorted(tensors, reverse=True)
    weight_map = {}
    for shard in range(3):
        part = {f"renamed.{name}": tensors[name] for name in names[shard::3]}
        file = f"part-{shard}.safetensors"
        save_file(part, root / file)
        weight_map.update(dict.fromkeys(part, file))
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    new = publish_tree(root)
    assert new_bytes(old, new) <= 0.01 * old.table.file_bytes
    assert len(load_tensors(root)) == len(tensors)


def test_a_header_edit_costs_the_header(tmp_path: Path) -> None:
    old = publish_tree(save(tmp_path / "old", model(), format="pt"))
    new = publish_tree(save(tmp_path / "new", model(), format="pt", note="x" * 777))
    assert old.root != new.root
    assert 0 < new_bytes(old, new) < 8 * KIB


def test_changed_tensors_cost_what_they_are(tmp_path: Path) -> None:
    tensors = model()
    old = publish_tree(save(tmp_path / "old", tensors))
    changed = ["layers.1.attention", "layers.4.mlp"]
    for name in changed:
        tensors[name] = tensors[name] + 1
    new = publish_tree(save(tmp_path / "new", tensors))
    size = sum(tensors[name].nbytes for name in changed)
    assert size <= new_bytes(old, new) <= 1.05 * size


def test_tied_and_repeated_tensors_travel_once(tmp_path: Path) -> None:
    weight = torch.randn(1024, 1024)
    save_file({"embed": weight, "head": weight.clone()}, tmp_path / "m.safetensors")
    torch.save({"embed": weight, "head": weight}, tmp_path / "m.bin")
    tree = publish_tree(tmp_path)
    assert tree.table.file_bytes > 3 * weight.nbytes
    assert tree.table.total_bytes < 1.01 * weight.nbytes


# -- selection ----------------------------------------------------------------------------------


def restore(root: Path, tree: PublishedTree, selection: Selection, target: Path) -> Path:
    """Write the files with only the selected blocks in them, as a partial download would."""
    for number, file in enumerate(tree.table.files):
        source = (root / file.path).read_bytes()
        (target / file.path).parent.mkdir(parents=True, exist_ok=True)
        with (target / file.path).open("wb") as out:
            out.truncate(file.size)
            for block, offset, length in tree.table.file_blocks(number):
                if selection.wanted.get(block):
                    out.seek(offset)
                    out.write(source[offset : offset + length])
    return target


def selected_bytes(tree: PublishedTree, selection: Selection) -> int:
    return sum(tree.table.length(i) for i in selection.wanted)


def test_tensors_come_with_what_their_file_needs_to_be_opened(tmp_path: Path) -> None:
    tensors = model()
    root = save(tmp_path / "m", tensors)
    tree = publish_tree(root)
    part = select_blocks(tree.table, entries_of(tree), tensors=["layers.2.*"])
    wanted = {n: t for n, t in tensors.items() if n.startswith("layers.2.")}
    assert {entry.name for entry in part.tensors} == wanted.keys()
    target = restore(root, tree, part, tmp_path / "part")
    loaded = load_tensors(target / "model.safetensors", wanted)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in wanted.items())
    asked = sum(tensor.nbytes for tensor in wanted.values())
    assert selected_bytes(tree, part) <= 1.02 * asked + 64 * KIB


def test_a_storage_comes_with_its_archive(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.randn(300, 300) for i in range(8)}
    root = tmp_path / "m"
    root.mkdir()
    torch.save(tensors, root / "model.pt")
    tree = publish_tree(root)
    name = entries_of(tree)[5].name
    part = select_blocks(tree.table, entries_of(tree), tensors=[name])
    target = restore(root, tree, part, tmp_path / "part")
    loaded = torch.load(target / "model.pt", weights_only=True, mmap=True)
    assert sum(torch.equal(loaded[key], tensors[key]) for key in tensors) == 1
    assert selected_bytes(tree, part) < 2 * 300 * 300 * 4


def test_files_by_glob_and_together_with_tensors(tmp_path: Path) -> None:
    root = save(tmp_path / "m", model(layers=1))
    (root / "tokenizer").mkdir()
    (root / "tokenizer" / "vocab.txt").write_text("a\nb\n")
    tree = publish_tree(root)
    everything = select_blocks(tree.table)
    assert everything.wanted.all()
    assert len(everything.files) == 3
    assert select_blocks(tree.table, files=["*.json"]).files == ("config.json",)
    assert select_blocks(tree.table, files=["tokenizer/"]).files == ("tokenizer/vocab.txt",)
    both = select_blocks(tree.table, entries_of(tree), files=["*.json"], tensors=["embed"])
    assert both.files == ("config.json",)
    assert [entry.name for entry in both.tensors] == ["embed"]
    with pytest.raises(NotFoundError, match=r"no file matches '\*\.txt2'"):
        select_blocks(tree.table, files=["*.json", "*.txt2"])
    with pytest.raises(NotFoundError, match="no tensor index"):
        select_blocks(tree.table, tensors=["embed"])


# -- with a store -------------------------------------------------------------------------------


def test_a_store_gets_the_nodes_and_the_places_of_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "INDEX_BATCH_ROWS", 2)
    root = save(tmp_path / "m", model())
    for i in range(5):
        (root / f"extra{i}").write_bytes(bytes([i]) * 1000)
    with Store.open(tmp_path / "home", StoreConfig()) as store:
        tree = publish_tree(root, store=store)
        for cid, data in tree.nodes:
            assert store.get_loose(cid) == data
        assert store.have_bitmap(tree.table).all()
        data = (root / "model.safetensors").read_bytes()
        number = tree.table.file_number("model.safetensors")
        assert number is not None
        for block, offset, length in tree.table.file_blocks(number):
            assert store.read_block(tree.table.digest(block)) == data[offset : offset + length]


def test_trusting_times_keeps_hashes_and_not_trusting_them_does_not(tmp_path: Path) -> None:
    root = tmp_path / "m"
    root.mkdir()
    file = root / "w"
    file.write_bytes(b"a" * (3 * MIB))
    (root / "other").write_bytes(b"")
    with Store.open(tmp_path / "home", StoreConfig()) as store:
        old = publish_tree(root, store=store)
        times = file.stat().st_mtime_ns
        file.write_bytes(b"b" * (3 * MIB))
        os.utime(file, ns=(times, times))
        seen: list[int] = []
        trusting = publish_tree(
            root, store=store, trust_mtime=True, progress=lambda done, _: seen.append(done)
        )
        assert trusting.root == old.root
        assert seen[-1] == 3 * MIB
        assert publish_tree(root, store=store).root != old.root
        os.utime(file, ns=(times, times + 1))
        assert publish_tree(root, store=store, trust_mtime=True).root != old.root
    with pytest.raises(ValueError, match="trust_mtime"):
        publish_tree(root, trust_mtime=True)


# -- limits -------------------------------------------------------------------------------------


def test_memory_does_not_follow_the_size_of_the_files(tmp_path: Path) -> None:
    publish_tree(save(tmp_path / "m", model(layers=1)))  # the first use of everything

    def peak(size: int) -> int:
        header = json.dumps(
            {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
        ).encode()
        with (tmp_path / "m" / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)
        tracemalloc.start()
        try:
            tree = publish_tree(tmp_path / "m")
            assert tree.table.file_bytes > size
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(64 * MIB), peak(512 * MIB)
    assert large < 6 * MIB
    assert large - small < MIB


def test_stopping_and_progress(tmp_path: Path) -> None:
    root = save(tmp_path / "m", model(layers=2))
    seen: list[int] = []
    total = publish_tree(root, progress=lambda done, _: seen.append(done)).table.file_bytes
    assert seen[-1] == total
    with pytest.raises(HashingStoppedError):
        publish_tree(root, should_stop=lambda: True)


def test_bounds_of_a_version_are_the_publishers_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"x" * (BLOCK_MAX + 1))
    monkeypatch.setattr("sbp2p_protocol.blocktable.VERSION_LEAVES_MAX", 1)
    with pytest.raises(CheckpointError, match="more than 1"):
        publish_tree(tmp_path)

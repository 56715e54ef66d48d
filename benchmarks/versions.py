"""A sharded checkpoint and what becomes of it in the next version: the cases of `dedup`.

A checkpoint is a list of shards, a shard a list of tensors, and a tensor's bytes come from a seed:
tensors with one seed have the same bytes, wherever they lie and whatever they are called.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from benchmarks.data import bf16_bytes, random_pieces, safetensors_header, tensor_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from random import Random

REPLACED_SHARE = 0.10
NEW_SEEDS = 1 << 32


@dataclass(frozen=True, slots=True)
class Tensor:
    """A bf16 tensor with the bytes of its seed."""

    name: str
    shape: tuple[int, ...]
    seed: int

    @property
    def size(self) -> int:
        """Bytes."""
        return bf16_bytes(self.shape)


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file."""

    file: str
    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str] = field(default_factory=lambda: {"format": "pt"})


Checkpoint = tuple[Shard, ...]


def make_checkpoint(total_bytes: int, *, hidden: int, shards: int) -> Checkpoint:
    """Return a checkpoint of about `total_bytes`; with its seeds it is the same every time."""
    shapes = tensor_shapes(total_bytes, hidden)
    tensors = [Tensor(name, tuple(shape), seed) for seed, (name, shape) in enumerate(shapes)]
    return split(tensors, shards, "model")


def split(tensors: Sequence[Tensor], shards: int, stem: str) -> Checkpoint:
    """Return the tensors in order, in shards of about the same size, named as is the custom."""
    share = sum(tensor.size for tensor in tensors) / shards
    groups: list[list[Tensor]] = [[] for _ in range(shards)]
    before = 0
    for tensor in tensors:
        groups[min(int((before + tensor.size / 2) / share), shards - 1)].append(tensor)
        before += tensor.size
    names = [f"{stem}-{n:05}-of-{shards:05}.safetensors" for n in range(1, shards + 1)]
    return tuple(Shard(name, tuple(group)) for name, group in zip(names, groups, strict=True))


def tensors_of(checkpoint: Checkpoint) -> list[Tensor]:
    """Return all tensors in order."""
    return [tensor for shard in checkpoint for tensor in shard.tensors]


def tensor_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of all tensors."""
    return sum(tensor.size for tensor in tensors_of(checkpoint))


def changed_bytes(old: Checkpoint, new: Checkpoint) -> int:
    """Return the bytes of the tensors in `new` that `old` does not have."""
    known = {tensor.seed for tensor in tensors_of(old)}
    return sum(tensor.size for tensor in tensors_of(new) if tensor.seed not in known)


def write_checkpoint(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write the shards with their index and a config, as Hugging Face lays them out."""
    folder.mkdir(parents=True)
    for shard in checkpoint:
        shapes = [(tensor.name, list(tensor.shape)) for tensor in shard.tensors]
        with (folder / shard.file).open("wb") as file:
            file.write(safetensors_header(shapes, shard.metadata))
            for tensor in shard.tensors:
                file.writelines(random_pieces(tensor.size, tensor.seed))
    weight_map = {tensor.name: shard.file for shard in checkpoint for tensor in shard.tensors}
    index = {"metadata": {"total_size": tensor_bytes(checkpoint)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (folder / "config.json").write_text(json.dumps({"model_type": "bench"}))
    return folder


def replace_tensors(checkpoint: Checkpoint, random: Random) -> Checkpoint:
    """Give tensors picked at random, one tenth of the bytes at most, new bytes."""
    left = int(REPLACED_SHARE * tensor_bytes(checkpoint))
    tensors = tensors_of(checkpoint)
    random.shuffle(tensors)
    picked = set()
    for tensor in tensors:
        if tensor.size <= left:
            picked.add(tensor.seed)
            left -= tensor.size
    return _reseed(checkpoint, lambda tensor: tensor.seed in picked, random)


def replace_all(checkpoint: Checkpoint, random: Random) -> Checkpoint:
    """Give every tensor new bytes."""
    return _reseed(checkpoint, lambda _: True, random)


def _reseed(checkpoint: Checkpoint, chosen: Callable[[Tensor], bool], random: Random) -> Checkpoint:
    first = NEW_SEEDS * random.randint(1, 1 << 20)

    def new(tensor: Tensor) -> Tensor:
        return replace(tensor, seed=first + tensor.seed) if chosen(tensor) else tensor

    return tuple(replace(shard, tensors=tuple(map(new, shard.tensors))) for shard in checkpoint)


def reshard(checkpoint: Checkpoint, random: Random) -> Checkpoint:
    """Put the same tensors, each under a longer name, into another number of renamed files."""
    counts = [count for count in range(2, 8) if count != len(checkpoint)]
    renamed = [replace(each, name="model." + each.name) for each in tensors_of(checkpoint)]
    return split(renamed, random.choice(counts), "pytorch_model")


def edit_headers(checkpoint: Checkpoint, random: Random) -> Checkpoint:
    """Add a note to every file's header, which moves all that follows."""
    note = "trained longer " * random.randint(1, 40)
    return tuple(replace(s, metadata={**s.metadata, "note": note}) for s in checkpoint)


def keep(checkpoint: Checkpoint, _: Random) -> Checkpoint:
    """Change nothing."""
    return checkpoint


CASES: Mapping[str, Callable[[Checkpoint, Random], Checkpoint]] = {
    "10 % replaced": replace_tensors,
    "re-sharded and renamed": reshard,
    "header edited": edit_headers,
    "everything changed": replace_all,
    "nothing changed": keep,
}

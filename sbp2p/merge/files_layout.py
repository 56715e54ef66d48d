"""Which tensor of a result goes where in which file, and what stands around it.

Theory of operation: a result is laid out as its model is: the same files with the same tensors, and
a shard index if there was one, so that whatever loads the inputs loads the result. With a size for
shards, or when the result has tensors that the model has not, files are filled one after the other
in the model's order instead, as Hugging Face libraries do.

Within a file, tensors of wide dtypes come first (each stays aligned to its own width), else in the
model's order, without holes: the format allows none. The same tensors and the same model give the
same bytes around the data.

Error cases: a model whose header or shard index cannot be read is a CheckpointError.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sbp2p.checkpoint.formats.safetensors import HEADER_MAX
from sbp2p.checkpoint.reader import INDEX_MAX, INDEX_SUFFIX
from sbp2p.errors import CheckpointError
from sbp2p.merge.tensors import BITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from sbp2p.checkpoint.reader import TensorReader
    from sbp2p.merge.tensors import TensorSpec

SHARD_BYTES: Final = 5_000_000_000
"""Of a file when there is no model to go by; what Hugging Face libraries took for years."""

SUFFIX: Final = ".safetensors"
_STEM: Final = "model"
_METADATA: Final = {"format": "pt"}
"""Without it, transformers refuses a file."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a model is laid out: what a result is to be like."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Tensor name to file name, in the model's order; empty for no model."""
    index: str | None = None
    """Name of the shard index, if the model has one."""
    metadata: Mapping[str, str] = field(default_factory=lambda: dict(_METADATA))
    """What the files say about themselves."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file of the result."""

    name: str
    header: bytes
    """What stands before the first tensor."""
    places: Mapping[str, int]
    """Tensor name to its offset in the file."""
    size: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All files of a result."""

    files: tuple[OutputFile, ...]
    index: tuple[str, bytes] | None
    """Name and content of the shard index."""

    @property
    def size(self) -> int:
        """Return the bytes of all of it."""
        return sum(file.size for file in self.files) + len(self.index[1] if self.index else b"")


def style_of(reader: TensorReader, index: str | None = None, *, lone: bool = False) -> Style:
    """Return how an opened model is laid out.

    Args:
        reader: the model.
        index: the name of its shard index, if it was opened by one.
        lone: it is one file that was named by itself: it may be called anything, and what is made
            of it is called as loaders expect.

    Raises:
        CheckpointError: what a file says about itself cannot be read.
    """
    names = reader.names()
    places = {name: reader.file(name) for name in names}
    files = list(dict.fromkeys(places.values()))
    if not files or any(path.suffix != SUFFIX for path in files):
        return Style()  # GGUF: written as safetensors, under the usual names
    metadata = _read_metadata(files[0]) or dict(_METADATA)
    if lone:
        return Style(dict.fromkeys(names, _STEM + SUFFIX), None, metadata)
    return Style({name: path.name for name, path in places.items()}, index, metadata)


def index_of(path: Path) -> str | None:
    """Return the name of the one shard index that a path means, or that lies in it."""
    if path.name.endswith(INDEX_SUFFIX):
        return path.name
    if not path.is_dir():
        return None
    found = [each.name for each in path.iterdir() if each.name.endswith(INDEX_SUFFIX)]
    return found[0] if len(found) == 1 else None


def plan(specs: Mapping[str, TensorSpec], style: Style, max_shard_bytes: int | None = None) -> Plan:
    """Lay out a result.

    Args:
        specs: every tensor of it, by name.
        style: the model to be like.
        max_shard_bytes: of the tensors of a file, rather than the model's files. A tensor that is
            larger has a file of its own.
    """
    order = [name for name in style.files if name in specs]
    order += [name for name in specs if name not in style.files]
    if max_shard_bytes is None and specs and all(name in style.files for name in specs):
        shards: dict[str, list[TensorSpec]] = {}
        for name in order:
            shards.setdefault(style.files[name], []).append(specs[name])
        index = style.index
    else:
        groups = _fill([specs[name] for name in order], max_shard_bytes or SHARD_BYTES)
        shards = dict(zip(_shard_names(len(groups)), groups, strict=True))
        index = _STEM + INDEX_SUFFIX if len(groups) > 1 else None
    files = tuple(_file(name, group, style.metadata) for name, group in sorted(shards.items()))
    return Plan(files, None if index is None else (index, _index(specs, files)))


def _fill(specs: Iterable[TensorSpec], limit: int) -> list[list[TensorSpec]]:
    groups: list[list[TensorSpec]] = [[]]
    room = limit
    for spec in specs:
        if groups[-1] and spec.nbytes > room:
            groups.append([])
            room = limit
        groups[-1].append(spec)
        room -= spec.nbytes
    return groups


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return [_STEM + SUFFIX]
    return [f"{_STEM}-{n:05d}-of-{count:05d}{SUFFIX}" for n in range(1, count + 1)]


def _file(name: str, specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> OutputFile:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    starts: dict[str, int] = {}
    end = 0
    for spec in sorted(specs, key=lambda spec: -BITS[spec.dtype]):
        starts[spec.name] = end
        end += spec.nbytes
        header[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [starts[spec.name], end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    places = {tensor: start + offset for tensor, offset in starts.items()}
    return OutputFile(name, len(text).to_bytes(8, "little") + text, places, start + end)


def _index(specs: Mapping[str, TensorSpec], files: Sequence[OutputFile]) -> bytes:
    total = sum(spec.nbytes for spec in specs.values())
    weights = {tensor: file.name for file in files for tensor in file.places}
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weights.items()))}
    data = json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"
    if len(data) > INDEX_MAX:
        raise CheckpointError(f"a shard index of {len(data)} bytes, which no reader would take")
    return data


def _read_metadata(path: Path) -> dict[str, str]:
    """Return what a safetensors file, whose header was found to be well formed, says of itself."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, HEADER_MAX)))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read the header of {path}: {error}") from error
    found = header.get("__metadata__", {}) if isinstance(header, dict) else {}
    return {str(key): str(value) for key, value in found.items()}

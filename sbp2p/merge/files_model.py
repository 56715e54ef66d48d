"""A model in files as an input of a merge: what to open, what it is called by, what lies beside it.

**Keys.** The inputs of a merge are put in the order of their keys, so that no result depends on the
order in which they were given. A version's key is the digest of its manifest. Files without one get
a key from what is in them: the BLAKE3 of every tensor's name, dtype and shape and of its first
SAMPLE_BYTES bytes, in the order of the names. That takes one small read a tensor, and is the same
for the same tensors in whatever files, folders and shards they are. It is no proof of content: two
models that differ only behind the first bytes of every tensor have one key. Their order is then the
one in which they were given, which matters only to methods that choose an input or count in order.

Error cases: a path that cannot be opened, or has no tensors that can be merged, is a
CheckpointError or a MergeError.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from blake3 import blake3

from sbp2p.checkpoint.reader import INDEX_SUFFIX
from sbp2p.checkpoint.scan import SKIPPED
from sbp2p.errors import CheckpointError
from sbp2p.merge.files_layout import index_of, style_of
from sbp2p.merge.tensors import FileSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sbp2p.merge.files_layout import Style
    from sbp2p.merge.tensors import Source

SAMPLE_BYTES: Final = 4096
_KEY_CONTEXT: Final = "sbp2p merge 2026 key of an input without a manifest"
_WEIGHTS: Final = (
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx"),
    *(".index.json", ".tflite", ".npz", ".npy", ".pkl"),
)
"""Ends of names of files that hold weights, or say where they are: a merge copies none of them."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model is."""

    root: Path
    """The folder that its files are in, or the one file."""
    names: tuple[str, ...] | None = None
    """The files of the version there, relative to `root`; None for all that is there."""

    def to_open(self) -> Path | list[Path]:
        """Return what a TensorReader takes; raises CheckpointError."""
        if self.names is None:
            return self.root
        top = [name for name in self.names if "/" not in name]
        indexes = [name for name in top if name.endswith(INDEX_SUFFIX)]
        if len(indexes) == 1:
            return self.root / indexes[0]
        for suffix in (".safetensors", ".gguf"):
            if found := [self.root / name for name in top if name.endswith(suffix)]:
                return found
        raise CheckpointError(
            f"the version in {self.root} has no .safetensors and no .gguf file",
            hint="other formats are replicated, not merged; convert them to safetensors",
        )

    def companions(self) -> dict[str, Path]:
        """Return what lies beside the weights, by path: configuration, tokenizer, and so on."""
        names = self.names
        if names is None:
            names = tuple(_walk(self.root)) if self.root.is_dir() else ()
        return {name: self.root / name for name in sorted(names) if not name.endswith(_WEIGHTS)}


class OpenModel:
    """A model that is open to be read: a context manager."""

    def __init__(self, files: ModelFiles) -> None:
        """Open it; raises CheckpointError or MergeError."""
        wanted = files.to_open()
        self.files = files
        self.source = FileSource(wanted)
        self._index = index_of(wanted) if isinstance(wanted, Path) else None
        self._lone = not files.root.is_dir() or (files.names is not None and len(files.names) == 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()

    @property
    def size(self) -> int:
        """Return the bytes of all tensors."""
        return sum(spec.nbytes for spec in self.source.specs().values())

    def style(self) -> Style:
        """Return how it is laid out; raises CheckpointError."""
        return style_of(self.source.reader, self._index, lone=self._lone)

    def stamp(self) -> list[list[str | int]]:
        """Return path, size and modification time of every file that is read, for a journal."""
        paths = (path.absolute() for path in self.source.reader.files())
        found = ((path, path.stat()) for path in paths)
        return [[os.fsdecode(path), now.st_size, now.st_mtime_ns] for path, now in found]


def content_key(source: Source) -> bytes:
    """Return the key of a model that has no manifest: 32 bytes; raises CheckpointError."""
    hasher = blake3(derive_key_context=_KEY_CONTEXT)
    for name, spec in sorted(source.specs().items()):
        sample = memoryview(bytearray(min(SAMPLE_BYTES, spec.nbytes)))
        source.read_into(name, 0, sample)
        for part in (name, spec.dtype, repr(spec.shape), sample.tobytes()):
            data = part.encode() if isinstance(part, str) else part
            hasher.update(len(data).to_bytes(8, "little") + data)
    return hasher.digest()


def _walk(root: Path) -> Iterable[str]:
    """Yield the files below a folder, as relative paths, but hidden ones and byte code."""
    for folder, folders, files in os.walk(root):
        folders[:] = [each for each in folders if each not in SKIPPED and not each.startswith(".")]
        for name in files:
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file():  # what a link leads to, too
                yield path.relative_to(root).as_posix()

"""The bytes of single tensors, found by name in the files of a checkpoint.

Theory of operation: the same parsers that decided the blocks find the tensors, so a file that is
not well formed is refused before anything looks at its data. Bytes are read into memory of their
own, never mapped: a file that is truncated or rewritten later can neither crash the process nor
change weights that are in use. Nothing is unpickled, so a PyTorch archive offers its storages.

Which files a path means:

* a file: that file; an `*.safetensors.index.json`: the shards it names, which lie beside it;
* a directory: the shards of its index if it has exactly one, else all its `*.safetensors`, else all
  its `*.gguf`; only the top level, as the libraries that save them do;
* several paths: all of these files.

Error cases: a file that is malformed, unreadable, or another one than when it was opened, and a
tensor that two files have or that the index misplaces, are a CheckpointError; a tensor that no file
has is a NotFoundError. A file of a partial download has holes where nothing was fetched. A tensor
that reaches into one is a CheckpointError; where the filesystem does not tell holes, it is zeros.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from sbp2p.checkpoint.formats import ByteSource, TensorSpan, inspect
from sbp2p.checkpoint.formats.layout import shown
from sbp2p.errors import CheckpointError, NotFoundError
from sbp2p_protocol.paths import check_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

PathLike = str | os.PathLike[str]

INDEX_SUFFIX: Final = ".safetensors.index.json"
INDEX_MAX: Final = 32 * 1024 * 1024
"""Bytes of a shard index; 150,000 tensors take about 15 MB."""


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor as it is stored, little-endian: `data` holds its bytes, whatever the dtype."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class TensorReader:
    """Reads tensors by name, one at a time. A context manager: leaving it closes the files."""

    def __init__(self, path: PathLike | Sequence[PathLike]) -> None:
        """Open the files that `path` means and find their tensors; raises CheckpointError."""
        locations, index = _resolve(path)
        self._files: list[_TensorFile] = []
        self._places: dict[str, tuple[_TensorFile, TensorSpan]] = {}
        try:
            for location in locations:
                self._add(_TensorFile(location), index)
            for name, shard in index.items():
                if name not in self._places or self._places[name][0].location.name != shard:
                    raise CheckpointError(
                        f"the index says that {shard} has tensor {shown(name)}, which it has not",
                        hint="fetch the version again, or name the shards to load",
                    )
        except BaseException:
            self.close()
            raise

    def _add(self, file: _TensorFile, index: dict[str, str]) -> None:
        self._files.append(file)
        for span in file.tensors():
            right = index.get(span.name)
            if span.name in self._places and right is None:
                other = self._places[span.name][0]
                raise CheckpointError(
                    f"tensor {shown(span.name)} is in {other.location} and in {file.location}",
                    hint="name the one file to load",
                )
            if right is None or right == file.location.name:
                self._places[span.name] = (file, span)

    def names(self) -> list[str]:
        """Return every tensor's name, in order of file and offset."""
        return list(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def span(self, name: str) -> TensorSpan:
        """Return a tensor's dtype, shape and place in its file; raises NotFoundError."""
        return self._place(name)[1]

    def file(self, name: str) -> Path:
        """Return the file that a tensor is in; raises NotFoundError."""
        return self._place(name)[0].location

    def files(self) -> list[Path]:
        """Return every file that was opened, in order."""
        return [file.location for file in self._files]

    def read(self, name: str) -> RawTensor:
        """Read one tensor into memory of its own; raises NotFoundError or CheckpointError."""
        file, span = self._place(name)
        if file.lacks(span.offset, span.length):
            raise _not_fetched(name)
        data = memoryview(bytearray(span.length))
        file.read_into(data, span.offset)
        return RawTensor(name, span.dtype, span.shape, data)

    def read_into(self, name: str, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes of a tensor, from its byte `offset` on; raises as `read` does.

        May be called from several threads at a time.
        """
        file, span = self._place(name)
        if offset < 0 or offset + buffer.nbytes > span.length:
            raise ValueError(f"tensor {shown(name)} has {span.length} bytes")
        if file.lacks(span.offset + offset, buffer.nbytes):
            raise _not_fetched(name)
        file.read_into(buffer, span.offset + offset)

    def _place(self, name: str) -> tuple[_TensorFile, TensorSpan]:
        if (place := self._places.get(name)) is None:
            raise NotFoundError(f"no tensor is named {shown(name)}")
        return place

    def close(self) -> None:
        """Close the files; may be called again."""
        for file in self._files:
            file.close()
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _TensorFile:
    """One open file."""

    __slots__ = ("_descriptor", "_status", "location")

    def __init__(self, location: Path) -> None:
        self.location = location
        try:
            self._descriptor = os.open(location, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _unreadable(location, error) from error
        self._status = os.fstat(self._descriptor)
        if not stat.S_ISREG(self._status.st_mode):
            self.close()
            raise CheckpointError(f"{location} is not a file")

    def tensors(self) -> tuple[TensorSpan, ...]:
        try:
            found = inspect(ByteSource(self._status.st_size, self._pread))
        except OSError as error:
            raise _unreadable(self.location, error) from error
        if found.layout is None or found.layout.tensors is None:
            reason = found.note or "not safetensors, GGUF or a PyTorch archive"
            raise CheckpointError(f"{self.location}: {reason}")
        return found.layout.tensors

    def _pread(self, length: int, offset: int) -> bytes:
        return os.pread(self._descriptor, length, offset)

    def lacks(self, offset: int, length: int) -> bool:
        """Return whether some bytes of a part file were never written."""
        if not length or not _is_part(self.location):
            return False
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_HOLE) < offset + length
        except OSError:  # no such call here
            return False

    def read_into(self, data: memoryview, offset: int) -> None:
        if not self._is_same():
            raise CheckpointError(f"{self.location} changed since it was opened")
        while data:
            try:
                count = os.preadv(self._descriptor, [data], offset)
            except OSError as error:
                raise _unreadable(self.location, error) from error
            if count == 0:
                raise CheckpointError(f"{self.location} ended while it was being read")
            data = data[count:]
            offset += count

    def _is_same(self) -> bool:
        now = os.fstat(self._descriptor)
        then = self._status
        return (now.st_size, now.st_mtime_ns) == (then.st_size, then.st_mtime_ns)

    def close(self) -> None:
        os.close(self._descriptor)


def _is_part(location: Path) -> bool:
    """Whether a file lies where a download keeps what it has of one (see store/targets.py)."""
    return location.suffix == ".part" and location.absolute().parent.parent.name == ".sbp2p"


def _not_fetched(name: str) -> CheckpointError:
    return CheckpointError(
        f"tensor {shown(name)} was not fetched: only a part of its file is here",
        hint="load the tensors that were fetched, by name, or fetch this one, too",
    )


def _unreadable(location: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"cannot read {location}: {error.strerror}", hint="check the path and its permissions"
    )


def _resolve(path: PathLike | Sequence[PathLike]) -> tuple[list[Path], dict[str, str]]:
    """Return the files to open, and what a shard index says: tensor name to file name."""
    if not isinstance(path, (str, os.PathLike)):
        return [Path(one) for one in path], {}
    location = Path(path)
    if not location.is_dir():
        return _shards(location) if location.name.endswith(INDEX_SUFFIX) else ([location], {})
    names = sorted(entry.name for entry in location.iterdir() if entry.is_file())
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    if len(indexes) == 1:
        return _shards(location / indexes[0])
    for suffix in (".safetensors", ".gguf"):
        if found := [location / name for name in names if name.endswith(suffix)]:
            return found, {}
    raise CheckpointError(
        f"{location} has no .safetensors and no .gguf file",
        hint="other formats are replicated, not loaded; convert them to safetensors",
    )


def _shards(index: Path) -> tuple[list[Path], dict[str, str]]:
    try:
        with index.open("rb") as file:
            data = file.read(INDEX_MAX + 1)
    except OSError as error:
        raise _unreadable(index, error) from error
    if len(data) > INDEX_MAX:
        raise CheckpointError(f"{index} has more than {INDEX_MAX} bytes")
    try:
        weights = json.loads(data)["weight_map"]
        pairs: Iterable[tuple[object, object]] = weights.items()
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is not a shard index") from error
    found: dict[str, str] = {}
    for name, shard in pairs:
        if not isinstance(name, str) or not isinstance(shard, str):
            raise CheckpointError(
                f"{index}: tensor {shown(str(name))} is not in a file that has a name"
            )
        if "/" in shard or (reason := check_path(shard)) is not None:
            why = "a shard lies beside its index" if "/" in shard else reason
            raise CheckpointError(f"{index}: shard {shown(shard)}: {why}")
        found[name] = shard
    return [index.parent / shard for shard in sorted(set(found.values()))], found

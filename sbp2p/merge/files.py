"""The result of a merge as safetensors files, which a killed merge goes on with.

Theory of operation: everything is written below OUTPUT.merging, beside the output and so on its
filesystem, into files that have their full size from the start. Pieces come in any order. A tensor
whose last byte is written is noted in the journal, with the hash of its bytes. When all are there,
the files are brought to the disk and the folder gets its final name by one rename: at no time does
OUTPUT hold half of a result.

    OUTPUT.merging/journal     what is done (files_journal)
    OUTPUT.merging/lock        held by the process that merges
    OUTPUT.merging/files/      what will be OUTPUT

| what happens | what is left |
|---|---|
| Ctrl-C, kill, a crash | all of it; tensors in the journal are hashed by the next run, not merged |
| the disk is full or fails | the same; one that is too small is noticed before the first tensor |
| power cut | the same; what the disk did not get does not hash right, and is merged again |
| an input is rejected midway | the tensors were made with it: all are merged again, without it |
| an error before a tensor is done | nothing |

Error cases: a StoreError says what the disk did, a StoreBusyError who merges there already, a
DestinationConflictError that OUTPUT is not empty, a MergeError that the unfinished merge is
another one.
"""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from sbp2p.errors import CheckpointError
from sbp2p.merge.digest import LEAF, leaves, model_digest, tensor_digest
from sbp2p.merge.files_journal import Entries, Journal
from sbp2p.merge.files_layout import Style, plan
from sbp2p.merge.report import Rejection
from sbp2p.merge.tensors import Sink
from sbp2p.store.errors import DestinationConflictError, os_errors
from sbp2p.store.files import (
    check_free_space,
    make_folder,
    read_into,
    reserve,
    sync_folder,
    write_all,
)
from sbp2p.store.libc import close_file, start_writeback, sync_data
from sbp2p.store.locks import FileLock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from sbp2p.merge.files_layout import OutputFile, Plan
    from sbp2p.merge.tensors import TensorSpec

WORK_SUFFIX: Final = ".merging"
"""Of the folder beside the output while a merge into it is not finished."""
_READ_BYTES: Final = 16 * LEAF


@dataclass(slots=True)
class _Tensor:
    """A tensor on its way into its file."""

    descriptor: int
    start: int
    """Offset in the file."""
    nbytes: int
    missing: int
    """Bytes that were not written yet."""
    leaves: dict[int, bytes] | None = field(default_factory=dict)
    """By offset, the digests of the leaves of each piece; None if some piece ends within a leaf."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def holds_leaves(self, offset: int, size: int) -> bool:
        """Return whether a piece begins and ends with a leaf."""
        return offset % LEAF == 0 and (size % LEAF == 0 or offset + size == self.nbytes)


class FileSink(Sink):
    """Writes a result into a new folder. A context manager, for one merge.

    After entering, `done` and `rejected` say what an earlier run left: give both to the engine.
    """

    def __init__(
        self,
        output: Path,
        *,
        request: Mapping[str, object],
        style: Style | None = None,
        max_shard_bytes: int | None = None,
        extras: Mapping[str, Path | bytes] | None = None,
        restart: bool = False,
    ) -> None:
        """Name the folder; nothing is looked at yet.

        Args:
            output: must not exist, or be empty.
            request: all that decides the result, for a later run to compare: JSON values.
            style: how the files are to be laid out; one file up to 5 GB if None.
            max_shard_bytes: see `files_layout.plan`.
            extras: further files, by their path in the output: where to copy them from, or content.
            restart: throw away what an earlier run left.
        """
        self.output = output.absolute()
        self.work = self.output.with_name(self.output.name + WORK_SUFFIX)
        self.done: dict[str, bytes] = {}
        """Tensors that are in their files already, and their digests."""
        self.rejected: tuple[Rejection, ...] = ()
        """Inputs that an earlier run left out: their tensors were made without them."""
        self._request = request
        self._style = style or Style()
        self._max_shard_bytes = max_shard_bytes
        self._extras = extras or {}
        self._restart = restart
        self._stack = ExitStack()
        self._journal: Journal | None = None
        self._resumed: Plan | None = None
        self._plan: Plan | None = None
        self._specs: Mapping[str, TensorSpec] = {}
        self._tensors: dict[str, _Tensor] = {}
        self._descriptors: list[int] = []
        self._finished = False

    # -- opening and closing ----------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Take the folder, and look at what is done; raises StoreError, MergeError."""
        _require_free(self.output)
        with ExitStack() as stack:
            make_folder(self.work)
            lock = FileLock(self.work / "lock", f"the merge into {self.output}")
            lock.acquire()
            stack.callback(lock.release)
            if self._restart:
                self._clear()
            make_folder(self._folder)
            journal = self._journal = Journal(self.work / "journal")
            stack.callback(journal.close)
            entries = journal.resume(self._request)
            self.rejected = tuple(entries.rejected)
            if entries.specs is not None:
                self._resume(stack, entries.specs, entries)
            stack.callback(self._tidy)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def _folder(self) -> Path:
        return self.work / "files"

    @property
    def _noted(self) -> Journal:
        if self._journal is None:
            raise RuntimeError("open this sink first: with FileSink(...) as sink")
        return self._journal

    @property
    def size(self) -> int:
        """Return the bytes of the files that hold tensors, and of their index."""
        return 0 if self._plan is None else self._plan.size

    def digest(self) -> bytes:
        """Return the digest of the result (see `digest`), once every tensor is written."""
        empty = tensor_digest(())
        return model_digest(self._specs, {name: self.done.get(name, empty) for name in self._specs})

    @property
    def keeps(self) -> bool:
        """Whether an unfinished merge has something to go on from."""
        return not self._finished and bool(self.done)

    def _clear(self) -> None:
        with os_errors("remove", self.work):
            shutil.rmtree(self._folder, ignore_errors=True)
            (self.work / "journal").unlink(missing_ok=True)

    def _tidy(self) -> None:
        """Leave nothing behind but what a later run can go on from."""
        if not self.done or self._finished:
            with suppress(OSError):  # litter; the merge is over, well or not
                shutil.rmtree(self.work)

    def _resume(self, stack: ExitStack, specs: dict[str, TensorSpec], entries: Entries) -> None:
        """Open the files of an earlier run, and take what hashes right for done."""
        self._resumed = plan(specs, self._style, self._max_shard_bytes)
        self._open(stack, self._resumed, specs)
        for name, digest in entries.done.items():
            tensor = self._tensors.get(name)
            if tensor is not None and _hash(tensor) == digest:
                tensor.missing = 0
                self.done[name] = digest

    def _open(self, stack: ExitStack, wanted: Plan, specs: Mapping[str, TensorSpec]) -> None:
        """Make every file, of its full size and with its header."""
        names = {file.name for file in wanted.files}
        there = 0
        with os_errors("look at", self._folder):
            for each in self._folder.iterdir():
                if each.name in names:
                    there += each.stat().st_blocks * 512
                else:
                    each.unlink()  # of another layout: with other inputs there are other tensors
        check_free_space(self._folder, wanted.size - there)
        self._tensors = {}
        self._descriptors = []
        for file in wanted.files:
            descriptor = self._make(stack, file)
            self._descriptors.append(descriptor)
            for name, start in file.places.items():
                nbytes = specs[name].nbytes
                self._tensors[name] = _Tensor(descriptor, start, nbytes, nbytes)
        self._plan = wanted

    def _make(self, stack: ExitStack, file: OutputFile) -> int:
        path = self._folder / file.name
        with os_errors("write to", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            stack.callback(close_file, descriptor)
            os.ftruncate(descriptor, file.size)
            reserve(descriptor, [(0, file.size)])
            write_all(descriptor, [file.header], 0)
        return descriptor

    # -- writing ----------------------------------------------------------------------------------

    def begin(self, specs: Mapping[str, TensorSpec]) -> None:
        """Make room for every tensor; a second call begins anew. Raises StoreError."""
        wanted = plan(specs, self._style, self._max_shard_bytes)
        self._specs = specs
        if wanted == self._resumed:
            self._resumed = None
            return
        self._resumed = None
        self.done = {}
        self._noted.begin(specs)
        self._open(self._stack, wanted, specs)

    def reject(self, label: str, key: bytes, tensor: str, reason: str) -> None:
        """Remember that an input is left out; `begin` follows. Raises StoreError."""
        self._noted.rejected(Rejection(label, key, tensor, reason))

    def write(self, name: str, offset: int, data: memoryview) -> None:
        """Write a piece of a tensor; raises StoreError."""
        tensor = self._tensors[name]
        with os_errors("write to", self.work):
            write_all(tensor.descriptor, [data], tensor.start + offset)
        found = leaves(data) if tensor.holds_leaves(offset, data.nbytes) else None
        with tensor.lock:
            if found is None:
                tensor.leaves = None
            elif tensor.leaves is not None:
                tensor.leaves[offset] = found
            tensor.missing -= data.nbytes
            last = tensor.missing == 0
        if last:
            self._finish_tensor(name, tensor)

    def _finish_tensor(self, name: str, tensor: _Tensor) -> None:
        known = tensor.leaves
        tensor.leaves = None
        if known is None:
            digest = _hash(tensor)
        else:
            digest = tensor_digest(known[offset] for offset in sorted(known))
        with suppress(OSError):  # `finish` hears of what fails
            start_writeback(tensor.descriptor, tensor.start, tensor.nbytes)
        self._noted.done(name, digest)
        self.done[name] = digest

    def finish(self) -> None:
        """Bring everything to the disk and give the folder its name; raises StoreError."""
        if self._plan is None or any(tensor.missing for tensor in self._tensors.values()):
            raise ValueError("a tensor was not written whole")
        with os_errors("write to", self._folder):
            for descriptor in self._descriptors:
                sync_data(descriptor)
            extras = dict(self._extras)
            if self._plan.index is not None:
                extras[self._plan.index[0]] = self._plan.index[1]
            names = {file.name for file in self._plan.files}
            for path, content in extras.items():
                if path not in names:
                    _place(content, self._folder / path)
            sync_folder(self._folder)
        with os_errors("rename to", self.output):
            self._folder.replace(self.output)
            sync_folder(self.output.parent)
        self._finished = True


def _require_free(output: Path) -> None:
    with os_errors("look at", output):
        taken = output.exists() and any(output.iterdir())
    if taken:
        raise DestinationConflictError(
            f"{output} exists already and is not empty", hint="give another --output"
        )


def _hash(tensor: _Tensor) -> bytes:
    """Return the digest of a tensor that is in its file, read back from there."""
    buffer = memoryview(bytearray(min(_READ_BYTES, tensor.nbytes)))
    found = []
    with os_errors("read", "what was merged"):
        for offset in range(0, tensor.nbytes, _READ_BYTES):
            piece = buffer[: min(_READ_BYTES, tensor.nbytes - offset)]
            if read_into(tensor.descriptor, piece, tensor.start + offset) < len(piece):
                raise CheckpointError("a file of the result became shorter while it was merged")
            found.append(leaves(piece))
    return tensor_digest(found)


def _place(content: Path | bytes, path: Path) -> None:
    """Copy or write a file and bring it to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(path.parent)

"""Copying blocks out of local files: several at once, or by sharing what lies on the disk.

Theory of operation: wanted blocks are looked up in table order and cut into tasks of a few MiB. A
few threads run the tasks, so that reading, hashing, writing and syncing overlap. Within a task,
blocks that follow each other both where they lie and where they go are one *run*.

On filesystems that can let two files share what is on the disk (XFS, Btrfs), a long run is cloned:
nothing is read from the source and nothing is written. Then every block of it is hashed *in the
file that is being made*, which nobody else writes to: a clone does not change with its source.
Everywhere else a block is read into memory, hashed there and written from there. Either way the
bytes that were hashed are those that are shown; neither order leaves room for a change between.

Rules:
- A run is claimed (see Download) while it is cloned, because bytes that turn out wrong lie in the
  file until something else is written there; they get no row, so nothing ever speaks of them.
- Blocks of a run that are not right are looked for one by one, which drops the wrong places.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from blake3 import blake3

from sbp2p.store.errors import BlockMismatchError, BlockUnavailableError, os_errors
from sbp2p.store.extents import QUERY_BATCH
from sbp2p.store.files import read_into
from sbp2p.store.hashing import STEP_BYTES
from sbp2p_protocol.limits import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from sbp2p.store.download import Download
    from sbp2p.store.records import Location
    from sbp2p.store.targets import Target

_Piece: TypeAlias = "tuple[int, Location]"
"""A wanted block and where it lies."""

_THREADS: Final = min(4, os.cpu_count() or 1)
_SMALL: Final = 64 * KIB
"""Bytes: when blocks have fewer on average, threads would mostly wait for the interpreter."""
_TASK_BLOCKS: Final = 256
"""Most blocks in a task: small ones cost the time of their system calls, not of their bytes."""
_CLONE_MIN: Final = 1 * MIB
"""Shorter runs are copied: each clone is an extent of its own for the filesystem to keep."""
_REFUSALS: Final = 8
"""Clones refused in a row after which no more are tried."""
_FICLONERANGE: Final = (
    0x4020940D  # _IOW(0x94, 13, struct file_clone_range), as most machines have it
)
_CLONE_RANGE: Final = struct.Struct("=qQQQ")  # source descriptor, offset, length, offset here


@dataclass(frozen=True, slots=True)
class Found:
    """What one task did."""

    blocks: list[int] = field(default_factory=list)
    """Those that are had now."""
    checked: int = 0
    """Bytes of all blocks that were looked for."""


class LocalCopier:
    """Copies the missing blocks of one download from the files that the index knows."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._table = download.table
        self._cloner = Cloner()

    def steps(self) -> Iterator[Found]:
        """Copy; yields after each task. Whoever stops early waits for the tasks that have begun."""
        missing = self._download.missing
        large = sum(map(self._table.length, missing)) >= _SMALL * missing.count()
        threads = _THREADS if large else 1
        with ThreadPoolExecutor(threads + 1, thread_name_prefix="sbp2p-copy") as pool:
            tasks: deque[Future[Found]] = deque()
            commits: deque[Future[list[int]]] = deque()
            try:
                for task in self._tasks(list(missing)):
                    tasks.append(pool.submit(self._run, task))
                    if len(tasks) > threads:
                        yield tasks.popleft().result()
                    if commits and commits[0].done():
                        commits.popleft().result()
                    if not commits and self._download.commit_due:
                        commits.append(pool.submit(self._download.commit))
                while tasks:
                    yield tasks.popleft().result()
                while commits:
                    commits.popleft().result()
            finally:
                for each in tasks:
                    each.cancel()

    def _tasks(self, blocks: list[int]) -> Iterator[list[tuple[int, Location | None]]]:
        task: list[tuple[int, Location | None]] = []
        size = 0
        for start in range(0, len(blocks), QUERY_BATCH):
            batch = blocks[start : start + QUERY_BATCH]
            places = self._download.extents.first_of([self._table.digest(i) for i in batch])
            for block in batch:
                task.append((block, places.get(self._table.digest(block))))
                size += self._table.length(block)
                if size >= STEP_BYTES or len(task) >= _TASK_BLOCKS:
                    yield task
                    task, size = [], 0
        if task:
            yield task

    def _run(self, task: list[tuple[int, Location | None]]) -> Found:
        done: list[int] = []
        buffer = memoryview(bytearray(max(self._table.length(block) for block, _ in task)))
        pieces = [(block, where) for block, where in task if where is not None]
        cloned: set[int] = set()
        if self._cloner.may_work:
            for run in self._runs(pieces):
                cloned |= self._clone(run, buffer)
        for block, where in pieces:
            if block not in cloned and self._copy_block(block, where, buffer):
                done.append(block)
        return Found([*cloned, *done], sum(self._table.length(block) for block, _ in task))

    def _copy_block(self, block: int, where: Location, buffer: memoryview) -> bool:
        """Copy one block through memory; returns whether it is had now, thanks to this."""
        digest, reader = self._table.digest(block), self._download.reader
        try:
            view = reader.read_at(where, digest, buffer)
            if view is None:
                view = reader.read(digest, buffer)
            return self._download.write_block(block, [view])
        except BlockMismatchError:
            self._download.extents.drop(where, digest)
        except BlockUnavailableError:
            pass
        return False

    # -- cloning --------------------------------------------------------------------------------

    def _runs(self, task: list[_Piece]) -> Iterator[list[_Piece]]:
        """Cut a task into runs; blocks that go to several places are in none."""
        run: list[_Piece] = []
        end: tuple[bytes, int, Target, int] | None = None
        for block, where in task:
            places = self._download.parts.places(block)
            if len(places) != 1:
                continue
            target, offset = places[0]
            if run and end != (where.path, where.offset, target, offset):
                yield run
                run = []
            run.append((block, where))
            end = (where.path, where.offset + where.length, target, offset + where.length)
        if run:
            yield run

    def _clone(self, run: list[_Piece], buffer: memoryview) -> set[int]:
        """Share a run's bytes with its source and hash them; returns the blocks that are right."""
        source, length = run[0][1], sum(where.length for _, where in run)
        right: set[int] = set()
        if length < _CLONE_MIN:
            return right
        blocks = [block for block, _ in run]
        with self._download.claiming(blocks):
            if any(self._download.have.get(block) for block in blocks):
                return right  # somebody was quicker with one: the others go one by one
            (target, offset), *_ = self._download.parts.places(blocks[0])
            with self._download.parts.writing_to(target) as fd:
                if self._share(source, fd, offset, length):
                    with os_errors("read", target.part):
                        right.update(self._right(blocks, fd, offset, buffer))
            for block in right:
                self._download.note_written(block)
        return right

    def _right(self, blocks: list[int], fd: int, offset: int, buffer: memoryview) -> Iterator[int]:
        for block in blocks:
            view = buffer[: self._table.length(block)]
            count = read_into(fd, view, offset)
            if blake3(view[:count]).digest() == self._table.digest(block):
                yield block
            offset += len(view)

    def _share(self, source: Location, fd: int, offset: int, length: int) -> bool:
        try:
            file = self._download.reader.files.take(source.path)
        except OSError:
            return False  # copying finds out what is wrong
        try:
            return self._cloner.clone(file.fd, source.offset, fd, offset, length)
        finally:
            self._download.reader.files.give(file)


class Cloner:
    """Lets files share what is on the disk, where the filesystem can. Thread-safe."""

    def __init__(self) -> None:
        self._refusals = 0 if sys.platform == "linux" else _REFUSALS

    @property
    def may_work(self) -> bool:
        """Whether it is worth trying: it has not been refused time after time."""
        return self._refusals < _REFUSALS

    def clone(self, source: int, start: int, fd: int, offset: int, length: int) -> bool:
        """Make `length` bytes at `offset` of `fd` those at `start` of `source`, or return False.

        What does not fill a block of the filesystem at either end is copied. When it fails, the
        span of `fd` may have been written to.
        """
        try:
            grain = os.fstatvfs(fd).f_bsize
            first = -offset % grain
            middle = (length - first) // grain * grain
            if (start + length, offset + length) == (_size(source), _size(fd)):
                middle = length - first  # files may end together anywhere
            if (start - offset) % grain or middle <= 0:
                return False
            span = _CLONE_RANGE.pack(source, start + first, middle, offset + first)
            fcntl.ioctl(fd, _FICLONERANGE, span)
            for at, size in ((0, first), (first + middle, length - first - middle)):
                edge = os.pread(source, size, start + at)
                if len(edge) < size or os.pwrite(fd, edge, offset + at) < size:
                    return False
        except OSError:
            self._refusals += 1
            return False
        self._refusals = 0
        return True


def _size(fd: int) -> int:
    return os.fstat(fd).st_size

"""Rehashing files on disk against the block table of their version.

Every file is read whole and its blocks compared; what is wrong is named file by file and block by
block, and never stops the rest: a disk that is failing is when this is needed most. Only
`should_stop` ends it early.
"""

from __future__ import annotations

import enum
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sbp2p.checkpoint.hashing import HashJob, hash_files
from sbp2p.checkpoint.scan import SourceFile, open_source, source_file
from sbp2p.errors import CheckpointError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from sbp2p_protocol.bitmap import Bitmap
    from sbp2p_protocol.blocktable import BlockTable


class FileState(enum.Enum):
    """What verifying a file found."""

    GOOD = "good"
    DAMAGED = "damaged"
    """Some blocks have other bytes than their hash says, or the size is wrong."""
    MISSING = "missing"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file, verified."""

    path: str
    state: FileState
    damaged: tuple[tuple[int, int], ...] = ()
    """(unique block number, byte offset) of each block that is not as it should be."""
    detail: str = ""
    """What is wrong, in words; empty for a good file."""


def verify_tree(
    base: str | os.PathLike[str],
    table: BlockTable,
    *,
    only: Bitmap | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[FileReport]:
    """Yield a report on every file of the version, in path order.

    Args:
        base: directory that the version's paths are relative to.
        table: the version's blocks.
        only: unique blocks that have to be there; None for all. A file without any is not reported.
        workers: hashing threads.
        progress: called with (bytes done, total bytes).
        should_stop: asked every few milliseconds; true raises HashingStoppedError.
    """
    check = _Check(Path(base), table, only)
    numbers = check.numbers()
    total = sum(table.files[number].size for number in numbers)
    hashed = hash_files(
        check.jobs(numbers), total, workers=workers, progress=progress, should_stop=should_stop
    )
    waiting = iter(numbers)
    for job in hashed:
        for number in waiting:
            if (early := check.unopened.pop(number, None)) is None:
                yield check.compare(number, job)
                break
            yield early
    for number in waiting:
        yield check.unopened.pop(number)


class _Check:
    """One verification in progress."""

    def __init__(self, base: Path, table: BlockTable, only: Bitmap | None) -> None:
        self.base = base
        self.table = table
        self.only = only
        self.unopened: dict[int, FileReport] = {}
        """Reports on files that could not be opened, until their turn comes."""

    def numbers(self) -> list[int]:
        """Return the files that have to be looked at."""
        only = self.only
        everything = range(len(self.table.files))
        if only is None:
            return list(everything)
        return [n for n in everything if any(only.get(b) for b, _, _ in self.table.file_blocks(n))]

    def jobs(self, numbers: list[int]) -> Iterator[HashJob]:
        for number in numbers:
            path = self.table.files[number].path
            location = self.base / path
            try:
                status = location.stat(follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    raise CheckpointError(f"{location} is not a file")
                file = source_file(path, location, status)
                descriptor = open_source(file)
            except FileNotFoundError:
                self.unopened[number] = FileReport(path, FileState.MISSING, detail="missing")
            except (OSError, CheckpointError) as error:
                self.unopened[number] = FileReport(path, FileState.UNREADABLE, detail=str(error))
            else:
                yield HashJob(file, descriptor, self._lengths(number, file), tolerant=True)

    def _lengths(self, number: int, file: SourceFile) -> Iterator[int]:
        """Yield the lengths of the blocks that lie inside the file as it is."""
        for _, offset, length in self.table.file_blocks(number):
            if offset + length > file.size:
                return
            yield length

    def compare(self, number: int, job: HashJob) -> FileReport:
        entry = self.table.files[number]
        leaves = iter(job.leaves)
        damaged: list[tuple[int, int]] = []
        for block, offset, _ in self.table.file_blocks(number):
            digest, _ = next(leaves, (b"", 0))
            if digest != self.table.digest(block) and (self.only is None or self.only.get(block)):
                damaged.append((block, offset))
        details: list[str] = []
        if job.file.size != entry.size:
            details.append(f"{job.file.size} bytes instead of {entry.size}")
        if damaged:
            details.append(f"{len(damaged)} of {entry.count} blocks damaged")
        if job.changed:
            details.append("changed while it was being read")
        state = FileState.DAMAGED if details else FileState.GOOD
        return FileReport(entry.path, state, tuple(damaged), ", ".join(details))

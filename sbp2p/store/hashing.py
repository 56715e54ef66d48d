"""Hashing files block by block against a table: what is right, and was it still while we read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from sbp2p.store.files import read_into
from sbp2p.store.libc import close_file
from sbp2p.store.records import FileStamp
from sbp2p_protocol.limits import BLOCK_MAX, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sbp2p_protocol.blocktable import BlockTable

STEP_BYTES: Final = 8 * MIB
"""Bytes between two reports of progress: a few milliseconds of hashing."""


@dataclass(slots=True)
class FileCheck:
    """What hashing a file has shown."""

    right: list[tuple[int, int]] = field(default_factory=list)
    """(block, offset) of every block of the table that is where it belongs."""
    wrong: list[tuple[int, int]] = field(default_factory=list)
    """(block, offset) of those that are not."""
    stamp: FileStamp | None = None
    """Set at the end if every byte is right, nothing follows, and nobody changed it meanwhile."""


def check_file(path: Path | str, table: BlockTable, number: int, check: FileCheck) -> Iterator[int]:
    """Hash a file against file `number` of `table`, into `check`; yields bytes done, in steps.

    Raises:
        OSError: the file cannot be read, or is a symlink.
    """
    # not blocking: a pipe in the file's place would be waited for, instead of refused by pread
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        before = FileStamp.of(os.fstat(fd))
        buffer = memoryview(bytearray(min(BLOCK_MAX, table.files[number].size)))
        done = reported = 0
        for block, offset, length in table.file_blocks(number):
            view = buffer[:length]
            right = (
                not is_hole(fd, offset, length)
                and read_into(fd, view, offset) == length
                and blake3(view).digest() == table.digest(block)
            )
            (check.right if right else check.wrong).append((block, offset))
            done += length
            if done - reported >= STEP_BYTES:
                reported = done
                yield done
        after = FileStamp.of(os.fstat(fd))
        if before == after and after.size == table.files[number].size and not check.wrong:
            check.stamp = after
    finally:
        close_file(fd)


def hash_file(path: Path | str, table: BlockTable, number: int) -> FileCheck:
    """Hash a file in one go; one that cannot be read has nothing right."""
    check = FileCheck()
    try:
        for _ in check_file(path, table, number, check):
            pass
    except OSError:
        check.stamp = None
    return check


def is_hole(fd: int, offset: int, length: int) -> bool:
    """Return whether nothing was ever written to a span, as far as the filesystem says."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA) >= offset + length
    except OSError:  # no data up to the end (ENXIO), or no such call: then reading decides
        return False

"""Which blocks were written since the last commit: a list for whoever comes after a kill.

Theory of operation: a kill ends the process and not the kernel, which has the bytes that were
written. So the number of each block is appended to a small file in the work folder when the block
is written, and the list starts anew when a commit has made them safe. Whoever opens the download
next hashes what the list names, at most a batch, and has it without fetching it.

The list is a hint: it is never synced, and it may name anything. After a power cut it may be gone,
or name blocks that are not there; hashing finds out. A disk that does not take it is no reason to
stop: then a kill costs what was not committed.
"""

from __future__ import annotations

import os
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sbp2p.store.libc import close_file

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

RECENT_NAME: Final = "recent"
_READ_MAX: Final = 64 * 1024 * 1024
"""Bytes: 16 million blocks, more than a version may have."""


class RecentBlocks:
    """The list of one download. Not thread-safe; raises nothing."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECENT_NAME
        self._fd = -1
        self._failed = False

    def read(self) -> list[int]:
        """Return the blocks that the last process wrote and did not commit, as far as known."""
        numbers = array("I")
        with suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                data = os.read(fd, _READ_MAX)
            finally:
                close_file(fd)
            numbers.frombytes(data[: len(data) // numbers.itemsize * numbers.itemsize])
        return list(dict.fromkeys(numbers))

    def add(self, index: int) -> None:
        """Append a block."""
        self._write([index])

    def replace(self, indices: Collection[int]) -> None:
        """Start anew with these blocks."""
        if self._fd != -1:
            with suppress(OSError):
                os.ftruncate(self._fd, 0)
        if indices:
            self._write(indices)

    def close(self, *, remove: bool) -> None:
        """Close the list, and remove it if there is nothing in it that matters."""
        fd, self._fd, self._failed = self._fd, -1, True
        with suppress(OSError):
            if remove:
                self._path.unlink(missing_ok=True)
        if fd != -1:
            close_file(fd)

    def _write(self, indices: Collection[int]) -> None:
        if self._failed:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            if self._fd == -1:
                self._fd = os.open(self._path, flags, 0o666)
            os.write(self._fd, array("I", indices))
        except OSError:
            self._failed = True

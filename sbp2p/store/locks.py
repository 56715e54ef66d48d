"""One process at a time: flock on a small file that names its holder.

Theory of operation: the kernel drops a flock when its holder dies, however it dies, so there are
no stale locks to clean up; the pid inside the file is for the message only. A lock file may be
unlinked by its holder, so whoever gets a lock checks that the path still names the inode that it
locked, and otherwise tries again.

Error cases: held by another process (or another object of this one) -> StoreBusyError that names
the pid; a folder that cannot be written, or a filesystem without locks -> StoreError.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, Self

from sbp2p.errors import StoreBusyError
from sbp2p.store.errors import os_errors
from sbp2p.store.libc import close_file

if TYPE_CHECKING:
    from pathlib import Path

_BUSY = frozenset((errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES))


class FileLock:
    """An exclusive lock that ends with `release` or with the process."""

    def __init__(self, path: Path, what: str, *, hint: str = "") -> None:
        """Name the lock; nothing is opened yet.

        Args:
            path: the lock file; its folder must exist.
            what: what the lock protects, for the message: "the download into /models".
            hint: what to do when it is held.
        """
        self._path = path
        self._what = what
        self._hint = hint
        self._fd = -1

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, *, wait: bool = False) -> None:
        """Take the lock.

        Raises:
            StoreBusyError: another holder has it, and `wait` is false.
            StoreError: the lock file cannot be opened, or cannot be locked here.
        """
        if self._fd != -1:
            raise ValueError("this lock is already held")
        with os_errors("lock", self._path):
            while not self._try(wait):
                pass

    def release(self, *, unlink: bool = False) -> None:
        """Give the lock up, removing its file if `unlink`; does nothing if it is not held."""
        if self._fd == -1:
            return
        fd, self._fd = self._fd, -1
        try:
            if unlink:
                self._path.unlink(missing_ok=True)
        except OSError:
            pass  # a read-only folder: the file stays, and does no harm
        finally:
            close_file(fd)

    def _try(self, wait: bool) -> bool:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if not self._is_current(fd):
                close_file(fd)
                return False
            os.truncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError as error:
            holder = _holder(fd)
            close_file(fd)
            if error.errno in _BUSY:
                raise StoreBusyError(
                    f"{self._what} is in use by {holder}", hint=self._hint
                ) from error
            raise
        self._fd = fd
        return True

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self._path.stat())
        except FileNotFoundError:
            return False


class NodeLock(FileLock):
    """The lock on `home/node.lock`: one running node for each home."""

    def __init__(self, home: Path) -> None:
        super().__init__(
            home / "node.lock",
            f"the node at {home}",
            hint="Stop that process, or give this one another home folder.",
        )

    def acquire(self, *, wait: bool = False) -> None:
        """Make the home folder if it is new, and take the lock (see `FileLock.acquire`)."""
        with os_errors("create", self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        super().acquire(wait=wait)


def _holder(fd: int) -> str:
    """Say who wrote its pid into a lock file."""
    text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    if not text.isdigit():  # the holder has not written it yet
        return "another process"
    return "this process" if int(text) == os.getpid() else f"process {text}"

"""The calls of the operating system that the store makes, seen one by one, to fail or record them.

They are replaced where Python offers them (`os.pwritev`, `fcntl.flock`, libc's `fallocate`), so
everything of the store itself runs as it is. What SQLite does inside is out of reach; see
`failing_index` for its errors.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from sbp2p.store import libc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

READING: Final = (
    *("open", "close", "fstat", "lstat", "stat", "scandir", "statvfs", "fstatvfs"),
    *("preadv", "pread", "read", "lseek"),
)
WRITING: Final = (
    *("pwritev", "pwrite", "write", "ftruncate", "truncate", "fdatasync", "fsync"),
    *("mkdir", "rmdir", "link", "unlink", "replace"),
)
LIBC: Final = ("fallocate", "syncfs", "sync_file_range")

_readlink = os.readlink


class SystemCalls:
    """Calls on files below a folder, in the order in which they are made. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self.root = os.fsencode(root)
        self.count = 0
        self.lock = threading.RLock()

    def before(self, name: str, path: bytes, arguments: tuple[Any, ...]) -> None:
        """Called with the lock held; may raise OSError instead of the call."""

    def after(self, name: str, path: bytes, arguments: tuple[Any, ...], result: Any) -> None:
        """Called with the lock held when the call succeeded."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Replace the calls."""
        with pytest.MonkeyPatch.context() as patch:
            for name in (*READING, *WRITING):
                patch.setattr(os, name, self._wrap(name, getattr(os, name)))
            patch.setattr(fcntl, "flock", self._wrap("flock", fcntl.flock))
            found = {name: libc._function(name) for name in LIBC}
            wrapped = {name: self._wrap_libc(name, call) for name, call in found.items()}
            patch.setattr(libc, "_function", wrapped.get)
            yield

    def _path(self, target: Any) -> bytes | None:
        """Return what a call is about, if that lies below the folder."""
        if isinstance(target, int):
            try:
                path = os.fsencode(_readlink(f"/proc/self/fd/{target}"))
            except OSError:
                return None
        else:
            path = os.fsencode(target)
        return path if path.startswith(self.root) else None

    def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            path = self._path(arguments[0]) if arguments else None
            if path is None or path.endswith((b"sqlite", b"-wal", b"-shm")):
                return call(*arguments, **options)
            with self.lock:
                self.count += 1
                if name == "close":  # the descriptor is gone also when it fails
                    call(*arguments)
                    self.before(name, path, arguments)
                    return None
                self.before(name, path, arguments)
                result = call(*arguments, **options)
                self.after(name, path, arguments, result)
            return result

        return watched

    def _wrap_libc(self, name: str, call: Callable[..., int]) -> Callable[..., int]:
        def watched(*arguments: Any) -> int:
            path = self._path(arguments[0].value)
            assert path is not None
            with self.lock:
                self.count += 1
                try:
                    self.before(name, path, arguments)
                except OSError as error:
                    ctypes.set_errno(error.errno or 0)
                    return -1
                result = call(*arguments)
                if result == 0:
                    self.after(name, path, arguments, result)
            return result

        return watched


class Failing(SystemCalls):
    """The call of a certain number fails, alone or with all of its kind after it."""

    def __init__(self, root: Path, number: int, code: int, *, for_good: bool) -> None:
        super().__init__(root)
        self._number = number
        self._code = code
        self._for_good = for_good
        self.failed = ""

    def before(self, name: str, path: bytes, arguments: tuple[Any, ...]) -> None:
        if self.count == self._number:
            self.failed = name
        elif not (self._for_good and name == self.failed):
            return
        raise OSError(self._code, os.strerror(self._code), os.fsdecode(path))


@contextmanager
def failing_index(number: int, code: int, *, done: bool) -> Iterator[list[str]]:
    """Let the statement of a certain number fail, before it was executed or (`done`) after.

    Yields a list that gets the statement.
    """
    failed: list[str] = []
    count = 0
    lock = threading.Lock()

    def is_due(statement: str) -> bool:
        nonlocal count
        with lock:
            count += 1
            if count != number:
                return False
        failed.append(statement)
        return True

    def fail() -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        raise error

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *rest: Any) -> sqlite3.Cursor:
            return self._maybe(statement, super().execute, *rest)

        def executemany(self, statement: str, *rest: Any) -> sqlite3.Cursor:
            return self._maybe(statement, super().executemany, *rest)

        def _maybe(
            self, statement: str, call: Callable[..., sqlite3.Cursor], *rest: Any
        ) -> sqlite3.Cursor:
            failing = is_due(statement)
            if failing and not done:
                fail()
            cursor = call(statement, *rest)
            if failing:
                fail()
            return cursor

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        return original(*arguments, **options, factory=Connection)

    original = sqlite3.connect
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect)
        yield failed

"""Small databases in a node's home, beside the store's index: notes that can be made again.

Theory of operation. SQLite in WAL mode, one connection behind a lock, one transaction for each
change, so a kill at any moment leaves what was before or after it. A *durable* one syncs at every
commit (a power cut loses nothing that was committed); the others leave that to the checkpoints (a
power cut loses the newest changes and damages nothing). Several processes may share a file.

A file that is damaged, that is no database, or that a newer sbp2p made is renamed to NAME.bad with
a warning, and a new one is begun: what is in these files is not worth refusing to start for. Who
opens a database learns from `set_aside` that it happened. The store's index is never treated so.

Errors: `StoreError` when the disk is full, failing or not writable, or another process holds the
file for too long; nothing else, and for damage only if it comes up after opening.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self

from sbp2p import observe
from sbp2p.errors import StoreBusyError, StoreError
from sbp2p.store.errors import os_errors
from sbp2p.store.locks import FileLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SET_ASIDE_SUFFIX: Final = ".bad"

_BUSY_S: Final = 5.0
_BUSY: Final = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_DAMAGED: Final = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR))
"""SQLITE_ERROR too: a table that should be there is not."""


class _UnusableError(Exception):
    """The file is not what it should be; the message says why."""


class Database:
    """One open file, or one in memory. Thread-safe; a context manager that closes it.

    Args:
        path: the file; its folder must exist. None keeps everything in memory.
        schema: scripts; number n takes a file from user_version n to n + 1. Append, never edit.
        durable: whether a commit survives a power cut.

    Raises:
        StoreError: the file can be neither used nor set aside.
    """

    def __init__(self, path: Path | None, schema: Sequence[str], *, durable: bool) -> None:
        self.path = path
        self.set_aside = ""
        """Why the file that was there is not used, if it is not."""
        self._schema = schema
        self._durable = durable
        self._lock = threading.Lock()
        self._connection = self._open_in_memory() if path is None else self._open_file(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _open_in_memory(self) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._migrate(connection)
        return connection

    def _open_file(self, path: Path) -> sqlite3.Connection:
        # two processes must not both make, migrate or set aside one file
        lock = FileLock(path.with_name(f"{path.name}.lock"), str(path))
        lock.acquire(wait=True)
        try:
            try:
                return self._try_file(path)
            except _UnusableError as error:
                self.set_aside = str(error)
            observe.report_set_aside(str(path), SET_ASIDE_SUFFIX, self.set_aside)
            with os_errors("set aside", path):
                _set_aside(path)
            try:
                return self._try_file(path)
            except _UnusableError as error:
                raise StoreError(f"{path} cannot be used: {error}") from error
        finally:
            lock.release()

    def _try_file(self, path: Path) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise StoreError(f"cannot open {path}: {error}") from error
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            level = "FULL" if self._durable else "NORMAL"
            connection.execute(f"PRAGMA synchronous = {level}")
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise _UnusableError(f"it is damaged: {verdict}")
            self._migrate(connection)
        except sqlite3.Error as error:
            connection.close()
            if _code(error) in _DAMAGED:
                raise _UnusableError(f"it is damaged: {error}") from error
            raise self._translate(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        (have,) = connection.execute("PRAGMA user_version").fetchone()
        if not 0 <= have <= len(self._schema):
            raise _UnusableError(f"a newer sbp2p made it (schema {have})")
        for number in range(have, len(self._schema)):
            connection.executescript(
                f"BEGIN IMMEDIATE; {self._schema[number]} PRAGMA user_version = {number + 1};"
                " COMMIT;"
            )

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection inside a transaction, which any exception undoes."""
        with self._lock, self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def read(self, query: str, arguments: Sequence[object] = ()) -> list[Any]:
        """Return all rows of a query."""
        with self._lock, self._errors():
            return self._connection.execute(query, arguments).fetchall()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: sqlite3.Error) -> StoreError:
        text = f"{self.path or 'a database in memory'}: {error}"
        if _code(error) in _BUSY:
            return StoreBusyError(f"{text} (waited {_BUSY_S:g} s)")
        if isinstance(error, sqlite3.ProgrammingError):
            return StoreError(f"{text}: it is closed")
        return StoreError(text, hint="Check the disk and the permissions of the home folder.")


def _code(error: sqlite3.Error) -> int:
    """Return the primary result code; extended ones keep it in their lowest 8 bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _set_aside(path: Path) -> None:
    # the log belongs to the file: under a new file of the same name it would be taken for its own
    for suffix in ("-wal", "-shm", ""):
        each = path.with_name(path.name + suffix)
        with suppress(FileNotFoundError):
            each.replace(path.with_name(path.name + SET_ASIDE_SUFFIX + suffix))

"""The index: one SQLite database in a node's home, shared by threads and by processes.

Theory of operation: write-ahead logging, so that readers never wait for a writer. One connection
writes, behind a lock; readers borrow a connection from a pool and give it back, so there are as
many as there were threads reading at once. A write is one short BEGIN IMMEDIATE transaction;
another process that writes at the same moment makes it wait, up to `busy_timeout_s`.

`synchronous` is FULL. NORMAL would be as consistent, but after a power cut it may forget every
commit since the last checkpoint, which would be far more than the one batch that a crash may
cost. One fsync of the log for each 8 MiB batch was measured at under 1 ms.

Tables:
    file            one row for a file whose blocks are known: path and stamp
    extent          file, offset -> length, digest. The only record of what is on disk: a
                    download's have-bits are the rows of its part files
    loose           blocks without a file: manifests, tree nodes, tensor index pages
    version         one row for a version in a folder
    version_file    its files in order; file_id is NULL where the file was not asked for
    version_leaves  its leaves in file order, packed, so that the block table can be made again
                    even when the files have changed
    version_loose   which loose blocks it needs

Error cases: sqlite3 errors become StoreError (busy: StoreBusyError; full: NoSpaceError).
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sbp2p.errors import StoreBusyError, StoreError
from sbp2p.store.errors import NoSpaceError, os_errors
from sbp2p.store.locks import FileLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sbp2p.config import StoreConfig

INDEX_NAME: Final = "index.sqlite"

_READ_POOL: Final = 16
"""Idle read connections kept; each holds at most SQLite's 2 MB page cache."""

_SCHEMA_1: Final = """
CREATE TABLE file (
    id       INTEGER PRIMARY KEY,
    path     BLOB    NOT NULL UNIQUE,
    size     INTEGER NOT NULL,
    inode    INTEGER NOT NULL,
    mtime_ns INTEGER,
    part     INTEGER NOT NULL DEFAULT 0,
    fetched  INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE extent (
    file_id INTEGER NOT NULL REFERENCES file (id) ON DELETE CASCADE,
    offset  INTEGER NOT NULL,
    length  INTEGER NOT NULL,
    digest  BLOB    NOT NULL,
    PRIMARY KEY (file_id, offset)
) STRICT, WITHOUT ROWID;
CREATE INDEX extent_digest ON extent (digest);
CREATE TABLE loose (
    cid   BLOB    NOT NULL PRIMARY KEY,
    data  BLOB    NOT NULL,
    added INTEGER NOT NULL
) STRICT;
CREATE TABLE version (
    id        INTEGER PRIMARY KEY,
    manifest  BLOB    NOT NULL,
    root_path BLOB    NOT NULL,
    publisher BLOB    NOT NULL,
    name      TEXT    NOT NULL,
    number    INTEGER NOT NULL,
    document  BLOB    NOT NULL,
    role      TEXT    NOT NULL,
    pinned    INTEGER NOT NULL,
    complete  INTEGER NOT NULL,
    files     INTEGER NOT NULL,
    bytes     INTEGER NOT NULL,
    UNIQUE (manifest, root_path)
) STRICT;
CREATE INDEX version_name ON version (publisher, name, number);
CREATE TABLE version_file (
    version_id INTEGER NOT NULL REFERENCES version (id) ON DELETE CASCADE,
    ordinal    INTEGER NOT NULL,
    path       TEXT    NOT NULL,
    size       INTEGER NOT NULL,
    cid        BLOB    NOT NULL,
    leaves     INTEGER NOT NULL,
    file_id    INTEGER REFERENCES file (id) ON DELETE SET NULL,
    PRIMARY KEY (version_id, ordinal)
) STRICT, WITHOUT ROWID;
CREATE INDEX version_file_file ON version_file (file_id);
CREATE TABLE version_leaves (
    version_id INTEGER NOT NULL REFERENCES version (id) ON DELETE CASCADE,
    page       INTEGER NOT NULL,
    packed     BLOB    NOT NULL,
    PRIMARY KEY (version_id, page)
) STRICT;
CREATE TABLE version_loose (
    cid        BLOB    NOT NULL,
    version_id INTEGER NOT NULL REFERENCES version (id) ON DELETE CASCADE,
    PRIMARY KEY (cid, version_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX version_loose_version ON version_loose (version_id);
"""

_SCHEMA_2: Final = """
ALTER TABLE version ADD COLUMN used INTEGER NOT NULL DEFAULT 0;
"""
"""Unix seconds of the last use of a version, as far as it is noted; 0 for before that was so."""

MIGRATIONS: Final[tuple[str, ...]] = (_SCHEMA_1, _SCHEMA_2)
"""Script n takes a database from user_version n to n + 1. Append; never edit one that shipped."""

_FULL: Final = frozenset((sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG))
_BUSY: Final = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_DAMAGED: Final = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
_UNWRITABLE: Final = frozenset(
    (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
)


class Index:
    """The database, its one writer and its pool of readers. Thread-safe."""

    def __init__(self, home: Path, config: StoreConfig) -> None:
        """Open the index of `home`, creating or migrating it under a lock.

        Raises:
            StoreError: the folder or the database cannot be used; the hint says what to do.
        """
        self.path = home / INDEX_NAME
        self._timeout_s = config.busy_timeout_s
        self._idle: deque[sqlite3.Connection] = deque()
        self._lock = threading.Lock()
        self._closed = False
        with os_errors("create", home):
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
        # two processes must not both turn a fresh database to WAL and migrate it; the kernel ends
        # the wait when the holder dies
        lock = FileLock(home / "index.lock", f"the index at {home}")
        lock.acquire(wait=True)
        try:
            self._writer = self._open()
        finally:
            lock.release()

    def _open(self) -> sqlite3.Connection:
        with self._errors():
            connection = self._connect()
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                self._migrate(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        (have,) = connection.execute("PRAGMA user_version").fetchone()
        if have > len(MIGRATIONS):
            raise StoreError(
                f"the index {self.path} was written by a newer sbp2p (schema {have})",
                hint="Upgrade sbp2p, or use another home folder.",
            )
        for number in range(have, len(MIGRATIONS)):
            # executescript commits what is open, so the transaction is part of the script
            connection.executescript(
                f"BEGIN IMMEDIATE; {MIGRATIONS[number]} PRAGMA user_version = {number + 1}; COMMIT;"
            )

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection for reading; no transaction spans two statements."""
        try:
            connection = self._idle.pop()
        except IndexError:
            self._check_open()
            with self._errors():
                connection = self._connect()
        try:
            yield connection
        except sqlite3.Error as error:
            raise self._translate(error) from error
        finally:
            if self._closed or len(self._idle) >= _READ_POOL:
                connection.close()
            else:
                self._idle.append(connection)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Lend the writer inside a transaction: committed at the end, undone by any exception.

        The commit is durable when the block is left (`synchronous` is FULL).
        """
        with self._lock:
            self._check_open()
            with self._errors():
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield self._writer
                    self._writer.execute("COMMIT")
                except BaseException:
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")
                    raise

    def close(self) -> None:
        """Close every connection; the last process to do so folds the log into the database."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()
            self._writer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: sqlite3.Error) -> StoreError:
        """Put a SQLite error into words; extended result codes keep the primary in 8 bits."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        text = f"the index {self.path}: {error}"
        if code in _BUSY:
            return StoreBusyError(
                f"{text} (waited {self._timeout_s:g} s)",
                hint="Another process is writing to it for long: try again when it is done.",
            )
        if code in _FULL:
            return NoSpaceError(text, hint="Free some space; nothing that was committed is lost.")
        if code in _DAMAGED:
            return StoreError(
                text,
                hint="Move the index away and publish or get again: the files themselves are"
                " untouched, and what is right in them is found by hashing.",
            )
        if code in _UNWRITABLE:
            return StoreError(text, hint="Check the permissions and the mount of the home folder.")
        return StoreError(text)

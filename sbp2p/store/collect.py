"""Making room: versions that nobody asked to keep go, the one that was not used for longest first.

Theory of operation. What counts is what this node has fetched: finished files at their size, part
files at what they take on the disk. What a user published, or had before, is neither counted nor
touched. A version may go if it was fetched and is not pinned, and

    its folder is there                 or its disk may only be unmounted
    its work folder is not locked       no process is fetching it, or taking it away
    no running fetch has its blocks     such a fetch copies what it can from files that are here

It goes in steps of some files: they are deleted, then their rows. A file goes only if a download of
this node made it, no other version here has it, and it is still what was verified (removal.py).
Once begun a version goes whole, in this run or the next: it is incomplete meanwhile, and still the
one that goes first. So a crash, or an end of the iteration, between any two operations leaves a
version that can be collected, or fetched again.

Error cases: StoreError when a file cannot be deleted; the same call goes on from there.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sbp2p.errors import StoreBusyError
from sbp2p.store.errors import NoSpaceError, os_errors
from sbp2p.store.files import make_folder
from sbp2p.store.finish import LOCK_NAME, release_work_folder
from sbp2p.store.locks import FileLock
from sbp2p.store.loose import held, sweep
from sbp2p.store.removal import Tally, delete_all, own_files, remove_empty_folders
from sbp2p.store.targets import work_folder

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterator

    from sbp2p.store.index import Index
    from sbp2p.store.records import VersionRecord
    from sbp2p.store.removal import FileRow
    from sbp2p.store.versions import Versions
    from sbp2p_protocol.blocktable import BlockTable

_GOING: Final = "SELECT 1 FROM version WHERE id = ? AND NOT pinned"

FILES_A_STEP: Final = 64
"""Files deleted in one step: where unlink(2) waits for the disk, about 30 ms with eight threads."""


@dataclass(frozen=True, slots=True)
class CollectStep:
    """Progress of `Store.collect`."""

    version: VersionRecord
    files_deleted: int
    bytes_freed: int
    done: bool
    """The version is gone."""
    bytes_used: int
    """By what was fetched, now."""


def bytes_used(index: Index) -> int:
    """Return the bytes on disk of what this node has fetched."""
    with index.reading() as db:
        (total,) = db.execute(
            "SELECT COALESCE(SUM(size), 0) FROM file WHERE fetched AND NOT part"
        ).fetchone()
        parts = db.execute("SELECT path FROM file WHERE fetched AND part").fetchall()
    return int(total) + sum(_allocated(path) for (path,) in parts)


def _allocated(path: bytes) -> int:
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0


class Collector:
    """Makes room in one store.

    Args:
        index, versions: of the store.
        forget: told each path that is deleted, so that no descriptor keeps its space.
        protected: tables of versions that are about to be fetched.
    """

    def __init__(
        self,
        index: Index,
        versions: Versions,
        *,
        forget: Callable[[bytes], None],
        protected: Collection[BlockTable] = (),
    ) -> None:
        self._index = index
        self._versions = versions
        self._forget = forget
        self._protected = tuple(protected)

    def steps(self, limit_bytes: int) -> Iterator[CollectStep]:
        """Remove versions until what was fetched takes at most so many bytes, or nothing may go."""
        passed_over: set[int] = set()
        while bytes_used(self._index) > limit_bytes:
            record = self._next(passed_over)
            if record is None:
                return
            passed_over.add(record.row)
            yield from self._remove(record)

    def candidates(self) -> list[VersionRecord]:
        """Return the versions that may go, in the order in which they would."""
        return [record for record in self._versions.unpinned() if self._may_go(record)]

    def _next(self, passed_over: set[int]) -> VersionRecord | None:
        for record in self._versions.unpinned():
            if record.row not in passed_over:
                if self._may_go(record):
                    return record
                passed_over.add(record.row)
        return None

    def _may_go(self, record: VersionRecord) -> bool:
        with os_errors("look at", record.root_path):
            there = record.root_path.is_dir()  # its disk may not be mounted
        if not there or is_running(record):
            return False
        needed = [*self._protected, *self._running()]
        if not needed:
            return True
        with self._index.reading() as db:
            return not any(
                table.index(digest) is not None
                for digest in _digests(db, record.row)
                for table in needed
            )

    def _running(self) -> Iterator[BlockTable]:
        for record in self._versions.all():
            if not record.complete and is_running(record):
                yield self._versions.table(record)

    def _remove(self, record: VersionRecord) -> Iterator[CollectStep]:
        with ExitStack() as stack:
            folder = work_folder(record.root_path, record.cid)
            make_folder(folder)
            lock = FileLock(folder / LOCK_NAME, f"the download into {record.root_path}")
            try:
                lock.acquire()
            except StoreBusyError:
                return
            stack.callback(release_work_folder, folder, lock)
            while rows := self._rows(record):
                tally = Tally()
                delete_all(rows, tally)
                for row in rows:
                    self._forget(row[2])
                with self._index.writing() as db:
                    db.execute("UPDATE version SET complete = 0 WHERE id = ?", (record.row,))
                    db.executemany("DELETE FROM file WHERE id = ?", ((row[1],) for row in rows))
                yield self._step(record, tally, done=False)
            gone = self._forget_version(record)
        if gone:
            yield self._step(record, Tally(), done=True)

    def _rows(self, record: VersionRecord) -> list[FileRow]:
        """Return the next files to delete; none once somebody has pinned the version."""
        with self._index.reading() as db:
            if db.execute(_GOING, (record.row,)).fetchone() is None:
                return []
            return own_files(db, record, [record], FILES_A_STEP)

    def _forget_version(self, record: VersionRecord) -> bool:
        with self._index.writing() as db:
            if db.execute(_GOING, (record.row,)).fetchone() is None:
                return False
            paths = db.execute("SELECT path FROM version_file WHERE version_id = ?", (record.row,))
            root = os.fsencode(record.root_path)
            files = [root + b"/" + os.fsencode(path) for (path,) in paths]
            loose = held(db, record.row)
            db.execute("DELETE FROM version WHERE id = ?", (record.row,))
            sweep(db, loose)
        remove_empty_folders(record, files)
        return True

    def _step(self, record: VersionRecord, tally: Tally, *, done: bool) -> CollectStep:
        return CollectStep(record, tally.deleted, tally.bytes, done, bytes_used(self._index))


def is_running(record: VersionRecord) -> bool:
    """Return whether some process is fetching, or removing, a version."""
    folder = work_folder(record.root_path, record.cid)
    with os_errors("look at", folder):
        if not folder.is_dir():
            return False
    lock = FileLock(folder / LOCK_NAME, "a download")
    try:
        lock.acquire()
    except StoreBusyError:
        return True
    lock.release()
    return False


def _digests(db: sqlite3.Connection, row: int) -> Iterator[bytes]:
    found = db.execute(
        "SELECT e.digest FROM version_file v JOIN extent e ON e.file_id = v.file_id"
        " WHERE v.version_id = ?",
        (row,),
    )
    return (digest for (digest,) in found)


def make_room(collector: Collector, index: Index, quota_bytes: int, needed_bytes: int) -> None:
    """Make room for a download within a quota.

    Raises:
        NoSpaceError: it does not fit, whatever may go.
    """
    limit = quota_bytes - needed_bytes
    for _ in collector.steps(max(0, limit)):
        pass
    used = bytes_used(index)
    if needed_bytes and used > limit:
        raise NoSpaceError(
            f"{needed_bytes} bytes more do not fit: {used} of the quota of {quota_bytes} are used",
            hint="raise the quota, or let versions go: `sbp2p unpin`, `sbp2p rm --files`",
        )

"""Forgetting a version, and deleting those of its files that nobody else needs.

Rules: a file is deleted only if a download of this node made it, no other version here has it, and
it is still what was verified. Files are deleted before the index forgets them, so that after a
crash the same removal can be run again. A download that is running is not removed under it.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sbp2p.store.errors import os_errors
from sbp2p.store.files import remove_file
from sbp2p.store.finish import LOCK_NAME, release_work_folder
from sbp2p.store.locks import FileLock
from sbp2p.store.loose import held, sweep
from sbp2p.store.records import FileStamp, RemovedVersion
from sbp2p.store.targets import work_folder

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from sbp2p.store.index import Index
    from sbp2p.store.records import VersionRecord


_DELETERS: Final = 8
"""Threads that delete: where unlink(2) waits for the disk, one by one took 3 ms a file."""

FileRow: TypeAlias = "tuple[Any, ...]"
"""Of a file and the version that has it: see `own_files`."""


@dataclass(slots=True)
class Tally:
    """What was deleted, and what was not."""

    deleted: int = 0
    bytes: int = 0
    kept: list[Path] = field(default_factory=list)


def remove_versions(
    index: Index, records: Sequence[VersionRecord], *, delete_files: bool
) -> RemovedVersion:
    """Remove versions; see `Store.remove_version`."""
    tally = Tally()
    with ExitStack() as stack:
        for record in records:
            _lock_download(stack, record)
        with index.reading() as db:
            files = [row for record in records for row in own_files(db, record, records)]
        if delete_files:
            deletable = {record.row for record in records if record.role == "fetch"}
            delete_all([row for row in files if row[0] in deletable], tally)
            for record in records:
                remove_empty_folders(record, (row[2] for row in files if row[0] == record.row))
        with index.writing() as db:
            loose = [cid for record in records for cid in held(db, record.row)]
            for record in records:
                db.execute("DELETE FROM version WHERE id = ?", (record.row,))
            sweep(db, loose)
            db.executemany(
                "DELETE FROM file WHERE id = ? AND NOT EXISTS"
                " (SELECT 1 FROM version_file WHERE file_id = file.id)",
                ((row[1],) for row in files),
            )
    return RemovedVersion(len(records), tally.deleted, tally.bytes, tuple(tally.kept))


def _lock_download(stack: ExitStack, record: VersionRecord) -> None:
    """Refuse while a download into this folder runs; keep one from starting meanwhile."""
    folder = work_folder(record.root_path, record.cid)
    if folder.is_dir():
        lock = FileLock(folder / LOCK_NAME, f"the download of {record.name} into {folder.parent}")
        lock.acquire()
        stack.callback(release_work_folder, folder, lock)


def own_files(
    db: sqlite3.Connection,
    record: VersionRecord,
    removed: Sequence[VersionRecord],
    most: int = -1,
) -> list[FileRow]:
    """Return the index rows of files that only the removed versions have; at most so many."""
    return db.execute(
        "SELECT v.version_id, f.id, f.path, f.size, f.mtime_ns, f.inode, f.part, f.fetched"
        " FROM version_file v JOIN file f ON f.id = v.file_id WHERE v.version_id = ?"
        " AND NOT EXISTS (SELECT 1 FROM version_file o WHERE o.file_id = f.id"
        " AND o.version_id NOT IN (SELECT value FROM json_each(?))) LIMIT ?",
        (record.row, json.dumps([each.row for each in removed]), most),
    ).fetchall()


def delete_all(rows: Sequence[FileRow], tally: Tally) -> None:
    """Delete files as far as they are what this node made; raises StoreError."""
    with ThreadPoolExecutor(_DELETERS, thread_name_prefix="sbp2p-delete") as pool:
        shares = [rows[start::_DELETERS] for start in range(min(_DELETERS, len(rows)))]
        for share, deleted in zip(shares, pool.map(_delete_some, shares), strict=True):
            for row, gone in zip(share, deleted, strict=True):
                if gone is None:
                    continue
                if gone:
                    tally.deleted += 1
                    tally.bytes += row[3]
                else:
                    tally.kept.append(Path(os.fsdecode(row[2])))
    tally.kept.sort()


def _delete_some(rows: Sequence[FileRow]) -> list[bool | None]:
    return [_delete(row) for row in rows]


def _delete(row: FileRow) -> bool | None:
    """Delete a file if it is what this node made; returns None if there is none."""
    _, _, path, size, mtime_ns, inode, part, fetched = row
    with os_errors("delete", path):
        try:
            stamp = FileStamp.of(os.lstat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not part and not (fetched and stamp == (size, mtime_ns, inode)):
            return False
        remove_file(path)
    return True


def remove_empty_folders(record: VersionRecord, files: Iterable[bytes]) -> None:
    """Remove the folders inside the version's own that held its files and hold nothing now."""
    root = os.fsencode(record.root_path) + b"/"
    inside: set[bytes] = set()
    for file in files:
        folder = file.rpartition(b"/")[0]
        while folder.startswith(root) and folder not in inside:
            inside.add(folder)
            folder = folder.rpartition(b"/")[0]
    for folder in sorted(inside, key=len, reverse=True):
        with suppress(OSError):  # not empty, or gone
            Path(os.fsdecode(folder)).rmdir()

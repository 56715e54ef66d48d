"""Which bytes of which files are which blocks: the rows of `file` and `extent`.

Theory of operation: a row (file, offset, length, digest) says that these bytes were hashed or
verified while the file had the stamp in its `file` row, or that a download verified and synced
them into a part file. Rows are added in batches, and taken away one by one when a read finds other
bytes. A block that lies in many places has many rows.

Rules:
- A file whose path is indexed again replaces its rows; versions that had it as other bytes are no
  longer complete.
- A file that is missing keeps its rows, because its disk may only be unmounted; it is not claimed
  in `have` while it is missing.
"""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sbp2p.store.records import FileStamp, Location
from sbp2p_protocol.bitmap import Bitmap

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from sbp2p.store.index import Index
    from sbp2p_protocol.blocktable import BlockTable

QUERY_BATCH: Final = 500
"""Digests in one IN (...); SQLite allows 32,766 variables, and more gains nothing."""

_WRITE_BATCH: Final = 20_000
"""Rows in one transaction: about 0.1 s during which another process waits."""

_PLACE: Final = (
    "SELECT f.id, f.path, e.offset, e.length, f.size, f.mtime_ns, f.inode, f.part"
    " FROM extent e JOIN file f ON f.id = e.file_id"
)
_FIRST_PLACE: Final = f"{_PLACE} WHERE e.digest = ? LIMIT 1"  # constants only
_ALL_PLACES: Final = f"{_PLACE} WHERE e.digest = ?"


class IndexedFile(NamedTuple):
    """One file to index: the caller has hashed it, and it had this stamp before and after."""

    path: Path | str
    leaves: Sequence[tuple[bytes, int]]
    """(digest, length) of its blocks in order; together they are the whole file."""
    stamp: FileStamp


class Extents:
    """Adds, finds and drops the places of blocks."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.pending: dict[bytes, Location] = {}
        """Blocks that a download of this process has written and not committed yet."""

    def first(self, digest: bytes) -> Location | None:
        """Return one place of a block, the way that costs least."""
        if (found := self.pending.get(digest)) is not None:
            return found
        with self._index.reading() as db:
            row = db.execute(_FIRST_PLACE, (digest,)).fetchone()
        return None if row is None else _location(row)

    def all(self, digest: bytes) -> list[Location]:
        """Return every place of a block."""
        with self._index.reading() as db:
            found = [_location(row) for row in db.execute(_ALL_PLACES, (digest,))]
        if (pending := self.pending.get(digest)) is not None:
            found.insert(0, pending)
        return found

    def first_of(self, digests: Sequence[bytes]) -> dict[bytes, Location]:
        """Return one place for each block that has one; finished files before part files."""
        found: dict[bytes, Location] = {}
        with self._index.reading() as db:
            for start in range(0, len(digests), QUERY_BATCH):
                batch = digests[start : start + QUERY_BATCH]
                marks = ",".join("?" * len(batch))
                query = f"SELECT e.digest, {_PLACE[7:]} WHERE e.digest IN ({marks})"
                for digest, *row in db.execute(query, batch):
                    if digest not in found or (found[digest].stamp is None and not row[7]):
                        found[digest] = _location(row)
        for digest in digests:
            if digest not in found and (pending := self.pending.get(digest)) is not None:
                found[digest] = pending
        return found

    def have(self, table: BlockTable, version_row: int | None = None) -> Bitmap:
        """Return which blocks of a version lie in files that are there with the size they had.

        With the version's row, its own files are scanned in order, at a tenth of the cost of a
        look-up for each block.
        """
        bitmap = Bitmap(len(table))
        present: dict[int, bool] = {}
        with self._index.reading() as db:
            if version_row is not None:
                _scan_files(db, table, version_row, bitmap)
            for digest, file_id in _find(db, table, bitmap):
                if file_id not in present:
                    present[file_id] = _is_present(db, file_id)
                number = table.index(digest)
                if present[file_id] and number is not None:
                    bitmap.set(number)
        for digest in list(self.pending):
            if (number := table.index(digest)) is not None:
                bitmap.set(number)
        return bitmap

    def has(self, digest: bytes) -> bool:
        """Return whether a block lies in a file that is there with the size it had."""
        return any(
            where.stamp is None or _size(where.path) == where.stamp.size
            for where in self.all(digest)
        )

    def index_files(self, files: Iterable[IndexedFile]) -> list[int]:
        """Record the blocks of hashed files; returns their ids, in order."""
        ids: list[int] = []
        waiting: list[IndexedFile] = []
        rows = 0
        for file in files:
            waiting.append(file)
            rows += 1 + len(file.leaves)
            if rows >= _WRITE_BATCH:
                ids += self._index_batch(waiting)
                waiting, rows = [], 0
        if waiting:
            ids += self._index_batch(waiting)
        return ids

    def _index_batch(self, files: Sequence[IndexedFile]) -> list[int]:
        with self._index.writing() as db:
            return [index_file(db, file) for file in files]

    def known_leaves(self, path: Path, stat: os.stat_result) -> list[tuple[bytes, int]] | None:
        """Return the blocks of a file as last indexed, if it is whole and its stamp is the same."""
        stamp = FileStamp.of(stat)
        with self._index.reading() as db:
            row = db.execute(
                "SELECT id, size, mtime_ns, inode FROM file WHERE path = ? AND part = 0",
                (os.fsencode(path),),
            ).fetchone()
            if row is None or row[1:] != stamp:
                return None
            return whole_leaves(db, row[0], stamp.size)

    def drop(self, where: Location, digest: bytes) -> bool:
        """Take a place away because its bytes are others; returns whether it was still there."""
        with self._index.writing() as db:
            dropped = db.execute(
                "DELETE FROM extent WHERE file_id = ? AND offset = ? AND digest = ?",
                (where.file_id, where.offset, digest),
            ).rowcount
            if dropped:
                mark_incomplete(db, where.file_id)
        return dropped > 0

    def restamp(self, file_id: int, old: FileStamp, new: FileStamp) -> None:
        """Give a file that was rehashed whole its new stamp, unless someone else was first."""
        with self._index.writing() as db:
            db.execute(
                "UPDATE file SET mtime_ns = ?, inode = ? WHERE id = ? AND mtime_ns = ?"
                " AND inode = ? AND size = ?",
                (new.mtime_ns, new.inode, file_id, old.mtime_ns, old.inode, new.size),
            )

    def count(self, file_id: int) -> int:
        """Return how many blocks of a file are indexed."""
        with self._index.reading() as db:
            (count,) = db.execute(
                "SELECT count(*) FROM extent WHERE file_id = ?", (file_id,)
            ).fetchone()
        return int(count)


def whole_leaves(db: sqlite3.Connection, file_id: int, size: int) -> list[tuple[bytes, int]] | None:
    """Return a file's (digest, length) blocks in order, or None if they have gaps."""
    leaves: list[tuple[bytes, int]] = []
    at = 0
    for offset, length, digest in file_extents(db, file_id):
        if offset != at:
            return None
        leaves.append((digest, length))
        at += length
    return leaves if at == size else None


def file_extents(db: sqlite3.Connection, file_id: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (offset, length, digest) of a file's indexed blocks in order."""
    yield from db.execute(
        "SELECT offset, length, digest FROM extent WHERE file_id = ? ORDER BY offset", (file_id,)
    )


def mark_incomplete(db: sqlite3.Connection, file_id: int) -> None:
    """Note that the versions which have this file no longer have all of it."""
    db.execute(
        "UPDATE version SET complete = 0 WHERE complete AND id IN"
        " (SELECT version_id FROM version_file WHERE file_id = ?)",
        (file_id,),
    )


def index_file(db: sqlite3.Connection, file: IndexedFile) -> int:
    """Record one hashed file; returns its row, which stays the same for the same path."""
    stamp = file.stamp
    if sum(length for _, length in file.leaves) != stamp.size:
        raise ValueError(f"the blocks of {file.path} do not add up to its size")
    (file_id,) = db.execute(
        "INSERT INTO file (path, size, inode, mtime_ns) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (path) DO UPDATE SET size = excluded.size, inode = excluded.inode,"
        " mtime_ns = excluded.mtime_ns, part = 0 RETURNING id",
        (os.fsencode(file.path), stamp.size, stamp.inode, stamp.mtime_ns),
    ).fetchone()
    if whole_leaves(db, file_id, stamp.size) != list(file.leaves):
        if db.execute("DELETE FROM extent WHERE file_id = ?", (file_id,)).rowcount:
            mark_incomplete(db, file_id)
            db.execute("UPDATE file SET fetched = 0 WHERE id = ?", (file_id,))  # the user's now
        db.executemany("INSERT INTO extent VALUES (?, ?, ?, ?)", _rows(file_id, file.leaves))
    return int(file_id)


def _rows(
    file_id: int, leaves: Iterable[tuple[bytes, int]]
) -> Iterator[tuple[int, int, int, bytes]]:
    offset = 0
    for digest, length in leaves:
        yield file_id, offset, length, digest
        offset += length


def _location(row: Sequence[Any]) -> Location:
    file_id, path, offset, length, size, mtime_ns, inode, part = row
    stamp = None if part else FileStamp(size, mtime_ns, inode)
    return Location(file_id, path, offset, length, stamp)


def _scan_files(
    db: sqlite3.Connection, table: BlockTable, version_row: int, bitmap: Bitmap
) -> None:
    files = db.execute(
        "SELECT ordinal, file_id FROM version_file WHERE version_id = ? AND file_id IS NOT NULL",
        (version_row,),
    ).fetchall()
    for number, file_id in files:
        if _is_present(db, file_id):
            rows = dict(
                db.execute("SELECT offset, digest FROM extent WHERE file_id = ?", (file_id,))
            )
            for block, offset, _ in table.file_blocks(number):
                if rows.get(offset) == table.digest(block):
                    bitmap.set(block)


def _find(db: sqlite3.Connection, table: BlockTable, known: Bitmap) -> Iterator[tuple[bytes, int]]:
    """Yield (digest, file id) for the blocks that are not known yet."""
    unknown = iter(Bitmap.full(len(table)).and_not(known))
    while batch := [table.digest(block) for block in islice(unknown, QUERY_BATCH)]:
        marks = ",".join("?" * len(batch))
        query = f"SELECT DISTINCT digest, file_id FROM extent WHERE digest IN ({marks})"  # noqa: S608  # marks are "?,?"
        yield from db.execute(query, batch).fetchall()


def _is_present(db: sqlite3.Connection, file_id: int) -> bool:
    row = db.execute("SELECT path, size FROM file WHERE id = ?", (file_id,)).fetchone()
    return row is not None and _size(row[0]) == row[1]


def _size(path: bytes) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return -1

"""Rehashing a version's files, and putting the index right about them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sbp2p.store.extents import IndexedFile, mark_incomplete, whole_leaves
from sbp2p.store.hashing import FileCheck, check_file
from sbp2p.store.records import DamagedBlock, VerifyStep
from sbp2p.store.targets import leaves_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

    from sbp2p.store.extents import Extents
    from sbp2p.store.index import Index
    from sbp2p.store.records import VersionRecord
    from sbp2p_protocol.blocktable import BlockTable


class Verifier:
    """Hashes every file of a version that this node made or published."""

    def __init__(
        self, index: Index, extents: Extents, record: VersionRecord, table: BlockTable
    ) -> None:
        self._index = index
        self._extents = extents
        self._record = record
        self._table = table

    def steps(self) -> Iterator[VerifyStep]:
        """Verify file by file; see `Store.verify`."""
        with self._index.reading() as db:
            rows = db.execute(
                "SELECT v.ordinal, v.path, f.id, f.path, f.part FROM version_file v"
                " LEFT JOIN file f ON f.id = v.file_id WHERE v.version_id = ? ORDER BY v.ordinal",
                (self._record.row,),
            ).fetchall()
        complete = True
        for number, relative, file_id, path, part in rows:
            final = self._record.root_path / relative
            if part:
                complete = False
                yield from self._verify_part(number, final, file_id, path)
            else:
                step = None
                for step in self._verify_final(number, final, file_id):
                    yield step
                right = step is not None and step.done and not (step.damaged or step.problem)
                complete = complete and right
        with self._index.writing() as db:
            db.execute("UPDATE version SET complete = ? WHERE id = ?", (complete, self._record.row))

    def _verify_final(self, number: int, final: Path, file_id: int | None) -> Iterator[VerifyStep]:
        """Verify a file; one that was never fetched is no damage, nor is another in its place."""
        size = self._table.files[number].size
        was_here = file_id is not None or self._record.role == "publish"
        check = FileCheck()
        try:
            for done in check_file(final, self._table, number, check):
                yield VerifyStep(final, done, size, False)
        except FileNotFoundError:
            if was_here:
                yield VerifyStep(final, 0, size, True, problem="missing")
            return
        except OSError as error:
            yield VerifyStep(final, 0, size, True, problem=(error.strerror or str(error)).lower())
            return
        if check.stamp is not None:
            self._note_right(
                number, IndexedFile(final, leaves_of(self._table, number), check.stamp)
            )
            yield VerifyStep(final, size, size, True)
            return
        if not was_here:
            return
        damaged = self._damaged(check)
        problem = "" if damaged else "it has another size, or changed while it was read"
        if file_id is not None:
            self._drop(file_id, damaged)
        yield VerifyStep(final, size, size, True, damaged, problem)

    def _note_right(self, number: int, file: IndexedFile) -> None:
        """Index a file that is right, unless the index says so already: writing to it is slow."""
        version = self._record.row
        with self._index.reading() as db:
            found = db.execute(
                "SELECT f.id, f.size, f.mtime_ns, f.inode FROM version_file v JOIN file f"
                " ON f.id = v.file_id WHERE v.version_id = ? AND v.ordinal = ? AND f.path = ?",
                (version, number, os.fsencode(file.path)),
            ).fetchone()
            same = found is not None and found[1:] == file.stamp
            if same and whole_leaves(db, found[0], file.stamp.size) == file.leaves:
                return
        (row,) = self._extents.index_files([file])
        with self._index.writing() as db:
            _link(db, version, number, row)

    def _verify_part(
        self, number: int, final: Path, file_id: int, path: bytes
    ) -> Iterator[VerifyStep]:
        """Verify what a part file is said to have; what it never had is no damage."""
        size = self._table.files[number].size
        with self._index.reading() as db:
            had = dict(
                db.execute("SELECT offset, digest FROM extent WHERE file_id = ?", (file_id,))
            )
        check = FileCheck()
        part = self._record.root_path / os.fsdecode(path)
        try:
            for done in check_file(part, self._table, number, check):
                yield VerifyStep(final, done, size, False)
        except OSError as error:
            yield VerifyStep(final, 0, size, True, problem=(error.strerror or str(error)).lower())
            return
        damaged = tuple(
            block for block in self._damaged(check) if had.get(block.offset) == block.digest
        )
        self._drop(file_id, damaged)
        yield VerifyStep(final, size, size, True, damaged)

    def _damaged(self, check: FileCheck) -> tuple[DamagedBlock, ...]:
        return tuple(
            DamagedBlock(offset, self._table.length(block), self._table.digest(block))
            for block, offset in check.wrong
        )

    def _drop(self, file_id: int, damaged: tuple[DamagedBlock, ...]) -> None:
        with self._index.writing() as db:
            dropped = db.executemany(
                "DELETE FROM extent WHERE file_id = ? AND offset = ? AND digest = ?",
                ((file_id, block.offset, block.digest) for block in damaged),
            ).rowcount
            if dropped > 0:
                mark_incomplete(db, file_id)


def _link(db: sqlite3.Connection, version_id: int, number: int, file_id: int) -> None:
    db.execute(
        "UPDATE version_file SET file_id = ? WHERE version_id = ? AND ordinal = ?",
        (file_id, version_id, number),
    )

"""The files that a download is making: writing blocks into them, and their rows in the index.

Rules:
- A part file has its row before a block in it is committed; the row's mtime is NULL while the
  download is open, since our own writes move it, and the real one after a clean close.
- A part file that nobody vouches for keeps an impossible mtime until it was hashed.
- A file under its final name is never written to.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from sbp2p.store.errors import os_errors
from sbp2p.store.extents import IndexedFile, index_file
from sbp2p.store.files import OpenFiles, remove_file, sync_files, write_all
from sbp2p.store.libc import start_writeback
from sbp2p.store.loose import held, sweep
from sbp2p.store.records import Location
from sbp2p.store.targets import NOT_TRUSTED, TargetState, leaves_of
from sbp2p.store.versions import link_files
from sbp2p_protocol.limits import KIB

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from sbp2p.store.index import Index
    from sbp2p.store.records import FileStamp
    from sbp2p.store.targets import Target, TargetOpener
    from sbp2p_protocol.bitmap import Bitmap
    from sbp2p_protocol.blocktable import BlockTable

_WRITEBACK_MIN: Final = 256 * KIB
"""Blocks that start on their way to the disk when they are written: the commit then waits half as
long. For smaller ones the call costs more than it gains."""


class PartFiles:
    """The targets of one download, open for writing. Thread-safe."""

    def __init__(
        self,
        *,
        index: Index,
        table: BlockTable,
        targets: Sequence[Target],
        opener: TargetOpener,
        folder: Path,
        version_row: int,
        max_open_files: int,
    ) -> None:
        self.index = index
        self.table = table
        self.targets = {target.number: target for target in targets}
        self.folder = folder
        self.version_row = version_row
        self._opener = opener
        self._files = OpenFiles(max_open_files, os.O_RDWR | os.O_NOFOLLOW)
        self._lock = threading.Lock()

    def places(self, block: int) -> list[tuple[Target, int]]:
        """Return the (target, offset) pairs where a block has to be written."""
        return [
            (target, offset)
            for number, offset in self.table.locations(block)
            if (target := self.targets.get(number)) is not None
            and target.state is not TargetState.IN_PLACE
        ]

    def write(self, block: int, chunks: Sequence[Buffer]) -> Location | None:
        """Write a block whose hash is right to all its places; returns one. Raises StoreError."""
        length = self.table.length(block)
        places = self.places(block)
        for target, offset in places:
            with self.writing_to(target) as fd:
                write_all(fd, chunks, offset)
                if length >= _WRITEBACK_MIN:
                    with suppress(OSError):  # the sync that follows says what is wrong
                        start_writeback(fd, offset, length)
        return _location(places, length)

    @contextmanager
    def writing_to(self, target: Target) -> Iterator[int]:
        """Lend the descriptor of a part file, which is made if need be; raises StoreError."""
        if not target.made:
            self.make(target)
        with os_errors("write to", target.part), self._files.using(os.fsencode(target.part)) as fd:
            yield fd

    def make(self, target: Target) -> None:
        """Make the part file of a target that did not need one when the download opened."""
        with self._lock:
            if not target.made:
                self._opener.make_part(target)
                target.state = TargetState.PART
                self.register([target])

    def register(self, targets: Sequence[Target]) -> None:
        """Give part files their rows, and tie all of `targets` to the version."""
        with self.index.writing() as db:
            for target in targets:
                if target.state is TargetState.PART:
                    target.row = _insert_part(db, target)
            self.link(db, targets)

    def trust(self, target: Target) -> None:
        """Note that a suspect part file was hashed."""
        target.suspect = False
        self.register([target])

    def link(self, db: sqlite3.Connection, targets: Sequence[Target]) -> None:
        """Tie the rows of files to the version."""
        rows = [(target.number, target.row) for target in targets if target.row != -1]
        link_files(db, self.version_row, rows)

    def take_in_place(self, target: Target, stamp: FileStamp) -> None:
        """Adopt the file under a final name: it was hashed and has the right bytes."""
        leaves = leaves_of(self.table, target.number)
        with self.index.writing() as db:
            target.row = index_file(db, IndexedFile(target.final, leaves, stamp))
            self.link(db, [target])
        target.state = TargetState.IN_PLACE

    def sync(self, blocks: Collection[int]) -> None:
        """Bring the data of blocks to the disk; raises StoreError."""
        dirty = {target.number: target for block in blocks for target, _ in self.places(block)}
        with os_errors("sync the files in", self.folder):
            sync_files(
                [os.fsencode(target.part) for target in dirty.values()], self._files, self.folder
            )

    def record(self, blocks: Collection[int]) -> None:
        """Add blocks that are on disk to the index, durably; raises StoreError."""
        with self.index.writing() as db:
            db.executemany(
                "INSERT OR REPLACE INTO extent (file_id, offset, length, digest)"
                " VALUES (?, ?, ?, ?)",
                self._rows(blocks),
            )

    def _rows(self, blocks: Collection[int]) -> Iterator[tuple[int, int, int, bytes]]:
        for block in blocks:
            length, digest = self.table.length(block), self.table.digest(block)
            for target, offset in self.places(block):
                yield target.row, offset, length, digest

    def location(self, block: int) -> Location | None:
        """Return where a block can be read before it is committed."""
        return _location(self.places(block), self.table.length(block))

    def discard_unused(self, have: Bitmap) -> None:
        """Remove part files without a block in them, and the version if nothing of it is here.

        For a download that cannot go on: what was made for it should not stay.
        """
        unused = [target for target in self.targets.values() if self._is_unused(target, have)]
        for target in unused:
            self.close_part(target)
            target.made = False
            with os_errors("remove", target.part):
                remove_file(target.part)
        with self.index.writing() as db:
            for target in unused:
                db.execute("DELETE FROM file WHERE id = ?", (target.row,))
                target.row = -1
            gone = db.execute(
                "SELECT 1 FROM version WHERE id = ? AND NOT EXISTS (SELECT 1 FROM version_file"
                " WHERE version_id = version.id AND file_id IS NOT NULL)",
                (self.version_row,),
            ).fetchone()
            if gone:
                loose = held(db, self.version_row)
                db.execute("DELETE FROM version WHERE id = ?", (self.version_row,))
                sweep(db, loose)

    def _is_unused(self, target: Target, have: Bitmap) -> bool:
        return (
            target.state is TargetState.PART
            and target.made
            and not target.suspect
            and not any(have.get(block) for block, _, _ in self.table.file_blocks(target.number))
        )

    def close_part(self, target: Target) -> None:
        """Close the descriptor of a part file."""
        self._files.forget(os.fsencode(target.part))

    def close(self) -> None:
        """Close the files and note the mtimes they have, so that later changes are noticed."""
        self._files.close()
        rows = []
        for target in self.targets.values():
            if target.state is TargetState.PART and target.made and not target.suspect:
                with os_errors("look at", target.part):
                    rows.append((os.lstat(target.part).st_mtime_ns, target.row))
        with self.index.writing() as db:
            db.executemany("UPDATE file SET mtime_ns = ? WHERE id = ? AND part = 1", rows)


def _location(places: list[tuple[Target, int]], length: int) -> Location | None:
    for target, offset in places:
        return Location(-1, os.fsencode(target.part), offset, length, None)
    return None


def _insert_part(db: sqlite3.Connection, target: Target) -> int:
    if target.stamp is None:
        raise ValueError("a part file that was not made")
    (row,) = db.execute(
        "INSERT INTO file (path, size, inode, mtime_ns, part, fetched)"
        " VALUES (?, ?, ?, ?, 1, 1) ON CONFLICT (path) DO UPDATE SET"
        " size = excluded.size, inode = excluded.inode, mtime_ns = excluded.mtime_ns RETURNING id",
        (
            os.fsencode(target.part),
            target.stamp.size,
            target.stamp.inode,
            NOT_TRUSTED if target.suspect else None,
        ),
    ).fetchone()
    return int(row)

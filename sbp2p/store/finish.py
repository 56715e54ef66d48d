"""The end of a download: part files get their final names.

Order, each step safe to be killed after:
    1. check     every block of every file has its row; nothing else has a final name
    2. name      one atomic step a file; never onto something else unless overwriting
    3. folders   fsync of each folder that got a name
    4. index     one transaction moves the rows to the final names and stamps
    5. clean     the part names go, and the work folder when no part file is left in it
A file has both names from 2 to 5, so its blocks can be read all the time. After a kill in between,
opening the download again finds one inode under both names, or the recorded one under the final
name (see targets.py).
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sbp2p.errors import StoreError
from sbp2p.store.errors import os_errors
from sbp2p.store.extents import whole_leaves
from sbp2p.store.files import (
    SPARE_SUFFIX,
    make_folders,
    publish_file,
    remove_file,
    sync_folder,
)
from sbp2p.store.hashing import hash_file
from sbp2p.store.loose import hold
from sbp2p.store.recent import RECENT_NAME
from sbp2p.store.records import FileStamp
from sbp2p.store.targets import TargetState, conflict, leaves_of, move_row

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from sbp2p.store.download import Download
    from sbp2p.store.locks import FileLock
    from sbp2p.store.targets import Target

LOCK_NAME: Final = "lock"


class Finisher:
    """Runs the steps above for one download."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._parts = download.parts
        self._table = download.table

    def run(self) -> None:
        """Finish what is whole; raises what `Download.finish` says."""
        ready = [target for target in self._parts.targets.values() if self._is_whole(target)]
        self._check_rows(ready)
        for target in ready:
            self._check_final(target)
        ready = [target for target in ready if target.state is TargetState.PART]
        self._name(ready)
        stamps = []
        for target in ready:
            with os_errors("look at", target.final):
                stamps.append(FileStamp.of(os.lstat(target.final)))
        with self._parts.index.writing() as db:
            for target, stamp in zip(ready, stamps, strict=True):
                move_row(db, target.row, target.final, stamp)
            self._parts.link(db, ready)
            self._drop_leftovers(db)
            self._mark_complete(db)
            hold(db, self._parts.version_row, self._download.manifest)
        for target in ready:
            target.state, target.made = TargetState.IN_PLACE, False
            self._parts.close_part(target)
            self._download.reader.files.forget(os.fsencode(target.part))
            with os_errors("remove", target.part):
                remove_file(target.part)

    def _is_whole(self, target: Target) -> bool:
        have = self._download.have
        return target.state is not TargetState.IN_PLACE and all(
            have.get(block) for block, _, _ in self._table.file_blocks(target.number)
        )

    def _check_rows(self, ready: list[Target]) -> None:
        """Believe the index, not the bitmap: a read may have found damage and dropped a row."""
        lost = 0
        with self._parts.index.reading() as db:
            for target in ready:
                size = self._table.files[target.number].size
                leaves = leaves_of(self._table, target.number)
                if size and whole_leaves(db, target.row, size) != leaves:
                    lost += self._give_up_lost(db, target)
        if lost:
            raise StoreError(
                f"{lost} blocks were damaged on disk while the download ran",
                hint="Run the same command again: only these blocks are fetched.",
            )

    def _give_up_lost(self, db: sqlite3.Connection, target: Target) -> int:
        rows = db.execute("SELECT offset, digest FROM extent WHERE file_id = ?", (target.row,))
        there = dict(rows.fetchall())
        lost = 0
        for block, offset, _ in self._table.file_blocks(target.number):
            if there.get(offset) != self._table.digest(block):
                lost += self._download.have.clear(block)
        return lost

    def _check_final(self, target: Target) -> None:
        """Adopt a file with the same bytes that has the final name; refuse any other."""
        with os_errors("look at", target.final):
            try:
                final = os.lstat(target.final)
            except (FileNotFoundError, NotADirectoryError):  # make_folders finds the words
                return
            if target.made and os.path.samestat(final, os.lstat(target.part)):
                return  # killed between the steps 2 and 5
        same_size = final.st_size == self._table.files[target.number].size
        if stat.S_ISREG(final.st_mode) and same_size:
            stamp = hash_file(target.final, self._table, target.number).stamp
            if stamp is not None:
                self._parts.take_in_place(target, stamp)
                return
        if stat.S_ISDIR(final.st_mode):
            raise conflict(target.final, "a folder")
        if not self._download.overwrite:
            raise conflict(target.final)

    def _name(self, ready: list[Target]) -> None:
        root = self._download.destination
        folders = {""}
        seen: set[str] = set()
        for target in ready:
            path = self._table.files[target.number].path
            folders.update(make_folders(root, path, seen))
            if not target.made:
                self._parts.make(target)  # an empty file that met another one here
            with os_errors("name a finished file", target.final):
                self._publish(target)
            folders.add(path.rpartition("/")[0])
        for folder in folders:
            with os_errors("sync", root / folder):
                sync_folder(root / folder)
        with suppress(OSError):  # the destination may be new; its parent need not be readable
            sync_folder(root.parent)

    def _publish(self, target: Target) -> None:
        try:
            publish_file(target.part, target.final, overwrite=self._download.overwrite)
        except FileExistsError:
            if not os.path.samestat(os.lstat(target.final), os.lstat(target.part)):
                raise conflict(target.final) from None

    def _drop_leftovers(self, db: sqlite3.Connection) -> None:
        """Remove part files of targets that turned out to lie in place already."""
        for target in self._parts.targets.values():
            if target.state is TargetState.IN_PLACE:
                db.execute("DELETE FROM file WHERE path = ?", (os.fsencode(target.part),))
                with os_errors("remove", target.part):
                    remove_file(target.part)

    def _mark_complete(self, db: sqlite3.Connection) -> None:
        db.execute(
            "UPDATE version SET complete = NOT EXISTS (SELECT 1 FROM version_file v"
            " LEFT JOIN file f ON f.id = v.file_id WHERE v.version_id = version.id"
            " AND (f.id IS NULL OR f.part)) WHERE id = ?",
            (self._parts.version_row,),
        )


def release_work_folder(folder: Path, lock: FileLock) -> None:
    """Let a download's lock go, and its work folder too if no part file is left in it."""
    try:
        names = {entry.name for entry in os.scandir(folder)} - {LOCK_NAME}
        empty = all(name == RECENT_NAME or name.endswith(SPARE_SUFFIX) for name in names)
        for name in names if empty else ():
            (folder / name).unlink(missing_ok=True)
    except OSError:
        empty = False
    lock.release(unlink=empty)
    if empty:
        for each in (folder, folder.parent):
            try:
                each.rmdir()
            except OSError:  # another download is using it
                return

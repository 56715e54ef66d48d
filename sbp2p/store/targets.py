"""Where a download's bytes go: one target for each file that it makes.

Theory of operation: bytes are written into `<destination>/.sbp2p/<manifest cid>/<number>.part`,
on the destination's filesystem so that the final name can be given by a rename, and under a number
so that no name gets too long. What the disk and the index say when a download opens decides where
each file starts:

    part file     its index row                final name      the target starts as
    -             -                            free            PART, made and reserved now
    as recorded   same size and inode          free            PART, its blocks are had
    as recorded   another mtime, closed well   free            PART, suspect: to be rehashed
    there         none, or another size/inode  free            PART, suspect: to be rehashed
    gone          the inode at the final name  ours            IN_PLACE: finish was interrupted
    -             -                            indexed, same   IN_PLACE, its blocks are had
    -             -                            same size       EXISTING: adopted if it hashes right
    there         any                          same size       as above, and adopted if right
    -             -                            anything else   conflict, unless overwriting

Residual risk: after a kill the mtime of a part file is not known (our own last writes moved it), so
a program that wrote into a part file meanwhile, without changing its size, is not noticed here. It
is noticed when such a block is served, since blocks of part files are always hashed, and by
`sbp2p verify`.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from sbp2p.store.errors import DestinationConflictError, os_errors
from sbp2p.store.extents import file_extents, mark_incomplete, whole_leaves
from sbp2p.store.files import (
    below,
    check_folders,
    check_free_space,
    merge_spans,
    remove_file,
    reserve,
    sync_folder,
)
from sbp2p.store.libc import close_file
from sbp2p.store.records import FileStamp
from sbp2p_protocol.bitmap import Bitmap

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from sbp2p.store.index import Index
    from sbp2p_protocol.blocktable import BlockTable, FileEntry
    from sbp2p_protocol.cid import Cid

WORK_FOLDER: Final = ".sbp2p"
"""In the destination, while a download into it is not finished."""

NOT_TRUSTED: Final = -1
"""As an mtime: no file has it, so the part file is hashed when the download is opened again."""

_PartRow: TypeAlias = "tuple[int, int, int, int | None]"
"""Of the index: id, size, inode, mtime."""


_DIFFERENT: Final = "a different file"


class TargetState(Enum):
    """How far one file is."""

    PART = auto()
    """Written under its part name."""
    EXISTING = auto()
    """A file of the right size lies under the final name; nobody has looked inside."""
    IN_PLACE = auto()
    """Lies under its final name, verified."""


@dataclass(slots=True)
class Target:
    """One file of a download."""

    number: int
    """Of the file in the block table."""
    final: str
    part: str
    state: TargetState = TargetState.PART
    made: bool = False
    """The part file exists."""
    suspect: bool = False
    """The part file has bytes that nobody vouches for."""
    shadowed: bool = False
    """A file of the right size lies under the final name, beside the part file."""
    row: int = -1
    """In the index; -1 before there is one."""
    stamp: FileStamp | None = None
    """The part file's, when it was last looked at or made."""
    allocated: int = 0
    """Bytes that the part file took on the disk when the download opened."""

    @property
    def path(self) -> str:
        """Where its verified bytes lie now."""
        return self.final if self.state is TargetState.IN_PLACE else self.part


def work_folder(destination: Path, cid: Cid) -> Path:
    """Return the folder of a download's part files and lock."""
    return destination / WORK_FOLDER / str(cid)


def choose_files(table: BlockTable, wanted: Bitmap) -> list[int]:
    """Return the files that wanted blocks belong to.

    Everything wanted: every file, empty ones too. Otherwise the files that are wanted whole, and
    for each block in none of these the first file that has it.
    """
    if wanted.all():
        return list(range(len(table.files)))
    chosen = {
        number
        for number, file in enumerate(table.files)
        if file.count and all(wanted.get(block) for block, _, _ in table.file_blocks(number))
    }
    rest = wanted.and_not(table.blocks_of_files(chosen))
    chosen.update(table.locations(block)[0][0] for block in rest)
    return sorted(chosen)


def make_targets(table: BlockTable, files: Iterable[int], root: Path, cid: Cid) -> list[Target]:
    """Name the targets of a download into `root`; nothing is looked at yet."""
    # text, not Path: a version may have 100,000 files, and this is half of what opening one costs
    folder, top = f"{work_folder(root, cid)}/", f"{root}/"
    return [
        Target(number, below(top, table.files[number].path), f"{folder}{number:08d}.part")
        for number in files
    ]


class TargetOpener:
    """Brings targets into their first state, and says which blocks are had."""

    def __init__(self, table: BlockTable, wanted: Bitmap, root: Path, *, overwrite: bool) -> None:
        self._table = table
        self._root = root
        self._folders: set[str] = set()
        self._wanted = wanted
        self._overwrite = overwrite
        self._seen = Bitmap(len(table))
        self._missing = Bitmap(len(table))
        self._repairs: list[Callable[[sqlite3.Connection], object]] = []

    @property
    def have(self) -> Bitmap:
        """The blocks that are in every target they belong to."""
        return self._seen.and_not(self._missing)

    def look(self, db: sqlite3.Connection, targets: Sequence[Target], folder: Path) -> None:
        """Find the state of each target; `repair` then tells the index what has changed.

        Raises:
            DestinationConflictError: something else has a final name, and may not be overwritten.
            StoreError: a path cannot be looked at.
        """
        known = {
            path: tuple(row)
            for path, *row in db.execute(
                "SELECT path, id, size, inode, mtime_ns FROM file WHERE path > ? AND path < ?",
                (os.fsencode(f"{folder}/"), os.fsencode(f"{folder}0")),  # 0 follows / in ASCII
            )
        }
        with os_errors("look at", folder):
            there = {entry.path for entry in os.scandir(folder)}
        for target in targets:
            file = self._table.files[target.number]
            with os_errors("look at", target.final):
                check_folders(self._root, file.path, self._folders)
                row = known.get(os.fsencode(target.part))
                part = os.lstat(target.part) if target.part in there else None
                self._look_at(db, target, file, row, part)
            self._count_blocks(db, target)

    def _look_at(
        self,
        db: sqlite3.Connection,
        target: Target,
        file: FileEntry,
        row: _PartRow | None,
        part: os.stat_result | None,
    ) -> None:
        final = _stat(target.final)
        target.allocated = 0 if part is None else part.st_blocks * 512
        if row is None and part is not None and final is not None and os.path.samestat(part, final):
            remove_file(target.part)  # killed between steps 4 and 5 of finish
            part = None
        if row is not None and not self._resume(target, file, row, part, final):
            self._repairs.append(_run("DELETE FROM file WHERE id = ?", row[0]))
        if target.state is TargetState.IN_PLACE:
            return
        if part is not None and not target.made:
            target.made = stat.S_ISREG(part.st_mode) and part.st_size == file.size
            target.suspect = target.made and file.size > 0
            if not target.made:
                remove_file(target.part)
        if final is not None and not (part is not None and os.path.samestat(part, final)):
            self._meet(db, target, file, final)

    def _resume(
        self,
        target: Target,
        file: FileEntry,
        row: _PartRow,
        part: os.stat_result | None,
        final: os.stat_result | None,
    ) -> bool:
        """Go on from the index row of a part file; returns whether the row is still right."""
        file_id, size, inode, mtime_ns = row
        if part is None:
            if final is None or (final.st_size, FileStamp.of(final).inode) != (size, inode):
                return False
            self._repairs.append(
                partial(move_row, file_id=file_id, final=target.final, stamp=FileStamp.of(final))
            )
            target.row, target.state = file_id, TargetState.IN_PLACE
            return True
        if size != file.size or (part.st_size, FileStamp.of(part).inode) != (size, inode):
            return False
        target.row, target.made = file_id, True
        if mtime_ns is not None and mtime_ns != part.st_mtime_ns:
            target.suspect = True
            self._repairs.append(_run("DELETE FROM extent WHERE file_id = ?", file_id))
        mtime = NOT_TRUSTED if target.suspect else None
        self._repairs.append(_run("UPDATE file SET mtime_ns = ? WHERE id = ?", mtime, file_id))
        return True

    def repair(self, index: Index) -> None:
        """Make the index agree with what `look` saw on the disk, before anything is changed there.

        The mtimes of part files are forgotten now: making room in them moves them.
        """
        if self._repairs:
            with index.writing() as db:
                for repair in self._repairs:
                    repair(db)

    def _meet(
        self, db: sqlite3.Connection, target: Target, file: FileEntry, final: os.stat_result
    ) -> None:
        """Decide what to do about something that has the final name."""
        row = db.execute(
            "SELECT id, size, mtime_ns, inode FROM file WHERE path = ? AND part = 0",
            (os.fsencode(target.final),),
        ).fetchone()
        if row is not None and row[1:] == FileStamp.of(final):
            if whole_leaves(db, row[0], file.size) == leaves_of(self._table, target.number):
                target.row, target.state = row[0], TargetState.IN_PLACE
                return
            if not self._overwrite:
                raise conflict(target.final)
        if stat.S_ISDIR(final.st_mode):
            raise conflict(target.final, "a folder")
        if stat.S_ISREG(final.st_mode) and final.st_size == file.size:
            target.shadowed = target.made
            if not target.made:
                target.state = TargetState.EXISTING
        elif not self._overwrite:
            raise conflict(target.final)

    def _count_blocks(self, db: sqlite3.Connection, target: Target) -> None:
        known = target.row != -1 and not target.suspect
        rows = file_extents(db, target.row) if known else iter(())
        at = next(rows, None)
        for block, offset, length in self._table.file_blocks(target.number):
            self._seen.set(block)
            while at is not None and at[0] < offset:
                at = next(rows, None)
            if at != (offset, length, self._table.digest(block)):
                self._missing.set(block)

    def make_parts(self, targets: Sequence[Target], folder: Path) -> None:
        """Make and reserve the part files that are missing; if one fails, none is left.

        Raises:
            NoSpaceError: the wanted blocks do not fit.
            StoreError: a part file cannot be made.
        """
        check_free_space(folder, self.needed(targets))
        made: list[Target] = []
        try:
            for target in targets:
                if target.state is TargetState.PART:
                    if not target.made:
                        made.append(target)
                    self.make_part(target)
        except BaseException:
            for target in made:
                with suppress(OSError):
                    remove_file(target.part)
            raise
        if made:
            with os_errors("sync", folder):
                for each in (folder, folder.parent, self._root):
                    sync_folder(each)

    def make_part(self, target: Target) -> None:
        """Make the part file if it is missing, and reserve room for its wanted blocks."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os_errors("reserve space for", target.part):
            fd = os.open(target.part, flags, 0o666)
            try:
                os.ftruncate(fd, self._table.files[target.number].size)
                reserve(fd, self._wanted_spans(target.number))
                target.stamp = FileStamp.of(os.fstat(fd))
            finally:
                close_file(fd)
        target.made = True

    def needed(self, targets: Iterable[Target]) -> int:
        """Return the bytes that part files are to take on the disk and do not take yet."""
        return sum(map(self._needed, targets))

    def _needed(self, target: Target) -> int:
        if target.state is not TargetState.PART:
            return 0
        wanted = sum(length for _, length in self._wanted_spans(target.number))
        return max(0, wanted - target.allocated) if target.made else wanted

    def _wanted_spans(self, number: int) -> list[tuple[int, int]]:
        if self._wanted.all():
            size = self._table.files[number].size
            return [(0, size)] if size else []
        return merge_spans(
            (offset, length)
            for block, offset, length in self._table.file_blocks(number)
            if self._wanted.get(block)
        )


def _run(statement: str, *arguments: object) -> Callable[[sqlite3.Connection], object]:
    return lambda db: db.execute(statement, arguments)


def leaves_of(table: BlockTable, number: int) -> list[tuple[bytes, int]]:
    """Return a file's (digest, length) blocks in order."""
    return [(table.digest(block), length) for block, _, length in table.file_blocks(number)]


def move_row(db: sqlite3.Connection, file_id: int, final: str, stamp: FileStamp) -> None:
    """Let an index row follow its part file to the final name, displacing who had it."""
    path = os.fsencode(final)
    displaced = db.execute(
        "SELECT id FROM file WHERE path = ? AND id != ?", (path, file_id)
    ).fetchone()
    if displaced is not None:
        mark_incomplete(db, displaced[0])
        db.execute("DELETE FROM file WHERE id = ?", displaced)
    db.execute(
        "UPDATE file SET path = ?, part = 0, size = ?, mtime_ns = ?, inode = ? WHERE id = ?",
        (path, *stamp, file_id),
    )


def conflict(final: str, what: str = _DIFFERENT) -> DestinationConflictError:
    """Return the error for something else under a final name."""
    choices = "Choose another folder, or move it away"
    if what == _DIFFERENT:
        choices = "Choose another folder, move it away, or have it replaced (--overwrite)"
    return DestinationConflictError(f"{final} exists and is {what}", hint=f"{choices}.")


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None

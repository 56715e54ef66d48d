"""What a disk may hold after a power cut, from a record of what was written and what was synced.

The model is the one that POSIX allows, harsher than any real filesystem:
- a write that no later fdatasync of its file (or syncfs) covers is there, or not, for each sector;
- a name that was made, moved or removed is so, or not, until its folder was synced;
- what was synced is there.

SQLite's files are taken as they lie at the moment of the cut. That is what a power cut leaves:
every cut is between two calls of the store, none inside SQLite, and there all that SQLite has
committed is synced (`synchronous = FULL`); a cut inside one of its transactions leaves the state
before it or after it, and both are cuts of their own here.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tests.runtime.system_calls import LIBC, WRITING, SystemCalls

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

_Change: TypeAlias = "list[tuple[bytes, int]]"
"""Names that change together: (path, inode or 0 for removed). Syncing either folder is enough."""

_SECTOR: Final = 512
_FOLDER: Final = -1
_INDEX: Final = ("index.sqlite", "index.sqlite-wal")
_fstat, _lexists = os.fstat, os.path.lexists


@dataclass
class _File:
    """What of a file is safe, and what was done to it since."""

    safe: bytes = b""
    pending: list[tuple[int, bytes | int]] = field(default_factory=list)
    """(offset, bytes) of a write, or (-1, size) of a truncation, (-2, size) of growing to it."""

    def after(self, happens: Callable[[], bool]) -> bytes:
        data = bytearray(self.safe)
        for offset, what in self.pending:
            if isinstance(what, int):
                if happens() and (offset == -1 or what > len(data)):
                    del data[what:]
                    data += bytes(what - len(data))
                continue
            for start in range(0, len(what), _SECTOR):
                if happens():
                    piece = what[start : start + _SECTOR]
                    at = offset + start
                    data += bytes(max(0, at + len(piece) - len(data)))
                    data[at : at + len(piece)] = piece
        return bytes(data)

    def sync(self) -> None:
        self.safe, self.pending = self.after(lambda: True), []


@dataclass
class Cut:
    """The disk right before one call."""

    number: int
    before: str
    names: dict[bytes, int]
    """Safe ones: path to inode."""
    waiting: list[_Change]
    files: dict[int, _File]
    index: dict[str, bytes]
    known: Any
    """What the run was told until then."""


class Recorder(SystemCalls):
    """Follows the calls of a run, and takes a cut before each that changes something."""

    def __init__(self, root: Path, home: Path, told: Callable[[], Any]) -> None:
        super().__init__(root)
        self.cuts: list[Cut] = []
        self._home = home
        self._told = told
        self._names: dict[bytes, int] = {}
        self._waiting: list[_Change] = []
        self._now: dict[bytes, int] = {}
        self._files: dict[int, _File] = {}
        self._is_new = False
        for path in root.rglob("*"):
            inode = _FOLDER if path.is_dir() else path.stat().st_ino
            self._names[os.fsencode(path)] = self._now[os.fsencode(path)] = inode
            if path.is_file():
                self._files[inode] = _File(path.read_bytes())

    def before(self, name: str, path: bytes, arguments: tuple[Any, ...]) -> None:
        self._is_new = name == "open" and not _lexists(path)
        if name in WRITING or name in LIBC or self._is_new:
            self.cut(name)

    def cut(self, before: str) -> None:
        """Take down what the disk holds now."""
        files = {inode: _File(file.safe, list(file.pending)) for inode, file in self._files.items()}
        paths = [self._home / name for name in _INDEX if _lexists(self._home / name)]
        self.cuts.append(
            Cut(
                number=len(self.cuts),
                before=before,
                names=dict(self._names),
                waiting=list(self._waiting),
                files=files,
                index={path.name: path.read_bytes() for path in paths},
                known=self._told(),
            )
        )

    def after(self, name: str, path: bytes, arguments: tuple[Any, ...], result: Any) -> None:
        match name:
            case "open":
                if self._is_new:
                    inode = _fstat(result).st_ino
                    self._files[inode] = _File()
                    self._rename((path, inode))
            case "pwritev":
                data = b"".join(arguments[1])[:result]
                self._change(arguments[0], arguments[2], data)
            case "pwrite":
                self._change(arguments[0], arguments[2], bytes(arguments[1])[:result])
            case "write":  # only ever appended
                data = bytes(memoryview(arguments[1]).cast("B"))[:result]
                self._change(arguments[0], _fstat(arguments[0]).st_size - result, data)
            case "truncate" | "ftruncate":
                self._change(arguments[0], -1, arguments[1])
            case "fallocate":
                self._change(arguments[0].value, -2, arguments[2].value + arguments[3].value)
            case "syncfs":
                self._sync_all()
            case "fdatasync" | "fsync":
                self._sync(arguments[0], path)
            case "link":
                self._rename((os.fsencode(arguments[1]), self._now[path]))
            case "replace":
                self._rename((os.fsencode(arguments[1]), self._now[path]), (path, 0))
            case "mkdir":
                self._rename((path, _FOLDER))
            case "unlink" | "rmdir":
                self._rename((path, 0))

    def _change(self, fd: int, offset: int, what: bytes | int) -> None:
        self._files[_fstat(fd).st_ino].pending.append((offset, what))

    def _rename(self, *names: tuple[bytes, int]) -> None:
        self._waiting.append(list(names))
        _apply(self._now, list(names))

    def _sync(self, fd: int, path: bytes) -> None:
        if self._now.get(path, _FOLDER) != _FOLDER:
            self._files[_fstat(fd).st_ino].sync()
            return
        kept: list[_Change] = []
        for change in self._waiting:
            if any(name.rpartition(b"/")[0] == path for name, _ in change):
                _apply(self._names, change)
                moved = {name for name, _ in change}  # what was done to these before is past
                kept = [each for each in kept if moved.isdisjoint(name for name, _ in each)]
            else:
                kept.append(change)
        self._waiting = kept

    def _sync_all(self) -> None:
        for file in self._files.values():
            file.sync()
        for change in self._waiting:
            _apply(self._names, change)
        self._waiting = []


def _apply(names: dict[bytes, int], change: _Change) -> None:
    for path, inode in change:
        if inode:
            names[path] = inode
        else:
            names.pop(path, None)


def restore(cut: Cut, root: Path, home: Path, rng: random.Random) -> None:
    """Make `root` what the disk may hold after a cut: `rng` decides about what was not synced."""
    likely = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))

    def happens() -> bool:
        return rng.random() < likely

    names = dict(cut.names)
    for change in cut.waiting:
        if happens():
            _apply(names, change)
    shutil.rmtree(root)
    root.mkdir()
    made: dict[int, Path] = {}
    for path, inode in sorted(names.items()):
        place = Path(os.fsdecode(path))
        if not place.parent.is_dir() or place.name.startswith("index.sqlite"):
            continue  # the folder's own name was lost
        if inode == _FOLDER:
            place.mkdir()
        elif inode in made:
            place.hardlink_to(made[inode])
        else:
            place.write_bytes(cut.files[inode].after(happens))
            made[inode] = place
    for name, data in cut.index.items():
        (home / name).write_bytes(data)
    _translate(home, {old: place.stat().st_ino for old, place in made.items()}, rng)


def _translate(home: Path, inodes: dict[int, int], rng: random.Random) -> None:
    """Tell the index the inodes of the restored files, which stand for the ones that it knows.

    Whether a file's mtime reached the disk is as uncertain as the rest: fdatasync leaves it out.
    """
    database = sqlite3.connect(home / "index.sqlite", isolation_level=None)
    rows = database.execute("SELECT id, path, inode, mtime_ns FROM file").fetchall()
    for row, path, inode, mtime_ns in rows:
        if inode in inodes:
            database.execute("UPDATE file SET inode = ? WHERE id = ?", (inodes[inode], row))
        if mtime_ns is not None and mtime_ns > 0 and _lexists(path) and rng.random() < 0.5:
            os.utime(path, ns=(mtime_ns, mtime_ns))
    database.close()

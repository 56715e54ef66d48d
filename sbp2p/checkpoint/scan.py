"""Which files a checkpoint consists of, in the order they have in a version.

Rules:

* the path given may be one file or a directory; it may itself be a symbolic link, because the user
  named it. Inside, symbolic links, devices, sockets and pipes are refused by name: what they point
  to is not part of the tree, and a reader elsewhere could not have it;
* hidden files are included (Hugging Face keeps `.gitattributes`), except what tools leave behind:
  see SKIPPED, and files of our own, such as parts of a download, whose names no version may hold.
  What is skipped is noted, and so are directories without files, which a version cannot hold;
* every path obeys sbp2p_protocol.paths, so that every receiver can store it.

Anything else that is in the way (unreadable, not UTF-8, too many) is a CheckpointError that names
the path.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbp2p.errors import CheckpointError
from sbp2p_protocol.limits import PATH_DEPTH_MAX, VERSION_FILES_MAX
from sbp2p_protocol.paths import check_path, check_siblings, is_reserved, path_order

SKIPPED: Final = frozenset({".git", ".cache", "__pycache__", ".DS_Store"})
"""Version control, download caches (huggingface_hub's `.cache`), byte code, the Finder's notes."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to publish, as it was when the directory was listed."""

    path: str
    """Its path in the version, names joined by `/`."""
    location: Path
    size: int
    mtime_ns: int
    inode: int
    device: int

    def matches(self, status: os.stat_result) -> bool:
        """Whether `status` is of the same file with the same size and modification time."""
        return (
            status.st_size == self.size
            and status.st_mtime_ns == self.mtime_ns
            and status.st_ino == self.inode
            and status.st_dev == self.device
        )


@dataclass(frozen=True, slots=True)
class SourceTree:
    """The files of a checkpoint in path order, and what was left out and why."""

    base: Path
    """The directory that the paths are relative to."""
    files: tuple[SourceFile, ...]
    notes: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes in all files."""
        return sum(file.size for file in self.files)


def scan(path: str | os.PathLike[str]) -> SourceTree:
    """List the files at `path`, one file or a directory; raises CheckpointError."""
    root = Path(path)
    try:
        resolved = root.resolve(strict=True)
        status = resolved.stat()
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"cannot read {root}: {_reason(error)}", hint="check the path and its permissions"
        ) from error
    if stat.S_ISREG(status.st_mode):
        name = root.name if root.name not in ("", ".", "..") else resolved.name
        _require_name(name, root)
        return SourceTree(resolved.parent, (source_file(name, resolved, status),), ())
    if not stat.S_ISDIR(status.st_mode):
        raise CheckpointError(f"{root} is neither a file nor a directory")
    walk = _Walk()
    walk.directory(resolved, "", 0)
    if not walk.files:
        raise CheckpointError(f"{root} holds no files", hint="name the directory of a checkpoint")
    walk.files.sort(key=lambda file: path_order(file.path))
    return SourceTree(resolved, tuple(walk.files), tuple(walk.notes))


class _Walk:
    """One listing in progress."""

    def __init__(self) -> None:
        self.files: list[SourceFile] = []
        self.notes: list[str] = []

    def directory(self, location: Path, prefix: str, depth: int) -> None:
        """Add everything under `location`, whose paths begin with `prefix`."""
        if depth >= PATH_DEPTH_MAX:
            raise CheckpointError(f"{location}: more than {PATH_DEPTH_MAX} directories deep")
        try:
            with os.scandir(location) as listing:
                entries = sorted(listing, key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            raise CheckpointError(f"cannot list {location}: {_reason(error)}") from error
        before = len(self.files)
        kept = [entry for entry in entries if not self._skips(entry.name, prefix)]
        for entry in kept:
            _require_name(prefix + entry.name, Path(entry.path))
        if (reason := check_siblings(entry.name for entry in kept)) is not None:
            raise CheckpointError(f"{location}: {reason}", hint="rename one of them")
        for entry in kept:
            self._entry(entry, prefix, depth)
        if len(self.files) == before and prefix:
            self.notes.append(f"{prefix} has no files and is not part of the version")

    def _skips(self, name: str, prefix: str) -> bool:
        if name in SKIPPED:
            self.notes.append(f"{prefix}{name} is left out")
        elif is_reserved(name):
            self.notes.append(f"{prefix}{name} is left out: such names are sbp2p's own")
        else:
            return False
        return True

    def _entry(self, entry: os.DirEntry[str], prefix: str, depth: int) -> None:
        location = Path(entry.path)
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError as error:
            raise CheckpointError(f"cannot read {location}: {_reason(error)}") from error
        if stat.S_ISDIR(status.st_mode):
            self.directory(location, f"{prefix}{entry.name}/", depth + 1)
        elif stat.S_ISLNK(status.st_mode):
            raise CheckpointError(
                f"{location} is a symbolic link, which a version cannot hold",
                hint="publish a copy with the links followed: cp -rL FROM TO",
            )
        elif not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{location} is neither a file nor a directory")
        elif len(self.files) >= VERSION_FILES_MAX:
            raise CheckpointError(f"more than {VERSION_FILES_MAX} files")
        else:
            self.files.append(source_file(prefix + entry.name, location, status))


def source_file(path: str, location: Path, status: os.stat_result) -> SourceFile:
    """Describe the file at `location` as `status` shows it."""
    return SourceFile(
        path, location, status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev
    )


def open_source(file: SourceFile) -> int:
    """Open a listed file for reading and return its descriptor; it must still be the same file."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(file.location, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise changed(file) from error
        raise CheckpointError(
            f"cannot read {file.location}: {_reason(error)}", hint="check its permissions"
        ) from error
    if not file.matches(os.fstat(descriptor)):
        os.close(descriptor)
        raise changed(file)
    return descriptor


def changed(file: SourceFile) -> CheckpointError:
    """Return the error for a file that is not what it was when the directory was listed."""
    return CheckpointError(
        f"{file.location} changed while it was being read",
        hint="publish again once nothing writes to it",
    )


def _require_name(path: str, location: Path) -> None:
    if (reason := check_path(path)) is not None:
        # surrogates stand for bytes that are not UTF-8; backslashes show them without failing
        shown = str(location).encode(errors="backslashreplace").decode()
        raise CheckpointError(f"{shown}: {reason}", hint="rename it")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)

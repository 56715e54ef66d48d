"""Small files that must be whole, private and not someone else's: how they are read and written.

Rules:
- Reading opens without following a final symlink and without blocking on a pipe, then judges the
  open descriptor, so that what was checked is what is read.
- Writing makes a new file in the same folder, syncs it, gives it its name in one step, and syncs
  the folder. After a crash the name holds the old contents or the new ones; a hidden
  `.NAME.RANDOM.tmp` with the same protection may be left over.

Errors: the FileError leaves; every message names the path and the next step.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from .errors import (
    FileAccessError,
    FileExistsAlreadyError,
    FileMissingError,
    FilePermissionsError,
    NotAFileError,
    SymlinkError,
)

if TYPE_CHECKING:
    from pathlib import Path

# Windows has none of these; there, access lists protect a home folder instead of mode bits.
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_NO_BLOCK: Final = getattr(os, "O_NONBLOCK", 0)
_BINARY: Final = getattr(os, "O_BINARY", 0)
_POSIX: Final = os.name == "posix"


def read_file(path: Path, *, limit: int, forbidden_mode: int, mode_advice: str) -> bytes:
    """Return at most `limit + 1` bytes of a regular file.

    Args:
        path: the file.
        limit: bytes; one more is returned when the file is longer, for the caller to judge.
        forbidden_mode: permission bits that must not be set.
        mode_advice: the chmod mode that clears them, for the message.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NO_BLOCK | _BINARY)
    except OSError as error:
        raise _open_error(path, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _not_a_file(path)
        mode = stat.S_IMODE(status.st_mode)
        if _POSIX and mode & forbidden_mode:
            raise FilePermissionsError(
                f"{path} is open to other users (mode {mode:04o}): "
                f"run `chmod {mode_advice} {shlex.quote(str(path))}`"
            )
        return _read_up_to(descriptor, limit + 1)
    except OSError as error:
        raise FileAccessError(f"{path} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes, *, overwrite: bool) -> None:
    """Put `data` at `path` with mode 0600, wholly or not at all.

    Raises:
        FileExistsAlreadyError: something is there and `overwrite` is False.
        NotAFileError: a directory is there.
        FileAccessError: the system refused; what was at `path` before is still there.
    """
    if not path.name:
        raise _not_a_file(path)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        try:
            _write_new(temporary, data)
            if overwrite:
                temporary.replace(path)
            else:
                _rename_to_free_name(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        _sync_folder(path.parent)
    except FileExistsError:
        raise FileExistsAlreadyError(
            f"{path} exists already and is not overwritten: move it away, or choose another path"
        ) from None
    except IsADirectoryError:
        raise _not_a_file(path) from None
    except OSError as error:
        raise FileAccessError(
            f"{path} cannot be written: {error.strerror}; check the folder and its free space"
        ) from error


def _read_up_to(descriptor: int, limit: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < limit:
        chunk = os.read(descriptor, limit - len(chunks))
        if not chunk:
            break
        chunks += chunk
    return bytes(chunks)


def _write_new(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | _BINARY
    descriptor = os.open(path, flags, 0o600)
    try:
        if _POSIX:
            os.fchmod(descriptor, 0o600)  # the umask may have taken bits from the owner, too
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename_to_free_name(source: Path, path: Path) -> None:
    try:
        path.hardlink_to(source)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # No hard links here (FAT, some network mounts): claim the name first, then fill it. A
        # crash between the two leaves an empty file, which loading reports as truncated.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o600))
        source.replace(path)


def _sync_folder(folder: Path) -> None:
    if not _POSIX:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_error(path: Path, error: OSError) -> Exception:
    match error.errno:
        case errno.ENOENT:
            return FileMissingError(f"{path} does not exist: check the path, or create it first")
        case errno.ELOOP | errno.EMLINK:
            return SymlinkError(f"{path} is a symbolic link: give the path of the file itself")
        case errno.ENXIO | errno.EISDIR:
            return _not_a_file(path)
    return FileAccessError(
        f"{path} cannot be opened: {error.strerror}; check its owner and the folders above it"
    )


def _not_a_file(path: Path) -> NotAFileError:
    kind = "a directory" if path.is_dir() else "not a regular file"
    return NotAFileError(f"{path} is {kind}: give the path of a file")

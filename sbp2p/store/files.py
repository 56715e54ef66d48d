"""Bytes to and from files: open descriptors, whole reads and writes, reservation, publication.

Rules:
- A read or write is whole or raises; short ones are continued.
- A descriptor is closed only when nobody uses it: a number that the kernel gave to another file
  meanwhile would send a block into the wrong one.
- Nothing here overwrites a file under its final name unless told to.

Error cases: everything raises plain OSError; the caller knows what it was doing and uses
`store_error`. Only `check_free_space` and `make_folders` find their own words.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import OrderedDict
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sbp2p.errors import StoreError
from sbp2p.store.errors import DestinationConflictError, NoSpaceError, os_errors
from sbp2p.store.libc import close_file, fallocate, sync_data, syncfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from typing_extensions import Buffer

IOV_MAX: Final = os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 16
"""Buffers in one preadv or pwritev: 1024 on Linux; POSIX promises 16."""

SPARE_SUFFIX: Final = ".link"
"""Of the name in the work folder from which a file is moved over another one."""

_SYNC_ONE_BY_ONE: Final = 32
"""Files in a batch above which the whole filesystem is synced at once. fdatasync of a small new
file is a journal commit of its own, so 8 MiB of 1 KiB files would take seconds."""

_NO_FALLOCATE: Final = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV))
_NO_LINKS: Final = frozenset(
    (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)
)


class OpenFile:
    """A descriptor and how many are using it."""

    __slots__ = ("closing", "fd", "inode", "users")

    def __init__(self, fd: int, inode: int) -> None:
        self.fd = fd
        self.inode = inode
        self.users = 0
        self.closing = False


class OpenFiles:
    """The most recently used descriptors, by path. Thread-safe."""

    def __init__(self, limit: int, flags: int) -> None:
        """Keep at most `limit` idle descriptors, opened with `flags`."""
        self._limit = limit
        # a pipe in a file's place must not hold the thread that opens it until somebody writes
        self._flags = flags | os.O_CLOEXEC | os.O_NONBLOCK
        self._lock = threading.Lock()
        self._files: OrderedDict[bytes, OpenFile] = OrderedDict()

    def take(self, path: bytes, inode: int | None = None) -> OpenFile:
        """Return the file at `path` for use until `give`; reopened if its inode is another."""
        with self._lock:
            file = self._files.get(path)
            if file is not None:
                if inode is None or file.inode == inode:
                    self._files.move_to_end(path)
                    file.users += 1
                    return file
                self._discard(self._files.pop(path))
        fd = os.open(path, self._flags)
        try:
            opened = OpenFile(fd, os.fstat(fd).st_ino)
        except OSError:
            close_file(fd)
            raise
        opened.users = 1
        with self._lock:
            if path in self._files:  # another thread was as quick
                opened.closing = True
                return opened
            self._files[path] = opened
            if len(self._files) > self._limit:
                self._discard(self._files.popitem(last=False)[1])
        return opened

    def give(self, file: OpenFile) -> None:
        """End one use of a file that `take` returned."""
        with self._lock:
            file.users -= 1
            if file.closing and file.users == 0:
                close_file(file.fd)

    @contextmanager
    def using(self, path: bytes) -> Iterator[int]:
        """Lend the descriptor of `path`."""
        file = self.take(path)
        try:
            yield file.fd
        finally:
            self.give(file)

    def forget(self, path: bytes) -> None:
        """Close the descriptor of `path`, if there is one, when its last user is done."""
        with self._lock:
            file = self._files.pop(path, None)
            if file is not None:
                self._discard(file)

    def close(self) -> None:
        """Close everything idle; what is in use is closed when it is given back."""
        with self._lock:
            while self._files:
                self._discard(self._files.popitem()[1])

    def _discard(self, file: OpenFile) -> None:
        file.closing = True
        if file.users == 0:
            close_file(file.fd)


def read_into(fd: int, view: memoryview, offset: int) -> int:
    """Fill `view` from `offset`; returns the bytes read, fewer only at the end of the file."""
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:] if done else view], offset + done)
        if count == 0:
            break
        done += count
    return done


def write_all(fd: int, chunks: Sequence[Buffer], offset: int) -> None:
    """Write `chunks` one after the other from `offset`, however many there are."""
    for start in range(0, len(chunks), IOV_MAX):
        views = chunks if len(chunks) <= IOV_MAX else chunks[start : start + IOV_MAX]
        size = sum(memoryview(view).nbytes for view in views)
        written = os.pwritev(fd, views, offset)
        if written < size:
            written = _write_rest(fd, views, offset, written, size)
        offset += written


def _write_rest(fd: int, chunks: Sequence[Buffer], offset: int, done: int, size: int) -> int:
    rest = memoryview(b"".join(chunks))
    while done < size:
        count = os.pwrite(fd, rest[done:], offset + done)
        if count == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += count
    return done


def reserve(fd: int, spans: Iterable[tuple[int, int]]) -> None:
    """Allocate (offset, length) spans on disk, so that a full disk shows now and not at 90 %.

    A filesystem that cannot do it is left to allocate as blocks come.
    """
    for offset, length in spans:
        try:
            fallocate(fd, offset, length)
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise
            return


def merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join (offset, length) spans that touch; they come in ascending order."""
    merged: list[tuple[int, int]] = []
    for offset, length in spans:
        if merged and sum(merged[-1]) == offset:
            merged[-1] = (merged[-1][0], merged[-1][1] + length)
        else:
            merged.append((offset, length))
    return merged


def check_free_space(folder: Path, needed: int) -> None:
    """Refuse to start what cannot fit.

    Raises:
        NoSpaceError: fewer than `needed` bytes are free for this user on the folder's filesystem.
    """
    with os_errors("look at", folder):
        status = os.statvfs(folder)
    blocks = status.f_bfree if os.geteuid() == 0 else status.f_bavail
    available = blocks * status.f_frsize
    if needed > available:
        raise NoSpaceError(
            f"{folder}: {needed:,} bytes needed, {available:,} bytes available",
            hint=f"Free {needed - available:,} bytes, choose another folder, or get fewer files.",
        )


def sync_files(paths: Sequence[bytes], files: OpenFiles, folder: Path) -> None:
    """Bring the data of `paths`, which lie on one filesystem below `folder`, to the disk."""
    if len(paths) > _SYNC_ONE_BY_ONE and _sync_filesystem(folder):
        return
    for path in paths:
        with files.using(path) as fd:
            sync_data(fd)


def _sync_filesystem(folder: Path) -> bool:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        syncfs(fd)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        return False
    finally:
        close_file(fd)
    return True


def sync_folder(folder: Path | str | bytes) -> None:
    """Bring a folder's names to the disk; a filesystem that cannot sync folders is let off."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        close_file(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; their names survive a power cut. Raises StoreError."""
    missing = [folder]
    with os_errors("create", folder):
        while not os.path.lexists(missing[-1]) and missing[-1].parent != missing[-1]:
            missing.append(missing[-1].parent)
        for new in reversed(missing[:-1]):
            new.mkdir(exist_ok=True)
            with suppress(PermissionError):  # who may write there need not be able to read
                sync_folder(new.parent)
        missing[0].mkdir(exist_ok=True)  # says what is wrong if it is none


def check_folders(root: Path, relative: str, seen: set[str]) -> None:
    """Refuse a path below `root` that cannot be made without following or removing something.

    Args:
        root: the destination.
        relative: the file's path below it.
        seen: folders below `root` that need no second look; grows.

    Raises:
        DestinationConflictError: a file or a symlink lies where a folder is needed. A version must
            not be able to write elsewhere.
    """
    for folder in _unseen_folders(relative, seen):
        path = root / folder
        with os_errors("look at", path):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                return
        if not stat.S_ISDIR(mode):
            kind = "a symlink" if stat.S_ISLNK(mode) else "a file"
            raise DestinationConflictError(
                f"{path} is {kind}, and a folder of the version belongs there",
                hint="Move it away, or choose another folder.",
            )
        seen.add(folder)


def _unseen_folders(relative: str, seen: set[str]) -> list[str]:
    """Return the folders that hold `relative`, outermost first, without those that were seen."""
    unseen: list[str] = []
    folder = relative.rpartition("/")[0]
    while folder and folder not in seen:
        unseen.append(folder)
        folder = folder.rpartition("/")[0]
    return unseen[::-1]


def make_folders(root: Path, relative: str, seen: set[str]) -> list[str]:
    """Create the folders that hold `relative` below `root`.

    Returns:
        those that got a new entry, `root` as "", outermost first.

    Raises:
        DestinationConflictError: see `check_folders`.
        StoreError: a folder cannot be created.
    """
    changed: list[str] = []
    for folder in _unseen_folders(relative, seen):
        path = root / folder
        with os_errors("create", path), suppress(FileExistsError):
            path.mkdir()
            changed.append(folder.rpartition("/")[0])
    check_folders(root, relative, seen)
    return changed


def publish_file(part: str, final: str, *, overwrite: bool) -> None:
    """Give a finished part file its final name, in one step for whoever looks.

    The part name stays as a second one, so that readers who know only that one are not cut off;
    on filesystems without hard links it goes.

    Raises:
        FileExistsError: `final` exists and `overwrite` is false; even one that was made a
            moment ago, on filesystems that have hard links.
    """
    spare = part + SPARE_SUFFIX
    try:
        if overwrite:
            remove_file(spare)  # of a run that was killed here
            os.link(part, spare)
            Path(spare).replace(final)
            remove_file(spare)  # rename(2) does nothing if both are one inode already
        else:
            os.link(part, final)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if not overwrite and os.path.lexists(final):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        Path(part).replace(final)


def remove_file(path: str | bytes) -> None:
    """Remove a file if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108  (making a Path takes longer than the call)


def below(root: str, relative: str) -> str:
    """Return the path of a version's file; the last guard against one that leads elsewhere.

    Args:
        root: the destination, with a slash at its end.
        relative: as the version spells it.

    Raises:
        StoreError: `relative` is absolute, empty, or leaves the root.
    """
    names = relative.split("/")
    if not {"", ".", ".."}.isdisjoint(names) or "\0" in relative:
        raise StoreError(f"a version with the file name {relative!r}, which no file may have")
    return root + relative

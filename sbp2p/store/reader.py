"""Reading blocks out of users' files, which users may change at any moment.

Theory of operation: a file whose stamp (size, mtime, inode) is the one that its blocks were
verified under, before the read and after it, has the bytes that were verified: no hashing. In any
other case the bytes that were read are hashed, and the hash decides:

    stamp before and after      bytes        what happens
    same as indexed             not hashed   served
    part file                   right        served (our own writes move its mtime)
    changed                     right        served; when every block of the file was seen right
                                             under the new stamp, the new stamp is indexed
    any                         wrong        the place is dropped from the index, the next is tried
    missing or unreadable       -            the place stays (the disk may come back), next is tried

Error cases: no place left -> BlockUnavailableError with what was wrong at each. Whoever runs the
node is warned, once for each file: peers that ask for its blocks are turned away from now on.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from sbp2p import observe
from sbp2p.errors import StoreError
from sbp2p.store.errors import BlockUnavailableError
from sbp2p.store.files import OpenFiles, read_into
from sbp2p.store.records import FileStamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.store.extents import Extents
    from sbp2p.store.records import Location


_WARNED_MAX: Final = 32
"""Files that are warned about: a folder of thousands that is gone must not flood the log."""


class BlockReader:
    """Reads blocks by digest. Thread-safe."""

    def __init__(self, extents: Extents, max_open_files: int) -> None:
        self._extents = extents
        self.files = OpenFiles(max_open_files, os.O_RDONLY | os.O_NOFOLLOW)
        self._touched = TouchedFiles(extents)
        self._warned: set[bytes] = set()

    def read(self, digest: bytes, into: bytearray | memoryview | None = None) -> memoryview:
        """Return the bytes of a block, in `into` if given; see `Store.read_block`."""
        problems: list[str] = []
        where = self._extents.first(digest)
        if where is not None:
            view = self._read_at(where, digest, into, problems)
            if view is not None:
                return view
            # a download may have moved the file between the look-up and the read
            for other in self._extents.all(digest):
                if other != where and (view := self._read_at(other, digest, into, problems)):
                    return view
        raise BlockUnavailableError(
            f"block {digest.hex()} is not here"
            + "".join(f"; {problem}" for problem in dict.fromkeys(problems)),
            hint="If files were moved or changed, run `sbp2p verify`." if problems else "",
        )

    def read_at(
        self, where: Location, digest: bytes, into: bytearray | memoryview | None
    ) -> memoryview | None:
        """Return the bytes of a block from one place, or None if it is not there any more."""
        return self._read_at(where, digest, into, [])

    def _read_at(
        self,
        where: Location,
        digest: bytes,
        into: bytearray | memoryview | None,
        problems: list[str],
    ) -> memoryview | None:
        try:
            before = os.lstat(where.path)  # by path: a deleted file must not stay open, and full
            file = self.files.take(where.path, before.st_ino)
            try:
                view = _read(file.fd, where, into)
                after = os.fstat(file.fd)
            finally:
                self.files.give(file)
        except OSError as error:
            self.files.forget(where.path)
            reason = (error.strerror or str(error)).lower()
            problems.append(f"{os.fsdecode(where.path)}: {reason}")
            self._warn(where, f"cannot be read ({reason})")
            return None
        stamp = where.stamp
        if (
            stamp is not None
            and stamp.mtime_ns == before.st_mtime_ns == after.st_mtime_ns
            and stamp.size == before.st_size == after.st_size
            and stamp.inode == FileStamp.of(before).inode
            and len(view) == where.length
        ):
            return view
        if blake3(view).digest() != digest:
            problems.append(f"{os.fsdecode(where.path)} has changed")
            self._warn(where, "has changed")
            self._touched.forget(where.file_id)
            with suppress(StoreError):  # a busy index: the next read finds out again
                self._extents.drop(where, digest)
            return None
        if stamp is not None and FileStamp.of(before) == FileStamp.of(after):
            self._touched.verified(where, stamp, FileStamp.of(after))
        return view

    def _warn(self, where: Location, what: str) -> None:
        if where.stamp is None:  # a part file, which may have got its final name just now
            return
        if where.path in self._warned or len(self._warned) >= _WARNED_MAX:
            return
        self._warned.add(where.path)
        observe.report_lost_file(os.fsdecode(where.path), what)

    def close(self) -> None:
        """Close the files."""
        self.files.close()


class TouchedFiles:
    """Files whose stamp changed and whose bytes, so far, did not."""

    def __init__(self, extents: Extents) -> None:
        self._extents = extents
        self._lock = threading.Lock()
        self._seen: dict[int, tuple[FileStamp, set[int], int]] = {}

    def verified(self, where: Location, old: FileStamp, now: FileStamp) -> None:
        """Note that one block, indexed under stamp `old`, was hashed and right under `now`."""
        with self._lock:
            stamp, offsets, count = self._seen.get(where.file_id, (None, set(), 0))
            if stamp != now:
                offsets, count = set(), self._extents.count(where.file_id)
            offsets.add(where.offset)
            self._seen[where.file_id] = (now, offsets, count)
            if len(offsets) < count or now.size != old.size:
                return
            del self._seen[where.file_id]
        with suppress(StoreError):  # a busy index: hashed again next time
            self._extents.restamp(where.file_id, old, now)

    def forget(self, file_id: int) -> None:
        """Start over with a file: one of its blocks was wrong."""
        with self._lock:
            self._seen.pop(file_id, None)


def _read(fd: int, where: Location, into: bytearray | memoryview | None) -> memoryview:
    if into is None:
        data = os.pread(fd, where.length, where.offset)
        if len(data) == where.length:
            return memoryview(data)
        into = bytearray(where.length)
    view = memoryview(into)[: where.length]
    if len(view) < where.length:
        raise ValueError(f"a block of {where.length} bytes does not fit in {len(view)}")
    return view[: read_into(fd, view, where.offset)]


def read_all(
    reader: BlockReader,
    extents: Extents,
    digests: Sequence[bytes],
    into: memoryview | None,
) -> list[memoryview | None]:
    """Read several blocks with one look-up; see `Store.read_blocks`."""
    places = extents.first_of(digests)
    views: list[memoryview | None] = []
    used = 0
    for digest in digests:
        where = places.get(digest)
        room = into[used:] if into is not None else None
        view = reader.read_at(where, digest, room) if where is not None else None
        if view is None and where is not None:
            with suppress(BlockUnavailableError):
                view = reader.read(digest, room)
        views.append(view)
        used += len(view) if view is not None else 0
    return views

"""Which blocks a version consists of, and where each one lies in its files.

Theory of operation: a version is a row of files in path order, a file is a row of leaf blocks; each
such position is an *occurrence*. A block that occurs twice is one *unique block*, numbered by its
first occurrence; the number is what bitmaps and requests speak of, so both ends must build the same
table from the same root. A 1 TB model has a million blocks, so the table is packed arrays, about
60 bytes a block: 32 of digest, 4 of length, 16 for the occurrence and its offset, and an
open-addressing hash table of 4-byte slots, at most two thirds full. Slots come from Python's keyed
hash of the digest, so a publisher who invents digests cannot make them collide.

Error cases: `BlockTableBuilder` raises LocalProtocolError when files are out of order or a leaf is
impossible; the tree walker turns that into the peer's fault. Lookups outside the table raise
IndexError or KeyError: a caller's bug.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sbp2p_protocol.bitmap import Bitmap
from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.limits import (
    BLOCK_MAX,
    VERSION_FILES_MAX,
    VERSION_LEAVES_MAX,
    VERSION_PATHS_MAX,
    VERSION_REPEATS_FREE,
    VERSION_REPEATS_MAX,
)
from sbp2p_protocol.paths import check_path, path_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sbp2p_protocol.cid import Cid

DIGEST_SIZE: Final = 32
_SLOTS_MIN: Final = 8


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file: its path in the version, bytes, CID, and its `count` occurrences from `first`."""

    path: str
    size: int
    cid: Cid
    first: int
    count: int


class DigestIndex:
    """The unique digests in order, and the way back from a digest to its number."""

    __slots__ = ("_digests", "_slots")

    def __init__(self) -> None:
        self._digests = bytearray()
        self._slots = array("I", bytes(4 * _SLOTS_MIN))  # 0 is free, else number + 1

    def __len__(self) -> int:
        return len(self._digests) // DIGEST_SIZE

    def digest(self, number: int) -> bytes:
        """Return digest `number`; raises IndexError outside the index."""
        start = number * DIGEST_SIZE
        if not 0 <= start < len(self._digests):
            raise IndexError(f"block {number} of {len(self)}")
        return bytes(self._digests[start : start + DIGEST_SIZE])

    def find(self, digest: bytes) -> int | None:
        """Return the number of `digest`, or None."""
        if len(digest) != DIGEST_SIZE:
            return None
        number = self._slots[self._slot(digest)]
        return number - 1 if number else None

    def add(self, digest: bytes) -> int:
        """Return the number of `digest`, adding it at the end if it is new."""
        slot = self._slot(digest)
        number = self._slots[slot]
        if number:
            return number - 1
        self._digests += digest
        self._slots[slot] = len(self)
        if 3 * len(self) > 2 * len(self._slots):
            self._grow()
        return len(self) - 1

    def _slot(self, digest: bytes) -> int:
        slots, digests, mask = self._slots, self._digests, len(self._slots) - 1
        slot = hash(digest) & mask
        while number := slots[slot]:
            if digests.startswith(digest, (number - 1) * DIGEST_SIZE):
                return slot
            slot = slot + 1 & mask
        return slot

    def _grow(self) -> None:
        size = 2 * len(self._slots)
        slots, mask = array("I", bytes(4 * size)), size - 1
        view = memoryview(bytes(self._digests))
        for number in range(len(self)):
            slot = hash(view[number * DIGEST_SIZE : (number + 1) * DIGEST_SIZE]) & mask
            while slots[slot]:
                slot = slot + 1 & mask
            slots[slot] = number + 1
        self._slots = slots


class BlockTable:
    """The unique blocks of a version and the files they make; built by BlockTableBuilder."""

    __slots__ = (
        "_first",
        "_index",
        "_lengths",
        "_numbers",
        "_offsets",
        "_repeats",
        "file_bytes",
        "files",
        "total_bytes",
    )

    files: tuple[FileEntry, ...]
    total_bytes: int
    """Bytes in the unique blocks: what a node without any of them has to fetch."""
    file_bytes: int
    """Bytes in all files: what the version takes on disk."""

    def __init__(
        self,
        files: tuple[FileEntry, ...],
        index: DigestIndex,
        lengths: array[int],
        numbers: array[int],
        offsets: array[int],
    ) -> None:
        self.files = files
        self.total_bytes = sum(lengths)
        self.file_bytes = sum(file.size for file in files)
        self._index = index
        self._lengths = lengths  # by unique number
        self._numbers = numbers  # by occurrence: unique number
        self._offsets = offsets  # by occurrence: offset in its file
        self._first = array("I")  # by unique number: first occurrence
        self._repeats: dict[int, list[int]] = {}  # unique number: later occurrences
        for occurrence, number in enumerate(numbers):
            if number == len(self._first):
                self._first.append(occurrence)
            else:
                self._repeats.setdefault(number, []).append(occurrence)

    def __len__(self) -> int:
        """Return the number of unique blocks."""
        return len(self._lengths)

    @property
    def occurrences(self) -> int:
        """How many leaf positions all files have together."""
        return len(self._numbers)

    def digest(self, number: int) -> bytes:
        """Return the 32-byte digest of unique block `number`."""
        return self._index.digest(number)

    def length(self, number: int) -> int:
        """Return the bytes in unique block `number`."""
        return self._lengths[number]

    def index(self, digest: bytes) -> int | None:
        """Return the number of the unique block with this digest, or None."""
        return self._index.find(digest)

    def locations(self, number: int) -> list[tuple[int, int]]:
        """Return every (file number, byte offset) where unique block `number` lies."""
        found = [self._first[number], *self._repeats.get(number, ())]
        return [(self._file_of(occurrence), self._offsets[occurrence]) for occurrence in found]

    def _file_of(self, occurrence: int) -> int:
        # of files that begin at one occurrence, all but the last are empty
        return bisect_right(self.files, occurrence, key=lambda file: file.first) - 1

    def file_number(self, path: str) -> int | None:
        """Return the number of the file at `path`, or None."""
        order = path_order(path)
        at = bisect_right(self.files, order, key=lambda file: path_order(file.path)) - 1
        return at if at >= 0 and self.files[at].path == path else None

    def file_blocks(
        self, file_number: int, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (unique number, offset, length) of the file's blocks that touch [start, stop)."""
        file = self.files[file_number]
        end = file.size if stop is None else min(stop, file.size)
        if start >= end:
            return
        first, last = file.first, file.first + file.count
        for occurrence in range(bisect_right(self._offsets, start, first, last) - 1, last):
            offset = self._offsets[occurrence]
            if offset >= end:
                return
            number = self._numbers[occurrence]
            yield number, offset, self._lengths[number]

    def blocks_for(self, ranges: Mapping[int, Iterable[tuple[int, int]]]) -> Bitmap:
        """Return the unique blocks needed for byte ranges.

        Args:
            ranges: file number to (offset, length) pairs, in bytes; parts outside a file are void.
        """
        wanted = Bitmap(len(self))
        for file_number, spans in ranges.items():
            for offset, length in spans:
                for number, _, _ in self.file_blocks(file_number, offset, offset + length):
                    wanted.set(number)
        return wanted

    def blocks_of_files(self, file_numbers: Iterable[int]) -> Bitmap:
        """Return the unique blocks of whole files."""
        return self.blocks_for({number: [(0, self.files[number].size)] for number in file_numbers})


def leaves_allowed(unique: int) -> int:
    """Return how many leaves, counted at every place, a version of so many blocks may have."""
    return min(VERSION_LEAVES_MAX, VERSION_REPEATS_FREE + VERSION_REPEATS_MAX * unique)


class BlockTableBuilder:
    """Collects files in path order and gives their BlockTable; spent after an error.

    Args:
        most_unique: what is known of the number of unique blocks before the files are listed.
    """

    def __init__(self, most_unique: int = VERSION_LEAVES_MAX) -> None:
        self._most_leaves = leaves_allowed(most_unique)
        self._files: list[FileEntry] = []
        self._path_bytes = 0
        self._order: tuple[bytes, ...] = ()
        self._index = DigestIndex()
        self._lengths = array("I")
        self._numbers = array("I")
        self._offsets = array("Q")

    def add_file(self, path: str, cid: Cid, leaves: Iterable[tuple[bytes, int]]) -> FileEntry:
        """Add the file at `path` with its (digest, length) leaves in order.

        Raises:
            LocalProtocolError: a path that is not allowed or not after the last one, a leaf of
                impossible length, one digest with two lengths, or a bound of limits.py passed.
        """
        if (reason := check_path(path)) is not None:
            raise LocalProtocolError(f"file name {path!r}: {reason}")
        order = path_order(path)
        if self._files and order <= self._order:
            raise LocalProtocolError(f"file {path!r} is not after {self._files[-1].path!r}")
        if len(self._files) >= VERSION_FILES_MAX:
            raise LocalProtocolError(f"more than {VERSION_FILES_MAX} files in a version")
        self._path_bytes += len(path.encode())
        if self._path_bytes > VERSION_PATHS_MAX:
            raise LocalProtocolError(f"paths of more than {VERSION_PATHS_MAX} bytes in a version")
        self._order = order
        first = len(self._numbers)
        size = self._add_leaves(leaves)
        entry = FileEntry(path, size, cid, first, len(self._numbers) - first)
        self._files.append(entry)
        return entry

    def _add_leaves(self, leaves: Iterable[tuple[bytes, int]]) -> int:
        add, lengths, numbers = self._index.add, self._lengths, self._numbers
        offset = 0
        room = self._most_leaves - len(numbers)
        for digest, length in leaves:
            if not 0 < length <= BLOCK_MAX or len(digest) != DIGEST_SIZE:
                raise LocalProtocolError(f"a leaf of {length} bytes (1 to {BLOCK_MAX} allowed)")
            if room == 0:
                raise LocalProtocolError(_too_many(self._most_leaves))
            room -= 1
            number = add(digest)
            if number == len(lengths):
                lengths.append(length)
            elif lengths[number] != length:
                raise LocalProtocolError(f"block {digest.hex()} with two lengths")
            numbers.append(number)
            self._offsets.append(offset)
            offset += length
        return offset

    def build(self) -> BlockTable:
        """Return the table of the files added so far; the builder is spent.

        Raises:
            LocalProtocolError: the same few blocks again and again.
        """
        if len(self._numbers) > (most := leaves_allowed(len(self._index))):
            raise LocalProtocolError(_too_many(most))
        return BlockTable(
            tuple(self._files), self._index, self._lengths, self._numbers, self._offsets
        )


def _too_many(most: int) -> str:
    if most == VERSION_LEAVES_MAX:
        return f"more than {most} leaves in a version"
    return f"more than {most} leaves in a version that repeats the same few blocks"

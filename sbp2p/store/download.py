"""One version on its way into one folder.

Theory of operation: a block is hashed, then written to every place that it has in the files being
made, then counted as had. A batch is committed in this order:

    1. data     fdatasync of every file written to
    2. index    one transaction adds a row for every place

so a row never speaks of a block that is not on disk, and a power cut loses at most one batch
(batch.py says when it is due); a kill loses nothing, because the next one to open the download
hashes what was written last (recent.py). `finish` gives the files their final names.

Rules:
- `have` is what need not be asked for again; what of it is not committed yet can be read too.
- A block is written by one thread at a time: who writes it has claimed it. `close` waits for the
  claims to end, so that nothing is written once the lock is free.
- One process at a time works on a download: a flock in its work folder.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from blake3 import blake3

from sbp2p.errors import StoreError
from sbp2p.store.adopt import Adoption
from sbp2p.store.batch import OpenBatch
from sbp2p.store.errors import BlockMismatchError
from sbp2p.store.files import read_into
from sbp2p.store.finish import Finisher, release_work_folder
from sbp2p.store.recent import RecentBlocks
from sbp2p_protocol.limits import BLOCK_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from typing_extensions import Buffer

    from sbp2p.config import StoreConfig
    from sbp2p.store.extents import Extents
    from sbp2p.store.locks import FileLock
    from sbp2p.store.parts import PartFiles
    from sbp2p.store.reader import BlockReader
    from sbp2p.store.records import AdoptStep
    from sbp2p_protocol.bitmap import Bitmap
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.manifest import Manifest


class Download:
    """Writes verified blocks into files; made by `Store.open_download`. Thread-safe."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        table: BlockTable,
        destination: Path,
        wanted: Bitmap,
        have: Bitmap,
        overwrite: bool,
        parts: PartFiles,
        extents: Extents,
        reader: BlockReader,
        config: StoreConfig,
        lock: FileLock,
    ) -> None:
        self.manifest = manifest
        self.table = table
        self.destination = destination
        self.wanted = wanted
        self.have = have
        """Blocks that are in every file of this download they belong to. Shared: do not change."""
        self.overwrite = overwrite
        self.parts = parts
        self.extents = extents
        self.reader = reader
        self._recent = RecentBlocks(parts.folder)
        self._batch = OpenBatch(
            table=table, have=have, extents=extents, recent=self._recent, config=config
        )
        self._file_lock = lock
        self._released = threading.Condition()
        self._claimed: set[int] = set()
        self._commit_lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def missing(self) -> Bitmap:
        """Blocks that are wanted and not had."""
        return self.wanted.and_not(self.have)

    @property
    def pending_bytes(self) -> int:
        """Verified bytes that the next commit will make safe."""
        return self._batch.bytes

    @property
    def commit_due(self) -> bool:
        """Whether it is time for a commit; who asks and commits keeps the writers from waiting."""
        return self._batch.is_due

    def file_path(self, number: int) -> Path | None:
        """Return where file `number` lies now (maybe a part file); None if it is not made."""
        target = self.parts.targets.get(number)
        return None if target is None else Path(target.path)

    def adopt_local(self) -> Iterator[AdoptStep]:
        """Take over what is on this machine already; one step for every few MiB.

        First the files that lie under final names, and part files that nobody vouches for, are
        hashed; then wanted blocks that any indexed file has are copied, each verified. Ending the
        iteration early is safe: what was adopted stays.

        Raises:
            DestinationConflictError: a file under a final name has other bytes, and the download
                may not overwrite.
            StoreError: this download's files cannot be written.
        """
        return Adoption(self).steps()

    def write_block(self, index: int, chunks: Sequence[Buffer]) -> bool:
        """Verify a block and write it to every place it has; commits when a batch is full.

        Args:
            index: of the block in the table.
            chunks: its bytes, in order, in any number of pieces; not kept after the call.

        Returns:
            whether it was missing: a block that is had is not written again.

        Raises:
            BlockMismatchError: the bytes are not the block's; nothing was written.
            StoreError: the disk or the index failed; what was committed before is safe.
        """
        hasher = blake3()
        size = 0
        for chunk in chunks:
            hasher.update(chunk)
            size += memoryview(chunk).nbytes
        digest, length = self.table.digest(index), self.table.length(index)
        if size != length or hasher.digest() != digest:
            raise BlockMismatchError(
                f"{size} bytes came that are not block {index} ({digest.hex()}, {length} bytes)"
            )
        with self.claiming((index,)):
            if self.have.get(index):
                return False
            self._batch.add(index, self.parts.write(index, chunks))
        self._commit_in_time()
        return True

    @contextmanager
    def claiming(self, indices: Collection[int]) -> Iterator[None]:
        """Be the only one who writes these blocks; raises StoreError if the download is closed."""
        with self._released:
            while not self._claimed.isdisjoint(indices):
                self._released.wait()
            if self._closed:
                raise StoreError("the download is closed")
            self._claimed.update(indices)
        try:
            yield
        finally:
            with self._released:
                self._claimed.difference_update(indices)
                self._released.notify_all()

    def note_written(self, index: int) -> None:
        """Count a block as had: its bytes are right and in all its places, not yet synced."""
        self._batch.add(index, self.parts.location(index))
        self._commit_in_time()

    def recover(self) -> None:
        """Take back what a killed process had written and not committed.

        Each block is hashed, and written again: if the disk did not take it before, the kernel may
        still show it and yet believe that there is nothing to sync.
        """
        buffer = memoryview(bytearray(BLOCK_MAX))
        for index in self._recent.read():
            if index < len(self.table) and not self.have.get(index):
                for target, offset in self.parts.places(index)[:1]:
                    if target.made and not target.suspect:
                        view = buffer[: self.table.length(index)]
                        with self.parts.writing_to(target) as fd:
                            count = read_into(fd, view, offset)
                        with suppress(BlockMismatchError):
                            self.write_block(index, [view[:count]])

    def commit(self) -> list[int]:
        """Make everything written so far survive a power cut; returns the blocks of this batch.

        Other threads may go on writing; what they write goes with the next batch.

        Raises:
            StoreError: the data could not be synced (the batch is lost and no longer had), or the
                index could not be written (the batch goes with the next commit).
        """
        with self._commit_lock:
            return self._commit()

    def _commit_in_time(self) -> None:
        if self._batch.is_full:
            with self._commit_lock:
                if self._batch.is_full:  # not if the thread that was waited for took it all
                    self._commit()
        elif self._batch.is_old and self._commit_lock.acquire(blocking=False):
            try:
                self._commit()
            finally:
                self._commit_lock.release()

    def _commit(self) -> list[int]:
        batch = self._batch.take()
        if batch:
            try:
                self.parts.sync(batch)
            except BaseException:
                self._batch.lost(batch)
                raise
            try:
                self.parts.record(batch)
            except BaseException:
                self._batch.put_back(batch)
                raise
            self._batch.done(batch)
        return batch

    def finish(self) -> None:
        """Give every whole file its final name, and the version to those who seed.

        Files that are wanted in part stay part files, which are read from like any other; another
        download of the same version into the same folder can complete them.

        Raises:
            ValueError: a wanted block is missing.
            DestinationConflictError: a different file has a final name, and the download may not
                overwrite. No file got its name.
            StoreError: the disk or the index failed; opening the download again goes on from here.
        """
        self.commit()
        if self.missing.any():
            raise ValueError(f"{self.missing.count()} wanted blocks are missing")
        Finisher(self).run()

    def close(self) -> None:
        """Commit what is pending and let the download go; does nothing the second time.

        Raises:
            StoreError: the last batch could not be committed; the download is closed all the same.
        """
        with self._released:
            if self._closed:
                return
            self._closed = True
            while self._claimed:
                self._released.wait()
        try:
            self.commit()
        finally:
            try:
                self.parts.close()
            finally:
                self._recent.close(remove=not self._batch.bytes)
                self._batch.forget_all()
                release_work_folder(self.parts.folder, self._file_lock)

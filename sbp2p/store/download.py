"""One version on its way into one folder.

Theory of operation: a block is hashed, then written to every place that it has in the files being
made, then counted as had. A batch is committed in this order:

    1. data     fdatasync of every file written to
    2. index    one transaction adds a row for every place

so a row never speaks of a block that is not on disk, and a crash loses at most one batch: writers
wait when as much as that is not safe yet. `finish` gives the files their final names.

Rules:
- `have` is what need not be asked for again; what of it is not committed yet can be read too.
- When fdatasync fails the blocks of the batch are no longer had: the kernel may have dropped the
  pages, and a second fdatasync would not say so.
- When the index fails the batch is kept and goes with the next commit.
- A block is written by one thread at a time: who writes it has claimed it. `close` waits for the
  claims to end, so that nothing is written once the lock is free.
- One process at a time works on a download: a flock in its work folder.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from blake3 import blake3

from sbp2p.errors import StoreError
from sbp2p.store.adopt import Adoption
from sbp2p.store.errors import BlockMismatchError
from sbp2p.store.finish import Finisher, release_work_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

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
        batch_bytes: int,
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
        self._batch_bytes = batch_bytes
        self._file_lock = lock
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)
        self._claimed: set[int] = set()
        self._commit_lock = threading.Lock()
        self._pending: dict[int, None] = {}
        self._pending_bytes = 0
        self._syncing_bytes = 0
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
        return self._pending_bytes

    def file_path(self, number: int) -> Path | None:
        """Return where file `number` lies now (maybe a part file); None if it is not made."""
        target = self.parts.targets.get(number)
        return None if target is None else target.path

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

    def write_block(
        self, index: int, chunks: Sequence[Buffer], *, batch_bytes: int | None = None
    ) -> bool:
        """Verify a block and write it to every place it has; commits when a batch is full.

        Args:
            index: of the block in the table.
            chunks: its bytes, in order, in any number of pieces; not kept after the call.
            batch_bytes: verified bytes that may wait for a commit; those of the config if None.

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
            self.parts.write(index, chunks)
            due = self._add_pending(index, batch_bytes)
        if due:
            self.commit()
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

    def note_written(self, index: int, *, batch_bytes: int | None = None) -> None:
        """Count a block as had: its bytes are right and in all its places, not yet synced."""
        if self._add_pending(index, batch_bytes):
            self.commit()

    def _add_pending(self, index: int, batch_bytes: int | None) -> bool:
        """Add a block to the batch; returns whether it is full."""
        where = self.parts.location(index)
        with self._lock:
            self.have.set(index)
            if where is None:  # in place everywhere, nothing to commit
                return False
            self._pending[index] = None
            self._pending_bytes += where.length
            self.extents.pending[self.table.digest(index)] = where
            # what another thread is committing counts until it is safe, so that a slow disk
            # slows the writers down instead of raising what a crash costs
            waiting = self._pending_bytes + self._syncing_bytes
        return waiting >= (self._batch_bytes if batch_bytes is None else batch_bytes)

    def commit(self) -> list[int]:
        """Make everything written so far survive a crash; returns the blocks of this batch.

        Other threads may go on writing; what they write goes with the next batch.

        Raises:
            StoreError: the data could not be synced (the batch is lost and no longer had), or the
                index could not be written (the batch goes with the next commit).
        """
        with self._commit_lock:
            with self._lock:
                batch, self._pending = self._pending, {}
                self._syncing_bytes, self._pending_bytes = self._pending_bytes, 0
            try:
                if batch:
                    self._commit_batch(batch)
            finally:
                self._syncing_bytes = 0
            return list(batch)

    def _commit_batch(self, batch: dict[int, None]) -> None:
        try:
            self.parts.sync(batch)
        except StoreError:
            with self._lock:
                for index in batch:
                    self.have.clear(index)
            self._forget_pending(batch)
            raise
        try:
            self.parts.record(batch)
        except StoreError:
            with self._lock:
                self._pending.update(batch)
                self._pending_bytes += self._syncing_bytes
            raise
        self._forget_pending(batch)

    def _forget_pending(self, batch: dict[int, None]) -> None:
        with self._lock:
            for index in batch:
                if index not in self._pending:
                    self.extents.pending.pop(self.table.digest(index), None)

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
                for index in self._pending:
                    self.extents.pending.pop(self.table.digest(index), None)
                release_work_folder(self.parts.folder, self._file_lock)

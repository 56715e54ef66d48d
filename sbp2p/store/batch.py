"""The blocks of a download between writing and committing: what a batch is, and when it is due.

Theory of operation: a block that was verified and written is *had*: it can be read, and its name is
in the list of recent blocks (see recent.py), so that a kill does not lose it. A power cut would,
until it is committed. Syncing is dear, and the dearer the smaller the batch: with 8 MiB a fast
download waits for the disk half of the time, with 64 MiB hardly. So batches grow with the rate:

    8 MiB are waiting, the last commit is a second old   old: who writes the next block commits
    half of `commit_batch_bytes` is waiting              due: a thread beside the writers commits
    all of it, what is being synced included             full: writers commit, or wait for it

and a power cut costs what came in a second, or 8 MiB if a second brings less, and never more than
`commit_batch_bytes`.

Rules:
- What is being synced counts as not safe, so that a slow disk slows the writers down instead of
  raising what a power cut costs.
- When the data cannot be synced the batch is no longer had: the kernel may have dropped the pages,
  and a second fdatasync would not say so. When the index fails it goes with the next commit.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from sbp2p.config import StoreConfig
    from sbp2p.store.extents import Extents
    from sbp2p.store.recent import RecentBlocks
    from sbp2p.store.records import Location
    from sbp2p_protocol.bitmap import Bitmap
    from sbp2p_protocol.blocktable import BlockTable


class OpenBatch:
    """Counts written blocks, and what a commit did with them. Thread-safe."""

    def __init__(
        self,
        *,
        table: BlockTable,
        have: Bitmap,
        extents: Extents,
        recent: RecentBlocks,
        config: StoreConfig,
    ) -> None:
        self._table = table
        self._have = have
        self._extents = extents
        self._recent = recent
        self._config = config
        self._lock = threading.Lock()
        self._waiting: dict[int, None] = {}
        self._syncing_bytes = 0
        self._committed_at = monotonic()
        self.bytes = 0
        """Of the blocks that the next commit takes."""

    def add(self, index: int, where: Location | None) -> None:
        """Count a block as had; `where` it can be read, None if there is nothing to commit."""
        with self._lock:
            self._have.set(index)
            if where is None or index in self._waiting:
                return
            self._waiting[index] = None
            self.bytes += where.length
            self._extents.pending[self._table.digest(index)] = where
            self._recent.add(index)

    @property
    def is_full(self) -> bool:
        """Whether writers must wait for a commit."""
        return self.bytes + self._syncing_bytes >= self._config.commit_batch_bytes

    @property
    def is_old(self) -> bool:
        """Whether enough has waited for long enough."""
        if self.bytes < self._config.commit_min_bytes:
            return False
        return monotonic() - self._committed_at >= self._config.commit_interval_s

    @property
    def is_due(self) -> bool:
        """Whether a thread that has nothing else to do should commit."""
        return self.bytes >= self._config.commit_batch_bytes // 2 or self.is_old

    def take(self) -> list[int]:
        """Return the blocks to commit now; ends with `done`, `lost` or `put_back`."""
        with self._lock:
            batch, self._waiting = list(self._waiting), {}
            self._syncing_bytes, self.bytes = self.bytes, 0
        return batch

    def done(self, batch: Collection[int]) -> None:
        """Note that a batch is committed."""
        with self._lock:
            self._forget(batch)
            self._committed_at = monotonic()
            self._recent.replace(self._waiting)

    def lost(self, batch: Collection[int]) -> None:
        """Note that a batch may not have reached the disk."""
        with self._lock:
            for index in batch:
                self._have.clear(index)
            self._forget(batch)
            self._recent.replace(self._waiting)

    def put_back(self, batch: Collection[int]) -> None:
        """Keep a batch that reached the disk and not the index for the next commit."""
        with self._lock:
            self._waiting.update(dict.fromkeys(batch))
            self.bytes += self._syncing_bytes
            self._syncing_bytes = 0

    def forget_all(self) -> None:
        """Let nobody read what is not committed; the download is closed."""
        with self._lock:
            batch, self._waiting = self._waiting, {}
            self._forget(batch)

    def _forget(self, batch: Collection[int]) -> None:
        self._syncing_bytes = 0
        for index in batch:
            if index not in self._waiting:
                self._extents.pending.pop(self._table.digest(index), None)

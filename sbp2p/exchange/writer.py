"""Takes received blocks to disk: verified and written in threads, committed beside that.

Theory of operation:

    sessions --put--> queue, bounded in bytes --> workers: hash and pwrite, some blocks a call
                                                  committer: fdatasync and have-bits

`put` waits while the queue is full, and its caller then does not read from its peer; that is the
whole of the backpressure. Results come back to the event loop one by one, in `verified` or `bad`.
Committing runs in a thread of its own as soon as the store says that it is due, so that the store
rarely has to commit inside a write, where others would wait for it.

Error cases: a block that does not match its hash is a result, not an error. When the disk fails,
`run` raises StoreError; what was committed before is safe.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import trio

from sbp2p.store import BlockMismatchError

from .signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sbp2p.calls import Calls
    from sbp2p.config import ExchangeConfig
    from sbp2p.store import Download
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.exchange_frames import Payload

    from .session import Tally


class BlockSender(Protocol):
    """Who sent a block: a session with a peer, or a web seed."""

    @property
    def peer_id(self) -> PeerId:
        """Its name in the picker."""

    @property
    def tally(self) -> Tally:
        """What it was good for."""

    def blame(self, points: int, reason: str) -> None:
        """Hold a wrong block against it and have no more to do with it."""


@dataclass(frozen=True, slots=True)
class ReceivedBlock:
    """A block of the table as some peer sent it, not yet verified."""

    index: int
    parts: Payload
    length: int
    session: BlockSender


class BlockWriter:
    """Writes the blocks of one download.

    Args:
        download: where to.
        threads: where hashing and writing is done.
        verified: called in the event loop for each block that was right and is written.
        bad: called in the event loop for each block that was wrong.
    """

    def __init__(
        self,
        download: Download,
        *,
        config: ExchangeConfig,
        threads: Calls,
        verified: Callable[[ReceivedBlock], None],
        bad: Callable[[ReceivedBlock], None],
    ) -> None:
        self._download = download
        self._config = config
        self._threads = threads
        self._verified = verified
        self._bad = bad
        self._queue: deque[ReceivedBlock] = deque()
        self._queued_bytes = 0
        self._working = 0
        self._filled = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._due = Signal()

    async def put(self, block: ReceivedBlock) -> None:
        """Queue a block; waits while too much is queued."""
        while self._queued_bytes >= self._config.write_queue_bytes:
            await self._room.park()
        self._queue.append(block)
        self._queued_bytes += block.length
        self._filled.unpark()

    async def run(self) -> None:
        """Write and commit until cancelled; raises StoreError when the disk fails."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._config.write_workers):
                nursery.start_soon(self._work)
            nursery.start_soon(self._commit)

    async def _work(self) -> None:
        most = self._config.write_batch_blocks
        while True:
            # a second worker helps only when there is a whole batch for it: each call costs the
            # event loop more than 0.05 ms, and threads that wait for the interpreter hinder it
            while not self._queue or (self._working and len(self._queue) < most):
                await self._filled.park()
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), most))]
            self._working += 1
            results = await self._threads.run(write_batch, self._download, batch)
            self._working -= 1
            self._queued_bytes -= sum(block.length for block in batch)
            self._room.unpark_all()
            for block, right in zip(batch, results, strict=True):
                (self._verified if right else self._bad)(block)
            if self._download.commit_due:
                self._due.fire()

    async def _commit(self) -> None:
        while True:
            await self._due.wait()
            await self._threads.run(self._download.commit)


def write_batch(download: Download, batch: Sequence[ReceivedBlock]) -> list[bool]:
    """Verify and write blocks, in a thread; returns for each whether it was right."""
    results: list[bool] = []
    for block in batch:
        try:
            download.write_block(block.index, block.parts)
        except BlockMismatchError:
            results.append(False)
        else:
            results.append(True)
    return results

"""Blocks read from the store into memory that is reused, ready to be sent.

A block is read behind some headroom, so that its header can be written right before it and both go
out in one send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sbp2p.errors import StoreError
from sbp2p.store import BlockUnavailableError
from sbp2p_protocol.exchange_messages import RejectReason
from sbp2p_protocol.limits import BLOCK_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.roles import Rules
    from sbp2p.store import Store
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.exchange_server import Wanted

    from .permits import Permits

HEADROOM: Final = 64
"""Bytes in front of a block for its header, which takes 42."""


class BlockBuffers:
    """Memory for blocks on their way out, shared by all streams and reused."""

    def __init__(self, memory_bytes: int) -> None:
        self._free: list[bytearray] = []
        self._used = 0
        self._most = max(1, memory_bytes // BLOCK_MAX)

    @property
    def crowded(self) -> bool:
        """Whether more blocks are held than there should be."""
        return self._used >= self._most

    def take(self) -> bytearray:
        """Return a buffer of headroom and one block; never waits."""
        self._used += 1
        return self._free.pop() if self._free else bytearray(HEADROOM + BLOCK_MAX)

    def give(self, buffer: bytearray | None) -> None:
        """Take a buffer back; None for one that is still in some thread's hands."""
        self._used -= 1
        if buffer is not None and len(self._free) < self._most:
            self._free.append(buffer)


@dataclass(slots=True)
class ReadBlock:
    """A request and what came of reading it: a length in `buffer`, or a reason."""

    wanted: Wanted
    buffer: bytearray
    rules: Rules
    """Those that let it be read."""
    outcome: int | RejectReason = RejectReason.NOT_HAVE


def read_batch(store: Store, permits: Permits, peer_id: PeerId, batch: Sequence[ReadBlock]) -> None:
    """Read every request of a batch that the peer may have; runs in a thread."""
    wanted = [(read.wanted.digest, read.wanted.cid) for read in batch]
    try:
        permitted = permits.blocks(peer_id, wanted)
    except StoreError:
        permitted = [False] * len(batch)
    for read, may_have in zip(batch, permitted, strict=True):
        read.outcome = RejectReason.REFUSED
        if may_have:
            read.outcome = _read_one(store, read.wanted, memoryview(read.buffer)[HEADROOM:])


def _read_one(store: Store, wanted: Wanted, into: memoryview) -> int | RejectReason:
    try:
        if wanted.cid is None:
            return len(store.read_block(wanted.digest, into))
        data = store.get_loose(wanted.cid)
    except BlockUnavailableError as error:
        return RejectReason.CHANGED if error.hint else RejectReason.NOT_HAVE
    except StoreError:
        return RejectReason.BUSY
    if data is None:
        return RejectReason.NOT_HAVE
    into[: len(data)] = data
    return len(data)

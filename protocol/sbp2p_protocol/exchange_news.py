"""Who has and wants what: long news cut into messages, and news that came checked.

Nothing here has state. Error cases: `checked` raises RemoteProtocolError for blocks that the
version does not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .bitmap import bitmap_size
from .errors import RemoteProtocolError
from .exchange_events import BitsArrived, BlocksGained, EverythingGained
from .exchange_messages import Got, Have, HaveAll, HaveBitmap, Peers, Wants
from .limits import EXCHANGE_BITMAP_CHUNK, EXCHANGE_HAVE_BATCH, EXCHANGE_RECORDS_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .cid import Cid


def bitmap_messages(subscription: int, bits: bytes) -> Iterator[HaveBitmap]:
    """Tell a whole bitmap of what is here; empty chunks are left out."""
    for at, chunk in _chunks(bits):
        if any(chunk):
            yield HaveBitmap(subscription, at * 8, chunk)


def wants_messages(subscription: int, bits: bytes) -> Iterator[Wants]:
    """Tell a whole bitmap of what is wanted: always something, otherwise without empty chunks."""
    for at, chunk in _chunks(bits):
        if at == 0 or any(chunk):
            yield Wants(subscription, at * 8, chunk)


def have_messages(subscription: int, indices: Sequence[int]) -> Iterator[Have]:
    """Tell of blocks that were gained."""
    for at in range(0, len(indices), EXCHANGE_HAVE_BATCH):
        yield Have(subscription, tuple(indices[at : at + EXCHANGE_HAVE_BATCH]))


def got_messages(subscription: int, indices: Sequence[int]) -> Iterator[Got]:
    """Tell of blocks that are wanted no longer."""
    for at in range(0, len(indices), EXCHANGE_HAVE_BATCH):
        yield Got(subscription, tuple(indices[at : at + EXCHANGE_HAVE_BATCH]))


def peers_messages(root: Cid, records: Sequence[bytes]) -> Iterator[Peers]:
    """Tell of peers, by their signed records."""
    for at in range(0, len(records), EXCHANGE_RECORDS_BATCH):
        yield Peers(root, tuple(records[at : at + EXCHANGE_RECORDS_BATCH]))


def checked(
    message: Have | HaveBitmap | HaveAll, size: int
) -> BlocksGained | BitsArrived | EverythingGained:
    """Return what a message says of a version with `size` unique blocks.

    Raises:
        RemoteProtocolError: it speaks of blocks that there are not.
    """
    match message:
        case HaveAll():
            return EverythingGained(message.subscription)
        case Have():
            if any(index >= size for index in message.indices):
                raise RemoteProtocolError(f"a block index beyond the version's {size} blocks")
            return BlocksGained(message.subscription, message.indices)
        case HaveBitmap():
            _check_bits(message, size)
            return BitsArrived(message.subscription, message.start, message.bits)


def _chunks(bits: bytes) -> Iterator[tuple[int, bytes]]:
    for at in range(0, len(bits), EXCHANGE_BITMAP_CHUNK):
        yield at, bits[at : at + EXCHANGE_BITMAP_CHUNK]


def _check_bits(message: HaveBitmap, size: int) -> None:
    end = message.start // 8 + len(message.bits)
    if end > bitmap_size(size):
        raise RemoteProtocolError(f"a bitmap beyond the version's {size} blocks")
    padding = size % 8
    if padding and end == bitmap_size(size) and message.bits and message.bits[-1] >> padding:
        raise RemoteProtocolError("a bitmap with padding bits set")

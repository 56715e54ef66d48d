"""Blocks that peers said they had and then did not: files change and go under a seed.

Theory of operation: a peer that rejects a block as not had is not asked for it again in this fetch,
also when it comes back and says once more that it has everything (a seed keeps the rows of a file
on a disk that may return). Only news of the block by itself counts as having it again. A bitmap for
each such peer is all the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

PeerKey = TypeVar("PeerKey", bound="Hashable")


class LostBlocks(Generic[PeerKey]):
    """What each peer of one fetch turned out not to have, by block number."""

    def __init__(self, size: int) -> None:
        self._bytes = (size + 7) // 8
        self._lost: dict[PeerKey, bytearray] = {}

    def __contains__(self, peer: PeerKey) -> bool:
        """Return whether the peer ever lacked a block that it said it had."""
        return peer in self._lost

    def note(self, peer: PeerKey, index: int) -> None:
        """The peer does not have the block after all."""
        bits = self._lost.setdefault(peer, bytearray(self._bytes))
        bits[index >> 3] |= 1 << (index & 7)

    def regained(self, peer: PeerKey, index: int) -> None:
        """The peer has it now."""
        bits = self._lost.get(peer)
        if bits is not None:
            bits[index >> 3] &= ~(1 << (index & 7)) & 0xFF

    def without(self, peer: PeerKey, start: int, bits: bytes) -> bytes:
        """Return a bitmap of what the peer says it has, from block `start`, without these."""
        lost = self._lost.get(peer)
        if lost is None:
            return bits
        at = start // 8
        gone = int.from_bytes(lost[at : at + len(bits)], "little")
        return (int.from_bytes(bits, "little") & ~gone).to_bytes(len(bits), "little")

    def covers(self, peer: PeerKey, blocks: bytes) -> bool:
        """Return whether the peer has shown of each of these blocks that it lacks it."""
        return peer in self._lost and not any(self.without(peer, 0, blocks))

    def everything_but(self, peer: PeerKey) -> bytes:
        """Return the bitmap of a peer that says it has everything."""
        return self.without(peer, 0, b"\xff" * self._bytes)

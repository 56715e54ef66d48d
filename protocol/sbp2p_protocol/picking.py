"""What the picker knows of one peer, and the ways in which it may pick."""

from __future__ import annotations

from enum import Enum

from .bitmap import bitmap_size


class Picking(Enum):
    """Which of the free blocks of a peer is asked for first."""

    RAREST = "rarest"
    RANDOM = "random"
    SEQUENTIAL = "sequential"


class PickerPeer:
    """What one peer has. `bits` is None for a peer that has everything."""

    __slots__ = ("asked", "bits", "free", "listed")

    def __init__(self, size: int) -> None:
        self.bits: bytearray | None = bytearray(bitmap_size(size))
        self.free = 0  # free blocks among its bits; of no use once it has everything
        self.listed: list[int] = []  # some of them, rarest last; stale entries are skipped
        self.asked: set[int] = set()

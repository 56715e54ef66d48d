"""How far a fetch is, and what came of it: plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from sbp2p_keys.signing import SignedDocument
    from sbp2p_protocol.bitmap import Bitmap
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.manifest import Manifest
    from sbp2p_protocol.tensor_index import TensorEntry

    from .session import SourceStatistics
    from .web_seed import WebSeedStatistics


class Phase(Enum):
    """What a fetch is doing."""

    FINDING = "finding the version"
    READING = "reading its tree"
    CHECKING = "checking what is here already"
    TRANSFERRING = "transferring"
    FINISHING = "finishing"
    DONE = "done"


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchProgress:
    """One fetch at one moment. Bytes and blocks are of what is wanted, each block once."""

    phase: Phase
    manifest: Manifest | None = None
    bytes_total: int = 0
    bytes_verified: int = 0
    """On disk and right, from wherever."""
    bytes_local: int = 0
    """Of these, found on this machine."""
    bytes_received: int = 0
    """Block payload from the network, duplicates included."""
    blocks_total: int = 0
    blocks_verified: int = 0
    peers: int = 0
    """Connected peers that are asked."""
    is_stuck: bool = False
    """Whether nothing is on its way, and none of these peers has what is missing."""
    rate: float = 0.0
    """Verified bytes a second over about the last two seconds, from the network."""

    @property
    def seconds_left(self) -> float | None:
        """Guess from the rate; None while nothing moves."""
        return (self.bytes_total - self.bytes_verified) / self.rate if self.rate > 1 else None


@dataclass(frozen=True, slots=True)
class Choice:
    """A part of a version: blocks, and the files that are to be made of them."""

    wanted: Bitmap
    files: tuple[int, ...] | None = None
    """Numbers of files in the block table. None: all if every block is wanted, and otherwise those
    that the blocks make whole, and as few as hold the rest."""


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """A version before its blocks: what there is to choose from."""

    document: SignedDocument
    manifest: Manifest
    table: BlockTable
    tensors: tuple[TensorEntry, ...]
    """Empty if the version has no tensor index."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchResult:
    """A fetch that has ended well: every wanted block is verified and in place."""

    version: FoundVersion
    wanted: Bitmap
    destination: Path
    bytes_wanted: int
    bytes_resumed: int
    """Were at the destination, verified, when the fetch began."""
    bytes_local: int
    """Copied from other files of this node."""
    bytes_received: int
    """Block payload from peers, tree nodes included, and bodies from web seeds."""
    bytes_useless: int
    """Of the received: duplicates and wrong blocks."""
    seconds: float
    transfer_seconds: float
    """From the first request for a block to the last commit; 0 if nothing was to be transferred."""
    part_files: tuple[tuple[str, Path], ...]
    """Files of which a part was wanted: their paths in the version, and where each part lies."""
    sources: tuple[SourceStatistics, ...]
    web_seeds: tuple[WebSeedStatistics, ...] = ()


class RateMeter:
    """Bytes a second, smoothed over about `span_s` seconds. Pure: time is an argument."""

    def __init__(self, now: float, span_s: float = 2.0) -> None:
        self.rate = 0.0
        self._span_s = span_s
        self._at = now
        self._bytes = 0

    def update(self, total_bytes: int, now: float) -> None:
        """Take the running total."""
        elapsed = now - self._at
        if elapsed <= 0:
            return
        weight = min(1.0, elapsed / self._span_s)
        self.rate += weight * ((total_bytes - self._bytes) / elapsed - self.rate)
        self._at, self._bytes = now, total_bytes

"""What the store says about versions, files and blocks: plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, TypeAlias

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from sbp2p_keys.identity import PeerId
    from sbp2p_keys.signing import SignedDocument
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.manifest import Manifest

Role: TypeAlias = Literal["publish", "fetch"]

_INODE_MASK = (1 << 63) - 1


class FileStamp(NamedTuple):
    """What a file looked like when its blocks were verified: the cheap sign of a change.

    The device number is left out: on many filesystems it changes with every mount, and a file
    with the same inode, size and mtime on another device is not a case worth rehashing a store for.
    """

    size: int
    """Bytes."""
    mtime_ns: int
    inode: int
    """63 bits of it: SQLite's integers are signed."""

    @classmethod
    def of(cls, stat: os.stat_result) -> Self:
        """Take the stamp of a stat result."""
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ino & _INODE_MASK)


class Location(NamedTuple):
    """One place where a block lies."""

    file_id: int
    """Row of the file in the index; -1 while the block is not committed yet."""
    path: bytes
    """Absolute, as the operating system spells it."""
    offset: int
    length: int
    stamp: FileStamp | None
    """None for a part file, whose blocks are hashed at every read."""


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """One version in one folder, whole or in part."""

    row: int
    document: SignedDocument
    manifest: Manifest
    root_path: Path
    """The folder that the version's paths are relative to."""
    role: Role
    pinned: bool
    complete: bool
    """Every file was in place when last looked at. False: a download that is not finished, a
    subset, or a folder in which a file has changed."""
    files: int
    total_bytes: int
    """Sum of the file sizes, wanted or not."""

    @property
    def cid(self) -> Cid:
        """The manifest's CID, which names the version."""
        return self.manifest.cid

    @property
    def publisher(self) -> PeerId:
        """Who signed it."""
        return self.manifest.publisher

    @property
    def name(self) -> str:
        """The model's name."""
        return self.manifest.name

    @property
    def version(self) -> int:
        """The publisher's version number."""
        return self.manifest.version


@dataclass(frozen=True, slots=True)
class AdoptStep:
    """Progress of `Download.adopt_local`: one batch."""

    indices: tuple[int, ...]
    """Blocks of the table that this batch found and wrote."""
    bytes_adopted: int
    """Bytes of blocks adopted so far, all batches together."""
    bytes_checked: int
    """Bytes looked at so far: existing files hashed, and blocks searched for."""
    bytes_to_check: int


@dataclass(frozen=True, slots=True)
class DamagedBlock:
    """A place whose bytes are not what the index says."""

    offset: int
    length: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """Progress of `Store.verify`: at least one for each file, and one for each batch of bytes."""

    path: Path
    bytes_done: int
    """Of this file."""
    bytes_total: int
    done: bool
    """The file is finished with."""
    damaged: tuple[DamagedBlock, ...] = ()
    """Found since the last step."""
    problem: str = ""
    """Why the file could not be read at all: missing, not permitted."""


@dataclass(frozen=True, slots=True)
class RemovedVersion:
    """What `Store.remove_version` did."""

    folders: int
    files_deleted: int
    bytes_deleted: int
    kept: tuple[Path, ...]
    """Files that were to be deleted and were not: changed since, or used by another version."""

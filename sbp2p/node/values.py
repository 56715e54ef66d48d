"""What a node says to its user: plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sbp2p.exchange.web_seed import WebSeedStatistics
    from sbp2p.store import VersionRecord
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.manifest import Manifest
    from sbp2p_protocol.multiaddr import Address
    from sbp2p_protocol.tensor_index import TensorEntry

Phase: TypeAlias = Literal[
    "connecting", "hashing", "metadata", "local", "network", "verifying", "merging"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version in one folder of this node."""

    cid: Cid
    name: str
    version: int
    publisher: PeerId
    path: Path
    """The folder that holds its files."""
    size: int
    """Bytes of all its files, whether they are here or not."""
    files: int
    created: int
    """Unix seconds, as the publisher tells it."""
    complete: bool
    """Every file is here. False for an unfinished download, a subset, or a folder that changed."""
    published_here: bool
    pinned: bool = True
    """It stays when space is wanted. What was published here stays in any case."""

    @classmethod
    def of(cls, record: VersionRecord) -> Version:
        """Take what the store knows."""
        return cls(
            cid=record.cid,
            name=record.name,
            version=record.version,
            publisher=record.publisher,
            path=record.root_path,
            size=record.total_bytes,
            files=record.files,
            created=record.manifest.created,
            complete=record.complete,
            published_here=record.role == "publish",
            pinned=record.pinned,
        )

    def link(self, addresses: Sequence[Address] = ()) -> str:
        """Return the link to exactly this version; `addresses` are whom to ask first."""
        from sbp2p_protocol.link import ManifestLink  # addresses cost 20 ms to load

        return str(ManifestLink(self.cid, tuple(addresses)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far something long has come."""

    phase: Phase
    done_bytes: int
    total_bytes: int
    network_bytes: int = 0
    """Block bytes that came from peers so far."""
    peers: int = 0
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """A finished fetch. Byte counts are of unique blocks: each counts once, wherever it lies."""

    version: Version
    destination: Path
    files: int
    """Files that are whole at the destination."""
    total_bytes: int
    """What was asked for."""
    network_bytes: int
    """Came from peers and web seeds."""
    local_bytes: int
    """Was copied from other files of this node."""
    resumed_bytes: int
    """Was here already when the fetch began."""
    seconds: float
    """From the call to the files."""
    transfer_seconds: float
    """While blocks were moving: from the first request to the last commit."""
    peers: tuple[tuple[PeerId, int], ...]
    """Who sent how many bytes."""
    part_files: tuple[tuple[str, Path], ...] = ()
    """Files of which only some tensors were asked for: path in the version, where the part lies.
    A part has no final name, because it is not the file that was published."""
    web_seeds: tuple[WebSeedStatistics, ...] = ()
    """The web servers that could be asked: what each sent, and why it was dropped if it was."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a version."""

    path: str
    size: int
    cid: Cid
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a version is, without its content."""

    manifest: Manifest
    signers: frozenset[PeerId]
    files: tuple[FileInfo, ...]
    tensors: tuple[TensorEntry, ...]
    size: int
    unique_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of a version that is not what was published."""

    path: Path
    problem: str

"""What the two exchange machines tell their drivers: frozen values, one type per happening."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .cid import Cid
    from .exchange_frames import Payload
    from .exchange_messages import GoodbyeCode, Hello, RejectReason

# -- of the asking side -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Greeted:
    """The peer's HELLO came."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class BlockArrived:
    """A block that was asked for, perhaps long ago; its hash is not checked yet."""

    digest: bytes
    parts: Payload
    length: int


@dataclass(frozen=True, slots=True)
class NodeArrived:
    """A tree node or other loose block that was asked for; its hash is not checked yet."""

    cid: Cid
    data: bytes


@dataclass(frozen=True, slots=True)
class Rejected:
    """The peer will not send these blocks; never a block that was cancelled."""

    digests: tuple[bytes, ...]
    reason: RejectReason


@dataclass(frozen=True, slots=True)
class NodeRejected:
    """The peer will not send this loose block."""

    cid: Cid
    reason: RejectReason


@dataclass(frozen=True, slots=True)
class VersionArrived:
    """A signed document that answers `request`; its signature is not checked yet."""

    request: int
    document: bytes


@dataclass(frozen=True, slots=True)
class VersionMissing:
    """The peer does not know what `request` asked for."""

    request: int


@dataclass(frozen=True, slots=True)
class RootMissing:
    """The peer has nothing of the version of `subscription` yet; it stays subscribed."""

    subscription: int


@dataclass(frozen=True, slots=True)
class BitsArrived:
    """The peer has the set bits of `bits`, of which bit 0 is block `start`."""

    subscription: int
    start: int
    bits: bytes


@dataclass(frozen=True, slots=True)
class BlocksGained:
    """The peer has these blocks, too."""

    subscription: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EverythingGained:
    """The peer has every block of the version."""

    subscription: int


@dataclass(frozen=True, slots=True)
class Choked:
    """From now on the peer rejects requests for blocks, or no longer does."""

    choked: bool


@dataclass(frozen=True, slots=True)
class PeersTold:
    """Signed records of peers that have to do with a root; not checked. Of either side."""

    root: Cid
    records: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Stalled:
    """No progress for `progress_timeout_s`; these debts should be given to others."""

    digests: tuple[bytes, ...]
    nodes: tuple[Cid, ...]


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """The peer said goodbye or ended the stream; nothing more will come."""

    code: GoodbyeCode
    reason: str


ClientEvent: TypeAlias = (
    Greeted
    | BlockArrived
    | NodeArrived
    | Rejected
    | NodeRejected
    | VersionArrived
    | VersionMissing
    | RootMissing
    | BitsArrived
    | BlocksGained
    | EverythingGained
    | Choked
    | PeersTold
    | Stalled
    | PeerLeft
)

# -- of the serving side ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VersionWanted:
    """Answer with `send_version` or `send_not_found`: the document of this manifest."""

    request: int
    manifest: Cid


@dataclass(frozen=True, slots=True)
class NameWanted:
    """Answer with `send_version` or `send_not_found`: the newest (or that) version of a name."""

    request: int
    publisher: bytes
    name: str
    version: int | None


@dataclass(frozen=True, slots=True)
class Subscribed:
    """Tell what this side has of the version with this root, now and as it grows."""

    subscription: int
    root: Cid


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """The peer follows this subscription no longer."""

    subscription: int


@dataclass(frozen=True, slots=True)
class WantsTold:
    """Of the blocks from `start` on, the peer wants those whose bit is set."""

    subscription: int
    start: int
    bits: bytes


@dataclass(frozen=True, slots=True)
class GotTold:
    """The peer has these blocks now."""

    subscription: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkQueued:
    """`next_wanted` has something where it had nothing before."""


ServerEvent: TypeAlias = (
    Greeted
    | VersionWanted
    | NameWanted
    | Subscribed
    | Unsubscribed
    | WantsTold
    | GotTold
    | PeersTold
    | WorkQueued
    | PeerLeft
)

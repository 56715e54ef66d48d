"""What a namespace returns and tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from fractions import Fraction

    from sbp2p.node.values import Version
    from sbp2p.roles import Role
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid


@dataclass(frozen=True, slots=True)
class Member:
    """A peer that is in the namespace now."""

    peer_id: PeerId
    role: Role
    """What it does towards this node."""
    round: int
    """The last round that it has published for or finished; 0 before the first."""


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """A peer is in the namespace from now on."""

    peer_id: PeerId
    role: Role


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """A peer is not in it any more: it said so, or its stream ended."""

    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """A peer does something else towards this node than before."""

    peer_id: PeerId
    role: Role


NamespaceEvent: TypeAlias = PeerJoined | PeerLeft | RoleChanged


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes that a member sent to this node."""

    peer_id: PeerId
    data: bytes


@dataclass(frozen=True, slots=True)
class Published:
    """This node's own update of a round."""

    version: Version
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """A model that went into a merge."""

    peer_id: PeerId
    cid: Cid
    """Of its manifest."""
    round: int
    """Its own round; below the merge's when it is stale."""
    weight: Fraction
    """What the method was given; all of a merge sum to 1."""
    samples: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """A model that was to go into a merge and did not, and why."""

    peer_id: PeerId
    cid: Cid | None
    """None when there was nothing that could be named."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a merge did."""

    round: int
    merged: tuple[Contribution, ...]
    """This node's own first; empty when there was no quorum and the model was left as it was."""
    rejected: tuple[Rejection, ...]
    missing: tuple[PeerId, ...]
    """Neighbours of which nothing came in time."""
    record: Version | None
    """The signed record of the round; None when nothing was merged."""
    seconds: float
    bytes_received: int
    timed_out: bool
    """Whether the deadline ended the waiting."""
    reason: str = ""
    """Why nothing was merged; empty if something was."""

    def __str__(self) -> str:
        """Say in one line what happened, for a training loop's log."""
        parts = [f"merged {len(self.merged)} models" if self.merged else "merged nothing"]
        if self.reason:
            parts[0] += f" ({self.reason})"
        if self.rejected:
            parts.append(f"rejected {len(self.rejected)}")
        if self.missing:
            parts.append(f"{len(self.missing)} missing")
        late = ", at the deadline" if self.timed_out else ""
        parts.append(f"{self.bytes_received} bytes received in {self.seconds:.2f} s{late}")
        return f"round {self.round}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """Whose model this node took to begin with."""

    peer_id: PeerId
    cid: Cid
    round: int

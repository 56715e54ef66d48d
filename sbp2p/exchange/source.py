"""A peer to ask: a plain value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.multiaddr import Address


@dataclass(frozen=True, slots=True)
class Source:
    """A peer that may have what is wanted; without addresses it must be connected already."""

    peer_id: PeerId
    addresses: tuple[Address, ...] = ()
    learned: bool = False
    """Found on the way, not named by a user: forgotten when it cannot be reached a few times."""

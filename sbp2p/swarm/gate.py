"""Who may connect: an allow list and a deny list of peer ids.

Asked once the peer has proved its id, before any of its streams is served and before it is told
anything about this node; and before dialling a peer whose id is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId


@dataclass(frozen=True, slots=True)
class Gate:
    """A rule for peer ids. The empty gate lets everybody in; a denied peer is never let in."""

    allow: frozenset[PeerId] | None = None
    """Only these peers; None allows all."""
    deny: frozenset[PeerId] = frozenset()

    def refusal(self, peer_id: PeerId) -> str | None:
        """Return why `peer_id` is kept out, or None when it may come in."""
        if peer_id in self.deny:
            return "it is on the deny list"
        if self.allow is not None and peer_id not in self.allow:
            return "it is not on the allow list"
        return None

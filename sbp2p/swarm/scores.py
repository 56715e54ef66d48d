"""Penalty points per peer, and the bans that follow from too many of them.

Points halve every `half_life_s`, so that rare accidents are forgiven and steady ones add up. The
table is bounded: a new id costs a peer nothing, so the peers with the fewest points are forgotten
first when it is full, and bans last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId

VIOLATION_POINTS = 40
"""Penalty for bytes that break a protocol, whichever it is: three times in a few minutes is no
accident and, with `ban_score` 100, a ban; once or twice may be a bug, a version or a bad memory."""

_SECOND_THOUGHTS = 0.5
"""Below this many points an entry says nothing any more."""


@dataclass(slots=True)
class _Entry:
    points: float
    counted_at: float
    banned_until: float = -math.inf


class Scores:
    """What each peer has done wrong lately. Pure: time is an argument, in seconds."""

    def __init__(
        self, *, ban_score: int, ban_duration_s: float, half_life_s: float, peers_max: int
    ) -> None:
        self._ban_score = ban_score
        self._ban_duration_s = ban_duration_s
        self._half_life_s = half_life_s
        self._peers_max = peers_max
        self._entries: dict[PeerId, _Entry] = {}

    def penalize(self, peer_id: PeerId, points: int, now: float) -> bool:
        """Add points; return whether the peer is banned from now on."""
        entry = self._entries.get(peer_id)
        if entry is None:
            self._make_room(now)
            entry = self._entries[peer_id] = _Entry(0.0, now)
        entry.points = self._decayed(entry, now) + points
        entry.counted_at = now
        if entry.points >= self._ban_score:
            entry.banned_until = now + self._ban_duration_s
            return True
        return False

    def points(self, peer_id: PeerId, now: float) -> float:
        """Return the points that still count."""
        entry = self._entries.get(peer_id)
        return self._decayed(entry, now) if entry else 0.0

    def is_banned(self, peer_id: PeerId, now: float) -> bool:
        """Return whether a ban is in force."""
        entry = self._entries.get(peer_id)
        return entry is not None and now < entry.banned_until

    def forgive(self, peer_id: PeerId) -> None:
        """Forget everything about a peer."""
        self._entries.pop(peer_id, None)

    def _decayed(self, entry: _Entry, now: float) -> float:
        points = entry.points * math.exp2(-(now - entry.counted_at) / self._half_life_s)
        return points if points >= _SECOND_THOUGHTS else 0.0

    def _make_room(self, now: float) -> None:
        if len(self._entries) < self._peers_max:
            return

        def importance(peer_id: PeerId) -> tuple[bool, float]:
            entry = self._entries[peer_id]
            return now < entry.banned_until, self._decayed(entry, now)

        del self._entries[min(self._entries, key=importance)]

"""What peers published for their rounds: the newest of each, once, and contradictions noticed.

Theory of operation: an update is one version of a peer's model, signed, for one round of that
peer. Of each peer the newest update alone matters: whoever has merged or only heard a later one has
no use for an earlier one. The book therefore keeps one update a peer, and the number of the last
one that was merged.

| an update of a peer whose newest is of round r | verdict |
|---|---|
| of a later round, or the first | NEW: it is the newest now |
| of round r, the same | KNOWN |
| of round r, another one | EQUIVOCATION: neither counts any more, both are kept as evidence |
| of an earlier round | OLD: superseded, or a replay |

An update is merged once. After `merged` or `spoiled` it is used up: `usable` is None until the peer
publishes for a later round. A peer that starts again must go on from a later round than its last;
the namespace gives it the round of whoever it bootstraps from.

The book sees what one peer is shown. A peer that shows different updates of one round to different
peers is found out when their round records are compared (protocol/round.md).

Error cases: none; whoever verified the update's signature has refused what is malformed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from sbp2p_protocol.limits import ROUND_PEERS_MAX

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid


class Verdict(Enum):
    """What an update is, beside what is known."""

    NEW = auto()
    KNOWN = auto()
    OLD = auto()
    EQUIVOCATION = auto()


@dataclass(frozen=True, slots=True)
class Update:
    """A peer's model for one of its rounds.

    Attributes:
        peer: whose; its signature is on the manifest.
        round: the peer's own round, 0 and up.
        cid: the manifest that names the version.
        samples: how many samples it trained on since the last round, as it says.
    """

    peer: PeerId
    round: int
    cid: Cid
    samples: int = 1


class _Entry:
    """What is known of one peer."""

    __slots__ = ("evidence", "newest", "used")

    def __init__(self, newest: Update) -> None:
        self.newest = newest
        self.used = -1  # the last round of the peer that was merged, or that cannot be
        self.evidence: tuple[Update, Update] | None = None


class UpdateBook:
    """The newest update of each peer; see the module's theory of operation."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[PeerId, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def heard(self, update: Update) -> Verdict:
        """Note an update whose signature is verified, and say what it is."""
        entry = self._entries.pop(update.peer, None)
        if entry is None:
            if len(self._entries) >= ROUND_PEERS_MAX:
                del self._entries[next(iter(self._entries))]
            self._entries[update.peer] = _Entry(update)
            return Verdict.NEW
        self._entries[update.peer] = entry  # whoever was heard last is the last to go
        if update.round > entry.newest.round:
            entry.newest = update
            return Verdict.NEW
        if update.round < entry.newest.round:
            return Verdict.OLD
        if update.cid == entry.newest.cid:
            return Verdict.KNOWN
        entry.evidence = (entry.newest, update)
        entry.used = update.round
        return Verdict.EQUIVOCATION

    def newest(self, peer: PeerId) -> Update | None:
        """Return a peer's newest update, used up or not."""
        entry = self._entries.get(peer)
        return None if entry is None else entry.newest

    def usable(self, peer: PeerId) -> Update | None:
        """Return a peer's newest update if it was neither merged nor found unfit."""
        entry = self._entries.get(peer)
        return None if entry is None or entry.newest.round <= entry.used else entry.newest

    def used(self, peer: PeerId) -> int:
        """Return the round of the last update of a peer that is used up; -1 if none is."""
        entry = self._entries.get(peer)
        return -1 if entry is None else entry.used

    def evidence(self, peer: PeerId) -> tuple[Update, Update] | None:
        """Return the last two updates of one round that a peer published, if it ever did."""
        entry = self._entries.get(peer)
        return None if entry is None else entry.evidence

    def merged(self, update: Update) -> None:
        """Note that an update is used up, and with it all earlier ones of its peer."""
        entry = self._entries.get(update.peer)
        if entry is not None:
            entry.used = max(entry.used, update.round)

    spoiled = merged
    """Note that an update can never be merged: it is malformed, or not what it claims to be."""

    def forget(self, peer: PeerId) -> None:
        """Drop what is known of a peer, evidence too."""
        self._entries.pop(peer, None)

"""Super-seeding: a seed that shows each peer other blocks, so that it sends each block only once.

Theory of operation. Everybody would ask a seed that says it has everything for what he likes, and
it would send some blocks many times before others once. So it *reveals* blocks, to each peer some
at a time, first those that nobody else has or was shown. The next is revealed when one was sent.
How many are revealed to a peer and not sent yet is its *window*; it grows when the peer runs dry
while nobody else waits, so that the only peer of a fast link is not slowed down, and when the peer
asks for nothing that it is shown (`unasked`): others may have been asked before. It shrinks while
others wait.

    a block is     until
    fresh          it is revealed, or a peer is known to have it
    revealed       it was sent; or its peer left, or does not ask for `PATIENCE_S`: fresh again
    out            for good: somebody has it

Once every block is out, there is nothing to hold back, and everybody is shown everything. A peer
that nothing fresh is left for before gets what it lacks from others. When nothing that it wants is
on its way to them either, and `DRY_S` later it is still dry, it is shown everything, too: it may be
that it cannot reach them. So it is after `DRY_MAX_S`, whatever is on its way: they may be dead.
Only what a peer wants is revealed to it, so one that fetches a part, or resumes, is not slowed.

Cost: each peer goes through one shuffled order of all blocks once, a few operations a block.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from .bitmap import bitmap_size
from .errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

PeerKey = TypeVar("PeerKey")

WINDOW_MIN: Final = 2
"""Blocks: one that is being sent and one that is asked for meanwhile."""
WINDOW_MAX: Final = 256
PATIENCE_S: Final = 5.0
"""After so long a block that was revealed and not asked for is revealed to somebody else, too."""
DRY_S: Final = 3.0
"""After so long with nothing to come a peer is shown everything."""
DRY_MAX_S: Final = 8.5
"""And after so long whatever is on its way to others: they may have died without a word, and who
gets nothing for 10 s gives up."""


class _Peer:
    """One peer that is shown blocks."""

    __slots__ = ("at", "dry_from", "dry_since", "pending", "wants", "window")

    def __init__(self, size: int) -> None:
        self.at = 0  # how far it has gone through the order
        self.wants = bytearray(bitmap_size(size))
        self.pending: dict[int, float] = {}  # revealed and not sent: since when
        self.dry_from = 0.0
        self.dry_since: float | None = None  # as `dry_from`, or when others last had something
        self.window = WINDOW_MIN


class SuperSeed(Generic[PeerKey]):
    """What one version's peers are shown; see the module's theory of operation.

    Args:
        size: unique blocks of the version, all of which this node has.
        rng: shuffles.
    """

    def __init__(self, size: int, rng: Random) -> None:
        self._size = size
        order = list(range(size))
        rng.shuffle(order)
        self._order = array("I", order)
        self._fresh = bytearray(b"\1" * size)
        self._fresh_count = size
        self._out = bytearray(size)
        self._out_count = 0
        self._peers: dict[PeerKey, _Peer] = {}
        self._again: list[int] = []
        """Fresh again: the order may be past them."""

    def is_open(self, peer: PeerKey, now: float) -> bool:
        """Whether a peer may know that everything is here."""
        if self._out_count == self._size:
            return True
        entry = self._peers[peer]
        if entry.dry_since is None:
            return False
        if now - entry.dry_from >= DRY_MAX_S:
            return True
        if now - entry.dry_since < DRY_S:
            return False
        wants = entry.wants
        for other in self._peers.values():
            for index in other.pending:
                if other is not entry and wants[index >> 3] >> (index & 7) & 1:
                    entry.dry_since = now  # it will hear of it
                    return False
        return True

    @property
    def out_count(self) -> int:
        """Blocks that were sent once, or that others have."""
        return self._out_count

    def joined(self, peer: PeerKey) -> None:
        """Add a peer, which wants nothing yet."""
        if peer in self._peers:
            raise LocalProtocolError("this peer is known already")
        self._peers[peer] = _Peer(self._size)

    def knows(self, peer: PeerKey) -> bool:
        """Whether the peer has joined and not left."""
        return peer in self._peers

    def left(self, peer: PeerKey) -> None:
        """Forget a peer; what was revealed to it and not sent is fresh again."""
        self.paused(peer)
        del self._peers[peer]

    def paused(self, peer: PeerKey) -> None:
        """A peer is sent nothing for a while; what was revealed to it is fresh again."""
        entry = self._peers[peer]
        for index in entry.pending:
            self._refresh(index)
        entry.pending.clear()
        entry.dry_since = None

    def wants(self, peer: PeerKey, start: int, bits: bytes) -> None:
        """Note which blocks from `start` on a peer wants; bits beyond the version are ignored."""
        wants = self._peers[peer].wants
        at = start // 8
        bits = bits[: max(0, len(wants) - at)]
        wants[at : at + len(bits)] = bits
        self._peers[peer].at = 0
        padding = self._size % 8
        if padding:
            wants[-1] &= (1 << padding) - 1

    def others_have(self, start: int, bits: bytes) -> None:
        """Note blocks from `start` on that somebody else has."""
        for offset, byte in enumerate(bits):
            if byte:
                for bit in range(8):
                    if byte >> bit & 1:
                        self._note_out(8 * (start // 8 + offset) + bit)

    def got(self, peer: PeerKey, indices: Iterable[int]) -> None:
        """Note blocks that a peer has now, from whomever."""
        entry = self._peers[peer]
        for index in indices:
            if index < self._size:
                entry.wants[index >> 3] &= ~(1 << (index & 7))
                entry.pending.pop(index, None)
                self._note_out(index)

    def sent(self, peer: PeerKey, index: int, *, contended: bool) -> None:
        """Note a block that was sent to a peer; `contended` when others wait to be sent some."""
        self._note_out(index)
        entry = self._peers.get(peer)
        if entry is None:
            return
        entry.pending.pop(index, None)
        if contended:
            entry.window = max(WINDOW_MIN, entry.window - 1)
        elif not entry.pending:
            entry.window = min(WINDOW_MAX, entry.window * 2)

    def unasked(self, peer: PeerKey) -> None:
        """A peer has asked for nothing for some time: show it more than before."""
        entry = self._peers[peer]
        if entry.pending:
            entry.window = min(WINDOW_MAX, entry.window * 2)

    def reveal(self, peer: PeerKey, now: float) -> list[int]:
        """Return the blocks to tell a peer of now; they count as revealed to it."""
        entry = self._peers[peer]
        window = min(entry.window, self._share)
        room = window - len(entry.pending)
        # in one message when the window is large: a message costs as much as a block does
        if room * 2 < window:
            return []
        revealed: list[int] = []
        while len(revealed) < room:
            index = self._next(entry)
            if index < 0:
                if entry.dry_since is None and not entry.pending:
                    entry.dry_from = entry.dry_since = now
                break
            entry.dry_since = None
            self._fresh[index] = 0
            self._fresh_count -= 1
            entry.pending[index] = now
            revealed.append(index)
        return revealed

    @property
    def _share(self) -> int:
        """Most blocks to have revealed to one of several peers.

        Half of an equal part of what is left: towards the end, whoever had it all would have to
        pass it on to all others while their links were idle.
        """
        if len(self._peers) < 2:
            return WINDOW_MAX
        return max(WINDOW_MIN, self._fresh_count // (2 * len(self._peers)))

    def asking(self, peer: PeerKey, now: float) -> None:
        """A peer has asked for what it was shown, and waits: that is not its fault."""
        pending = self._peers[peer].pending
        for index in pending:
            pending[index] = now

    def expire(self, peer: PeerKey, now: float) -> bool:
        """Make blocks fresh that a peer does not ask for; returns whether there were any."""
        late = False
        pending = self._peers[peer].pending
        for index, since in pending.items():
            if now - since >= PATIENCE_S:
                pending[index] = now
                late = self._refresh(index) or late
        return late

    def _next(self, entry: _Peer) -> int:
        """Return a fresh block that the peer wants, or -1."""
        fresh, wants, order = self._fresh, entry.wants, self._order
        for place, index in enumerate(self._again):
            if fresh[index] and index not in entry.pending and wants[index >> 3] >> (index & 7) & 1:
                del self._again[place]
                return index
        at = entry.at
        size = self._size
        while at < size:
            index = order[at]
            at += 1
            if fresh[index] and wants[index >> 3] >> (index & 7) & 1:
                entry.at = at
                return index
        entry.at = at
        return -1

    def _refresh(self, index: int) -> bool:
        if self._out[index] or self._fresh[index]:
            return False
        self._fresh[index] = 1
        self._fresh_count += 1
        self._again.append(index)
        return True

    def _note_out(self, index: int) -> None:
        if index < self._size and not self._out[index]:
            self._out[index] = 1
            self._fresh_count -= self._fresh[index]
            self._fresh[index] = 0
            self._out_count += 1

"""Places on a circle: an order of peers that nobody chose and that a newcomer hardly changes.

Theory of operation: consistent hashing (Karger and others, 1997). A peer's place is a hash of its
id and of a label, so each label gives another order, and a peer that comes or goes moves nobody
else. An order is cheap to compute and the same everywhere; nobody can choose a place without making
keys until one fits, which costs as many keys as there are peers to be placed between.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING

from sbp2p_protocol.cid import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.topologies.interface import Edge

_DOMAIN = b"sbp2p-topology"
PLACES = 2**64
"""How many places the circle has."""


def place(label: str, *peers: PeerId) -> int:
    """Return a number from 0 to PLACES - 1 that a label and some peers stand for."""
    parts = [_DOMAIN, label.encode(), *(peer.to_bytes() for peer in peers)]
    data = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    return int.from_bytes(hash_bytes(data)[:8], "big")


def in_order(members: Iterable[PeerId], label: str) -> list[PeerId]:
    """Return the members as they stand on the circle of a label."""
    return sorted(members, key=lambda peer: (place(label, peer), peer.to_bytes()))


class Circle:
    """The members on the circle of a label, for looking up who stands behind a place."""

    __slots__ = ("_places", "peers")

    def __init__(self, members: Iterable[PeerId], label: str) -> None:
        self.peers = in_order(members, label)
        self._places = [place(label, peer) for peer in self.peers]

    def after(self, where: int) -> PeerId:
        """Return the first peer at a place or behind it, around the circle."""
        return self.peers[bisect_left(self._places, where) % len(self.peers)]


def path(peers: Sequence[PeerId]) -> list[Edge]:
    """Return the edges between each peer and the next."""
    return list(pairwise(peers))


def stride(peers: Sequence[PeerId], step: int) -> list[Edge]:
    """Return the edges between each peer and the one `step` places on, around the circle."""
    count = len(peers)
    if count < 2 or step % count == 0:
        return []
    return [(peers[at], peers[(at + step) % count]) for at in range(count)]


def matching(peers: Sequence[PeerId], label: str) -> list[Edge]:
    """Pair all peers, one left over if they are odd in number, mostly with near ones.

    Theory of operation: of the pairs of neighbours on the circle those with the lowest places are
    taken first, as long as both are free; those who are left close ranks, and it begins again. A
    newcomer so disturbs only its surroundings: on average a few pairs, however many peers there
    are.
    """
    pairs: list[Edge] = []
    level = 0
    waiting = list(peers)
    while len(waiting) > 1:
        name = f"{label}:{level}"
        near = stride(waiting, 1) if len(waiting) > 2 else [(waiting[0], waiting[1])]
        taken: set[PeerId] = set()
        for one, other in sorted(near, key=lambda pair: place(name, *pair)):
            if one not in taken and other not in taken:
                taken |= {one, other}
                pairs.append((one, other))
        waiting = [peer for peer in waiting if peer not in taken]
        level += 1
    return pairs

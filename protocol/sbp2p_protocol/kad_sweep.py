"""Announcing many keys: region by region through the keyspace, instead of a lookup for each key.

Theory of operation. Keys are taken in the order of their places. A lookup of a key finds the k
servers nearest to it, and with them more: if the farthest of the k shares m leading bits with the
key, then every server that shares m + 1 bits with it was found. The region of m bits around the key
has at least k servers (all that were found are in it), and they are split over two halves, of which
one is known entirely. Once the other half is known too, the k nearest of every key in the region
are among those servers, and no more lookups are needed for any of them.

    first key not announced --lookup--> its region, half of it covered
        --lookups in what is not covered, a part each--> region covered
        --> every key of the region to its k nearest servers --> next key

So a network of n servers takes about two lookups for each of n / (1.5 k) regions, whatever the
number of keys; with fewer keys than that, each key takes its own lookup. All keys for one server
of a region come together: they go over one stream.

Short answers. A network of fewer than k servers is one region. But once a lookup has found k, one
that finds fewer is a lookup that failed, and counts for its key alone.

A sweep does one lookup at a time; `split_keys` makes parts for sweeps that run side by side.
Nothing raises. Randomness is only used to make bytes to look up where no key is.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .kad_keys import (
    KAD_BITS,
    TRIAL_BITS_MAX,
    KadId,
    bytes_in_region,
    common_prefix_length,
    kad_id,
    kad_id_of,
    region_of,
)
from .kad_table import BUCKET_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from .kad_messages import KadPeer

REGION_LOOKUPS_MAX: Final = 16
"""Lookups to cover one region. Two are usual; sybils could make one that is never covered."""

_ALONE_MAX: Final = 2
"""Keys in a region that take a lookup each: covering it would take as many."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one server is to be told."""

    server: KadPeer
    keys: tuple[bytes, ...]


@dataclass(slots=True)
class _Region:
    """A region that is being covered: a prefix of so many bits, what is known and what is not."""

    bits: int
    number: int
    servers: dict[int, KadPeer] = field(default_factory=dict)
    uncovered: list[tuple[int, int]] = field(default_factory=list)
    """Parts by bits and number, disjoint."""
    lookups: int = 0

    def holds(self, place: KadId) -> bool:
        return region_of(place, self.bits) == self.number


class Sweep:
    """One pass over many keys.

    Args:
        keys: What to announce; doubles count once.
        rng: Makes bytes for parts of the keyspace without keys.
        k: Servers for a key.
    """

    def __init__(self, keys: Iterable[bytes], rng: Random, *, k: int = BUCKET_SIZE) -> None:
        self._rng = rng
        self._k = k
        self._keys = sorted((kad_id(key), key) for key in set(keys))
        self._next = 0
        self._region: _Region | None = None
        self._target: bytes | None = None
        self._found_k = False
        self.lookups = 0
        self.regions = 0

    @property
    def left(self) -> int:
        """Keys that have no servers yet."""
        return len(self._keys) - self._next

    def next_target(self) -> bytes | None:
        """Return what to look up now; None when every key has its servers.

        The same until `on_closest` is called.
        """
        if self._target is None and self.left:
            self._target = self._keys[self._next][1]
            if self._region is not None:
                self._target = self._target_in(*self._region.uncovered[-1])
        return self._target

    def on_closest(self, closest: Sequence[KadPeer]) -> list[Assignment]:
        """Take the k servers nearest to the target, nearest first; return what may be sent now.

        Fewer than k are all that the lookup could find; with none, the target's key stays without
        servers, and the sweep goes on.
        """
        if self._target is None:
            return []
        place, self._target = kad_id(self._target), None
        self.lookups += 1
        if self._region is not None:
            return self._cover(self._region, place, closest)
        if len(closest) < self._k:
            count = 1 if self._found_k or not closest else self.left
            return self._assign(count, closest)
        self._found_k = True
        shared = common_prefix_length(place, kad_id_of(closest[-1].peer_id))
        region = _Region(shared, region_of(place, shared))
        if shared == KAD_BITS or self._count_in(region) <= _ALONE_MAX:
            return self._assign(1, closest)
        region.uncovered.append((shared, region.number))
        self._region = region
        return self._cover(region, place, closest)

    # -- inside -------------------------------------------------------------------------------

    def _cover(self, region: _Region, place: KadId, closest: Sequence[KadPeer]) -> list[Assignment]:
        """Note what a lookup in a region has found."""
        region.lookups += 1
        for server in closest:
            where = kad_id_of(server.peer_id)
            if region.holds(where):
                region.servers[where] = server
        bits, _ = region.uncovered.pop()
        if len(closest) >= self._k:
            covered = common_prefix_length(place, kad_id_of(closest[-1].peer_id)) + 1
            # what is left of the part are the other halves on the way down to what is covered
            region.uncovered += [
                (depth, region_of(place, depth) ^ 1)
                for depth in range(bits + 1, min(covered, KAD_BITS) + 1)
            ]
        if region.lookups >= REGION_LOOKUPS_MAX:
            region.uncovered.clear()
        if region.uncovered:
            return []
        self._region = None
        self.regions += 1
        return self._assign(self._count_in(region), list(region.servers.values()))

    def _assign(self, count: int, servers: Sequence[KadPeer]) -> list[Assignment]:
        """Give the next `count` keys to the nearest of the servers."""
        batch = self._keys[self._next : self._next + count]
        self._next += count
        places = {kad_id_of(server.peer_id): server for server in servers}
        keys_of: dict[KadId, list[bytes]] = {place: [] for place in places}
        for place, key in batch:
            for server in heapq.nsmallest(self._k, places, key=place.__xor__):
                keys_of[server].append(key)
        return [Assignment(places[place], tuple(keys)) for place, keys in keys_of.items() if keys]

    def _count_in(self, region: _Region) -> int:
        """Return how many of the keys that are left, from the first on, are in a region."""
        count = 0
        while self._next + count < len(self._keys) and region.holds(
            self._keys[self._next + count][0]
        ):
            count += 1
        return count

    def _target_in(self, bits: int, number: int) -> bytes:
        """Return a key in a part of the current region, or other bytes that lie there."""
        part = _Region(bits, number)
        for place, key in self._keys[self._next :]:
            if part.holds(place):
                return key
            if place >> (KAD_BITS - bits) > number:
                break
        if bits <= TRIAL_BITS_MAX:
            return bytes_in_region(number, bits, self._rng)
        return self._keys[self._next][1]  # beyond half a million servers: what is known must do


def split_keys(keys: Iterable[bytes], bits: int) -> list[list[bytes]]:
    """Return the keys in up to 2**bits lots by the first bits of their places, none empty."""
    lots: dict[int, list[bytes]] = {}
    for key in keys:
        lots.setdefault(region_of(kad_id(key), bits), []).append(key)
    return [lots[number] for number in sorted(lots)]

"""Which block to ask for next, of whom: rarest first, each block once, until the endgame.

Theory of operation. A block that is wanted and not had is *free* (nobody is asked), *in flight*
(asked of one peer, or of `max_askers` in the endgame) or, once `done`, gone from here. Free blocks
lie in buckets by how many partial peers have them; peers that have everything count for every
block alike and are only counted, so a swarm of seeds costs nothing. A pick takes a random free
block of the lowest bucket that the peer has something of. The tie-break is what spreads different
blocks over the swarm, so it is a uniform choice, not an order fixed once.

    free --pick--> in flight --done--> gone
      ^               |
      +---released----+   (rejected, stalled, peer left: by the last asker)

Cost. Everything about one block is a few array operations. A bucket up to _SCAN entries is
searched whole; a larger one is probed _PROBES times, so at a million blocks a partial peer that
has less than a few percent of the rarest bucket may be given a commoner block. A peer of which no
probe finds anything is served from a list of its free blocks, filled by a bytewise scan. News
about many blocks (`bits_gained`, `peer_left`) is queued and worked off by `settle` in slices, so
no call is long: about 11 bytes a block and one bitmap a partial peer is all the memory.

Endgame. When no free block is left that any peer has, `others_in_flight` names blocks in flight
elsewhere, oldest first: to be called back from whoever is slow, or asked of a second peer as well
(`ask_another`), at most `max_askers` peers a block and `max_duplicates` blocks at once. When to do
so is the caller's choice; `done` returns the other askers, to be cancelled.

Order. With Picking.RANDOM rarity does not count, with Picking.SEQUENTIAL only the number of the
block does: both are there to measure what rarest first is worth. `prefer` lists blocks to be asked
for first, in that order (sequential reading, first layers first); peers that have none of the next
_WINDOW of them continue with rarest first.
"""

from __future__ import annotations

from array import array
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from .bitmap import bitmap_size, set_bits
from .errors import LocalProtocolError
from .picking import PickerPeer, Picking

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from random import Random

    from .bitmap import Bitmap

PeerKey = TypeVar("PeerKey")

_OTHERS: Final = 64
_SCAN: Final = 128
_PROBES: Final = 32
_WINDOW: Final = 256
_LISTED: Final = 256
_SLICE: Final = 512
_SUBSLICE: Final = 16
_NONE: Final = -1


class Picker(Generic[PeerKey]):
    """Picks blocks of one download; see the module's theory of operation.

    Args:
        missing: the blocks to fetch: wanted and not had.
        rng: breaks ties; a seeded one makes every pick repeatable.
        max_askers: peers that may be asked for one block in the endgame.
        max_duplicates: blocks that may be asked of more than one peer at once.
        picking: which free block is asked for first.
    """

    def __init__(
        self,
        missing: Bitmap,
        rng: Random,
        *,
        max_askers: int = 2,
        max_duplicates: int = 16,
        picking: Picking = Picking.RAREST,
    ) -> None:
        size = len(missing)
        self._size = size
        self._rng = rng
        self._max_askers = max_askers
        self._max_duplicates = max_duplicates
        self._missing = bytearray(missing.to_bytes())  # free or in flight
        self._free = bytearray(self._missing)
        self._count = array("H", bytes(2 * size))  # partial peers that have it
        self._place = array("I", bytes(4 * size))  # where in its bucket
        self._buckets: list[array[int]] = [array("I")]
        for index in missing:
            self._place[index] = len(self._buckets[0])
            self._buckets[0].append(index)
        self._missing_count = self._free_count = len(self._buckets[0])
        self._complete = 0
        self._peers: dict[PeerKey, PickerPeer] = {}
        self._partial: list[PickerPeer] = []
        self._askers: dict[int, list[PeerKey]] = {}  # in flight, oldest first
        self._duplicated: set[int] = set()
        self._news: deque[tuple[PickerPeer, int, bytes, bool]] = deque()
        self._order: array[int] = array("I")
        self._order_at = 0
        self._rank: array[int] | None = None
        self._by_rarity = picking is Picking.RAREST
        if picking is Picking.SEQUENTIAL:
            self.prefer(missing)

    # -- what is left ---------------------------------------------------------------------------

    @property
    def missing_count(self) -> int:
        """Blocks not done."""
        return self._missing_count

    def missing_bits(self) -> bytes:
        """Return the blocks not done, as a bitmap."""
        return bytes(self._missing)

    @property
    def in_flight_count(self) -> int:
        """Blocks asked for and not done."""
        return len(self._askers)

    @property
    def unavailable_count(self) -> int:
        """Free blocks that no known peer has."""
        return 0 if self._complete else len(self._buckets[0])

    @property
    def endgame(self) -> bool:
        """Whether everything that some peer has is done or in flight."""
        return self._free_count == self.unavailable_count and not self._news

    def is_missing(self, index: int) -> bool:
        """Whether the block is still wanted: a late copy of it is of use."""
        return bool(self._missing[index >> 3] >> (index & 7) & 1)

    def askers(self, index: int) -> tuple[PeerKey, ...]:
        """Return the peers that are asked for the block, first asked first."""
        return tuple(self._askers.get(index, ()))

    def in_flight_of(self, peer: PeerKey) -> tuple[int, ...]:
        """Return the blocks that the peer is asked for."""
        return tuple(self._peers[peer].asked)

    def knows(self, peer: PeerKey) -> bool:
        """Whether the peer has joined and not left."""
        return peer in self._peers

    def has(self, peer: PeerKey, index: int) -> bool:
        """Whether the peer is known to have the block."""
        bits = self._peers[peer].bits
        return bits is None or bool(bits[index >> 3] >> (index & 7) & 1)

    def interesting(self, peer: PeerKey) -> bool:
        """Whether the peer has a free block."""
        entry = self._peers[peer]
        return self._free_count > 0 if entry.bits is None else entry.free > 0

    # -- who has what ---------------------------------------------------------------------------

    def peer_joined(self, peer: PeerKey) -> None:
        """Add a peer, which has nothing yet."""
        if peer in self._peers:
            raise LocalProtocolError("the picker knows this peer already")
        entry = self._peers[peer] = PickerPeer(self._size)
        self._partial.append(entry)

    def peer_left(self, peer: PeerKey) -> list[int]:
        """Forget a peer; returns the blocks that nobody is asked for any more."""
        entry = self._peers[peer]
        freed = [index for index in tuple(entry.asked) if self.released(peer, index)]
        del self._peers[peer]
        self._drop_bits(entry)
        return freed

    def _drop_bits(self, entry: PickerPeer) -> None:
        if entry.bits is None:
            self._complete -= 1
            return
        self._partial.remove(entry)
        # what it has not been counted for yet need not be uncounted
        self._news = deque(news for news in self._news if news[0] is not entry or not news[3])
        for start in range(0, len(entry.bits), _SLICE):
            bits = bytes(entry.bits[start : start + _SLICE])
            if any(bits):
                self._news.append((entry, start, bits, False))

    def everything_gained(self, peer: PeerKey) -> None:
        """The peer has every block."""
        entry = self._peers[peer]
        if entry.bits is not None:
            self._drop_bits(entry)
            entry.bits = None
            self._complete += 1

    def bits_gained(self, peer: PeerKey, start: int, bits: bytes) -> None:
        """The peer has the set bits of `bits`, of which bit 0 is block `start` (8-aligned).

        Counts once `settle` has worked it off.
        """
        entry = self._peers[peer]
        if entry.bits is not None:
            for at in range(0, len(bits), _SLICE):
                self._news.append((entry, start // 8 + at, bits[at : at + _SLICE], True))

    def block_gained(self, peer: PeerKey, index: int) -> None:
        """The peer has this block, too."""
        self._gain(self._peers[peer], index)

    def block_lost(self, peer: PeerKey, index: int) -> None:
        """The peer does not have this block after all; a peer that had everything has the rest."""
        entry = self._peers[peer]
        if entry.bits is None:
            self._complete -= 1
            entry.bits = bytearray(bitmap_size(self._size))
            entry.free = 0
            self._partial.append(entry)
            everything = bytearray(b"\xff" * len(entry.bits))
            everything[index >> 3] &= ~(1 << (index & 7))
            self.bits_gained(peer, 0, bytes(everything))
            return
        mask = 1 << (index & 7)
        if entry.bits[index >> 3] & mask:
            entry.bits[index >> 3] &= ~mask
            if self.is_missing(index):
                self._recount(index, -1)
                entry.free -= self._is_free(index)

    def settle(self, budget: int = _SLICE) -> bool:
        """Work off queued news about `budget` bytes of bitmap (8 blocks each); True when done.

        About a microsecond a set bit: the default is at most 4 ms.
        """
        while self._news and budget > 0:
            entry, at, bits, gained = self._news.popleft()
            budget -= len(bits)
            missing = self._missing[at : at + len(bits)]
            relevant = int.from_bytes(bits, "little") & int.from_bytes(missing, "little")
            if gained:
                self._gain_slice(entry, at, bits, relevant)
            else:
                for index in set_bits(at, relevant, len(bits)):
                    self._recount(index, -1)
        return not self._news

    def _gain_slice(self, entry: PickerPeer, at: int, bits: bytes, relevant: int) -> None:
        if entry.bits is None:
            return
        end = at + len(bits)
        had = int.from_bytes(entry.bits[at:end], "little")
        now = had | int.from_bytes(bits, "little")
        entry.bits[at:end] = now.to_bytes(len(bits), "little")
        for index in set_bits(at, relevant & ~had, len(bits)):
            self._recount(index, 1)
            entry.free += self._is_free(index)

    def _gain(self, entry: PickerPeer, index: int) -> None:
        bits = entry.bits
        mask = 1 << (index & 7)
        if bits is None or bits[index >> 3] & mask:
            return
        bits[index >> 3] |= mask
        if self.is_missing(index):
            self._recount(index, 1)
            entry.free += self._is_free(index)

    def _recount(self, index: int, change: int) -> None:
        if self._is_free(index):
            self._leave_bucket(index)
            self._count[index] += change
            self._enter_bucket(index)
        else:
            self._count[index] += change

    def _is_free(self, index: int) -> int:
        return self._free[index >> 3] >> (index & 7) & 1

    def _enter_bucket(self, index: int) -> None:
        count = self._count[index]
        while len(self._buckets) <= count:
            self._buckets.append(array("I"))
        bucket = self._buckets[count]
        self._place[index] = len(bucket)
        bucket.append(index)

    def _leave_bucket(self, index: int) -> None:
        bucket = self._buckets[self._count[index]]
        place = self._place[index]
        last = bucket.pop()
        if last != index:
            bucket[place] = last
            self._place[last] = place

    # -- picking --------------------------------------------------------------------------------

    def pick(self, peer: PeerKey, limit: int) -> list[int]:
        """Choose up to `limit` free blocks that the peer has; they are in flight from now on."""
        entry = self._peers[peer]
        picked: list[int] = []
        while len(picked) < limit and self._free_count:
            index = self._choose(entry)
            if index == _NONE:
                break
            self._take(index, peer, entry)
            picked.append(index)
        return picked

    def pick_run(self, peer: PeerKey, limit: int) -> list[int]:
        """As `pick`, but blocks that follow one such choice, as far as they are free."""
        entry = self._peers[peer]
        picked = self.pick(peer, 1)
        while picked and len(picked) < limit:
            index = picked[-1] + 1
            if index >= self._size or not (self._is_free(index) and self.has(peer, index)):
                break
            self._take(index, peer, entry)
            picked.append(index)
        return picked

    def pick_this(self, peer: PeerKey, index: int) -> bool:
        """Choose one block, if it is free and the peer has it; it is in flight from now on."""
        entry = self._peers[peer]
        if not self._is_free(index) or not self.has(peer, index):
            return False
        self._take(index, peer, entry)
        return True

    def _choose(self, entry: PickerPeer) -> int:
        if entry.bits is not None and entry.free <= 0:
            return _NONE
        if self._order_at < len(self._order):
            index = self._choose_preferred(entry)
            if index != _NONE:
                return index
        if entry.bits is None:
            skipped = 0 if self._by_rarity else int(self._rng.random() * self._free_count)
            for bucket in self._buckets:
                if skipped < len(bucket):
                    return bucket[int(self._rng.random() * len(bucket))]
                skipped -= len(bucket)
            return _NONE
        if not self._by_rarity:
            return self._choose_listed(entry, entry.bits)
        return self._choose_rarest(entry, entry.bits)

    def _choose_preferred(self, entry: PickerPeer) -> int:
        order, free, bits = self._order, self._free, entry.bits
        at = self._order_at
        while at < len(order) and not free[order[at] >> 3] >> (order[at] & 7) & 1:
            at += 1
        self._order_at = at
        for index in order[at : at + _WINDOW]:
            byte, bit = index >> 3, index & 7
            if free[byte] >> bit & 1 and (bits is None or bits[byte] >> bit & 1):
                return index
        return _NONE

    def _choose_rarest(self, entry: PickerPeer, bits: bytearray) -> int:
        if entry.listed:  # the probes found nothing the last time
            return self._choose_listed(entry, bits)
        random = self._rng.random
        for bucket in self._buckets[1:]:
            size = len(bucket)
            if size > _SCAN:
                for _ in range(_PROBES):
                    index = bucket[int(random() * size)]
                    if bits[index >> 3] >> (index & 7) & 1:
                        return index
            elif size:
                held = [index for index in bucket if bits[index >> 3] >> (index & 7) & 1]
                if held:
                    return held[int(random() * len(held))]
        return self._choose_listed(entry, bits)

    def _choose_listed(self, entry: PickerPeer, bits: bytearray) -> int:
        for refill in (False, True):
            if refill:
                entry.listed = self._list_free(bits)
            while entry.listed:
                index = entry.listed.pop()
                if self._is_free(index) and bits[index >> 3] >> (index & 7) & 1:
                    return index
        return _NONE

    def _list_free(self, bits: bytearray) -> list[int]:
        """Return up to about _LISTED free blocks of the peer from a random place on."""
        found: list[int] = []
        size = len(bits)
        first = int(self._rng.random() * (size // _SLICE + 1)) * _SLICE
        for start in (*range(first, size, _SLICE), *range(0, first, _SLICE)):
            end = start + _SLICE
            both = int.from_bytes(bits[start:end], "little")
            both &= int.from_bytes(self._free[start:end], "little")
            if both and not self._list_slice(found, start, both):
                break
        self._rng.shuffle(found)
        if self._by_rarity:
            found.sort(key=self._count.__getitem__, reverse=True)
        return found[-_LISTED:]

    def _list_slice(self, found: list[int], start: int, both: int) -> bool:
        """Add a slice's blocks to `found` until it is long enough; returns whether it is not."""
        data = both.to_bytes(_SLICE, "little")
        for at in range(0, _SLICE, _SUBSLICE):
            part = int.from_bytes(data[at : at + _SUBSLICE], "little")
            found += set_bits(start + at, part, _SUBSLICE)
            if len(found) >= _LISTED:
                return False
        return True

    def _take(self, index: int, peer: PeerKey, entry: PickerPeer) -> None:
        self._leave_bucket(index)
        self._set_free(index, free=False)
        self._askers[index] = [peer]
        entry.asked.add(index)

    def _set_free(self, index: int, *, free: bool) -> None:
        byte, mask = index >> 3, 1 << (index & 7)
        change = 1 if free else -1
        self._free[byte] ^= mask
        self._free_count += change
        for other in self._partial:
            bits = other.bits
            if bits is not None and bits[byte] & mask:
                other.free += change

    def others_in_flight(self, peer: PeerKey) -> Iterator[tuple[int, PeerKey]]:
        """Yield blocks that this peer has and others are asked for, oldest first, each with whom.

        At most `_OTHERS` are looked at. Nothing may be changed before the iteration ends.
        """
        asked = self._peers[peer].asked
        for index, askers in islice(self._askers.items(), _OTHERS):
            if index not in asked and self.has(peer, index):
                yield index, askers[0]

    def ask_another(self, peer: PeerKey, index: int) -> bool:
        """Note that a peer is asked for a block that others are asked for; False: it may not be."""
        askers, asked = self._askers.get(index), self._peers[peer].asked
        if askers is None or index in asked or len(askers) >= self._max_askers:
            return False
        if len(self._duplicated) >= self._max_duplicates:
            return False
        askers.append(peer)
        asked.add(index)
        self._duplicated.add(index)
        return True

    # -- what became of it ----------------------------------------------------------------------

    def done(self, index: int) -> list[PeerKey]:
        """The block is verified, from whomever; returns the peers still asked for it."""
        if not self.is_missing(index):
            return []
        askers = self._askers.pop(index, [])
        if not askers:
            self._leave_bucket(index)
            self._set_free(index, free=False)
        self._missing[index >> 3] &= ~(1 << (index & 7))
        self._missing_count -= 1
        self._duplicated.discard(index)
        for peer in askers:
            self._peers[peer].asked.discard(index)
        return askers

    def released(self, peer: PeerKey, index: int) -> bool:
        """The peer will not deliver; returns whether nobody is asked for the block any more."""
        entry = self._peers[peer]
        if index not in entry.asked:
            return False
        entry.asked.remove(index)
        askers = self._askers[index]
        askers.remove(peer)
        if len(askers) <= 1:
            self._duplicated.discard(index)
        if askers:
            return False
        del self._askers[index]
        self._set_free(index, free=True)
        self._enter_bucket(index)
        if self._rank is not None:
            self._order_at = min(self._order_at, self._rank[index])
        return True

    def prefer(self, order: Iterable[int]) -> None:
        """Ask for these blocks first, in this order; replaces the order given before."""
        self._order = array("I", order)
        self._order_at = 0
        self._rank = array("I", bytes(4 * self._size))
        for place in range(self._size):
            self._rank[place] = len(self._order)
        for place, index in enumerate(self._order):
            self._rank[index] = min(self._rank[index], place)

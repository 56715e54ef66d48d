"""The routing table: which servers of the DHT this node knows, few of them far away, many near.

Theory of operation. A server goes into the bucket of the number of leading bits that its place
shares with this node's own: half of all servers belong into bucket 0, a quarter into bucket 1. A
bucket holds `bucket_size` (20) contacts, so a table has about 20 * log2(servers / 20) of them, and
every contact is, for places it is near to, nearer than half of what is known.

    candidate --`judge` WANTED, then it answers a request--> contact --fails twice--> gone
                                                               ^  |
                                                    answers ---+  +-- fails once: doubtful

1. Who is heard of is a candidate, no more. Only a server that has answered a request is added: a
   table of hearsay would be written by whoever talks most.
2. A contact that answers is never put out for a newer one: who has been here long stays long, and
   new identities, which cost nothing, cannot flush the table. A full bucket takes a candidate only
   in the place of a doubtful contact.
3. At most 3 contacts of one group of addresses are in the table and at most 2 in a bucket. A group
   is an IPv4 /16, an IPv6 /32 (a stand-in for who runs the network) or the last two labels of a
   name. Addresses of this machine, of one link and of private networks have no group: there is
   nobody to be kept out, or a whole laboratory would be.
4. A doubtful contact is not given to others, and is asked last.

Everything takes time as an argument. Nothing raises: all input was parsed before.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from .address_scope import Scope, host_of, scope_of
from .kad_keys import (
    KAD_BITS,
    TRIAL_BITS_MAX,
    KadId,
    bytes_beside,
    common_prefix_length,
    kad_id_of,
)
from .kad_messages import KadPeer

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence
    from random import Random

    from sbp2p_keys.identity import PeerId

    from .multiaddr import Address

BUCKET_SIZE: Final = 20
"""k of Kademlia: contacts in a bucket, peers in a reply, servers that hold one record."""

GROUP_IN_TABLE_MAX: Final = 3
GROUP_IN_BUCKET_MAX: Final = 2
"""Contacts of one group of addresses; go-libp2p's bounds."""

FAILURES_MAX: Final = 2
"""Requests in a row that a contact may leave unanswered before it is forgotten."""

_IPV4_GROUP_BITS: Final = 16
_IPV6_GROUP_BITS: Final = 32


class Verdict(Enum):
    """What the table thinks of a candidate."""

    WANTED = "wanted"
    """There is room: ask it something, and add it when it answers."""
    KNOWN = "known"
    OWN = "own"
    """It is this node itself."""
    FULL = "full"
    """Its bucket is full of contacts that answer."""
    CROWDED = "crowded"
    """There are enough contacts of its group of addresses."""


@dataclass(slots=True)
class Contact:
    """A server that has answered. Times are in seconds of the caller's clock.

    Attributes:
        peer_id: Who it is.
        place: Where it lies in the keyspace.
        addresses: Where it was last said to be.
        groups: The address groups that it counts for.
        as_peer: What others are told of it.
        added: When it came into the table.
        last_seen: When it last answered or asked something.
        failures: Requests in a row that it did not answer.
    """

    peer_id: PeerId
    place: KadId
    addresses: tuple[Address, ...]
    groups: frozenset[str]
    as_peer: KadPeer
    added: float
    last_seen: float
    failures: int = 0

    @property
    def is_doubtful(self) -> bool:
        """Whether it left the last request unanswered."""
        return self.failures > 0


class RoutingTable:
    """The contacts of one node, in buckets.

    Args:
        own: Who this node is.
        bucket_size: Contacts in a bucket.
    """

    def __init__(self, own: PeerId, *, bucket_size: int = BUCKET_SIZE) -> None:
        self.own = own
        self.own_place = kad_id_of(own)
        self.bucket_size = bucket_size
        self._contacts: dict[PeerId, Contact] = {}
        self._buckets: list[dict[PeerId, Contact]] = [{} for _ in range(KAD_BITS)]
        self._refreshed: dict[int, float] = {}
        self._groups: Counter[str] = Counter()
        self._depth = 0

    def __len__(self) -> int:
        return len(self._contacts)

    def __iter__(self) -> Iterator[Contact]:
        return iter(self._contacts.values())

    def __contains__(self, peer_id: PeerId) -> bool:
        return peer_id in self._contacts

    def get(self, peer_id: PeerId) -> Contact | None:
        """Return what is known of a contact."""
        return self._contacts.get(peer_id)

    @property
    def depth(self) -> int:
        """Number of the last bucket that is not empty, plus one."""
        return self._depth

    # -- who comes in -------------------------------------------------------------------------

    def judge(self, peer_id: PeerId, addresses: Sequence[Address]) -> Verdict:
        """Tell whether a candidate would be added if it answered."""
        return self._judge(peer_id, groups_of(addresses))[0]

    def add(self, peer_id: PeerId, addresses: Sequence[Address], now: float) -> Verdict:
        """Take a server that has answered. It is in the table after WANTED and KNOWN only."""
        groups = groups_of(addresses)
        verdict, leaving = self._judge(peer_id, groups)
        if verdict is Verdict.KNOWN:
            self.seen(peer_id, now, addresses)
        elif verdict is Verdict.WANTED:
            if leaving is not None:
                self.remove(leaving.peer_id)
            place, peer = kad_id_of(peer_id), KadPeer(peer_id, tuple(addresses))
            contact = Contact(
                peer_id, place, peer.addresses, groups, peer, added=now, last_seen=now
            )
            number = self.bucket_number(place)
            self._contacts[peer_id] = self._buckets[number][peer_id] = contact
            self._groups.update(groups)
            self._depth = max(self._depth, number + 1)
        return verdict

    def _judge(self, peer_id: PeerId, groups: frozenset[str]) -> tuple[Verdict, Contact | None]:
        """Return the verdict, and who would give its place."""
        if peer_id == self.own:
            return Verdict.OWN, None
        if peer_id in self._contacts:
            return Verdict.KNOWN, None
        bucket = self._bucket_of(peer_id)
        leaving = None
        if len(bucket) >= self.bucket_size:
            leaving = _worst(bucket)
            if leaving is None:
                return Verdict.FULL, None
        if self._is_crowded(bucket, groups, leaving):
            return Verdict.CROWDED, None
        return Verdict.WANTED, leaving

    def seen(self, peer_id: PeerId, now: float, addresses: Sequence[Address] = ()) -> None:
        """Note that a contact answered, and where it is said to be now."""
        contact = self._contacts.get(peer_id)
        if contact is not None:
            contact.last_seen = now
            contact.failures = 0
            self.moved(peer_id, addresses)

    def moved(self, peer_id: PeerId, addresses: Sequence[Address]) -> None:
        """Note where a contact is said to be now, unless there are enough of those networks."""
        contact = self._contacts.get(peer_id)
        if contact is None or not addresses or tuple(addresses) == contact.addresses:
            return
        groups = groups_of(addresses)
        if not self._is_crowded(self._bucket_of(peer_id), groups, contact):
            self._groups.subtract(contact.groups)
            self._groups.update(groups)
            contact.groups = groups
            contact.addresses = tuple(addresses)
            contact.as_peer = KadPeer(peer_id, contact.addresses)

    def heard(self, peer_id: PeerId, now: float) -> None:
        """Note that a contact asked something, which does not show that it can be asked."""
        contact = self._contacts.get(peer_id)
        if contact is not None and not contact.is_doubtful:
            contact.last_seen = now

    def failed(self, peer_id: PeerId) -> bool:
        """Note that a contact did not answer; tell whether it is gone now."""
        contact = self._contacts.get(peer_id)
        if contact is None:
            return False
        contact.failures += 1
        if contact.failures < FAILURES_MAX:
            return False
        self.remove(peer_id)
        return True

    def remove(self, peer_id: PeerId) -> None:
        """Forget a contact, if it is one."""
        contact = self._contacts.pop(peer_id, None)
        if contact is None:
            return
        del self._bucket_of(peer_id)[peer_id]
        self._groups.subtract(contact.groups)
        for group in contact.groups:
            if not self._groups[group]:
                del self._groups[group]
        while self._depth and not self._buckets[self._depth - 1]:
            self._depth -= 1

    # -- who is there -------------------------------------------------------------------------

    def closest(
        self,
        target: KadId,
        count: int,
        *,
        leave_out: Container[PeerId] = (),
        doubtful: bool = False,
    ) -> list[Contact]:
        """Return the contacts nearest to a place, nearest first.

        Args:
            target: The place.
            count: How many at most.
            leave_out: Who does not count.
            doubtful: Whether those that failed once follow behind the others, if they are needed.
        """
        found: list[Contact] = []
        for lot in self._nearest_first(target):
            able = [each for each in lot if not each.failures and each.peer_id not in leave_out]
            able.sort(key=lambda contact: contact.place ^ target)
            found += able[: count - len(found)]
            if len(found) >= count:
                return found
        if doubtful:
            rest = [each for each in self if each.failures and each.peer_id not in leave_out]
            rest.sort(key=lambda contact: contact.place ^ target)
            found += rest[: count - len(found)]
        return found

    def silent(self, now: float, limit_s: float) -> list[Contact]:
        """Return the contacts of which nothing was seen for `limit_s`, the longest silent first."""
        found = [contact for contact in self if now - contact.last_seen >= limit_s]
        return sorted(found, key=lambda contact: contact.last_seen)

    # -- refreshing ---------------------------------------------------------------------------

    def looked_up(self, target: KadId, now: float) -> None:
        """Note that a lookup has passed through the bucket of a place."""
        self._refreshed[self.bucket_number(target)] = now

    def known_from(self, closest: Sequence[KadPeer]) -> int:
        """Return from which bucket on everybody is known, once this node's own place was looked up.

        Args:
            closest: the servers nearest to it, the nearest first. Fewer than a bucket holds are
                everybody, unless the table knows better.
        """
        if len(closest) >= self.bucket_size:
            return self.bucket_number(kad_id_of(closest[-1].peer_id)) + 1
        return 0 if len(self) <= self.bucket_size else KAD_BITS

    def refresh_targets(
        self, now: float, interval_s: float, rng: Random, *, below: int = KAD_BITS
    ) -> list[bytes]:
        """Return bytes to look up so that every bucket up to the last one is looked at again.

        One for each bucket that no lookup has passed through for `interval_s`, up to the last that
        is not empty and to what trials reach. This node's own id is the caller's to look up.

        Args:
            now: the time.
            interval_s: how long ago is long ago.
            rng: for the bytes.
            below: the first bucket that needs no looking at.
        """
        deepest = min(self._depth, TRIAL_BITS_MAX, below)
        return [
            bytes_beside(self.own_place, number, rng)
            for number in range(deepest)
            if now - self._refreshed.get(number, -math.inf) >= interval_s
        ]

    def bucket_number(self, place: KadId) -> int:
        """Return the number of the bucket of a place; the last one for this node's own."""
        return min(common_prefix_length(self.own_place, place), KAD_BITS - 1)

    def bucket_sizes(self) -> tuple[int, ...]:
        """Return how many contacts each bucket holds, up to the last that is not empty."""
        return tuple(map(len, self._buckets[: self._depth]))

    # -- inside -------------------------------------------------------------------------------

    def _bucket_of(self, peer_id: PeerId) -> dict[PeerId, Contact]:
        return self._buckets[self.bucket_number(kad_id_of(peer_id))]

    def _nearest_first(self, target: KadId) -> Iterator[list[Contact]]:
        """Yield all contacts in lots, each nearer to the target than what follows."""
        number = self.bucket_number(target)
        if number < self._depth:
            yield list(self._buckets[number].values())
            deeper = self._buckets[number + 1 : self._depth]
            yield [contact for bucket in deeper for contact in bucket.values()]
        for nearer in range(min(number, self._depth) - 1, -1, -1):
            if self._buckets[nearer]:
                yield list(self._buckets[nearer].values())

    def _is_crowded(
        self, bucket: dict[PeerId, Contact], groups: frozenset[str], leaving: Contact | None
    ) -> bool:
        """Tell whether a contact of `groups` would be one too many once `leaving` is gone."""
        left: frozenset[str] = leaving.groups if leaving is not None else frozenset()
        for group in groups:
            present = self._groups.get(group, 0) - (group in left)
            if present >= GROUP_IN_TABLE_MAX:
                return True
            if present < GROUP_IN_BUCKET_MAX:
                continue
            inside = sum(group in each.groups for each in bucket.values() if each is not leaving)
            if inside >= GROUP_IN_BUCKET_MAX:
                return True
        return False


def groups_of(addresses: Sequence[Address]) -> frozenset[str]:
    """Return the groups that a peer at these addresses counts for."""
    return frozenset(filter(None, map(_group_of, addresses)))


@lru_cache(maxsize=8192)
def _group_of(address: Address) -> str:
    """Return who may run the network that an address is in; empty where that says nothing."""
    scope = scope_of(address)
    if scope is Scope.NAMED:
        return ".".join(address.host.lower().rstrip(".").split(".")[-2:])
    host = host_of(address)
    if scope is not Scope.PUBLIC or host is None:
        return ""
    bits = _IPV4_GROUP_BITS if isinstance(host, ipaddress.IPv4Address) else _IPV6_GROUP_BITS
    return str(ipaddress.ip_network((host, bits), strict=False))


def _worst(bucket: dict[PeerId, Contact]) -> Contact | None:
    """Return the doubtful contact of a bucket that was seen least recently, if there is one."""
    doubtful = [contact for contact in bucket.values() if contact.is_doubtful]
    return min(doubtful, key=lambda contact: contact.last_seen, default=None)

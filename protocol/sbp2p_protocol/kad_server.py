"""What a node of the DHT answers: one request and its sender in, one reply or none out.

Theory of operation. The server knows nothing of streams. It is given a decoded request, who sent it
(the connection proved that) and from which address, and answers from the routing table and from the
records that it keeps for others.

    request         answer
    FIND_NODE       the k nearest peers, without the sender and this node; and the target itself if
                    it is known, also when it is a client
    GET_PROVIDERS   providers of the key, and the k nearest peers
    ADD_PROVIDER    none. Kept is the one entry that is the sender itself, if it has an address
    GET_VALUE       the value, if one is here, young and valid; and the k nearest peers
    PUT_VALUE       the request again, once the value is kept
    PING            the request again

A request counts for an account: the address it came from, as observers are counted (an IPv4
address, or a /56), and the peer itself where all peers have one address. Quotas and eviction go by
account, because peer ids cost nothing.

In the public network the peers that are told of are filtered: an address of a narrower scope than
the requester's own is of no use to it, and says something about the network of the peer. Peers of
whom no address is left are still named, but not as closer ones.

Errors: `RemoteProtocolError` for a request that no honest peer makes; `RequestRefusedError`, a kind
of it, for one that an honest peer can make: too many of them, a value when a better one is here or
that has just expired or is of another namespace, a provider at addresses not understood here. Both
end the stream; only the first is held against the peer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId

from .address_scope import Scope, observer_group, scope_of
from .errors import RemoteProtocolError
from .ipns import SECOND_NS, RecordExpiredError, format_time
from .kad_messages import KadMessage, KadPeer, KadRecord, KadType
from .limits import (
    ADD_PROVIDER_BURST,
    ADD_PROVIDER_RATE,
    PROVIDER_KEY_MAX,
    PROVIDERS_TOLD_MAX,
    PUT_VALUE_BURST,
    PUT_VALUE_RATE,
)
from .multiaddr import address_from_bytes
from .shares import Quota
from .value_records import UnknownNamespaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

    from .multiaddr import Address
    from .provider_records import ProviderRecords
    from .value_records import ValueRecords

PUBLIC_NETWORK: Final = "/ipfs"
"""The one network whose members may be anybody: addresses are filtered there."""

CLOSER_TOLD: Final = 20
"""Peers in one reply: k."""

_BREADTH: Final = {Scope.HERE: 0, Scope.LINK: 1, Scope.PRIVATE: 2, Scope.PUBLIC: 3, Scope.NAMED: 3}


class RequestRefusedError(RemoteProtocolError):
    """A request that an honest peer can make and that is not served."""


class Neighbours(Protocol):
    """What the server asks the routing table and the peer store."""

    def closest(self, key: bytes, count: int) -> Sequence[KadPeer]:
        """Return up to `count` servers nearest to a key, nearest first."""

    def find(self, peer_id: PeerId) -> KadPeer | None:
        """Return a peer whose addresses are known, server or not; None if they are not."""


@dataclass(frozen=True, slots=True)
class Requester:
    """Who sent a request.

    Attributes:
        peer_id: As the connection proved.
        address: Where it was seen; None if there is no telling.
    """

    peer_id: PeerId
    address: Address | None = None

    @property
    def account(self) -> str:
        """Whom what it stores counts for."""
        if self.address is None:
            return str(self.peer_id)
        return observer_group(self.address, self.peer_id)


class KadServer:
    """Answers requests of one network. Every `now` is Unix time in seconds.

    Args:
        local: this node, which is not told of.
        providers: records kept for others.
        values: values kept for others.
        neighbours: the routing table.
        rng: which of many providers are told.
        public: whether anybody may be a member, as of the public network: then it is filtered.
    """

    def __init__(
        self,
        local: PeerId,
        *,
        providers: ProviderRecords,
        values: ValueRecords,
        neighbours: Neighbours,
        rng: Random,
        public: bool = False,
    ) -> None:
        self._local = local
        self._providers = providers
        self._values = values
        self._neighbours = neighbours
        self._rng = rng
        self._public = public
        self._adds = Quota(burst=ADD_PROVIDER_BURST, rate=ADD_PROVIDER_RATE)
        self._puts = Quota(burst=PUT_VALUE_BURST, rate=PUT_VALUE_RATE)
        self._answers: dict[KadType, Callable[[KadMessage, Requester, float], KadMessage | None]]
        self._answers = {
            KadType.FIND_NODE: self._find_node,
            KadType.GET_PROVIDERS: self._get_providers,
            KadType.ADD_PROVIDER: self._add_provider,
            KadType.GET_VALUE: self._get_value,
            KadType.PUT_VALUE: self._put_value,
            KadType.PING: self._ping,
        }

    def answer(self, request: KadMessage, requester: Requester, now: float) -> KadMessage | None:
        """Return the reply to a request; None for ADD_PROVIDER, which has none.

        Raises:
            RequestRefusedError: it is not served; an honest peer may have made it.
            RemoteProtocolError: no honest peer makes it.
        """
        return self._answers[request.type](request, requester, now)

    # -- peers ----------------------------------------------------------------------------------

    def _find_node(self, request: KadMessage, requester: Requester, _: float) -> KadMessage:
        closer = self._closer(request.key, requester)
        try:
            target = PeerId.from_bytes(request.key)
        except KeysError:
            target = None  # any bytes may be asked for: that is how a region is explored
        if target is not None and target not in (self._local, requester.peer_id):
            found = self._neighbours.find(target)
            if found is not None and all(each.peer_id != target for each in closer):
                closer = [*self._shown([found], requester), *closer]
        return KadMessage(KadType.FIND_NODE, request.key, closer=tuple(closer))

    def _closer(self, key: bytes, requester: Requester) -> list[KadPeer]:
        # two more, since both of these may be among the nearest
        nearest = self._neighbours.closest(key, CLOSER_TOLD + 2)
        others = [each for each in nearest if each.peer_id not in (self._local, requester.peer_id)]
        return self._shown(others, requester)[:CLOSER_TOLD]

    def _shown(self, peers: Iterable[KadPeer], requester: Requester) -> list[KadPeer]:
        if not self._public:
            return list(peers)
        filtered = (
            KadPeer(each.peer_id, visible_to(requester.address, each.addresses)) for each in peers
        )
        return [each for each in filtered if each.addresses]

    # -- providers ------------------------------------------------------------------------------

    def _get_providers(self, request: KadMessage, requester: Requester, now: float) -> KadMessage:
        _check_key(request.key)
        found = self._providers.find(request.key, now, count=PROVIDERS_TOLD_MAX, rng=self._rng)
        providers = []
        for each in found:
            addresses = tuple(filter(None, map(_address, each.addresses)))
            if self._public:
                addresses = visible_to(requester.address, addresses)
            providers.append(KadPeer(each.provider, addresses))
        return KadMessage(
            KadType.GET_PROVIDERS,
            request.key,
            closer=tuple(self._closer(request.key, requester)),
            providers=tuple(providers),
        )

    def _add_provider(self, request: KadMessage, requester: Requester, now: float) -> None:
        _check_key(request.key)
        if not self._adds.take(requester.account, now):
            raise RequestRefusedError("more ADD_PROVIDER than one peer may send")
        own = [each for each in request.providers if each.peer_id == requester.peer_id]
        if not own:
            raise RemoteProtocolError("ADD_PROVIDER that does not name its sender")
        addresses = [address.to_bytes() for each in own for address in each.addresses]
        if not addresses:
            raise RequestRefusedError("ADD_PROVIDER without an address that is understood here")
        self._providers.add(
            request.key, requester.peer_id, addresses, now, account=requester.account
        )

    # -- values ---------------------------------------------------------------------------------

    def _get_value(self, request: KadMessage, requester: Requester, now: float) -> KadMessage:
        row = self._values.get(request.key, now)
        record = None
        if row is not None:
            received = format_time(int(row.received * SECOND_NS)).decode("ascii")
            record = KadRecord(row.key, row.value, received)
        closer = tuple(self._closer(request.key, requester))
        return KadMessage(KadType.GET_VALUE, request.key, record, closer)

    def _put_value(self, request: KadMessage, requester: Requester, now: float) -> KadMessage:
        record = request.record
        if record is None or record.key != request.key:
            raise RemoteProtocolError("PUT_VALUE without a record of its key")
        # before the signature is verified: that is what costs
        if not self._puts.take(requester.account, now):
            raise RequestRefusedError("more PUT_VALUE than one peer may send")
        try:
            kept = self._values.put(record.key, record.value, now, account=requester.account)
        except (RecordExpiredError, UnknownNamespaceError) as error:
            raise RequestRefusedError(str(error)) from None
        if not kept:
            raise RequestRefusedError("PUT_VALUE of a value that is not the best one known here")
        return KadMessage(KadType.PUT_VALUE, request.key, record)

    def _ping(self, request: KadMessage, _: Requester, __: float) -> KadMessage:
        return KadMessage(KadType.PING, request.key)


def visible_to(requester: Address | None, addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Return those addresses that somebody seen at `requester` can use: of its scope, or wider.

    Of link-local ones nobody can be told. Who was seen nowhere is told public ones only.
    """
    return visible_from(Scope.PUBLIC if requester is None else scope_of(requester), addresses)


def visible_from(scope: Scope, addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Return those addresses that somebody who is seen in a scope can use."""
    least = _BREADTH[scope]
    return tuple(
        each
        for each in addresses
        if (own := scope_of(each)) is not Scope.LINK and _BREADTH[own] >= least
    )


def _check_key(key: bytes) -> None:
    if not 1 <= len(key) <= PROVIDER_KEY_MAX:
        raise RemoteProtocolError(f"provider key of {len(key)} bytes")


@lru_cache(maxsize=4096)
def _address(data: bytes) -> Address | None:
    try:
        return address_from_bytes(data)
    except RemoteProtocolError:
        return None

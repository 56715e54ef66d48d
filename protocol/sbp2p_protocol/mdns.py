"""Finding peers on a local network by multicast DNS, as libp2p does it: who says what, and when.

Theory of operation. One machine for each link (an interface and a family). It asks
`_p2p._udp.local PTR`; everybody who hears that answers by multicast with a PTR to an instance name
of random letters and, beside it, TXT records of that name with strings `dnsaddr=<multiaddr>`, each
ending in /p2p/<peer-id>. A node answers its own question too: so one question makes everybody known
to everybody. Nodes of a private network ask for another name, made of the network's, and neither
see nor are seen by others.

| heard | said, by multicast |
|---|---|
| PTR of the service | PTR and TXT, after 20 to 120 ms, at most once a second (RFC 6762 section 6) |
| the same, and our PTR among its answers with half its life left | nothing (section 7.1) |
| TXT, or anything, of our instance | TXT |
| PTR of `_services._dns-sd._udp.local` | PTR to the service |
| an answer | nothing; its peers are returned |

Questions are asked at the start and then 1, 3, 7, 15 ... s later, up to every `query_s`. A packet
stays below MDNS_PACKET_MAX: what does not fit goes into more packets, each of which is complete.

What is heard is anybody's word, so it is bounded and filtered: only addresses that can be dialled,
no loopback, no circuit, of a peer that is not us; MDNS_PEERS_MAX peers in a packet, and
MDNS_PACKETS_PER_S packets a second are read at all. Whether a peer is there is for a dial to find.

Not here: sockets, and the encoding (`dns_message`). Answers are never sent by
unicast, which RFC 6762 allows. Pure: time and dice are arguments. Nothing raises.
"""

from __future__ import annotations

import hashlib
import math
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .address_scope import Scope, scope_of
from .dns_message import DnsMessage, PtrRecord, Question, RecordKind, TxtRecord
from .limits import (
    CANDIDATE_ADDRESSES_MAX,
    MDNS_PACKET_MAX,
    MDNS_PACKETS_PER_S,
    MDNS_PEERS_MAX,
    MDNS_STRING_MAX,
    MDNS_STRINGS_MAX,
)
from .multiaddr import Address, BadAddressError, parse_address

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from sbp2p_keys.identity import PeerId

MDNS_PORT: Final = 5353
MDNS_GROUP_4: Final = "224.0.0.251"
MDNS_GROUP_6: Final = "ff02::fb"
SERVICE: Final = "_p2p._udp.local"
SERVICES: Final = "_services._dns-sd._udp.local"
"""Whose PTR records name every kind of service on a link."""

_SERVICES_LABEL: Final = b"_dns-sd"
_PREFIX: Final = b"dnsaddr="
_NAME_LETTERS: Final = string.ascii_lowercase + string.digits
_NAME_SIZE: Final = 40
"""libp2p: 32 to 63 characters that are not the peer id, so that a node cannot be followed by it."""
_DELAY_S: Final = (0.02, 0.12)
"""Before a shared answer, so that not everybody speaks at once (RFC 6762 section 6)."""
_AGAIN_S: Final = 1.0
_HEADER: Final = 12
_RECORD_OVERHEAD: Final = 10


@dataclass(frozen=True, slots=True)
class FoundPeer:
    """A peer that somebody on the link says is there."""

    peer_id: PeerId
    addresses: tuple[Address, ...]


def service_of(network: str) -> str:
    """Return the name that a private network asks for; everybody's, if the network has no name."""
    if not network:
        return SERVICE
    return f"_p2p-{hashlib.sha256(network.encode()).hexdigest()[:32]}._udp.local"


def instance_name(rng: random.Random) -> str:
    """Return a name for one run of a node."""
    return "".join(rng.choice(_NAME_LETTERS) for _ in range(_NAME_SIZE))


def advertised(addresses: Iterable[Address], peer_id: PeerId) -> tuple[Address, ...]:
    """Return the addresses that others on a link may use: no loopback, none of another link."""
    usable = (each for each in addresses if scope_of(each) in (Scope.PRIVATE, Scope.PUBLIC))
    return tuple(each.with_peer(peer_id) for each in dict.fromkeys(usable))


class MdnsMachine:
    """Asks and answers on one link.

    Args:
        own_id: this node.
        service: what is asked for, from `service_of`.
        instance: this node's name, from `instance_name`.
        query_s: between two questions, once it has been asked a few times.
        ttl_s: how long what is said is good for.
        rng: spreads answers.
        now: seconds.
    """

    def __init__(
        self,
        own_id: PeerId,
        *,
        service: str,
        instance: str,
        query_s: float,
        ttl_s: float,
        rng: random.Random,
        now: float,
    ) -> None:
        self._own_id = own_id
        self._service = service
        self._instance = f"{instance}.{service}"
        self._label = service.partition(".")[0].encode()
        self._query_s = query_s
        self._ttl_s = max(1, round(ttl_s))
        self._rng = rng
        self._next_query = now + rng.uniform(*_DELAY_S)
        self._query_wait = 1.0
        self._answer_at = math.inf
        self._answered_at = -math.inf
        self._listed_at = -math.inf
        self._list_at = math.inf
        self._tokens = float(MDNS_PACKETS_PER_S)
        self._tokens_at = now

    @property
    def next_deadline(self) -> float:
        """When to call `handle_timer`."""
        return min(self._next_query, self._answer_at, self._list_at)

    def admit(self, data: bytes, now: float) -> bool:
        """Whether a packet is worth reading: about this service, and not one too many."""
        lowered = data.lower()
        if self._label not in lowered and _SERVICES_LABEL not in lowered:
            return False
        rate = MDNS_PACKETS_PER_S
        self._tokens = min(float(rate), self._tokens + (now - self._tokens_at) * rate)
        self._tokens_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def receive(self, message: DnsMessage, now: float) -> list[FoundPeer]:
        """Take a packet; return the peers that it names. Answers come from `handle_timer`."""
        if message.is_response:
            return self._read_answers(message)
        for question in message.questions:
            name = question.name.lower()
            kind = question.kind
            if name == self._service and kind in (RecordKind.PTR, RecordKind.ANY):
                if not self._is_known(message):
                    self._answer_soon(now)
            elif name == self._instance and kind in (RecordKind.TXT, RecordKind.ANY):
                self._answer_soon(now)
            elif name == SERVICES and kind in (RecordKind.PTR, RecordKind.ANY):
                self._list_at = self._soon(now, self._listed_at, self._list_at)
        return []

    def handle_timer(self, now: float, addresses: Sequence[Address]) -> list[DnsMessage]:
        """Return the packets to send now.

        Args:
            now: seconds.
            addresses: where this node listens, from `advertised`; with none it says nothing.
        """
        out = []
        if now >= self._next_query:
            self._next_query = now + self._query_wait
            self._query_wait = min(2 * self._query_wait, self._query_s)
            out.append(DnsMessage(False, (Question(self._service, RecordKind.PTR),)))
        if now >= self._answer_at:
            self._answer_at = math.inf
            self._answered_at = now
            out += self._answers(addresses, self._ttl_s)
        if now >= self._list_at:
            self._list_at = math.inf
            self._listed_at = now
            if addresses:
                record = PtrRecord(SERVICES, self._service, self._ttl_s)
                out.append(DnsMessage(True, answers=(record,)))
        return out

    def ask_now(self, now: float) -> None:
        """Ask at the next timer, as somebody waits for peers; at most once a second."""
        self._next_query = min(self._next_query, now + self._rng.uniform(*_DELAY_S))
        self._query_wait = 1.0

    def goodbye(self) -> list[DnsMessage]:
        """Return what takes back what was said (RFC 6762 section 10.1)."""
        if self._answered_at == -math.inf:
            return []
        return [DnsMessage(True, answers=(PtrRecord(self._service, self._instance, 0),))]

    def _is_known(self, message: DnsMessage) -> bool:
        return any(
            isinstance(record, PtrRecord)
            and record.name.lower() == self._service
            and record.target.lower() == self._instance
            and record.ttl_s >= self._ttl_s / 2
            for record in message.answers
        )

    def _answer_soon(self, now: float) -> None:
        self._answer_at = self._soon(now, self._answered_at, self._answer_at)

    def _soon(self, now: float, last: float, planned: float) -> float:
        return min(planned, max(now + self._rng.uniform(*_DELAY_S), last + _AGAIN_S))

    def _answers(self, addresses: Sequence[Address], ttl_s: int) -> list[DnsMessage]:
        """Return responses that hold all addresses, as many as it takes."""
        pointer = PtrRecord(self._service, self._instance, ttl_s)
        fixed = (
            _HEADER + 2 * _RECORD_OVERHEAD + 2 * len(self._instance) + 2 * len(self._service) + 8
        )
        messages: list[DnsMessage] = []
        strings: list[bytes] = []
        size = fixed
        texts = [_PREFIX + address.text.encode() for address in addresses]
        for text in texts:
            if len(text) > MDNS_STRING_MAX:
                continue
            if strings and size + 1 + len(text) > MDNS_PACKET_MAX:
                messages.append(self._response(pointer, strings))
                strings, size = [], fixed
            strings.append(text)
            size += 1 + len(text)
        if strings:
            messages.append(self._response(pointer, strings))
        return messages

    def _response(self, pointer: PtrRecord, strings: list[bytes]) -> DnsMessage:
        record = TxtRecord(self._instance, tuple(strings), pointer.ttl_s)
        return DnsMessage(True, answers=(pointer,), additional=(record,))

    def _read_answers(self, message: DnsMessage) -> list[FoundPeer]:
        suffix = f".{self._service}"
        strings = [
            each
            for record in (*message.answers, *message.additional)
            if isinstance(record, TxtRecord)
            and record.ttl_s > 0
            and record.name.lower().endswith(suffix)
            for each in record.strings
        ]
        found: dict[PeerId, dict[Address, None]] = {}
        for each in strings[:MDNS_STRINGS_MAX]:
            address = _read_string(each)
            peer_id = None if address is None else address.peer_id
            if address is None or peer_id is None or peer_id == self._own_id:
                continue
            if peer_id in found or len(found) < MDNS_PEERS_MAX:
                known = found.setdefault(peer_id, {})
                if len(known) < CANDIDATE_ADDRESSES_MAX:
                    known[address] = None
        return [FoundPeer(peer, tuple(addresses)) for peer, addresses in found.items()]


def _read_string(data: bytes) -> Address | None:
    """Return the address in one string of a TXT record, or None if it is of no use here."""
    if not data.startswith(_PREFIX) or len(data) > MDNS_STRING_MAX:
        return None
    try:
        address = parse_address(data[len(_PREFIX) :].decode())
    except (BadAddressError, UnicodeDecodeError):
        return None
    if not address.is_dialable or scope_of(address) not in (Scope.PRIVATE, Scope.PUBLIC):
        return None
    return address

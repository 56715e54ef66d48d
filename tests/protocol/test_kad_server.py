"""What a DHT server answers: each request, its sender's rights, quotas, what is told to whom."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader
from sbp2p_protocol.ipns import SECOND_NS, ipns_key, make_ipns_record
from sbp2p_protocol.kad_keys import distance, kad_id, kad_id_of
from sbp2p_protocol.kad_messages import KadMessage, KadPeer, KadRecord, KadType
from sbp2p_protocol.kad_server import (
    PUBLIC_NETWORK,
    KadServer,
    Requester,
    RequestRefusedError,
    visible_to,
)
from sbp2p_protocol.limits import (
    ADD_PROVIDER_BURST,
    KAD_MESSAGE_MAX,
    KAD_SEND_MAX,
    PROVIDER_KEY_MAX,
    PROVIDERS_TOLD_MAX,
    PUT_VALUE_BURST,
)
from sbp2p_protocol.multiaddr import Address, parse_address
from sbp2p_protocol.provider_records import PROVIDER_VALID_S, ProviderRecords
from sbp2p_protocol.value_records import ValueRecords

NOW = 1_800_000_000.0
KEYS = [PrivateKey.from_seed(number.to_bytes(32, "big")) for number in range(1, 90)]
PEERS = [key.peer_id for key in KEYS]
LOCAL, CLIENT, STRANGER = PEERS[:3]

PUBLIC = parse_address("/ip4/45.33.12.9/tcp/4001")
OFFICE = parse_address("/ip4/10.1.2.3/tcp/4001")
LOOP = parse_address("/ip4/127.0.0.1/tcp/4001")
LINK = parse_address("/ip6/fe80::1/tcp/4001")
NAME = parse_address("/dns4/example.org/tcp/4001")


class Table:
    """A routing table of known contents, sorted by distance each time."""

    def __init__(self, servers: list[KadPeer], clients: tuple[KadPeer, ...] = ()) -> None:
        self.servers = servers
        self.known = {each.peer_id: each for each in [*servers, *clients]}

    def closest(self, key: bytes, count: int) -> list[KadPeer]:
        place = kad_id(key)
        ordered = sorted(self.servers, key=lambda each: distance(place, kad_id_of(each.peer_id)))
        return ordered[:count]

    def find(self, peer_id: PeerId) -> KadPeer | None:
        return self.known.get(peer_id)


class Lab:
    """A server with its stores."""

    def __init__(
        self, *, network: str = "/sbp2p", addresses: tuple[Address, ...] = (PUBLIC,)
    ) -> None:
        servers = [KadPeer(peer, addresses) for peer in PEERS[3:40]]
        servers += [KadPeer(CLIENT, addresses), KadPeer(LOCAL, addresses)]
        self.table = Table(servers, (KadPeer(PEERS[80], addresses),))
        self.providers, self.values = ProviderRecords(), ValueRecords()
        self.server = KadServer(
            LOCAL,
            providers=self.providers,
            values=self.values,
            neighbours=self.table,
            rng=Random(1),  # noqa: S311
            public=network == PUBLIC_NETWORK,
        )

    def ask(
        self,
        kad_type: KadType,
        key: bytes,
        *,
        sender: PeerId = CLIENT,
        address: Address | None = PUBLIC,
        record: KadRecord | None = None,
        providers: tuple[KadPeer, ...] = (),
        now: float = NOW,
    ) -> KadMessage:
        message = KadMessage(kad_type, key, record, providers=providers)
        reply = self.server.answer(message, Requester(sender, address), now)
        assert reply is not None
        assert reply.type is kad_type
        assert reply.key == key
        return reply

    def announce(
        self,
        key: bytes,
        *providers: KadPeer,
        sender: PeerId = CLIENT,
        address: Address = PUBLIC,
        now: float = NOW,
    ) -> None:
        message = KadMessage(KadType.ADD_PROVIDER, key, providers=providers)
        assert self.server.answer(message, Requester(sender, address), now) is None

    def put(self, owner: PrivateKey, sequence: int, *, sender: PeerId = CLIENT) -> KadMessage:
        key = ipns_key(owner.peer_id)
        value = pointer(owner, sequence)
        return self.ask(KadType.PUT_VALUE, key, record=KadRecord(key, value), sender=sender)


def pointer(owner: PrivateKey, sequence: int) -> bytes:
    return make_ipns_record(
        owner, b"/x", sequence=sequence, valid_until_ns=int(NOW + 1000) * SECOND_NS, ttl_ns=0
    )


# -- peers -----------------------------------------------------------------------------------------


def test_the_nearest_peers_are_told_without_the_two_that_talk() -> None:
    lab = Lab()
    key = b"some key"
    reply = lab.ask(KadType.FIND_NODE, key)
    nearest = [each.peer_id for each in lab.table.closest(key, 99)]
    expected = [peer for peer in nearest if peer not in (LOCAL, CLIENT)][:20]
    assert [each.peer_id for each in reply.closer] == expected


def test_the_target_is_told_of_even_if_it_is_a_client() -> None:
    reply = Lab().ask(KadType.FIND_NODE, PEERS[80].to_bytes())
    assert reply.closer[0].peer_id == PEERS[80]
    assert len(reply.closer) == 21
    assert {len(Lab().ask(KadType.FIND_NODE, PEERS[n].to_bytes()).closer) for n in (0, 1, 81)} == {
        20
    }
    known = Lab().ask(KadType.FIND_NODE, PEERS[5].to_bytes())
    assert [each.peer_id for each in known.closer].count(PEERS[5]) == 1


def test_a_ping_is_echoed() -> None:
    assert not Lab().ask(KadType.PING, b"x").closer


# -- providers -------------------------------------------------------------------------------------


def test_a_provider_speaks_for_itself_only() -> None:
    lab = Lab()
    others = KadPeer(STRANGER, (PUBLIC,))
    lab.announce(b"k", others, KadPeer(CLIENT, (PUBLIC, OFFICE)))
    reply = lab.ask(KadType.GET_PROVIDERS, b"k", sender=STRANGER)
    assert reply.providers == (KadPeer(CLIENT, (PUBLIC, OFFICE)),)
    assert len(reply.closer) == 20
    for providers in ((), (others,)):
        with pytest.raises(RemoteProtocolError) as caught:
            lab.announce(b"k", *providers)
        assert not isinstance(caught.value, RequestRefusedError)
    with pytest.raises(RequestRefusedError):
        lab.announce(b"k", KadPeer(CLIENT))
    assert not lab.ask(KadType.GET_PROVIDERS, b"k", now=NOW + PROVIDER_VALID_S).providers


@pytest.mark.parametrize("size", [0, PROVIDER_KEY_MAX + 1])
def test_a_provider_key_has_1_to_80_bytes(size: int) -> None:
    lab = Lab()
    with pytest.raises(RemoteProtocolError):
        lab.announce(b"k" * size, KadPeer(CLIENT, (PUBLIC,)))
    with pytest.raises(RemoteProtocolError):
        lab.ask(KadType.GET_PROVIDERS, b"k" * size)


def test_one_address_announces_so_much_however_many_ids_it_has() -> None:
    lab = Lab()
    for number in range(ADD_PROVIDER_BURST):
        peer = PEERS[number % 80]
        lab.announce(b"%d" % number, KadPeer(peer, (PUBLIC,)), sender=peer)
    with pytest.raises(RequestRefusedError):
        lab.announce(b"more", KadPeer(CLIENT, (PUBLIC,)))
    elsewhere = parse_address("/ip4/45.33.12.10/tcp/1")
    lab.announce(b"more", KadPeer(CLIENT, (PUBLIC,)), address=elsewhere)
    lab.announce(b"more", KadPeer(CLIENT, (PUBLIC,)), address=LOOP)
    lab.announce(b"more", KadPeer(CLIENT, (PUBLIC,)), now=NOW + 1)


def test_replies_fit_in_what_every_peer_reads() -> None:
    addresses = tuple(parse_address(f"/ip4/45.33.12.{n}/tcp/4001") for n in range(16))
    lab = Lab(addresses=addresses)
    for peer in PEERS:
        lab.providers.add(b"k", peer, [each.to_bytes() for each in addresses], NOW)
    reply = lab.ask(KadType.GET_PROVIDERS, b"k")
    assert len(reply.providers) == PROVIDERS_TOLD_MAX
    frame = reply.encode()
    assert len(frame) <= KAD_SEND_MAX
    reader = LengthPrefixedReader(KAD_MESSAGE_MAX)
    reader.feed(frame)
    read = KadMessage.decode(reader.next() or b"")
    assert len(read.providers) == PROVIDERS_TOLD_MAX
    assert all(each.addresses for each in read.providers)


# -- values ----------------------------------------------------------------------------------------


def test_a_value_is_kept_if_none_is_better() -> None:
    lab = Lab()
    owner = KEYS[7]
    key = ipns_key(owner.peer_id)
    assert lab.ask(KadType.GET_VALUE, key).record is None
    assert lab.put(owner, 5).record == KadRecord(key, pointer(owner, 5))
    with pytest.raises(RequestRefusedError):
        lab.put(owner, 4)
    lab.put(owner, 6)
    reply = lab.ask(KadType.GET_VALUE, key)
    assert reply.record == KadRecord(key, pointer(owner, 6), "2027-01-15T08:00:00Z")
    assert len(reply.closer) == 20
    assert lab.ask(KadType.GET_VALUE, key, now=NOW + 1000).record is None, "expired"


def test_what_is_no_value_is_held_against_the_sender() -> None:
    lab = Lab()
    key = ipns_key(PEERS[7])
    for record in (None, KadRecord(ipns_key(PEERS[8]), pointer(KEYS[8], 1)), KadRecord(key, b"x")):
        with pytest.raises(RemoteProtocolError) as caught:
            lab.ask(KadType.PUT_VALUE, key, record=record)
        assert not isinstance(caught.value, RequestRefusedError)
    assert len(lab.values) == 0


def test_what_honest_peers_put_is_refused_and_not_held_against_them() -> None:
    lab = Lab()
    owner = KEYS[7]
    key = ipns_key(owner.peer_id)
    expired = KadRecord(key, pointer(owner, 1))
    with pytest.raises(RequestRefusedError):
        lab.ask(KadType.PUT_VALUE, key, record=expired, now=NOW + 1000)
    with pytest.raises(RequestRefusedError):
        lab.ask(KadType.PUT_VALUE, b"/other/x", record=KadRecord(b"/other/x", b"y"))
    assert len(lab.values) == 0


def test_one_address_puts_so_many_values() -> None:
    lab = Lab()
    for number in range(PUT_VALUE_BURST):
        lab.put(KEYS[number], 1, sender=PEERS[number])
    with pytest.raises(RequestRefusedError):
        lab.put(KEYS[PUT_VALUE_BURST], 1)


# -- who is told what ------------------------------------------------------------------------------


def test_narrow_addresses_are_shown_to_those_who_share_the_network() -> None:
    everything = (PUBLIC, OFFICE, LOOP, LINK, NAME)
    assert visible_to(PUBLIC, everything) == (PUBLIC, NAME)
    assert visible_to(None, everything) == (PUBLIC, NAME)
    assert visible_to(OFFICE, everything) == (PUBLIC, OFFICE, NAME)
    assert visible_to(LOOP, everything) == (PUBLIC, OFFICE, LOOP, NAME)


def test_the_public_network_tells_a_stranger_no_private_addresses() -> None:
    lab = Lab(network=PUBLIC_NETWORK, addresses=(OFFICE,))
    lab.announce(b"k", KadPeer(CLIENT, (OFFICE, PUBLIC)))
    lab.announce(b"k", KadPeer(STRANGER, (LOOP,)), sender=STRANGER)
    reply = lab.ask(KadType.GET_PROVIDERS, b"k")
    assert reply.closer == ()
    assert set(reply.providers) == {KadPeer(CLIENT, (PUBLIC,)), KadPeer(STRANGER)}
    inside = lab.ask(KadType.GET_PROVIDERS, b"k", address=OFFICE)
    assert len(inside.closer) == 20
    assert set(inside.providers) == {KadPeer(CLIENT, (OFFICE, PUBLIC)), KadPeer(STRANGER)}


def test_a_network_of_ones_own_tells_what_it_knows() -> None:
    lab = Lab(addresses=(LOOP,))
    assert len(lab.ask(KadType.FIND_NODE, b"k").closer) == 20


@given(
    st.sampled_from(KadType),
    st.binary(max_size=100),
    st.none() | st.tuples(st.binary(max_size=60), st.binary(max_size=60)),
    st.lists(st.sampled_from([KadPeer(CLIENT, (PUBLIC,)), KadPeer(STRANGER), KadPeer(LOCAL)])),
)
def test_any_request_is_answered_or_refused(
    kad_type: KadType, key: bytes, record: tuple[bytes, bytes] | None, peers: list[KadPeer]
) -> None:
    message = KadMessage(
        kad_type, key, None if record is None else KadRecord(*record), tuple(peers), tuple(peers)
    )
    try:
        reply = Lab().server.answer(message, Requester(CLIENT, OFFICE), NOW)
    except RemoteProtocolError:
        return
    assert (reply is None) == (kad_type is KadType.ADD_PROVIDER)
    if reply is not None:
        assert len(reply.encode()) <= KAD_SEND_MAX

"""Kademlia messages: published bytes, round trips, trimming, what is left out, garbage."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader
from sbp2p_protocol.kad_messages import KadMessage, KadPeer, KadRecord, KadType, kad_protocol
from sbp2p_protocol.limits import (
    KAD_CLOSER_MAX,
    KAD_KEY_MAX,
    KAD_MESSAGE_MAX,
    KAD_PEER_ADDRESSES_MAX,
    KAD_PROVIDERS_MAX,
    KAD_RECEIVED_MAX,
    KAD_SEND_MAX,
    KAD_VALUE_MAX,
)
from sbp2p_protocol.multiaddr import parse_address
from sbp2p_protocol.pb.kad_pb2 import Kad
from tests.vectors import load_vectors

PEERS = [PrivateKey.from_seed(bytes([number]) * 32).peer_id for number in range(60)]
ADDRESS = parse_address("/ip4/192.0.2.7/tcp/4001")
FULL = KadMessage(
    KadType.GET_VALUE,
    b"/ns/name",
    KadRecord(b"/ns/name", b"value", "2026-01-02T03:04:05Z"),
    (KadPeer(PEERS[0], (ADDRESS,)), KadPeer(PEERS[1])),
    (KadPeer(PEERS[2], (ADDRESS, parse_address("/dns4/example.org/tcp/1"))),),
)


def read(frame: bytes, bound: int = KAD_SEND_MAX) -> KadMessage:
    reader = LengthPrefixedReader(bound)
    reader.feed(frame)
    payload = reader.next()
    assert payload is not None
    reader.finish()
    return KadMessage.decode(payload)


def published(name: str) -> bytes:
    vectors = load_vectors("protobuf_messages")["messages"]
    return bytes.fromhex(vectors[name]["framed_hex"])


PUBLISHED = {
    "kad_find_node": KadType.FIND_NODE,
    "kad_get_providers": KadType.GET_PROVIDERS,
    "kad_add_provider": KadType.ADD_PROVIDER,
    "kad_put_value": KadType.PUT_VALUE,
    "kad_ping": KadType.PING,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_messages(name: str) -> None:
    message = read(published(name))
    assert message.type is PUBLISHED[name]
    assert message.encode() == published(name)


def test_fields_of_the_published_messages() -> None:
    added = read(published("kad_add_provider"))
    peer = PeerId.from_bytes(read(published("kad_find_node")).key)
    assert added.providers == (KadPeer(peer, (parse_address("/ip4/127.0.0.1/tcp/4001"),)),)
    put = read(published("kad_put_value"))
    assert put.record == KadRecord(put.key, b"VALUE")
    assert put.key == b"/ipns/" + peer.to_bytes()


@pytest.mark.parametrize("message", [FULL, KadMessage(KadType.PING)])
def test_messages_come_back(message: KadMessage) -> None:
    assert read(message.encode()) == message


def test_the_protocol_id_names_the_network() -> None:
    assert kad_protocol() == "/sbp2p/kad/1.0.0"
    assert kad_protocol("/ipfs") == "/ipfs/kad/1.0.0"


def test_what_is_sent_is_trimmed_to_what_every_stack_accepts() -> None:
    addresses = tuple(parse_address(f"/dns4/{'a' * 60}.example/tcp/{i}") for i in range(1, 17))
    closer = tuple(KadPeer(peer, addresses) for peer in PEERS[:20])
    value = KadRecord(b"k", bytes(KAD_VALUE_MAX))
    for message in (
        KadMessage(KadType.FIND_NODE, b"k", closer=closer),
        KadMessage(KadType.GET_PROVIDERS, b"k", closer=closer, providers=closer),
        KadMessage(KadType.GET_VALUE, b"k", value, closer),
    ):
        frame = message.encode()
        sent = read(frame)
        assert len(frame) <= KAD_SEND_MAX
        assert len(sent.closer) == len(message.closer)
        assert len(sent.providers) == len(message.providers)
        assert all(peer.addresses for peer in (*sent.closer, *sent.providers))


def test_peers_are_left_out_when_addresses_are_not_enough() -> None:
    name = ".".join(["a" * 60] * 4)
    long = (parse_address(f"/dns4/{name}/tcp/1/http-path/{'b' * 700}"),)
    many = tuple(KadPeer(peer, long) for peer in PEERS[:30])
    sent = read(KadMessage(KadType.GET_PROVIDERS, b"k", closer=many, providers=many).encode())
    assert not sent.closer
    assert sent.providers == many[: len(sent.providers)]
    assert len(sent.providers) > 10


def test_what_is_not_understood_is_left_out() -> None:
    raw = Kad(
        type=4,
        closer_peers=[
            Kad.Peer(id=b"nobody", addresses=[ADDRESS.to_bytes()]),
            Kad.Peer(id=PEERS[0].to_bytes(), addresses=[b"\xff\x7f\x01", b"", ADDRESS.to_bytes()]),
        ],
        record=Kad.Record(key=b"k", time_received=b"\xff"),
    )
    message = KadMessage.decode(raw.SerializeToString())
    assert message.closer == (KadPeer(PEERS[0], (ADDRESS,)),)
    assert message.record == KadRecord(b"k", b"")


def test_lists_are_cut_at_their_bounds() -> None:
    addresses = [parse_address(f"/ip4/10.0.0.{i}/tcp/1").to_bytes() for i in range(30)]
    peers = [Kad.Peer(id=peer.to_bytes(), addresses=addresses) for peer in PEERS] * 3
    message = KadMessage.decode(
        Kad(type=3, closer_peers=peers, provider_peers=peers).SerializeToString()
    )
    assert len(message.closer) == KAD_CLOSER_MAX
    assert len(message.providers) == KAD_PROVIDERS_MAX
    assert len(message.closer[0].addresses) == KAD_PEER_ADDRESSES_MAX


@pytest.mark.parametrize(
    "raw",
    [
        Kad(type=6),
        Kad(type=4, key=bytes(KAD_KEY_MAX + 1)),
        Kad(type=1, record=Kad.Record(key=bytes(KAD_KEY_MAX + 1))),
        Kad(type=1, record=Kad.Record(value=bytes(KAD_VALUE_MAX + 1))),
    ],
)
def test_what_is_refused(raw: Kad) -> None:
    with pytest.raises(RemoteProtocolError):
        KadMessage.decode(raw.SerializeToString())


@pytest.mark.parametrize("data", [b"\x08", bytes(KAD_MESSAGE_MAX + 1)])
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        KadMessage.decode(data)


@pytest.mark.parametrize(
    "message",
    [
        replace(FULL, key=bytes(KAD_KEY_MAX + 1)),
        replace(FULL, record=KadRecord(b"", bytes(KAD_VALUE_MAX + 1))),
        replace(FULL, record=KadRecord(b"", b"", "9" * (KAD_RECEIVED_MAX + 1))),
    ],
)
def test_our_own_mistakes(message: KadMessage) -> None:
    with pytest.raises(LocalProtocolError):
        message.encode()


@given(st.binary(max_size=300))
def test_garbage(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        message = KadMessage.decode(data)
        assert read(message.encode()) == message

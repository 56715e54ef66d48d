"""Signed peer records: a published one, round trips, other people's signatures, garbage."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PrivateKey
from sbp2p_keys.signing import SignedEnvelope
from sbp2p_protocol.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import ADDRESS_MAX, PEER_RECORD_ADDRESSES_MAX
from sbp2p_protocol.pb import peer_record_pb2
from sbp2p_protocol.peer_record import (
    PEER_RECORD_DOMAIN,
    PEER_RECORD_TYPE,
    PeerRecord,
    open_peer_record,
    seal_peer_record,
)
from tests.vectors import load_vectors

ALICE = PrivateKey.from_seed(b"a" * 32)
BOB = PrivateKey.from_seed(b"b" * 32)
ADDRESS = bytes.fromhex("0401020304060fa1")


def payload(peer: PrivateKey = ALICE, seq: int = 1, addresses: tuple[bytes, ...] = ()) -> bytes:
    info = peer_record_pb2.PeerRecord.AddressInfo
    return peer_record_pb2.PeerRecord(
        peer_id=peer.peer_id.to_bytes(),
        seq=seq,
        addresses=[info(multiaddr=address) for address in addresses],
    ).SerializeToString()


def sealed(
    content: bytes, *, domain: str = PEER_RECORD_DOMAIN, payload_type: bytes = PEER_RECORD_TYPE
) -> bytes:
    return SignedEnvelope.seal(ALICE, domain, payload_type, content).to_bytes()


def test_a_published_record() -> None:
    vector = load_vectors("signed_peer_record")
    record = open_peer_record(bytes.fromhex(vector["envelope"]))
    assert record.peer_id.to_bytes().hex() == vector["decoded"]["peer_id"]
    assert record.seq == vector["decoded"]["seq"]
    assert [address.hex() for address in record.addresses] == vector["decoded"]["addresses"]
    key = PrivateKey.from_protobuf(bytes.fromhex(vector["private_key_protobuf"]))
    again = seal_peer_record(key, record.seq, record.addresses)
    assert again.hex() == vector["envelope"]


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.binary(min_size=1, max_size=50), max_size=PEER_RECORD_ADDRESSES_MAX),
)
def test_records_come_back(seq: int, addresses: list[bytes]) -> None:
    record = open_peer_record(seal_peer_record(ALICE, seq, tuple(addresses)))
    assert record == PeerRecord(peer_id=ALICE.peer_id, seq=seq, addresses=tuple(addresses))


def test_only_a_greater_number_is_newer() -> None:
    old = PeerRecord(peer_id=ALICE.peer_id, seq=5, addresses=())
    same = PeerRecord(peer_id=ALICE.peer_id, seq=5, addresses=(ADDRESS,))
    new = PeerRecord(peer_id=ALICE.peer_id, seq=6, addresses=())
    assert old.is_newer_than(None)
    assert not same.is_newer_than(old)
    assert new.is_newer_than(old)
    assert not old.is_newer_than(new)


def test_a_record_about_somebody_else() -> None:
    with pytest.raises(IntegrityError, match="is signed by"):
        open_peer_record(sealed(payload(BOB)))


def test_a_changed_record() -> None:
    data = bytearray(seal_peer_record(ALICE, 1, (ADDRESS,)))
    data[data.index(ADDRESS) + 1] ^= 1
    with pytest.raises(IntegrityError, match="does not match"):
        open_peer_record(bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        sealed(payload(), payload_type=b"\x81\x06"),
        sealed(b"\xff\xff"),
        sealed(b""),
        sealed(b"\x0a\x01\x00"),
    ],
)
def test_what_is_no_record(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="not a peer record"):
        open_peer_record(data)


def test_a_signature_for_another_purpose() -> None:
    with pytest.raises(IntegrityError):
        open_peer_record(sealed(payload(), domain="libp2p-relay-rsvp"))


def test_lists_are_cut_and_useless_addresses_dropped() -> None:
    useless = (b"", bytes(ADDRESS_MAX + 1))
    record = open_peer_record(sealed(payload(addresses=(*useless, ADDRESS))))
    assert record.addresses == (ADDRESS,)
    many = open_peer_record(sealed(payload(addresses=(ADDRESS,) * 100)))
    assert len(many.addresses) == PEER_RECORD_ADDRESSES_MAX


def test_records_that_cannot_be_made() -> None:
    for seq, addresses in ((-1, ()), (2**64, ()), (1, (ADDRESS,) * 65), (1, (bytes(1 << 20),))):
        with pytest.raises(LocalProtocolError):
            seal_peer_record(ALICE, seq, addresses)


@given(st.binary(max_size=200))
def test_garbage_raises_only_the_remote_error(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        open_peer_record(data)


@given(st.binary(max_size=100))
def test_signed_garbage_raises_only_the_remote_error(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        open_peer_record(sealed(data))

"""identify and push: a published message, merging, trimming, claims about others, garbage."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.identify import IdentifyMessage, IdentifyReader
from sbp2p_protocol.limits import (
    ADDRESS_MAX,
    IDENTIFY_ADDRESSES_MAX,
    IDENTIFY_MESSAGES_MAX,
    IDENTIFY_PROTOCOLS_MAX,
    IDENTIFY_SEND_MAX,
)
from sbp2p_protocol.multiaddr import parse_address
from sbp2p_protocol.pb.identify_pb2 import Identify
from sbp2p_protocol.peer_record import seal_peer_record
from tests.vectors import load_vectors

ALICE = PrivateKey.from_seed(b"a" * 32)
BOB = PrivateKey.from_seed(b"b" * 32)
ADDRESS = parse_address("/ip4/1.2.3.4/tcp/4001")
UNKNOWN = b"\xff\x7f\x01"
FULL = IdentifyMessage(
    public_key=ALICE.public_key.to_protobuf(),
    listen_addresses=(ADDRESS.to_bytes(), UNKNOWN),
    protocols=("/ipfs/id/1.0.0", "/ipfs/ping/1.0.0"),
    observed_address=parse_address("/ip4/9.9.9.9/tcp/9").to_bytes(),
    protocol_version="ipfs/0.1.0",
    agent_version="sbp2p/0.1.0",
    signed_peer_record=seal_peer_record(ALICE, 1, (ADDRESS.to_bytes(),)),
)


def read(*chunks: bytes) -> IdentifyMessage:
    reader = IdentifyReader()
    for chunk in chunks:
        reader.receive_data(chunk)
    return reader.finish()


def test_a_published_message() -> None:
    vector = load_vectors("protobuf_messages")["messages"]["identify"]
    message = read(bytes.fromhex(vector["framed_hex"]))
    assert message.addresses == (parse_address("/ip4/127.0.0.1/tcp/4001"),)
    assert message.observed == message.addresses[0]
    assert message.protocols == ("/ipfs/ping/1.0.0", "/ipfs/id/1.0.0")
    assert message.protocol_version == "ipfs/0.1.0"
    assert message.agent_version == "example/0.1"
    assert message.signed_peer_record is None
    assert message.encode().hex() == vector["framed_hex"]


@pytest.mark.parametrize("message", [FULL, IdentifyMessage()])
@pytest.mark.parametrize("cut", [1, 1 << 20])
def test_messages_come_back(message: IdentifyMessage, cut: int) -> None:
    frame = message.encode()
    assert read(*(frame[i : i + cut] for i in range(0, len(frame), cut))) == message


def test_an_unknown_address_costs_nothing_and_stays() -> None:
    message = read(FULL.encode())
    assert message.listen_addresses == (ADDRESS.to_bytes(), UNKNOWN)
    assert message.addresses == (ADDRESS,)
    assert IdentifyMessage(observed_address=UNKNOWN).observed is None
    assert IdentifyMessage().observed is None


def test_a_message_split_over_several_frames_is_merged() -> None:
    first = IdentifyMessage(protocols=("/a",), agent_version="old", listen_addresses=(b"1",))
    second = IdentifyMessage(protocols=("/b",), agent_version="new", public_key=b"key")
    merged = read(first.encode() + second.encode())
    assert merged.protocols == ("/a", "/b")
    assert merged.listen_addresses == (b"1",)
    assert merged.agent_version == "new"
    assert merged.public_key == b"key"


def test_an_empty_field_is_one_that_was_not_told() -> None:
    raw = Identify(agent_version=b"", signed_peer_record=b"", public_key=b"")
    assert raw.SerializeToString() != b""
    assert IdentifyMessage.decode(raw.SerializeToString()) == IdentifyMessage()


def test_a_push_changes_only_what_is_in_it() -> None:
    push = IdentifyMessage(protocols=("/new",), agent_version="sbp2p/0.2.0")
    updated = FULL.updated_by(push)
    assert updated.protocols == ("/new",)
    assert updated.agent_version == "sbp2p/0.2.0"
    assert updated.listen_addresses == FULL.listen_addresses
    assert updated.public_key == FULL.public_key


def test_too_many_messages() -> None:
    frame = IdentifyMessage(agent_version="x").encode()
    read(frame * IDENTIFY_MESSAGES_MAX)
    with pytest.raises(RemoteProtocolError, match="more than"):
        read(frame * (IDENTIFY_MESSAGES_MAX + 1))


@pytest.mark.parametrize("stream", [b"", b"\x05abc", b"\xff\xff\x03", b"\x01\xff", b"\x81\x40"])
def test_streams_that_are_no_identify(stream: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read(stream)


def test_long_lists_are_cut_and_bad_entries_dropped() -> None:
    raw = Identify(
        listen_addresses=[b"", bytes(ADDRESS_MAX + 1), *[b"a"] * 100],
        protocols=[b"", b"\xff", b"x" * 257, *[b"/p"] * 1500],
        agent_version=b"\xff",
        protocol_version=b"x" * 257,
    )
    message = IdentifyMessage.decode(raw.SerializeToString())
    assert message.listen_addresses == (b"a",) * IDENTIFY_ADDRESSES_MAX
    assert message.protocols == ("/p",) * IDENTIFY_PROTOCOLS_MAX
    assert message.agent_version is None
    assert message.protocol_version is None


def test_addresses_give_way_to_the_bound_of_other_stacks() -> None:
    addresses = tuple(bytes([i]) * 200 for i in range(1, 31))
    frame = IdentifyMessage(listen_addresses=addresses, agent_version="kept").encode()
    assert len(frame) <= IDENTIFY_SEND_MAX + 2
    message = read(frame)
    assert message.agent_version == "kept"
    assert message.listen_addresses == addresses[: len(message.listen_addresses)]
    assert len(message.listen_addresses) == 20
    with pytest.raises(LocalProtocolError):
        IdentifyMessage(protocols=("/p" * 50,) * 50).encode()


def test_the_claims_of_a_peer_about_itself() -> None:
    record = FULL.checked_against(ALICE.peer_id)
    assert record is not None
    assert record.addresses == (ADDRESS.to_bytes(),)
    assert IdentifyMessage().checked_against(ALICE.peer_id) is None


def test_claims_about_somebody_else() -> None:
    record = seal_peer_record(ALICE, 1, ())
    for message in (
        IdentifyMessage(public_key=FULL.public_key),
        IdentifyMessage(signed_peer_record=record),
    ):
        with pytest.raises(IntegrityError):
            message.checked_against(BOB.peer_id)
    for message in (
        IdentifyMessage(public_key=b"\x08"),
        IdentifyMessage(signed_peer_record=b"\xff"),
    ):
        with pytest.raises(RemoteProtocolError):
            message.checked_against(BOB.peer_id)


@given(st.lists(st.binary(max_size=100), max_size=6), st.booleans())
def test_garbage_raises_only_the_remote_error(chunks: list[bytes], frame: bool) -> None:
    with contextlib.suppress(RemoteProtocolError):
        message = read(*(encode_length_prefixed(c) if frame else c for c in chunks))
        _ = (message.addresses, message.observed)
        message.checked_against(ALICE.peer_id)


optional_bytes = st.none() | st.binary(min_size=1, max_size=60)


@given(
    st.builds(
        IdentifyMessage,
        public_key=optional_bytes,
        listen_addresses=st.lists(st.binary(min_size=1, max_size=30), max_size=5).map(tuple),
        protocols=st.lists(st.text(min_size=1, max_size=30), max_size=5).map(tuple),
        observed_address=optional_bytes,
        agent_version=st.none() | st.text(min_size=1, max_size=60),
        signed_peer_record=optional_bytes,
    )
)
def test_any_message_comes_back(message: IdentifyMessage) -> None:
    again = read(message.encode())
    assert again == message
    with contextlib.suppress(RemoteProtocolError):
        again.checked_against(ALICE.peer_id)
    assert len(again.addresses) <= len(message.listen_addresses)

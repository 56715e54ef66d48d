"""The Noise handshake: published transcripts, identities, muxers, and everything refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import NOISE_HANDSHAKE_MESSAGE_MAX, NOISE_MUXERS_MAX
from sbp2p_protocol.noise import (
    STATIC_KEY_DOMAIN,
    NoiseHandshake,
    NoiseReceiver,
    NoiseResult,
    NoiseSender,
    NoiseSuite,
    WrongPeerError,
)
from sbp2p_protocol.noise_xx import XXHandshake
from sbp2p_protocol.pb.noise_pb2 import NoisePayload
from tests.vectors import load_vectors

ALICE = PrivateKey.from_seed(b"a" * 32)
BOB = PrivateKey.from_seed(b"b" * 32)
SUITES = {suite.value.noise_name.decode(): suite for suite in NoiseSuite}
OWN_VECTORS = Path(__file__).parents[2] / "protocol" / "vectors" / "noise_aesgcm.json"


def x25519(hex_key: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(hex_key))


def pair(
    suite: NoiseSuite = NoiseSuite.CHACHA, **kwargs: Any
) -> tuple[NoiseHandshake, NoiseHandshake]:
    initiator = NoiseHandshake(ALICE, initiator=True, suite=suite, **kwargs)
    return initiator, NoiseHandshake(BOB, initiator=False, suite=suite)


def complete(
    initiator: NoiseHandshake, responder: NoiseHandshake, cut: int = 1 << 20
) -> tuple[NoiseResult, NoiseResult]:
    for source, sink in ((initiator, responder), (responder, initiator), (initiator, responder)):
        data = source.data_to_send()
        for start in range(0, len(data), cut):
            sink.receive_data(data[start : start + cut])
    assert initiator.done is not None
    assert responder.done is not None
    return initiator.done, responder.done


# -- transcripts ------------------------------------------------------------------------------


def check_transcript(vector: dict[str, str]) -> None:
    suite, prologue = SUITES[vector["handshake"]], bytes.fromhex(vector.get("prologue", ""))
    sides = [
        XXHandshake(
            initiator=name == "init",
            suite=suite,
            static_key=x25519(vector[f"{name}_static"]),
            ephemeral_key=x25519(vector[f"gen_{name}_ephemeral"]),
            prologue=prologue,
        )
        for name in ("init", "resp")
    ]
    for turn in range(3):
        writer, reader = sides[turn % 2], sides[(turn + 1) % 2]
        message = writer.write(bytes.fromhex(vector[f"msg_{turn}_payload"]))
        assert message.hex() == vector[f"msg_{turn}_ciphertext"]
        assert reader.read(message).hex() == vector[f"msg_{turn}_payload"]
    initiator, responder = sides
    assert initiator.handshake_hash == responder.handshake_hash
    if "derived_handshake_hash" in vector:
        assert initiator.handshake_hash.hex() == vector["derived_handshake_hash"]
    assert responder.remote_static.hex() == (
        x25519(vector["init_static"]).public_key().public_bytes_raw().hex()
    )
    # msg_3 is the first transport message of the initiator, msg_4 the first of the responder
    for turn, sender, receiver in ((3, initiator, responder), (4, responder, initiator)):
        plaintext = bytes.fromhex(vector[f"msg_{turn}_payload"])
        wire = bytearray()
        NoiseSender(sender.split()[0]).encrypt_parts([plaintext], wire)
        assert wire[2:].hex() == vector[f"msg_{turn}_ciphertext"]
        assert NoiseReceiver(receiver.split()[1]).receive_data(wire) == [plaintext]


@pytest.mark.parametrize("index", range(4))
def test_published_transcripts(index: int) -> None:
    check_transcript(load_vectors("noise_xx")["vectors"][index])


@pytest.mark.parametrize("index", range(2))
def test_own_transcripts_of_the_aesgcm_suite(index: int) -> None:
    check_transcript(json.loads(OWN_VECTORS.read_text())["vectors"][index])


def test_published_payload() -> None:
    message = load_vectors("protobuf_messages")["messages"]["noise_payload_with_muxers"]
    payload = NoisePayload.FromString(bytes.fromhex(message["hex"]))
    assert payload.extensions.stream_muxers == [b"/yamux/1.0.0"]
    assert payload.identity_sig == bytes(64)
    assert payload.SerializeToString().hex() == message["hex"]


# -- agreement --------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 100, 1 << 20])
@pytest.mark.parametrize("suite", NoiseSuite)
def test_both_sides_learn_who_the_other_is(suite: NoiseSuite, cut: int) -> None:
    ours, theirs = complete(*pair(suite, expected_peer=BOB.peer_id), cut=cut)
    assert ours.remote_peer == BOB.peer_id
    assert ours.remote_key == BOB.public_key
    assert theirs.remote_peer == ALICE.peer_id
    assert ours.handshake_hash == theirs.handshake_hash
    assert ours.muxer == theirs.muxer == "/yamux/1.0.0"
    for send, receive in (
        (ours.send_cipher, theirs.recv_cipher),
        (theirs.send_cipher, ours.recv_cipher),
    ):
        wire = bytearray()
        NoiseSender(send).encrypt_parts([b"hello"], wire)
        assert NoiseReceiver(receive).receive_data(wire) == [b"hello"]


def test_message_sizes_are_those_of_other_implementations() -> None:
    initiator, responder = pair()
    first = initiator.data_to_send()
    responder.receive_data(first)
    second = responder.data_to_send()
    initiator.receive_data(second)
    assert [len(first), len(second), len(initiator.data_to_send())] == [34, 218, 186]


def test_suites_do_not_understand_each_other() -> None:
    initiator = NoiseHandshake(ALICE, initiator=True, suite=NoiseSuite.AESGCM)
    responder = NoiseHandshake(BOB, initiator=False, suite=NoiseSuite.CHACHA)
    responder.receive_data(initiator.data_to_send())
    with pytest.raises(IntegrityError):
        initiator.receive_data(responder.data_to_send())


def test_suites_are_found_by_protocol_id() -> None:
    assert [suite.protocol_id for suite in NoiseSuite] == ["/sbp2p/noise-aesgcm/1.0.0", "/noise"]
    for suite in NoiseSuite:
        assert NoiseSuite.from_protocol_id(suite.protocol_id) is suite
    assert NoiseSuite.from_protocol_id("/tls/1.0.0") is None


@pytest.mark.parametrize(
    ("ours", "theirs", "muxer"),
    [
        (("/a", "/b"), ("/b", "/a"), "/a"),
        (("/a", "/b"), ("/b",), "/b"),
        (("/a",), ("/b",), None),
        ((), ("/a",), None),
        (("/a",), (), None),
    ],
)
def test_the_initiators_order_picks_the_muxer(
    ours: tuple[str, ...], theirs: tuple[str, ...], muxer: str | None
) -> None:
    initiator = NoiseHandshake(ALICE, initiator=True, muxers=ours)
    responder = NoiseHandshake(BOB, initiator=False, muxers=theirs)
    results = complete(initiator, responder)
    assert [result.muxer for result in results] == [muxer, muxer]


def test_an_endless_list_of_muxers_is_cut() -> None:
    many = [f"/m/{i}" for i in range(NOISE_MUXERS_MAX)]
    responder = NoiseHandshake(BOB, initiator=False, muxers=[*many, "/yamux/1.0.0"])
    initiator = NoiseHandshake(ALICE, initiator=True)
    responder.receive_data(initiator.data_to_send())
    initiator.receive_data(responder.data_to_send())
    assert initiator.done is not None
    assert initiator.done.muxer is None


def test_bytes_behind_the_handshake_are_handed_over() -> None:
    initiator, responder = pair()
    responder.receive_data(initiator.data_to_send())
    initiator.receive_data(responder.data_to_send())
    assert initiator.done is not None
    wire = bytearray(initiator.data_to_send())
    NoiseSender(initiator.done.send_cipher).encrypt_parts([b"early"], wire)
    responder.receive_data(wire)
    assert responder.done is not None
    receiver = NoiseReceiver(responder.done.recv_cipher)
    assert receiver.receive_data(responder.done.trailing) == [b"early"]


def test_nothing_secret_is_shown() -> None:
    ours, _ = complete(*pair())
    assert "cipher" not in repr(ours)
    assert repr(ours.send_cipher) == "<CipherState 0 messages>"


# -- refusal ----------------------------------------------------------------------------------


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(2, "big") + message


def responder_with_payload(payload: bytes | None = None, **changes: bytes) -> bytes:
    """What a responder sends that puts any payload into a correct message 2."""
    initiator = NoiseHandshake(ALICE, initiator=True, ephemeral_key=x25519("11" * 32))
    static = x25519("22" * 32)
    xx = XXHandshake(
        initiator=False,
        suite=NoiseSuite.CHACHA,
        static_key=static,
        ephemeral_key=x25519("33" * 32),
    )
    xx.read(initiator.data_to_send()[2:])
    if payload is None:
        signed = STATIC_KEY_DOMAIN + static.public_key().public_bytes_raw()
        payload = NoisePayload(
            identity_key=changes.get("identity_key", BOB.public_key.to_protobuf()),
            identity_sig=changes.get("identity_sig", BOB.sign(signed)),
        ).SerializeToString()
    return framed(xx.write(payload))


def receive_as_initiator(data: bytes, **kwargs: Any) -> NoiseHandshake:
    initiator = NoiseHandshake(ALICE, initiator=True, ephemeral_key=x25519("11" * 32), **kwargs)
    initiator.data_to_send()
    initiator.receive_data(data)
    return initiator


def test_the_helper_makes_messages_that_are_accepted() -> None:
    assert receive_as_initiator(responder_with_payload()).done is not None


def test_another_peer_than_the_expected_one() -> None:
    with pytest.raises(WrongPeerError) as caught:
        receive_as_initiator(responder_with_payload(), expected_peer=ALICE.peer_id)
    assert caught.value.expected == ALICE.peer_id
    assert caught.value.actual == BOB.peer_id


def test_a_responder_may_expect_a_peer_too() -> None:
    initiator = NoiseHandshake(ALICE, initiator=True)
    responder = NoiseHandshake(BOB, initiator=False, expected_peer=BOB.peer_id)
    with pytest.raises(WrongPeerError):
        complete(initiator, responder)


@pytest.mark.parametrize(
    "signature",
    [bytes(64), b"", BOB.sign(b"noise-libp2p-static-key:" + bytes(32)), ALICE.sign(b"")],
)
def test_an_identity_that_did_not_sign(signature: bytes) -> None:
    data = responder_with_payload(identity_sig=signature)
    with pytest.raises(IntegrityError, match="did not sign"):
        receive_as_initiator(data)


@pytest.mark.parametrize("key", [b"", b"\x08\x01", b"\x08\x09\x12\x20" + bytes(32)])
def test_an_identity_key_that_is_none(key: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="identity key"):
        receive_as_initiator(responder_with_payload(identity_key=key))


def test_the_obsolete_inner_length_prefix_is_named() -> None:
    static = x25519("22" * 32).public_key().public_bytes_raw()
    payload = NoisePayload(
        identity_key=BOB.public_key.to_protobuf(), identity_sig=BOB.sign(STATIC_KEY_DOMAIN + static)
    ).SerializeToString()
    data = responder_with_payload(framed(payload))
    assert len(data) == 2 + 202
    with pytest.raises(RemoteProtocolError, match="obsolete inner length"):
        receive_as_initiator(data)


def test_a_payload_that_is_no_protobuf() -> None:
    with pytest.raises(RemoteProtocolError, match="not a protobuf"):
        receive_as_initiator(responder_with_payload(b"\xff\xff\xff"))


# the order-8 points of Curve25519 that X25519 maps to zero, and zero itself
@pytest.mark.parametrize(
    "point",
    [
        "00" * 32,
        "01" + "00" * 31,
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    ],
)
def test_low_order_points_are_refused(point: str) -> None:
    responder = NoiseHandshake(BOB, initiator=False)
    with pytest.raises(RemoteProtocolError, match="low-order"):
        responder.receive_data(framed(bytes.fromhex(point)))
    initiator = NoiseHandshake(ALICE, initiator=True)
    with pytest.raises(RemoteProtocolError, match="low-order"):
        initiator.receive_data(framed(bytes.fromhex(point) + bytes(200)))


def test_oversized_messages_are_refused_from_their_length() -> None:
    responder = NoiseHandshake(BOB, initiator=False)
    with pytest.raises(RemoteProtocolError, match="8193 bytes"):
        responder.receive_data((NOISE_HANDSHAKE_MESSAGE_MAX + 1).to_bytes(2, "big"))


@pytest.mark.parametrize("size", [0, 31])
def test_short_messages_are_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="too short"):
        NoiseHandshake(BOB, initiator=False).receive_data(framed(bytes(size)))
    with pytest.raises(RemoteProtocolError, match="too short"):
        receive_as_initiator(framed(bytes(size)))


def test_a_payload_in_message_1_is_ignored() -> None:
    initiator = NoiseHandshake(ALICE, initiator=True, ephemeral_key=x25519("11" * 32))
    xx = XXHandshake(
        initiator=True,
        suite=NoiseSuite.CHACHA,
        static_key=x25519("22" * 32),
        ephemeral_key=x25519("11" * 32),
    )
    assert initiator.data_to_send() == framed(xx.write(b""))
    other = XXHandshake(
        initiator=True,
        suite=NoiseSuite.CHACHA,
        static_key=x25519("22" * 32),
        ephemeral_key=x25519("11" * 32),
    )
    responder = NoiseHandshake(BOB, initiator=False)
    responder.receive_data(framed(other.write(b"not a payload")))
    assert other.read(responder.data_to_send()[2:])


@pytest.mark.parametrize("position", [2, 40, 100, 217])
def test_any_changed_byte_is_noticed(position: int) -> None:
    initiator, responder = pair()
    responder.receive_data(initiator.data_to_send())
    message = bytearray(responder.data_to_send())
    message[position] ^= 1
    with pytest.raises(RemoteProtocolError):
        initiator.receive_data(message)
    with pytest.raises(RemoteProtocolError):
        initiator.receive_data(b"")
    assert initiator.done is None


def test_calls_out_of_turn_are_ours() -> None:
    initiator, responder = pair()
    complete(initiator, responder)
    with pytest.raises(LocalProtocolError):
        initiator.receive_data(b"x")
    xx = XXHandshake(
        initiator=True,
        suite=NoiseSuite.CHACHA,
        static_key=x25519("22" * 32),
        ephemeral_key=x25519("11" * 32),
    )
    with pytest.raises(LocalProtocolError):
        xx.read(b"")
    with pytest.raises(LocalProtocolError):
        xx.split()
    xx.write(b"")
    with pytest.raises(LocalProtocolError):
        xx.write(b"")


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=80), max_size=8), st.booleans(), st.booleans())
def test_garbage_raises_only_the_remote_error(
    chunks: list[bytes], initiator: bool, frame: bool
) -> None:
    machine = NoiseHandshake(ALICE, initiator=initiator)
    with contextlib.suppress(RemoteProtocolError):
        for chunk in chunks:
            machine.receive_data(framed(chunk) if frame else chunk)
    assert machine.done is None


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_garbage_payloads_raise_only_the_remote_error(payload: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        receive_as_initiator(responder_with_payload(payload))


@settings(max_examples=60)
@given(st.binary(max_size=100), st.binary(max_size=100))
def test_garbage_fields_raise_only_the_remote_error(key: bytes, signature: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        receive_as_initiator(responder_with_payload(identity_key=key, identity_sig=signature))

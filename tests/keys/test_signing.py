from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.errors import (
    BadDocumentError,
    BadEnvelopeError,
    BadSignatureError,
    KeysError,
    MissingSignaturesError,
)
from sbp2p_keys.identity import PrivateKey
from sbp2p_keys.limits import DOCUMENT_MAX, DOCUMENT_SIGNATURES_MAX, ENVELOPE_MAX
from sbp2p_keys.signing import Signature, SignedDocument, SignedEnvelope, is_domain
from tests.keys.own_vectors import load_own_vectors
from tests.vectors import load_vectors

DOCUMENTS = load_own_vectors("signed_document")
ENVELOPES = load_own_vectors("signed_envelope")
DOMAIN = "sbp2p-test"
KEYS = [PrivateKey.from_seed(bytes([n]) * 32) for n in range(1, 6)]

seeds = st.binary(min_size=32, max_size=32)
domains = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=64)

# -- envelopes -------------------------------------------------------------------------------------


def test_peer_record_vector() -> None:
    vector = load_vectors("signed_peer_record")
    envelope = SignedEnvelope.from_bytes(bytes.fromhex(vector["envelope"]))
    key = PrivateKey.from_protobuf(bytes.fromhex(vector["private_key_protobuf"]))
    assert envelope.payload_type.hex() == vector["payload_type"]
    assert envelope.payload.hex() == vector["payload"]
    assert envelope.signature.hex() == vector["signature"]
    assert envelope.verify(vector["domain_ascii"]) == key.public_key
    assert key.peer_id.to_bytes().hex() == vector["decoded"]["peer_id"]
    assert key.sign(bytes.fromhex(vector["signed_buffer"])) == envelope.signature
    sealed = SignedEnvelope.seal(
        key, vector["domain_ascii"], envelope.payload_type, envelope.payload
    )
    assert sealed.to_bytes().hex() == vector["envelope"]
    with pytest.raises(BadSignatureError):
        envelope.verify("libp2p-relay-rsvp")


@pytest.mark.parametrize("name", ENVELOPES["valid"])
def test_envelope_vectors(name: str) -> None:
    case = ENVELOPES["valid"][name]
    key = PrivateKey.from_seed(bytes.fromhex(case["seed"]))
    sealed = SignedEnvelope.seal(
        key, case["domain"], bytes.fromhex(case["payload_type"]), bytes.fromhex(case["payload"])
    )
    assert sealed.to_bytes().hex() == case["envelope"]
    assert sealed.signature.hex() == case["signature"]
    key.public_key.verify(sealed.signature, bytes.fromhex(case["signed_bytes"]))
    assert SignedEnvelope.from_bytes(sealed.to_bytes()) == sealed


@pytest.mark.parametrize("name", ENVELOPES["bad_encoding"])
def test_bad_envelopes(name: str) -> None:
    with pytest.raises(BadEnvelopeError):
        SignedEnvelope.from_bytes(bytes.fromhex(ENVELOPES["bad_encoding"][name]))


def test_envelope_skips_unknown_fields_as_libp2p_does() -> None:
    envelope = SignedEnvelope.from_bytes(bytes.fromhex(ENVELOPES["unknown_fields_skipped"]))
    assert envelope.verify(ENVELOPES["valid"]["typed"]["domain"]) == KEYS[0].public_key


def test_envelope_size_is_bounded() -> None:
    with pytest.raises(BadEnvelopeError, match="longer"):
        SignedEnvelope.seal(KEYS[0], DOMAIN, b"", bytes(ENVELOPE_MAX))
    with pytest.raises(BadEnvelopeError, match="longer"):
        SignedEnvelope.from_bytes(bytes(ENVELOPE_MAX + 1))


@given(seeds, domains, st.binary(max_size=20), st.binary(max_size=200), st.data())
def test_envelope_round_trip(
    seed: bytes, domain: str, payload_type: bytes, payload: bytes, data: st.DataObject
) -> None:
    sealed = SignedEnvelope.seal(PrivateKey.from_seed(seed), domain, payload_type, payload)
    encoded = sealed.to_bytes()
    opened = SignedEnvelope.from_bytes(memoryview(encoded))
    assert opened == sealed
    assert opened.verify(domain) == PrivateKey.from_seed(seed).public_key
    other = data.draw(domains.filter(lambda text: text != domain))
    with pytest.raises(BadSignatureError):
        opened.verify(other)


def test_bytes_do_not_move_between_type_and_payload() -> None:
    sealed = SignedEnvelope.seal(KEYS[0], DOMAIN, b"ab", b"c")
    moved = SignedEnvelope(sealed.public_key, b"a", b"bc", sealed.signature)
    with pytest.raises(BadSignatureError):
        moved.verify(DOMAIN)


# -- domains ---------------------------------------------------------------------------------------

LIBP2P_BARE_PREFIXES = [
    "noise-libp2p-static-key:",
    "libp2p-tls-handshake:",
    "ipns-signature:",
    "libp2p-pubsub:",
]


@pytest.mark.parametrize("domain", ["", "with space", "d" * 65, "\xe9", "a\nb", "\x7f"])
def test_bad_domains(domain: str) -> None:
    assert not is_domain(domain)
    with pytest.raises(ValueError, match="not a domain"):
        SignedEnvelope.seal(KEYS[0], domain, b"", b"")
    with pytest.raises(BadDocumentError, match="not a domain"):
        SignedDocument(domain, b"")


@given(domains)
def test_nothing_signed_here_begins_like_a_bare_libp2p_prefix(domain: str) -> None:
    assert all(len(domain.encode()) < ord(prefix[0]) for prefix in LIBP2P_BARE_PREFIXES)


# -- documents -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS["valid"])
def test_document_vectors(name: str) -> None:
    case = DOCUMENTS["valid"][name]
    document = SignedDocument(case["domain"], bytes.fromhex(case["payload"]))
    for seed in case["seeds"]:
        document = document.sign(PrivateKey.from_seed(bytes.fromhex(seed)))
    assert document.to_bytes().hex() == case["document"]
    assert [str(item.public_key.peer_id) for item in document.signatures] == case["signers"]
    assert [item.signature.hex() for item in document.signatures] == case["signatures"]
    for item in document.signatures:
        item.public_key.verify(item.signature, bytes.fromhex(case["signed_bytes"]))
    opened = SignedDocument.from_bytes(bytes.fromhex(case["document"]), domain=case["domain"])
    assert opened == document
    assert {str(peer) for peer in opened.signers()} == set(case["signers"])


@pytest.mark.parametrize("name", DOCUMENTS["bad_encoding"])
def test_bad_documents(name: str) -> None:
    with pytest.raises(BadDocumentError):
        SignedDocument.from_bytes(bytes.fromhex(DOCUMENTS["bad_encoding"][name]))


@pytest.mark.parametrize("name", DOCUMENTS["bad_signature"])
def test_bad_document_signatures(name: str) -> None:
    document = SignedDocument.from_bytes(bytes.fromhex(DOCUMENTS["bad_signature"][name]))
    with pytest.raises(BadSignatureError):
        document.signers()
    with pytest.raises(BadSignatureError):
        document.require([item.public_key.peer_id for item in document.signatures])


def test_document_of_another_domain() -> None:
    encoded = SignedDocument(DOMAIN, b"payload").to_bytes()
    with pytest.raises(BadDocumentError, match="sbp2p-other"):
        SignedDocument.from_bytes(encoded, domain="sbp2p-other")


def test_signing_again_replaces() -> None:
    document = SignedDocument(DOMAIN, b"payload").sign(KEYS[0]).sign(KEYS[1])
    assert document.sign(KEYS[0]) == document
    bad = Signature(KEYS[0].public_key, bytes(64))
    broken = SignedDocument(DOMAIN, b"payload", (bad,))
    assert broken.sign(KEYS[0]).signers() == {KEYS[0].peer_id}


def test_order_of_signing_does_not_matter() -> None:
    forward = backward = SignedDocument(DOMAIN, b"payload")
    for key in KEYS:
        forward = forward.sign(key)
    for key in reversed(KEYS):
        backward = backward.sign(key)
    assert forward.to_bytes() == backward.to_bytes()


@pytest.mark.parametrize(
    ("signed_by", "allowed", "threshold", "accepted"),
    [
        ([0], [0], 1, True),
        ([0, 1], [0, 1, 2], 2, True),
        ([0, 1, 2], [0, 1], 2, True),
        ([], [0], 1, False),
        ([1], [0], 1, False),
        ([0, 3, 4], [0, 1, 2], 2, False),
        ([0], [0, 0], 2, False),  # naming a key twice does not make it two
        ([0], [], 1, False),
    ],
)
def test_m_of_n(signed_by: list[int], allowed: list[int], threshold: int, accepted: bool) -> None:
    document = SignedDocument(DOMAIN, b"payload")
    for index in signed_by:
        document = document.sign(KEYS[index])
    peers = [KEYS[index].peer_id for index in allowed]
    if accepted:
        expected = {KEYS[index].peer_id for index in signed_by if index in allowed}
        assert document.require(peers, threshold) == expected
    else:
        with pytest.raises(MissingSignaturesError, match=f"{threshold} needed"):
            document.require(peers, threshold)


@pytest.mark.parametrize("threshold", [0, -1])
def test_threshold_that_requires_nothing(threshold: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SignedDocument(DOMAIN, b"").require([], threshold)


def test_document_bounds() -> None:
    document = SignedDocument(DOMAIN, b"")
    for n in range(DOCUMENT_SIGNATURES_MAX):
        document = document.sign(PrivateKey.from_seed(n.to_bytes(32, "big")))
    assert SignedDocument.from_bytes(document.to_bytes()) == document
    assert len(document.signers()) == DOCUMENT_SIGNATURES_MAX
    with pytest.raises(BadDocumentError, match="more than 64"):
        document.sign(KEYS[0])
    with pytest.raises(BadDocumentError, match="longer"):
        SignedDocument(DOMAIN, bytes(DOCUMENT_MAX)).to_bytes()
    with pytest.raises(BadDocumentError, match="longer"):
        SignedDocument.from_bytes(bytes(DOCUMENT_MAX + 1))


@pytest.mark.parametrize(
    "unit", ["1a00", "1a020a00", "0a00", "1200", "1a021200", "2200", "1a80808000"]
)
def test_many_empty_fields_are_counted_before_they_are_parsed(unit: str) -> None:
    data = SignedDocument(DOMAIN, b"").to_bytes() + bytes.fromhex(unit) * 100_000
    with pytest.raises(BadDocumentError, match=r"more than|not a signed document"):
        SignedDocument.from_bytes(data)


_PEAK = """
import resource, sys
from contextlib import suppress
from sbp2p_keys.errors import KeysError
from sbp2p_keys.limits import DOCUMENT_MAX
from sbp2p_keys.signing import SignedDocument
data = bytes.fromhex(sys.argv[1]) * (DOCUMENT_MAX // (len(sys.argv[1]) // 2))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with suppress(KeysError):
    SignedDocument.from_bytes(data)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("unit", ["1a00", "0a00", "1a02" + "0a00", "1aff7f" + "0a00" * 8191 + "08"])
def test_a_document_costs_no_more_memory_than_it_has_bytes(unit: str) -> None:
    path = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, unit],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        check=True,
        text=True,
    )
    assert int(done.stdout) < 4 * DOCUMENT_MAX // 1024  # KiB


@given(domains, st.binary(max_size=200), st.lists(seeds, max_size=4))
def test_document_round_trip(domain: str, payload: bytes, signing: list[bytes]) -> None:
    document = SignedDocument(domain, payload)
    for seed in signing:
        document = document.sign(PrivateKey.from_seed(seed))
    opened = SignedDocument.from_bytes(memoryview(document.to_bytes()), domain=domain)
    assert opened == document
    assert opened.signers() == {PrivateKey.from_seed(seed).peer_id for seed in signing}


# -- garbage ---------------------------------------------------------------------------------------


def parse_and_check(kind: Any, data: bytes) -> None:
    """Read and verify; anything but a KeysError is a bug, and so is a second encoding."""
    try:
        value = kind.from_bytes(data)
        if isinstance(value, SignedDocument):
            assert value.to_bytes() == data
            value.signers()
        else:
            value.verify(DOMAIN)
    except KeysError:
        return


@given(st.sampled_from([SignedEnvelope, SignedDocument]), st.binary(max_size=300))
def test_garbage_raises_only_keys_errors(kind: Any, data: bytes) -> None:
    parse_and_check(kind, data)


@given(st.sampled_from([SignedEnvelope, SignedDocument]), st.data())
def test_damage_raises_only_keys_errors(kind: Any, data: st.DataObject) -> None:
    if kind is SignedEnvelope:
        encoded = bytearray(SignedEnvelope.seal(KEYS[0], DOMAIN, b"t", b"payload").to_bytes())
    else:
        encoded = bytearray(
            SignedDocument(DOMAIN, b"payload").sign(KEYS[0]).sign(KEYS[1]).to_bytes()
        )
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    parse_and_check(kind, bytes(encoded))


def test_every_prefix_raises_only_keys_errors() -> None:
    document = SignedDocument(DOMAIN, b"payload").sign(KEYS[0]).to_bytes()
    envelope = SignedEnvelope.seal(KEYS[0], DOMAIN, b"t", b"payload").to_bytes()
    for cut in range(len(document)):
        parse_and_check(SignedDocument, document[:cut])
    for cut in range(len(envelope)):
        with pytest.raises(KeysError):
            SignedEnvelope.from_bytes(envelope[:cut]).verify(DOMAIN)

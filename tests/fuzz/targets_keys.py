"""Targets of the keys layer: self-describing bytes, identities, signatures, files."""

from __future__ import annotations

import base64
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from sbp2p_keys.errors import BadEncodingError, BadSignatureError, FileError, KeysError
from sbp2p_keys.identity import KeyType, PeerId, PrivateKey, PublicKey
from sbp2p_keys.keyfile import load_private_key
from sbp2p_keys.limits import DOCUMENT_SIGNATURES_MAX, MULTIHASH_DIGEST_MAX
from sbp2p_keys.multi import (
    SHA2_256,
    base58btc_decode,
    base58btc_encode,
    decode_uvarint,
    encode_uvarint,
    multibase_decode,
    multibase_encode,
    multihash_decode,
    multihash_encode,
)
from sbp2p_keys.signing import SignedDocument, SignedEnvelope
from sbp2p_keys.trust import TrustStore

from .corpus import KEYS, field_bytes, hex_bytes, strings, texts, vectors, write_scratch
from .engine import Target
from .expect import Refused, attempt, error_text, expect, expect_equal, text_of
from .structure import json_text, protobuf

DOMAIN: Final = "sbp2p-test"
PASSPHRASE: Final = b"correct horse"
_ROUNDS: Final = bytes.fromhex("02020800")
"""2,048 rounds of PBKDF2, as `cryptography` writes them: more would fuzz the system's library."""

# -- self-describing bytes -------------------------------------------------------------------------


def _uvarint(data: bytes) -> None:
    parsed = attempt(BadEncodingError, decode_uvarint, data)
    if not isinstance(parsed, Refused):
        value, end = parsed
        expect(value < 1 << 63, "a varint over 63 bits")
        expect_equal(encode_uvarint(value), data[:end], "encoded again")
    for offset in range(1, min(len(data), 12)):
        again = attempt(BadEncodingError, decode_uvarint, memoryview(data), offset)
        expect_equal(again, _shifted(data, offset), "read at an offset")


def _shifted(data: bytes, offset: int) -> tuple[int, int] | Refused:
    parsed = attempt(BadEncodingError, decode_uvarint, data[offset:])
    return parsed if isinstance(parsed, Refused) else (parsed[0], parsed[1] + offset)


def _multibase(data: bytes) -> None:
    text = text_of(data)
    parsed = attempt(BadEncodingError, multibase_decode, text)
    if not isinstance(parsed, Refused):
        again = multibase_encode(text[0], parsed)
        same = again.lower() == text.lower() if text[0] in "fFvVtTbBcCkK" else again == text
        expect(same, f"{text!r} is not canonical: {again!r}")


def _base58(data: bytes) -> None:
    parsed = attempt(BadEncodingError, base58btc_decode, text_of(data))
    if not isinstance(parsed, Refused):
        expect_equal(base58btc_encode(parsed), text_of(data), "encoded again")
    expect_equal(base58btc_decode(base58btc_encode(data[:512])), data[:512], "round trip")


def _multihash(data: bytes) -> None:
    parsed = attempt(BadEncodingError, multihash_decode, data)
    if not isinstance(parsed, Refused):
        expect(len(parsed[1]) <= MULTIHASH_DIGEST_MAX, "the digest is too long")
        expect_equal(multihash_encode(*parsed), data, "encoded again")


def _varint_seeds() -> list[bytes]:
    return [encode_uvarint((1 << bits) - 1) for bits in range(0, 64, 7)] + [b"\x80" * 9]


def _multibase_seeds() -> list[bytes]:
    payloads = (b"", b"\0\0a", bytes(range(40)))
    return [
        multibase_encode(code, payload).encode()
        for code in "fFvVtTbBcCkKzmMuU"
        for payload in payloads
    ]


# -- identities ------------------------------------------------------------------------------------


def _check_key(key: PublicKey, encoded: bytes) -> None:
    expect_equal(key.to_protobuf(), encoded, "encoded again")
    expect(key.peer_id.matches(key), "a key does not match its own id")
    expect_equal(PeerId.parse(str(key.peer_id)), key.peer_id, "text form")
    for signature in (b"", bytes(64), encoded):
        expect(
            isinstance(attempt(BadSignatureError, key.verify, signature, b"message"), Refused),
            "a signature that nobody made",
        )


def _public_key(data: bytes) -> None:
    key = attempt(KeysError, PublicKey.from_protobuf, data)
    if not isinstance(key, Refused):
        _check_key(key, data)
    # the key inside, under the protobuf of each type
    for key_type in KeyType:
        inner = attempt(KeysError, PublicKey, key_type, data)
        if not isinstance(inner, Refused) and len(data) < 1500:
            _check_key(PublicKey.from_protobuf(inner.to_protobuf()), inner.to_protobuf())


def _private_key(data: bytes) -> None:
    key = attempt(KeysError, PrivateKey.from_protobuf, data)
    if not isinstance(key, Refused):
        encoded = key.to_protobuf()
        # the old form of 96 bytes, with the public half twice, is read and not written
        expect(encoded == data or len(data) == len(encoded) + 32, "another encoding of a key")
        key.public_key.verify(key.sign(b"message"), b"message")


def _check_peer_id(peer_id: PeerId) -> None:
    expect_equal(PeerId.from_bytes(peer_id.to_bytes()), peer_id, "binary form")
    for text in (str(peer_id), peer_id.to_cid_text(), peer_id.to_cid_text("b")):
        expect_equal(PeerId.parse(text), peer_id, "text form")
    key = peer_id.public_key()
    expect(key is None or peer_id.matches(key), "an id that does not match its own key")


def _peer_id(data: bytes) -> None:
    peer_id = attempt(KeysError, PeerId.from_bytes, data)
    if not isinstance(peer_id, Refused):
        expect_equal(peer_id.to_bytes(), data, "encoded again")
        _check_peer_id(peer_id)


def _peer_id_text(data: bytes) -> None:
    peer_id = attempt(KeysError, PeerId.parse, text_of(data))
    if not isinstance(peer_id, Refused):
        _check_peer_id(peer_id)


def public_keys() -> list[bytes]:
    """Return the protobuf of a valid key of each type. The RSA and EC ones are fixed points."""
    curve = ec.derive_private_key(7, ec.SECP256R1()).public_key()
    point = ec.derive_private_key(7, ec.SECP256K1()).public_key()
    # a modulus needs no factors to be read, and a fixed one needs no time to be found
    modulus = rsa.RSAPublicNumbers(65537, (1 << 2047) + 12345).public_key()
    spki = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    compressed = point.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    keys = [
        KEYS[0].public_key,
        PublicKey(KeyType.SECP256K1, compressed),
        PublicKey(KeyType.ECDSA, curve.public_bytes(*spki)),
        PublicKey(KeyType.RSA, modulus.public_bytes(*spki)),
    ]
    return [key.to_protobuf() for key in keys]


def _public_key_seeds() -> list[bytes]:
    bad = hex_bytes(vectors("keys", "identity")["bad_public_keys"])
    return [*public_keys(), *(PublicKey.from_protobuf(key).raw for key in public_keys()), *bad]


def _private_key_seeds() -> list[bytes]:
    key = KEYS[0].to_protobuf()
    old = b"\x08\x01\x12\x60" + key[4:] + KEYS[0].public_key.raw
    return [key, old]


def _peer_id_seeds() -> list[bytes]:
    ids = [PublicKey.from_protobuf(key).peer_id.to_bytes() for key in public_keys()]
    return [*ids, *hex_bytes(vectors("keys", "identity")["bad_peer_ids"])]


def _peer_id_text_seeds() -> list[bytes]:
    ids = [PublicKey.from_protobuf(key).peer_id for key in public_keys()]
    good = [text.encode() for one in ids for text in (str(one), one.to_cid_text())]
    bases = [ids[0].to_cid_text(base).encode() for base in "bBfFzmu"]
    return [*good, *bases, *texts(vectors("keys", "identity")["bad_peer_id_texts"])]


# -- signatures ------------------------------------------------------------------------------------


def _envelope(data: bytes) -> None:
    envelope = attempt(KeysError, SignedEnvelope.from_bytes, data)
    if not isinstance(envelope, Refused):
        # unknown fields are dropped, so only the second encoding has to be the same again
        expect_equal(SignedEnvelope.from_bytes(envelope.to_bytes()), envelope, "read again")
        attempt(BadSignatureError, envelope.verify, DOMAIN)


def _signed_document(data: bytes) -> None:
    document = attempt(KeysError, SignedDocument.from_bytes, data)
    if isinstance(document, Refused):
        return
    expect(len(document.signatures) <= DOCUMENT_SIGNATURES_MAX, "too many signatures")
    expect_equal(document.to_bytes(), data, "encoded again")
    signers = attempt(KeysError, document.signers)
    if not isinstance(signers, Refused):
        expect_equal(len(signers), len(document.signatures), "signers")
        attempt(KeysError, document.require, signers, 2)
        expect(KEYS[2].peer_id in document.sign(KEYS[2]).signers(), "signed and not a signer")


def _envelope_seeds() -> list[bytes]:
    found = vectors("keys", "signed_envelope")
    mine = [SignedEnvelope.seal(key, DOMAIN, b"\x03\x01", b"hello").to_bytes() for key in KEYS]
    return [*mine, *field_bytes(found, "envelope"), *hex_bytes(found["bad_encoding"])]


def _document_seeds() -> list[bytes]:
    found = vectors("keys", "signed_document")
    bad = [*hex_bytes(found["bad_encoding"]), *hex_bytes(found["bad_signature"])]
    return [*field_bytes(found, "document"), *bad]


# -- files -----------------------------------------------------------------------------------------


def _key_file(data: bytes) -> None:
    path = write_scratch("key.pem", data)
    quick = b"ENCRYPTED" in data and _ROUNDS in _loose_base64(data)
    try:
        key = load_private_key(path, PASSPHRASE if quick else None)
    except FileError as error:
        # the path is the caller's; what else is in the message is ours
        error_text(type(error)(str(error).replace(str(path), "key.pem")))
    else:
        key.public_key.verify(key.sign(b"message"), b"message")


def _loose_base64(data: bytes) -> bytes:
    """Decode what is in the middle of a PEM file, without any strictness."""
    body = data.partition(b"KEY-----")[2].partition(b"-----END")[0]
    try:
        return base64.b64decode(body)
    except ValueError:
        return b""


def _key_file_seeds() -> list[bytes]:
    found = vectors("keys", "key_file")
    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))
    other = ec.derive_private_key(7, ec.SECP256R1())
    pem, pkcs8 = Encoding.PEM, PrivateFormat.PKCS8
    return [
        *(text.encode() for text in strings([found["plain"], found["encrypted"]])),
        key.private_bytes(pem, pkcs8, BestAvailableEncryption(PASSPHRASE)),
        other.private_bytes(pem, pkcs8, NoEncryption()),
        other.private_bytes(pem, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
        key.private_bytes(pem, PrivateFormat.OpenSSH, NoEncryption()),
    ]


def _trust_store(data: bytes) -> None:
    store = attempt(KeysError, TrustStore.from_bytes, data)
    if isinstance(store, Refused):
        return
    encoded = store.to_bytes()
    expect_equal(TrustStore.from_bytes(encoded), store, "read again")
    for name in [*store.pins, "other"]:
        for key in KEYS:
            decision = store.check(key.peer_id, name, 1000.0)
            expect(bool(decision.reason), "a decision without a reason")


def _trust_seeds() -> list[bytes]:
    found = vectors("keys", "trust_store")
    return [found["text"].encode(), *texts(found["bad"]), TrustStore().to_bytes()]


TARGETS: Final = (
    Target(
        name="uvarint",
        modules=("sbp2p_keys.multi",),
        check=_uvarint,
        seeds=_varint_seeds,
        max_size=16,
    ),
    Target(
        name="multibase",
        modules=("sbp2p_keys.multi",),
        check=_multibase,
        seeds=_multibase_seeds,
        tokens=tuple(code.encode() for code in "fFvVtTbBcCkKzmMuU="),
    ),
    Target(
        name="base58",
        modules=("sbp2p_keys.multi",),
        check=_base58,
        seeds=lambda: [base58btc_encode(key).encode() for key in public_keys()],
        max_size=1100,
        test_runs=100,
    ),
    Target(
        name="multihash",
        modules=("sbp2p_keys.multi",),
        check=_multihash,
        seeds=lambda: [*_peer_id_seeds(), multihash_encode(SHA2_256, bytes(128))],
        max_size=200,
    ),
    Target(
        name="public_key",
        modules=("sbp2p_keys.identity", "sbp2p_keys._verifiers"),
        check=_public_key,
        seeds=_public_key_seeds,
        mutations=(protobuf,),
        max_size=3000,
    ),
    Target(
        name="private_key",
        modules=("sbp2p_keys.identity",),
        check=_private_key,
        seeds=_private_key_seeds,
        mutations=(protobuf,),
    ),
    Target(
        name="peer_id",
        modules=("sbp2p_keys.identity",),
        check=_peer_id,
        seeds=_peer_id_seeds,
        max_size=200,
    ),
    Target(
        name="peer_id_text",
        modules=("sbp2p_keys.identity",),
        check=_peer_id_text,
        seeds=_peer_id_text_seeds,
        max_size=1100,
    ),
    Target(
        name="envelope",
        modules=("sbp2p_keys.signing",),
        check=_envelope,
        seeds=_envelope_seeds,
        mutations=(protobuf,),
    ),
    Target(
        name="signed_document",
        modules=("sbp2p_keys.signing",),
        check=_signed_document,
        seeds=_document_seeds,
        mutations=(protobuf,),
        max_size=16 * 1024,
        test_runs=150,
    ),
    Target(
        name="key_file",
        modules=("sbp2p_keys.keyfile", "sbp2p_keys._files"),
        check=_key_file,
        seeds=_key_file_seeds,
        tokens=(b"-----BEGIN ", b"-----END ", b"PRIVATE KEY-----", b"ENCRYPTED ", b"\n", b"="),
        test_runs=60,
    ),
    Target(
        name="trust_store",
        modules=("sbp2p_keys.trust",),
        check=_trust_store,
        seeds=_trust_seeds,
        mutations=(json_text,),
        tokens=(b'"since"', b'"until"', b'"*"', b"\\ud800", b"NaN", b"1e999", b"-0", b"[" * 2000),
        max_size=8192,
    ),
)

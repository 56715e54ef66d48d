from __future__ import annotations

import copy

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_private_key,
)
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.errors import (
    BadKeyError,
    BadPeerIdError,
    BadSignatureError,
    KeysError,
    UnsupportedKeyTypeError,
)
from sbp2p_keys.identity import KeyType, PeerId, PrivateKey, PublicKey
from tests.keys.own_vectors import load_own_vectors
from tests.vectors import load_vectors

OWN = load_own_vectors("identity")
TYPES = ["ed25519", "secp256k1", "ecdsa", "rsa"]
KEY = PrivateKey.from_seed(bytes(range(32)))


# -- published vectors -----------------------------------------------------------------------------


def key_bytes(name: str) -> bytes:
    return bytes.fromhex(load_vectors("peer_ids")["keys_protobuf_hex"][name])


@pytest.mark.parametrize("key_type", TYPES)
def test_public_key_vectors(key_type: str) -> None:
    encoded = key_bytes(f"{key_type}_public")
    key = PublicKey.from_protobuf(memoryview(encoded))
    assert key.key_type is KeyType[key_type.upper()]
    assert key.to_protobuf() == encoded


@pytest.mark.parametrize("key_type", TYPES)
def test_peer_id_vectors(key_type: str) -> None:
    expected = load_vectors("peer_ids")["derived"][key_type]
    key = PublicKey.from_protobuf(key_bytes(f"{key_type}_public"))
    peer_id = key.peer_id
    assert peer_id.to_bytes().hex() == expected["peer_id_multihash_hex"]
    assert str(peer_id) == expected["peer_id_base58btc"]
    assert peer_id.to_cid_text("b") == expected["peer_id_cidv1_base32"]
    assert peer_id.to_cid_text() == expected["peer_id_cidv1_base36"]
    for form in ("base58btc", "cidv1_base32", "cidv1_base36"):
        assert PeerId.parse(expected[f"peer_id_{form}"]) == peer_id
    assert peer_id.matches(key)
    assert peer_id.public_key() == (key if key_type in ("ed25519", "secp256k1") else None)


def test_peer_id_text_pairs() -> None:
    for pair in load_vectors("peer_ids")["text_form_pairs"]:
        peer_id = PeerId.from_bytes(bytes.fromhex(pair["multihash_hex"]))
        assert PeerId.parse(pair["cidv1"]) == PeerId.parse(pair["base58"]) == peer_id


def test_private_key_vectors() -> None:
    encoded = key_bytes("ed25519_private")
    key = PrivateKey.from_protobuf(encoded)
    assert key.to_protobuf() == encoded
    assert key.public_key.to_protobuf() == key_bytes("ed25519_public")
    for key_type in ("secp256k1", "ecdsa", "rsa"):
        with pytest.raises(UnsupportedKeyTypeError, match="Ed25519"):
            PrivateKey.from_protobuf(key_bytes(f"{key_type}_private"))


def test_foreign_key_types_verify() -> None:
    message = b"signed by others"
    scalar = int.from_bytes(key_bytes("secp256k1_private")[4:], "big")
    curve_key = ec.derive_private_key(scalar, ec.SECP256K1())
    check_verifies("secp256k1", curve_key.sign(message, ec.ECDSA(SHA256())), message)
    nist_key = load_der_private_key(key_bytes("ecdsa_private")[4:], None)
    assert isinstance(nist_key, ec.EllipticCurvePrivateKey)
    check_verifies("ecdsa", nist_key.sign(message, ec.ECDSA(SHA256())), message)
    rsa_key = load_der_private_key(key_bytes("rsa_private")[5:], None)
    assert isinstance(rsa_key, rsa.RSAPrivateKey)
    check_verifies("rsa", rsa_key.sign(message, padding.PKCS1v15(), SHA256()), message)


def check_verifies(key_type: str, signature: bytes, message: bytes) -> None:
    key = PublicKey.from_protobuf(key_bytes(f"{key_type}_public"))
    key.verify(signature, message)
    with pytest.raises(BadSignatureError):
        key.verify(signature, message + b"!")
    with pytest.raises(BadSignatureError):
        key.verify(b"", message)


# -- own vectors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OWN["bad_public_keys"])
def test_bad_public_keys(name: str) -> None:
    with pytest.raises(BadKeyError):
        PublicKey.from_protobuf(bytes.fromhex(OWN["bad_public_keys"][name]))


@pytest.mark.parametrize("name", OWN["bad_peer_ids"])
def test_bad_peer_ids(name: str) -> None:
    with pytest.raises(BadPeerIdError):
        PeerId.from_bytes(bytes.fromhex(OWN["bad_peer_ids"][name]))


@pytest.mark.parametrize("name", OWN["bad_peer_id_texts"])
def test_bad_peer_id_texts(name: str) -> None:
    with pytest.raises(BadPeerIdError):
        PeerId.parse(OWN["bad_peer_id_texts"][name])


# -- bounds of the DER types -----------------------------------------------------------------------


def der(key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def test_rsa_keys_are_bounded() -> None:
    modulus = (1 << 2047) + 1
    PublicKey(KeyType.RSA, der(rsa.RSAPublicNumbers(65537, modulus).public_key()))
    with pytest.raises(BadKeyError, match="exponent"):
        PublicKey(KeyType.RSA, der(rsa.RSAPublicNumbers(2**31 + 1, modulus).public_key()))
    for bits in (1024, 8193):
        numbers = rsa.RSAPublicNumbers(65537, (1 << (bits - 1)) + 1)
        with pytest.raises(BadKeyError, match="bits"):
            PublicKey(KeyType.RSA, der(numbers.public_key()))


def test_longest_rsa_key_fits() -> None:
    numbers = rsa.RSAPublicNumbers(65537, (1 << 8191) + 1)
    key = PublicKey(KeyType.RSA, der(numbers.public_key()))
    assert PublicKey.from_protobuf(key.to_protobuf()) == key


def test_ecdsa_curves_are_limited() -> None:
    for curve in (ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()):
        PublicKey(KeyType.ECDSA, der(ec.generate_private_key(curve).public_key()))
    with pytest.raises(BadKeyError, match="NIST"):
        PublicKey(KeyType.ECDSA, der(ec.generate_private_key(ec.SECP256K1()).public_key()))


def test_public_key_of_any_length_is_bounded() -> None:
    with pytest.raises(BadKeyError, match="too long"):
        PublicKey.from_protobuf(bytes(2049))


# -- private keys ----------------------------------------------------------------------------------


def test_sign_and_verify() -> None:
    signature = KEY.sign(bytearray(b"message"))
    KEY.public_key.verify(memoryview(signature), b"message")
    for other in (b"Message", b""):
        with pytest.raises(BadSignatureError, match=str(KEY.peer_id)):
            KEY.public_key.verify(signature, other)
    with pytest.raises(BadSignatureError):
        PrivateKey.generate().public_key.verify(signature, b"message")
    with pytest.raises(BadSignatureError, match="too long"):
        KEY.public_key.verify(bytes(1025), b"message")


def test_private_key_forms() -> None:
    assert PrivateKey.from_seed(KEY.to_seed()) == KEY
    assert PrivateKey.from_protobuf(KEY.to_protobuf()) == KEY
    assert hash(PrivateKey.from_seed(KEY.to_seed())) == hash(KEY)
    assert PrivateKey.generate() != PrivateKey.generate()
    assert KEY.to_seed() != KEY


def test_private_key_of_old_go_with_the_public_key_twice() -> None:
    seed, public = KEY.to_seed(), KEY.public_key.raw
    head = bytes.fromhex("08011260")
    assert PrivateKey.from_protobuf(head + seed + public + public) == KEY
    with pytest.raises(BadKeyError):
        PrivateKey.from_protobuf(head + seed + public + bytes(32))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        KEY.to_protobuf()[:-1],
        KEY.to_protobuf() + b"\x18\x01",
        bytes.fromhex("08011240") + KEY.to_seed() + bytes(32),  # not its public key
        bytes.fromhex("08011220") + KEY.to_seed(),
    ],
)
def test_bad_private_keys(data: bytes) -> None:
    with pytest.raises(BadKeyError):
        PrivateKey.from_protobuf(data)


def test_bad_seed() -> None:
    with pytest.raises(BadKeyError, match="32 bytes"):
        PrivateKey.from_seed(bytes(31))


def test_the_secret_does_not_show() -> None:
    seed = KEY.to_seed()
    for text in (repr(KEY), str(KEY), f"{KEY}", repr([KEY])):
        assert seed.hex() not in text
        assert repr(seed) not in text
        assert str(KEY.peer_id) in text
    with pytest.raises(TypeError, match="not pickled"):  # what pickle would do, too
        copy.copy(KEY)


# -- values ----------------------------------------------------------------------------------------


def test_public_keys_and_peer_ids_are_values() -> None:
    key = PublicKey.from_protobuf(KEY.public_key.to_protobuf())
    assert key == KEY.public_key
    assert len({key, KEY.public_key, PublicKey.from_protobuf(key.to_protobuf())}) == 1
    assert copy.deepcopy(key) == key
    assert eval(repr(key.peer_id), {"PeerId": PeerId}) == key.peer_id  # noqa: S307  # a repr
    assert key.peer_id.short() == str(key.peer_id)[-6:]


def test_peer_ids_are_ordered_by_their_bytes() -> None:
    peers = [PrivateKey.generate().peer_id for _ in range(20)]
    assert sorted(peers) == sorted(peers, key=PeerId.to_bytes)


# -- round trips and garbage -----------------------------------------------------------------------


@given(st.binary(min_size=32, max_size=32), st.sampled_from("fFvVtTbBcCkKzmMuU"))
def test_peer_id_round_trips(seed: bytes, base: str) -> None:
    peer_id = PrivateKey.from_seed(seed).peer_id
    assert PeerId.from_bytes(memoryview(peer_id.to_bytes())) == peer_id
    assert PeerId.parse(str(peer_id)) == peer_id
    assert PeerId.parse(peer_id.to_cid_text(base)) == peer_id
    assert str(peer_id).startswith("12D3KooW")


@given(st.binary(max_size=80))
def test_garbage_raises_only_keys_errors(data: bytes) -> None:
    for parse in (PublicKey.from_protobuf, PrivateKey.from_protobuf, PeerId.from_bytes):
        try:
            parse(data)
        except KeysError:
            continue


@given(st.text(max_size=80))
def test_garbage_text_raises_only_bad_peer_id(text: str) -> None:
    try:
        PeerId.parse(text)
    except BadPeerIdError:
        return


@given(st.sampled_from(TYPES), st.data())
def test_damaged_key_is_refused_or_has_one_encoding(key_type: str, data: st.DataObject) -> None:
    encoded = bytearray(key_bytes(f"{key_type}_public"))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        key = PublicKey.from_protobuf(bytes(encoded))
    except BadKeyError:
        return
    assert key.to_protobuf() == encoded
    with pytest.raises(BadSignatureError):
        key.verify(bytes(64), b"")

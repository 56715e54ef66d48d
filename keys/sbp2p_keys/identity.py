"""Keys that name peers, and the names: public keys, private keys, peer ids.

Theory of operation: a peer is its public key. The key has one serialisation, the libp2p protobuf;
a peer id is a multihash of it, identity-hashed when the protobuf is at most 42 bytes, which holds
the key itself (Ed25519, secp256k1), and SHA-256 otherwise (ECDSA, RSA). This side signs only with
Ed25519 and verifies all four, because peers of other implementations may use them.

Rules:
- Key protobufs are decoded, re-encoded and compared: they are hashed and signed, so a second
  encoding of a key would be a second identity of one peer.
- The key inside is parsed when the object is made. A PublicKey that exists can verify, and a
  PeerId that exists is one that some key could have.

Errors: BadKeyError, UnsupportedKeyTypeError, BadPeerIdError, BadSignatureError.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ed25519
from google.protobuf.message import DecodeError

from ._verifiers import Verifier, load_verifier
from .errors import (
    BadEncodingError,
    BadKeyError,
    BadPeerIdError,
    BadSignatureError,
    UnsupportedKeyTypeError,
)
from .limits import BIG_BASE_TEXT_MAX, INLINE_KEY_MAX, KEY_PROTOBUF_MAX, SIGNATURE_MAX
from .multi import (
    IDENTITY,
    SHA2_256,
    BytesLike,
    base58btc_decode,
    base58btc_encode,
    multibase_decode,
    multibase_encode,
    multihash_decode,
    multihash_encode,
)
from .pb import keys_pb2

_LIBP2P_KEY_CID = b"\x01\x72"
"""CID version 1, codec libp2p-key: what stands before the multihash of a peer id in CID form."""


class KeyType(IntEnum):
    """Key types of libp2p, by their protobuf number."""

    RSA = 0
    ED25519 = 1
    SECP256K1 = 2
    ECDSA = 3


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key of any libp2p type.

    Attributes:
        key_type: which algorithm.
        raw: the protobuf's Data: 32 bytes (Ed25519), a 33-byte compressed point (secp256k1), or a
            DER SubjectPublicKeyInfo (ECDSA, RSA).
    """

    key_type: KeyType
    raw: bytes
    _verifier: Verifier = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Parse the key; raises BadKeyError when it is none of its type."""
        object.__setattr__(self, "_verifier", load_verifier(self.key_type.name, self.raw))

    @classmethod
    def from_protobuf(cls, data: BytesLike) -> PublicKey:
        """Decode the canonical protobuf of a key; raises BadKeyError for anything else."""
        if len(data) > KEY_PROTOBUF_MAX:
            raise BadKeyError(f"public key of {len(data)} bytes is too long")
        key_type, raw = _decode_key(data, keys_pb2.PublicKey())
        return cls(key_type, raw)

    def to_protobuf(self) -> bytes:
        """Return the one serialisation of this key."""
        return keys_pb2.PublicKey(type=self.key_type.name, data=self.raw).SerializeToString()

    def verify(self, signature: BytesLike, message: BytesLike) -> None:
        """Return if `signature` is this key's over `message`, else raise BadSignatureError."""
        if len(signature) > SIGNATURE_MAX:
            raise BadSignatureError(f"signature of {len(signature)} bytes is too long")
        try:
            self._verifier(bytes(signature), bytes(message))
        except InvalidSignature:
            raise BadSignatureError(f"signature is not by {self.peer_id} over this") from None

    @property
    def peer_id(self) -> PeerId:
        """The name of the peer that holds this key."""
        encoded = self.to_protobuf()
        if len(encoded) <= INLINE_KEY_MAX:
            return PeerId(multihash_encode(IDENTITY, encoded))
        return PeerId(multihash_encode(SHA2_256, hashlib.sha256(encoded).digest()))

    def __reduce__(self) -> tuple[type[PublicKey], tuple[KeyType, bytes]]:
        return PublicKey, (self.key_type, self.raw)  # the verifier is not pickled


class PrivateKey:
    """An Ed25519 key pair. Its secret shows in no repr, pickle or error."""

    __slots__ = ("_key", "_public_key")

    def __init__(self, key: ed25519.Ed25519PrivateKey) -> None:
        self._key = key
        self._public_key = PublicKey(KeyType.ED25519, key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> PrivateKey:
        """Make a new key from the system's random source."""
        return cls(ed25519.Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> PrivateKey:
        """Make the key that a seed of 32 bytes determines."""
        if len(seed) != 32:
            raise BadKeyError(f"an Ed25519 seed has 32 bytes, not {len(seed)}")
        return cls(ed25519.Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def from_protobuf(cls, data: BytesLike) -> PrivateKey:
        """Decode the canonical protobuf of an Ed25519 key, its public half checked.

        Raises:
            UnsupportedKeyTypeError: it holds another type of key.
            BadKeyError: anything else is wrong with it.
        """
        key_type, raw = _decode_key(data, keys_pb2.PrivateKey())
        if key_type is not KeyType.ED25519:
            raise UnsupportedKeyTypeError(f"sbp2p identities are Ed25519, not {key_type.name}")
        # Old go-libp2p wrote 96 bytes: the public key twice.
        if len(raw) not in (64, 96) or raw[32:64] != raw[-32:]:
            raise BadKeyError("not an Ed25519 private key")
        key = cls.from_seed(raw[:32])
        if key.public_key.raw != raw[32:64]:
            raise BadKeyError("the halves of the Ed25519 private key do not belong together")
        return key

    def to_protobuf(self) -> bytes:
        """Return the libp2p serialisation. It is the secret, in the clear."""
        raw = self.to_seed() + self._public_key.raw
        return keys_pb2.PrivateKey(type=keys_pb2.ED25519, data=raw).SerializeToString()

    def to_seed(self) -> bytes:
        """Return the 32 secret bytes that determine this key."""
        return self._key.private_bytes_raw()

    def sign(self, message: BytesLike) -> bytes:
        """Return the 64-byte signature over `message`."""
        return self._key.sign(bytes(message))

    @property
    def public_key(self) -> PublicKey:
        """The half that others may know."""
        return self._public_key

    @property
    def peer_id(self) -> PeerId:
        """The name of the peer that holds this key."""
        return self._public_key.peer_id

    def __repr__(self) -> str:
        return f"<PrivateKey of {self.peer_id}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PrivateKey):
            return NotImplemented
        # An Ed25519 public key determines its seed, so the secret need not be compared.
        return self._public_key == other._public_key

    def __hash__(self) -> int:
        return hash(self._public_key)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private key is not pickled; save it in a key file")


@dataclass(frozen=True, slots=True, order=True)
class PeerId:
    """The name of a peer: a multihash of its public key. Ordered by bytes.

    Attributes:
        multihash: 38 bytes for Ed25519, 39 for secp256k1, 34 for hashed keys.
    """

    multihash: bytes

    def __post_init__(self) -> None:
        """Refuse with BadPeerIdError what no key has as its id."""
        try:
            code, digest = multihash_decode(self.multihash)
            if code == IDENTITY:
                if len(digest) > INLINE_KEY_MAX:
                    raise BadPeerIdError(f"inlined key of {len(digest)} bytes is too long")
                PublicKey.from_protobuf(digest)
            elif code != SHA2_256 or len(digest) != hashlib.sha256().digest_size:
                raise BadPeerIdError("neither an inlined key nor a SHA-256 hash")
        except (BadEncodingError, BadKeyError) as error:
            raise BadPeerIdError(f"not a peer id: {error}") from None

    @classmethod
    def from_bytes(cls, data: BytesLike) -> PeerId:
        """Decode the binary form; raises BadPeerIdError."""
        return cls(bytes(data))

    @classmethod
    def parse(cls, text: str) -> PeerId:
        """Read any text form: bare base58btc, or a CIDv1 with codec libp2p-key in any multibase.

        Raises BadPeerIdError.
        """
        if len(text) > BIG_BASE_TEXT_MAX:
            raise BadPeerIdError("text is too long for a peer id")
        try:
            if text.startswith(("1", "Qm")):
                return cls(base58btc_decode(text))
            cid = multibase_decode(text)
        except BadEncodingError as error:
            raise BadPeerIdError(f"not a peer id: {text[:80]!r}: {error}") from None
        if not cid.startswith(_LIBP2P_KEY_CID):
            raise BadPeerIdError(f"not a CIDv1 of a libp2p key: {text[:80]!r}")
        return cls(cid[len(_LIBP2P_KEY_CID) :])

    def to_bytes(self) -> bytes:
        """Return the binary form, a multihash."""
        return self.multihash

    def __str__(self) -> str:
        return base58btc_encode(self.multihash)

    def __repr__(self) -> str:
        return f"PeerId.parse({str(self)!r})"

    def to_cid_text(self, base: str = "k") -> str:
        """Return the CIDv1 form in a multibase; base36 is what IPNS names use."""
        return multibase_encode(base, _LIBP2P_KEY_CID + self.multihash)

    def short(self) -> str:
        """Return the last six characters, for people: the first eight are the same for all."""
        return str(self)[-6:]

    def public_key(self) -> PublicKey | None:
        """Return the key that the id carries, or None for a hashed one."""
        code, digest = multihash_decode(self.multihash)
        return PublicKey.from_protobuf(digest) if code == IDENTITY else None

    def matches(self, public_key: PublicKey) -> bool:
        """Tell whether this is the id of that key."""
        return public_key.peer_id == self


def _decode_key(
    data: BytesLike, message: keys_pb2.PublicKey | keys_pb2.PrivateKey
) -> tuple[KeyType, bytes]:
    """Return type and Data of a key protobuf in its one encoding; raises BadKeyError."""
    try:
        message.ParseFromString(bytes(data))
    except DecodeError:
        raise BadKeyError("not a key protobuf") from None
    if not (message.HasField("type") and message.HasField("data")):
        raise BadKeyError("key protobuf without type or data, or with an unknown type")
    # A fresh message: the parsed one would also write back fields that are unknown here.
    if type(message)(type=message.type, data=message.data).SerializeToString() != data:
        raise BadKeyError("key protobuf is not canonical")
    return KeyType(message.type), message.data

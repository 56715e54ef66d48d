"""How each key type of libp2p is parsed and verifies, on `cryptography`.

Rules: Data has one form per key. For the DER types it is decoded, re-encoded and compared; curves,
modulus and exponent are bounded, because a verification must not be made to cost milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)

from .errors import BadKeyError
from .limits import RSA_BITS, RSA_EXPONENT_MAX

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

Verifier = Callable[[bytes, bytes], None]
"""Takes signature and message, raises cryptography's InvalidSignature."""


def load_verifier(key_type: str, raw: bytes) -> Verifier:
    """Return how the key verifies; raises BadKeyError when `raw` is no key of that type."""
    return _LOADERS[key_type](raw)


def _ed25519(raw: bytes) -> Verifier:
    if len(raw) != 32:
        raise BadKeyError(f"an Ed25519 public key has 32 bytes, not {len(raw)}")
    return ed25519.Ed25519PublicKey.from_public_bytes(raw).verify


def _secp256k1(raw: bytes) -> Verifier:
    # from_encoded_point would also take the 65-byte form: a second identity for one key.
    if len(raw) != 33:
        raise BadKeyError(f"a secp256k1 public key has 33 bytes, not {len(raw)}")
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256K1(), raw)
    except ValueError:
        raise BadKeyError("not a point on secp256k1") from None
    return lambda signature, message: key.verify(signature, message, ec.ECDSA(SHA256()))


def _ecdsa(raw: bytes) -> Verifier:
    key = _load_der(raw)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise BadKeyError("not an elliptic curve key")
    if not isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1 | ec.SECP521R1):
        raise BadKeyError(f"ECDSA keys are on a NIST curve, not {key.curve.name}")
    return lambda signature, message: key.verify(signature, message, ec.ECDSA(SHA256()))


def _rsa(raw: bytes) -> Verifier:
    key = _load_der(raw)
    if not isinstance(key, rsa.RSAPublicKey):
        raise BadKeyError("not an RSA key")
    if key.key_size not in RSA_BITS:
        raise BadKeyError(f"an RSA key of {key.key_size} bits is too short or too long")
    if key.public_numbers().e > RSA_EXPONENT_MAX:
        raise BadKeyError("RSA exponent is too large")
    return lambda signature, message: key.verify(signature, message, padding.PKCS1v15(), SHA256())


def _load_der(raw: bytes) -> PublicKeyTypes:
    try:
        key = load_der_public_key(raw)
        encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BadKeyError("not a DER public key") from None
    if encoded != raw:
        raise BadKeyError("DER of the public key is not canonical")
    return key


_LOADERS: dict[str, Callable[[bytes], Verifier]] = {
    "RSA": _rsa,
    "ED25519": _ed25519,
    "SECP256K1": _secp256k1,
    "ECDSA": _ecdsa,
}

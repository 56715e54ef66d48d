"""Key files: one Ed25519 private key as PKCS#8 PEM, readable by its owner only.

Theory of operation: the file is what `openssl pkey` writes and reads, so a key can be made, kept
and inspected with tools that exist. With a passphrase it is an EncryptedPrivateKeyInfo (PBES2:
PBKDF2-HMAC-SHA256 and AES-256-CBC). `cryptography` can write those too, but with 2,048 rounds,
which a graphics card tries by the million a second; the few bytes of DER are therefore made here.

What is wrong with a file, and the error that says so (keys/README.md section 7 has the table):
missing, a symlink, a directory or pipe, open to other users, unreadable, truncated, damaged,
another kind of key, encrypted without a passphrase, a wrong passphrase, an idle passphrase. Each
message names the path and the next step.
"""

from __future__ import annotations

import binascii
import hashlib
import os
import re
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.serialization import load_der_private_key

from ._files import read_file, write_file
from .errors import (
    BadKeyFileError,
    ForeignKeyFileError,
    PassphraseRequiredError,
    PassphraseUnusedError,
    TruncatedKeyFileError,
    WrongPassphraseError,
)
from .identity import PrivateKey
from .limits import KEY_FILE_MAX, KEY_ROUNDS_MAX

PBKDF2_ROUNDS: Final = 600_000
"""OWASP's advice of 2023 for HMAC-SHA256. Costs 0.1 to 0.2 s, once a start."""

_PLAIN: Final = "PRIVATE KEY"
_ENCRYPTED: Final = "ENCRYPTED PRIVATE KEY"
_BEGIN: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
_RESTORE: Final = "restore it from a backup, or move it away and create a new identity"

# PKCS#8 of an Ed25519 key without attributes (RFC 8410): this, then the seed.
_ED25519_HEADER: Final = bytes.fromhex("302e020100300506032b657004220420")


def load_private_key(path: str | Path, passphrase: bytes | None = None) -> PrivateKey:
    """Read a key file.

    Raises:
        FileError: a leaf that names what is wrong; see the module's list.
    """
    path = Path(path)
    data = read_file(path, limit=KEY_FILE_MAX, forbidden_mode=0o077, mode_advice="600")
    label, body = _parse_pem(path, data)
    if label == _ENCRYPTED:
        if passphrase is None:
            raise PassphraseRequiredError(f"{path} is encrypted: give its passphrase")
        _check_cost(path, body)
    elif passphrase is not None:
        raise PassphraseUnusedError(
            f"{path} is not encrypted: load it without a passphrase, or save it again with one"
        )
    return _load_der(path, body, passphrase)


def save_private_key(
    path: str | Path, key: PrivateKey, passphrase: bytes | None = None, overwrite: bool = False
) -> None:
    """Write a key file with mode 0600, whole or not at all.

    Args:
        path: where; its folder must exist.
        key: what to write.
        passphrase: encrypts the file; None leaves it to the file's permissions.
        overwrite: replace what is there. A key that is overwritten is lost for good.

    Raises:
        FileExistsAlreadyError: there is something at `path` and `overwrite` is False.
        FileError: the system refused; what was there is still there.
        ValueError: the passphrase is empty.
    """
    body = _ED25519_HEADER + key.to_seed()
    label = _PLAIN
    if passphrase is not None:
        if not passphrase:
            raise ValueError(
                "an empty passphrase protects nothing: pass None to write in the clear"
            )
        body, label = _encrypt(body, passphrase), _ENCRYPTED
    write_file(Path(path), _format_pem(label, body), overwrite=overwrite)


# -- PEM -------------------------------------------------------------------------------------------


def _format_pem(label: str, body: bytes) -> bytes:
    text = binascii.b2a_base64(body, newline=False)
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    name = label.encode("ascii")
    return b"\n".join([b"-----BEGIN %s-----" % name, *lines, b"-----END %s-----" % name, b""])


def _parse_pem(path: Path, data: bytes) -> tuple[str, bytes]:
    """Return label and complete DER of the one PEM block in a key file."""
    if len(data) > KEY_FILE_MAX:
        raise BadKeyFileError(f"{path} is too long for a key file: give the path of the key")
    data = data.strip()
    begin = _BEGIN.match(data)
    if begin is None:
        if any(
            f"-----BEGIN {label}-----".encode().startswith(data) for label in (_PLAIN, _ENCRYPTED)
        ):
            raise TruncatedKeyFileError(f"{path} is empty or cut off: {_RESTORE}")
        raise BadKeyFileError(f"{path} is no PEM private key: give the path of the key file")
    label = begin[1].decode("ascii")
    if label not in (_PLAIN, _ENCRYPTED):
        raise ForeignKeyFileError(
            f"{path} holds '{label}', not a PKCS#8 private key: "
            "convert it (`openssl pkey`), or give another path"
        )
    text, end, rest = data[begin.end() :].partition(f"-----END {label}-----".encode())
    if not end:
        raise TruncatedKeyFileError(f"{path} is cut off before its end line: {_RESTORE}")
    if rest:
        raise BadKeyFileError(f"{path} holds more than one key: keep one in a file of its own")
    try:
        body = binascii.a2b_base64(b"".join(text.split()), strict_mode=True)
    except binascii.Error:
        raise BadKeyFileError(f"{path} is damaged (base64): {_RESTORE}") from None
    if len(body) < _der_length(body):
        raise TruncatedKeyFileError(f"{path} lost a part of its key: {_RESTORE}")
    return label, body


def _der_length(body: bytes) -> int:
    """Return how long the DER value that starts `body` says it is, header included."""
    if len(body) < 2:
        return 2
    if body[1] < 0x80:
        return 2 + body[1]
    count = body[1] & 0x7F
    return 2 + count + int.from_bytes(body[2 : 2 + count], "big")


# -- DER -------------------------------------------------------------------------------------------


def _load_der(path: Path, body: bytes, passphrase: bytes | None) -> PrivateKey:
    try:
        key = load_der_private_key(body, passphrase)
    except UnsupportedAlgorithm:
        raise ForeignKeyFileError(
            f"{path} uses a cipher or key type that is not supported here: "
            "convert it (`openssl pkcs8 -topk8 -v2 aes-256-cbc`), or give another path"
        ) from None
    except (ValueError, TypeError):
        # Decrypting with a wrong passphrase gives bad padding or, one time in 100, bad DER.
        if passphrase is not None:
            raise WrongPassphraseError(
                f"the passphrase does not open {path}: try again; "
                f"if you are sure of it, the file is damaged: {_RESTORE}"
            ) from None
        raise BadKeyFileError(f"{path} is damaged: {_RESTORE}") from None
    if not isinstance(key, Ed25519PrivateKey):
        kind = type(key).__name__.removesuffix("PrivateKey").lstrip("_")
        raise ForeignKeyFileError(
            f"{path} holds a key of type {kind}, and sbp2p identities are Ed25519: "
            "give another path, or create a new identity"
        )
    return PrivateKey(key)


def _check_cost(path: Path, body: bytes) -> None:
    """Refuse a file that would take minutes or gigabytes to open, whoever made it."""
    advice = "convert it (`openssl pkcs8 -topk8 -v2 aes-256-cbc`), or give another path"
    try:
        rounds = _pbkdf2_rounds(body)
    except (IndexError, ValueError):
        raise BadKeyFileError(f"{path} is damaged: {_RESTORE}") from None
    if rounds is None:
        raise ForeignKeyFileError(
            f"{path} derives its cipher's key in a way that is not supported here: {advice}"
        )
    if rounds > KEY_ROUNDS_MAX:
        raise ForeignKeyFileError(
            f"{path} takes {rounds} rounds to open, and at most {KEY_ROUNDS_MAX} are made: {advice}"
        )


def _pbkdf2_rounds(body: bytes) -> int | None:
    """Return the rounds of an EncryptedPrivateKeyInfo; None if it is not PBES2 with PBKDF2.

    Raises:
        IndexError, ValueError: not DER of that form.
    """
    scheme, parameters = _items(_items(body)[0])[:2]
    if scheme != _OID_PBES2:
        return None
    derivation, parameters = _items(_items(parameters)[0])[:2]
    if derivation != _OID_PBKDF2:
        return None
    return int.from_bytes(_content(_items(parameters)[1]), "big")


def _items(value: bytes) -> list[bytes]:
    """Return the DER values inside a DER value."""
    content = _content(value)
    items: list[bytes] = []
    while content:
        size = _der_length(content)
        if size > len(content):
            raise ValueError("cut off")
        items.append(content[:size])
        content = content[size:]
    return items


def _content(value: bytes) -> bytes:
    return value[2 if value[1] < 0x80 else 2 + (value[1] & 0x7F) :]


def _encrypt(plain: bytes, passphrase: bytes) -> bytes:
    """Return an EncryptedPrivateKeyInfo (RFC 5958) under PBES2 (RFC 8018)."""
    salt, start = os.urandom(16), os.urandom(16)
    secret = hashlib.pbkdf2_hmac("sha256", passphrase, salt, PBKDF2_ROUNDS, 32)
    padding = 16 - len(plain) % 16
    encryptor = Cipher(algorithms.AES256(secret), modes.CBC(start)).encryptor()
    sealed = encryptor.update(plain + bytes([padding]) * padding) + encryptor.finalize()
    rounds = PBKDF2_ROUNDS.to_bytes(PBKDF2_ROUNDS.bit_length() // 8 + 1, "big")
    derivation = _sequence(
        _OID_PBKDF2,
        _sequence(
            _value(_OCTETS, salt),
            _value(_INTEGER, rounds),
            _sequence(_OID_HMAC_SHA256, _value(_NULL, b"")),
        ),
    )
    cipher = _sequence(_OID_AES256_CBC, _value(_OCTETS, start))
    scheme = _sequence(_OID_PBES2, _sequence(derivation, cipher))
    return _sequence(scheme, _value(_OCTETS, sealed))


_INTEGER: Final = 0x02
_OCTETS: Final = 0x04
_NULL: Final = 0x05
_OID_PBES2: Final = bytes.fromhex("06092a864886f70d01050d")
_OID_PBKDF2: Final = bytes.fromhex("06092a864886f70d01050c")
_OID_HMAC_SHA256: Final = bytes.fromhex("06082a864886f70d0209")
_OID_AES256_CBC: Final = bytes.fromhex("060960864801650304012a")


def _value(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 0x80 else bytes([0x81, size])
    return bytes([tag]) + length + content


def _sequence(*items: bytes) -> bytes:
    return _value(0x30, b"".join(items))

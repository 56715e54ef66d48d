"""The Noise XX handshake itself: three messages, two static keys learnt, two ciphers agreed.

Theory of operation. Both sides keep a hash `h` of everything said and a chaining key `ck` that
every Diffie-Hellman result is mixed into. What is written after the first such result is encrypted
under a key derived from `ck`, with `h` as associated data, so a changed byte anywhere earlier
makes the next decryption fail (Noise specification sections 5 and 7.5).

    message 1   initiator -> responder   e
    message 2   responder -> initiator   e, ee, s, es
    message 3   initiator -> responder   s, se

Errors: a message too short, a shared secret of zeros (a low-order point was sent) and a tag that
does not match raise `RemoteProtocolError` (the last as `IntegrityError`). Calls out of turn are
`LocalProtocolError`. After any error the handshake cannot go on.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from .errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from .noise_suite import CipherState, NoiseSuite

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY_SIZE: Final = 32
TAG_SIZE: Final = 16
PATTERN: Final[Sequence[tuple[str, ...]]] = (("e",), ("e", "ee", "s", "es"), ("s", "se"))


class SymmetricState:
    """The running hash, the chaining key and the cipher derived from them."""

    __slots__ = ("_chaining_key", "_cipher", "_suite", "handshake_hash")

    def __init__(self, suite: NoiseSuite, prologue: bytes) -> None:
        name = suite.value.noise_name
        self._suite = suite
        # a name of at most 32 bytes is padded, not hashed (Noise specification section 5.2)
        self.handshake_hash: bytes = name.ljust(hashlib.sha256().digest_size, b"\0")
        self._chaining_key: bytes = self.handshake_hash
        self._cipher: CipherState | None = None
        self.mix_hash(prologue)

    def mix_hash(self, data: bytes) -> None:
        """Add `data` to the transcript."""
        self.handshake_hash = hashlib.sha256(self.handshake_hash + data).digest()

    def mix_key(self, secret: bytes) -> None:
        """Derive the next chaining key and message key from a Diffie-Hellman result."""
        self._chaining_key, key = _hkdf(self._chaining_key, secret)
        self._cipher = CipherState(self._suite, key)

    def encrypt_and_hash(self, plaintext: bytes) -> bytes:
        """Encrypt, or pass through while there is no key, and add the result to the transcript."""
        ciphertext = plaintext
        if self._cipher is not None:
            nonce = self._cipher.pack_nonce(self._cipher.messages)
            ciphertext = self._cipher.aead.encrypt(nonce, plaintext, self.handshake_hash)
            self._cipher.messages += 1
        self.mix_hash(ciphertext)
        return ciphertext

    def decrypt_and_hash(self, ciphertext: bytes) -> bytes:
        """Undo `encrypt_and_hash`; raises `IntegrityError` if the peer saw another transcript."""
        plaintext = ciphertext
        if self._cipher is not None:
            nonce = self._cipher.pack_nonce(self._cipher.messages)
            try:
                plaintext = self._cipher.aead.decrypt(nonce, ciphertext, self.handshake_hash)
            except InvalidTag:
                # the prologue differs (upgrade.md): who is of another swarm learns nothing else
                raise IntegrityError(
                    "Noise handshake message does not decrypt: "
                    "one of the two is in a private swarm that the other is not in"
                ) from None
            self._cipher.messages += 1
        self.mix_hash(ciphertext)
        return plaintext

    @property
    def tag_size(self) -> int:
        """Bytes that encryption adds at this point of the handshake."""
        return 0 if self._cipher is None else TAG_SIZE

    def split(self) -> tuple[CipherState, CipherState]:
        """Return the transport ciphers: initiator to responder, then the other direction."""
        first, second = _hkdf(self._chaining_key, b"")
        return CipherState(self._suite, first), CipherState(self._suite, second)


class XXHandshake:
    """One side of the handshake: `write` and `read` in turn until `finished`.

    Args:
        initiator: Whether this side speaks first.
        suite: The cipher suite agreed on by multistream-select.
        static_key: This side's long-lived X25519 key, which the peer will learn.
        ephemeral_key: This connection's X25519 key, never to be used again.
        prologue: Bytes both sides must agree on; libp2p's is empty.
    """

    __slots__ = (
        "_ephemeral",
        "_initiator",
        "_remote_ephemeral",
        "_static",
        "_symmetric",
        "_turn",
        "remote_static",
    )

    def __init__(
        self,
        *,
        initiator: bool,
        suite: NoiseSuite,
        static_key: X25519PrivateKey,
        ephemeral_key: X25519PrivateKey,
        prologue: bytes = b"",
    ) -> None:
        self._initiator = initiator
        self._static = static_key
        self._ephemeral = ephemeral_key
        self._remote_ephemeral: bytes = b""
        self.remote_static: bytes = b""
        self._symmetric = SymmetricState(suite, prologue)
        self._turn = 0

    @property
    def finished(self) -> bool:
        """Whether all three messages have passed."""
        return self._turn == len(PATTERN)

    @property
    def my_turn(self) -> bool:
        """Whether this side writes the next message."""
        return not self.finished and (self._turn % 2 == 0) == self._initiator

    @property
    def handshake_hash(self) -> bytes:
        """The transcript hash: once finished, a value only these two peers share."""
        return self._symmetric.handshake_hash

    def write(self, payload: bytes) -> bytes:
        """Return the next message, with `payload` in it."""
        if not self.my_turn:
            raise LocalProtocolError("Noise handshake: not this side's turn to write")
        message = bytearray()
        for token in PATTERN[self._turn]:
            if token == "e":  # noqa: S105
                public = self._ephemeral.public_key().public_bytes_raw()
                self._symmetric.mix_hash(public)
                message += public
            elif token == "s":  # noqa: S105
                public = self._static.public_key().public_bytes_raw()
                message += self._symmetric.encrypt_and_hash(public)
            else:
                self._mix_shared_secret(token)
        message += self._symmetric.encrypt_and_hash(payload)
        self._turn += 1
        return bytes(message)

    def read(self, message: bytes) -> bytes:
        """Take the peer's next message and return its payload.

        Raises:
            RemoteProtocolError: The message is too short or holds a low-order point.
            IntegrityError: It does not decrypt: a wrong key, or a changed transcript.
        """
        if self.finished or self.my_turn:
            raise LocalProtocolError("Noise handshake: not the peer's turn to write")
        rest = message
        for token in PATTERN[self._turn]:
            if token == "e":  # noqa: S105
                self._remote_ephemeral, rest = _take(rest, KEY_SIZE)
                self._symmetric.mix_hash(self._remote_ephemeral)
            elif token == "s":  # noqa: S105
                sealed, rest = _take(rest, KEY_SIZE + self._symmetric.tag_size)
                self.remote_static = self._symmetric.decrypt_and_hash(sealed)
            else:
                self._mix_shared_secret(token)
        payload = self._symmetric.decrypt_and_hash(rest)
        self._turn += 1
        return payload

    def split(self) -> tuple[CipherState, CipherState]:
        """Return the ciphers of a finished handshake: for sending, then for receiving."""
        if not self.finished:
            raise LocalProtocolError("Noise handshake is not finished")
        to_responder, to_initiator = self._symmetric.split()
        return (to_responder, to_initiator) if self._initiator else (to_initiator, to_responder)

    def _mix_shared_secret(self, token: str) -> None:
        # a token names the initiator's key first: "es" is initiator e with responder s
        mine, theirs = (token[0], token[1]) if self._initiator else (token[1], token[0])
        private = self._ephemeral if mine == "e" else self._static
        public = self._remote_ephemeral if theirs == "e" else self.remote_static
        try:
            secret = private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            # OpenSSL refuses the all-zero result that a low-order point gives
            raise RemoteProtocolError("Noise handshake: peer sent a low-order point") from None
        self._symmetric.mix_key(secret)


def _hkdf(chaining_key: bytes, secret: bytes) -> tuple[bytes, bytes]:
    """Two outputs of HKDF as Noise defines it (section 4.3)."""
    temporary = hmac.digest(chaining_key, secret, "sha256")
    first = hmac.digest(temporary, b"\x01", "sha256")
    return first, hmac.digest(temporary, first + b"\x02", "sha256")


def _take(data: bytes, size: int) -> tuple[bytes, bytes]:
    if len(data) < size:
        raise RemoteProtocolError("Noise handshake message is too short")
    return data[:size], data[size:]

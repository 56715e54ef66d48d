"""The two Noise cipher suites a connection may be secured with.

Both are the Noise XX pattern over X25519 and SHA-256; they differ in the transport cipher and in
the byte order of its nonce (Noise specification section 12). `/noise` is libp2p's. The other is
sbp2p's own: the same handshake with AES-256-GCM, which costs a CPU with AES instructions about
two thirds of the time (docs/decisions/0002-noise-suites.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

if TYPE_CHECKING:
    from collections.abc import Callable

NONCE_RESERVED: Final = 2**64 - 1
"""The nonce that Noise keeps for rekeying; a key has encrypted its last message before it."""

AESGCM_MESSAGES_MAX: Final = 2**32
"""Messages under one AES-GCM key: 256 TiB of full ones, a distinguishing advantage below 2**-40."""


@dataclass(frozen=True, slots=True)
class _Parameters:
    protocol_id: str
    noise_name: bytes
    aead: Callable[[bytes], AESGCM | ChaCha20Poly1305]
    pack_nonce: Callable[[int], bytes]
    messages_max: int


class NoiseSuite(Enum):
    """A cipher suite, in the order in which a dialler proposes them."""

    AESGCM = _Parameters(
        protocol_id="/sbp2p/noise-aesgcm/1.0.0",
        noise_name=b"Noise_XX_25519_AESGCM_SHA256",
        aead=AESGCM,
        pack_nonce=Struct(">4xQ").pack,
        messages_max=AESGCM_MESSAGES_MAX,
    )
    CHACHA = _Parameters(
        protocol_id="/noise",
        noise_name=b"Noise_XX_25519_ChaChaPoly_SHA256",
        aead=ChaCha20Poly1305,
        pack_nonce=Struct("<4xQ").pack,
        messages_max=NONCE_RESERVED,
    )

    @property
    def protocol_id(self) -> str:
        """The multistream-select name of the suite."""
        return self.value.protocol_id

    @classmethod
    def from_protocol_id(cls, protocol_id: str) -> NoiseSuite | None:
        """Return the suite that multistream-select calls `protocol_id`, if there is one."""
        return next((suite for suite in cls if suite.protocol_id == protocol_id), None)


class CipherState:
    """One direction's key and message counter.

    The transport reads the attributes straight: a method call a message is measurable there.
    """

    __slots__ = ("aead", "messages", "messages_max", "pack_nonce")

    def __init__(self, suite: NoiseSuite, key: bytes) -> None:
        self.aead = suite.value.aead(key)
        self.pack_nonce = suite.value.pack_nonce
        self.messages_max = suite.value.messages_max
        self.messages = 0

    def __repr__(self) -> str:
        return f"<CipherState {self.messages} messages>"

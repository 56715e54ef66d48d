"""libp2p's use of Noise: who is at the other end, and which muxer to go on with.

Theory of operation. The XX handshake (`noise_xx`) gives two peers a secret channel but says nothing
about who they are: its static keys are fresh ones. So messages 2 and 3 carry a payload with the
sender's identity key and that key's signature over the static key just proven. Each handshake
message travels as a two-byte big-endian length and the bytes.

    initiator   SEND 1, wait 2, SEND 3, done
    responder   wait 1, SEND 2, wait 3, done

The same payload lists the muxers its sender speaks: the first of the initiator's that the
responder has too is taken, and the round trips to negotiate one are saved. If a side lists none,
or nothing fits, `muxer` is None and multistream-select decides inside the channel.

The initiator is done before message 3 has left: send `data_to_send()` first, then transport
messages. Bytes that came behind the handshake are in `NoiseResult.trailing`, still encrypted.

Errors, all `RemoteProtocolError`: an oversized or malformed message, a low-order point, a payload
without a usable identity; `IntegrityError` for a tag or signature that does not match;
`WrongPeerError` for a valid identity that is not the expected one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from google.protobuf.message import DecodeError

from sbp2p_keys.errors import BadSignatureError, KeysError
from sbp2p_keys.identity import PublicKey

from .errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from .limits import NOISE_HANDSHAKE_MESSAGE_MAX, NOISE_MUXERS_MAX
from .noise_suite import CipherState, NoiseSuite
from .noise_transport import NoiseReceiver, NoiseSender, sealed_size_max
from .noise_xx import XXHandshake
from .pb.noise_pb2 import NoiseExtensions, NoisePayload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from sbp2p_keys.identity import PeerId, PrivateKey

__all__ = [
    "NoiseHandshake",
    "NoiseReceiver",
    "NoiseResult",
    "NoiseSender",
    "NoiseSuite",
    "WrongPeerError",
    "sealed_size_max",
]

STATIC_KEY_DOMAIN: Final = b"noise-libp2p-static-key:"
YAMUX_PROTOCOL: Final = "/yamux/1.0.0"
_LENGTH_SIZE: Final = 2


class WrongPeerError(RemoteProtocolError):
    """Another peer than the one that was dialled answered, and proved it."""

    def __init__(self, expected: PeerId, actual: PeerId) -> None:
        super().__init__(f"expected peer {expected}, found {actual}")
        self.expected = expected
        self.actual = actual


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseResult:
    """What a finished handshake gives."""

    remote_peer: PeerId
    remote_key: PublicKey
    muxer: str | None
    """The muxer agreed on early; None if multistream-select has to."""
    send_cipher: CipherState = field(repr=False)
    recv_cipher: CipherState = field(repr=False)
    handshake_hash: bytes
    """32 bytes that only these two peers share: a channel binding."""
    trailing: bytes = field(repr=False)
    """Transport bytes that came in one read with the handshake."""


class NoiseHandshake:
    """One side of the libp2p Noise handshake.

    Args:
        identity: This side's key; its peer id is what the other side learns.
        initiator: Whether this side dialled.
        expected_peer: Who must be at the other end; None accepts anyone.
        suite: What multistream-select agreed on.
        muxers: What to offer early, most wanted first; empty offers nothing.
        prologue: Bytes that both sides must know; libp2p's is empty.
        static_key: X25519 key; a fresh one by default. Given in tests only.
        ephemeral_key: X25519 key; a fresh one by default. Given in tests only.
    """

    __slots__ = (
        "_broken",
        "_buffer",
        "_done",
        "_expected_peer",
        "_identity",
        "_initiator",
        "_muxers",
        "_out",
        "_remote_key",
        "_remote_muxers",
        "_static",
        "_xx",
    )

    def __init__(
        self,
        identity: PrivateKey,
        *,
        initiator: bool,
        expected_peer: PeerId | None = None,
        suite: NoiseSuite = NoiseSuite.CHACHA,
        muxers: Sequence[str] = (YAMUX_PROTOCOL,),
        prologue: bytes = b"",
        static_key: X25519PrivateKey | None = None,
        ephemeral_key: X25519PrivateKey | None = None,
    ) -> None:
        self._identity = identity
        self._initiator = initiator
        self._expected_peer = expected_peer
        self._muxers = tuple(muxers)
        self._static = static_key or X25519PrivateKey.generate()
        self._xx = XXHandshake(
            initiator=initiator,
            suite=suite,
            prologue=prologue,
            static_key=self._static,
            ephemeral_key=ephemeral_key or X25519PrivateKey.generate(),
        )
        self._buffer = bytearray()
        self._out = bytearray()
        self._remote_key: PublicKey | None = None
        self._remote_muxers: tuple[str, ...] = ()
        self._done: NoiseResult | None = None
        self._broken: str | None = None
        if initiator:
            self._write(b"")  # nothing may go into message 1: it is not authenticated

    @property
    def done(self) -> NoiseResult | None:
        """The outcome, once this side has sent and received all its messages."""
        return self._done

    def data_to_send(self) -> bytes:
        """Return, once, the bytes to send now."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def receive_data(self, data: Buffer) -> None:
        """Take bytes from the peer, cut anywhere.

        Raises:
            RemoteProtocolError: The handshake failed; every later call raises it too.
            LocalProtocolError: The handshake is already done.
        """
        if self._broken is not None:
            raise RemoteProtocolError(self._broken)
        if self._done is not None:
            raise LocalProtocolError("Noise handshake is done: these are transport bytes")
        self._buffer += data
        try:
            while self._done is None:
                message = self._next_message()
                if message is None:
                    return
                self._on_message(message)
        except RemoteProtocolError as error:
            self._broken = str(error)
            raise

    def _next_message(self) -> bytes | None:
        if len(self._buffer) < _LENGTH_SIZE:
            return None
        size = int.from_bytes(self._buffer[:_LENGTH_SIZE], "big")
        if size > NOISE_HANDSHAKE_MESSAGE_MAX:
            raise RemoteProtocolError(f"Noise handshake message of {size} bytes")
        end = _LENGTH_SIZE + size
        if len(self._buffer) < end:
            return None
        message = bytes(self._buffer[_LENGTH_SIZE:end])
        del self._buffer[:end]
        return message

    def _on_message(self, message: bytes) -> None:
        payload = self._xx.read(message)
        if self._xx.remote_static:
            self._check_payload(payload)
        # else: the payload of message 1, which nobody vouches for
        if self._xx.my_turn:
            self._write(self._payload())
        if self._xx.finished:
            self._finish()

    def _write(self, payload: bytes) -> None:
        message = self._xx.write(payload)
        self._out += len(message).to_bytes(_LENGTH_SIZE, "big")
        self._out += message

    def _payload(self) -> bytes:
        static = self._static.public_key().public_bytes_raw()
        payload = NoisePayload(
            identity_key=self._identity.public_key.to_protobuf(),
            identity_sig=self._identity.sign(STATIC_KEY_DOMAIN + static),
        )
        if self._muxers:
            muxers = [muxer.encode() for muxer in self._muxers]
            payload.extensions.CopyFrom(NoiseExtensions(stream_muxers=muxers))
        return payload.SerializeToString()

    def _check_payload(self, data: bytes) -> None:
        payload = _parse_payload(data)
        try:
            key = PublicKey.from_protobuf(payload.identity_key)
            key.verify(payload.identity_sig, STATIC_KEY_DOMAIN + self._xx.remote_static)
        except BadSignatureError:
            raise IntegrityError("peer's identity did not sign its Noise key") from None
        except KeysError as error:
            raise RemoteProtocolError(f"peer's identity key: {error}") from None
        if self._expected_peer is not None and not self._expected_peer.matches(key):
            raise WrongPeerError(self._expected_peer, key.peer_id)
        self._remote_key = key
        listed = payload.extensions.stream_muxers[:NOISE_MUXERS_MAX]
        self._remote_muxers = tuple(muxer.decode(errors="replace") for muxer in listed)

    def _finish(self) -> None:
        if self._remote_key is None:
            raise LocalProtocolError("Noise handshake finished without an identity")
        send, receive = self._xx.split()
        self._done = NoiseResult(
            remote_peer=self._remote_key.peer_id,
            remote_key=self._remote_key,
            muxer=self._choose_muxer(),
            send_cipher=send,
            recv_cipher=receive,
            handshake_hash=self._xx.handshake_hash,
            trailing=bytes(self._buffer),
        )
        self._buffer.clear()

    def _choose_muxer(self) -> str | None:
        """Both sides compute this from the same two lists, so they agree without asking."""
        ours, theirs = self._muxers, self._remote_muxers
        first, second = (ours, theirs) if self._initiator else (theirs, ours)
        return next((muxer for muxer in first if muxer in second), None)


def _parse_payload(data: bytes) -> NoisePayload:
    try:
        return NoisePayload.FromString(data)
    except DecodeError:
        pass
    if int.from_bytes(data[:_LENGTH_SIZE], "big") == len(data) - _LENGTH_SIZE:
        # early rust-libp2p framed the payload twice (rust-libp2p issue 1631)
        raise RemoteProtocolError("Noise payload carries the obsolete inner length prefix")
    raise RemoteProtocolError("Noise payload is not a protobuf message")

"""From a raw byte stream to an authenticated, encrypted, multiplexed one.

Theory of operation. Three negotiations, each started by what ended the one before:

    SECURITY   multistream-select agrees on a Noise suite; the initiator proposes the best first
    HANDSHAKE  Noise XX; both sides learn who the other is and prove it
    MUXER      multistream-select, inside the secure channel, agrees on yamux; skipped when the
               handshake carried both sides' muxer lists and they have it in common
    DONE       `result` holds what the connection goes on with

Errors, all `RemoteProtocolError`: those of the negotiations; more than `UPGRADE_MAX_BYTES` before
the end; and, with close code NORMAL because nobody misbehaved, a peer that refuses everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from .errors import CloseCode, LocalProtocolError, RemoteProtocolError
from .limits import UPGRADE_MAX_BYTES
from .multistream import Initiator, Responder
from .noise import NoiseHandshake, NoiseReceiver, NoiseResult, NoiseSender, NoiseSuite
from .yamux_frames import PROTOCOL_ID as YAMUX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from sbp2p_keys.identity import PeerId, PrivateKey

    from .buffers import BufferPool


class UpgradePhase(Enum):
    """Which negotiation is going on."""

    SECURITY = "security"
    HANDSHAKE = "handshake"
    MUXER = "muxer"
    DONE = "done"


@dataclass(frozen=True, kw_only=True, slots=True)
class UpgradeResult:
    """What both sides have agreed on."""

    handshake: NoiseResult
    suite: NoiseSuite
    muxer: str
    sender: NoiseSender = field(repr=False)
    receiver: NoiseReceiver = field(repr=False)
    plaintext: tuple[memoryview | bytes, ...] = field(repr=False)
    """What the peer has said already in the muxer's protocol."""


@dataclass(frozen=True, slots=True)
class _MuxerNegotiation:
    """The step inside the secure channel."""

    secured: NoiseResult
    sender: NoiseSender
    receiver: NoiseReceiver
    negotiation: Initiator | Responder


_SUITES = {suite.protocol_id: suite for suite in NoiseSuite}


class Upgrade:
    """One side of the upgrade.

    Args:
        identity: our key.
        initiator: this side dialled.
        expected_peer: who must be at the other end; None accepts anyone.
        security: ids of Noise suites, most wanted first: what is proposed, or what is accepted.
        early_muxers: what the handshake offers; empty negotiates the muxer after it.
        prologue: of the Noise handshake: what only members of a private swarm know.
        receive_buffer_bytes: most ciphertext taken from one read, once the upgrade is done.
        pool: where large buffers come from.
    """

    def __init__(
        self,
        *,
        identity: PrivateKey,
        initiator: bool,
        expected_peer: PeerId | None,
        security: Sequence[str],
        early_muxers: Sequence[str],
        prologue: bytes,
        receive_buffer_bytes: int,
        pool: BufferPool,
    ) -> None:
        self._identity = identity
        self._initiator = initiator
        self._expected_peer = expected_peer
        self._early_muxers = tuple(early_muxers)
        self._prologue = prologue
        self._receive_buffer_bytes = receive_buffer_bytes
        self._pool = pool
        self._received = 0
        self._out = bytearray()
        self._suite = NoiseSuite.CHACHA
        self._step: Initiator | Responder | NoiseHandshake | _MuxerNegotiation | None
        self._step = negotiation = self._negotiate(security)
        self._out += negotiation.data_to_send()
        self.phase = UpgradePhase.SECURITY
        self.result: UpgradeResult | None = None

    def data_to_send(self) -> bytes:
        """Return, once, the bytes to send now."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def receive_data(self, data: Buffer) -> None:
        """Take bytes from the peer, cut anywhere, until `result` is there.

        Raises:
            RemoteProtocolError: the upgrade failed.
        """
        self._received += memoryview(data).nbytes
        match self._step:
            case NoiseHandshake() as handshake:
                self._on_handshake(handshake, data)
            case _MuxerNegotiation() as step:
                self._on_muxer(step, step.receiver.receive_data(data))
            case None:
                raise LocalProtocolError("the upgrade is done: these are transport bytes")
            case negotiation:
                self._on_security(negotiation, data)
        if self.result is None and self._received > UPGRADE_MAX_BYTES:
            raise RemoteProtocolError(f"{self._received} bytes and the upgrade is not done")

    def _negotiate(self, protocols: Sequence[str]) -> Initiator | Responder:
        if self._initiator:
            return Initiator(protocols)
        return Responder(frozenset(protocols).__contains__)

    def _on_security(self, negotiation: Initiator | Responder, data: Buffer) -> None:
        negotiation.receive_data(data)
        self._out += negotiation.data_to_send()
        _check_agreed(negotiation, "secure channel")
        if negotiation.selected is None:
            return
        self._suite = _SUITES[negotiation.selected]
        self._step = handshake = NoiseHandshake(
            self._identity,
            initiator=self._initiator,
            expected_peer=self._expected_peer,
            suite=self._suite,
            muxers=self._early_muxers,
            prologue=self._prologue,
        )
        self.phase = UpgradePhase.HANDSHAKE
        self._out += handshake.data_to_send()
        if trailing := negotiation.trailing():
            self._on_handshake(handshake, trailing)

    def _on_handshake(self, handshake: NoiseHandshake, data: Buffer) -> None:
        handshake.receive_data(data)
        self._out += handshake.data_to_send()
        secured = handshake.done
        if secured is None:
            return
        step = _MuxerNegotiation(
            secured,
            NoiseSender(secured.send_cipher),
            NoiseReceiver(
                secured.recv_cipher, buffer_bytes=self._receive_buffer_bytes, pool=self._pool
            ),
            self._negotiate((YAMUX,)),
        )
        plaintext = step.receiver.receive_data(secured.trailing)
        if secured.muxer is not None:
            self._finish(step, secured.muxer, plaintext)
            return
        self._step = step
        self.phase = UpgradePhase.MUXER
        self._on_muxer(step, plaintext)

    def _on_muxer(self, step: _MuxerNegotiation, plaintext: list[memoryview]) -> None:
        negotiation = step.negotiation
        for batch in plaintext:
            negotiation.receive_data(batch)
        if data := negotiation.data_to_send():
            step.sender.encrypt_parts((data,), self._out)
        _check_agreed(negotiation, "stream multiplexer")
        if negotiation.selected is not None:
            trailing = negotiation.trailing()
            self._finish(step, negotiation.selected, [trailing] if trailing else [])

    def _finish(
        self, step: _MuxerNegotiation, muxer: str, plaintext: Sequence[memoryview | bytes]
    ) -> None:
        self._step = None
        self.phase = UpgradePhase.DONE
        self.result = UpgradeResult(
            handshake=step.secured,
            suite=self._suite,
            muxer=muxer,
            sender=step.sender,
            receiver=step.receiver,
            plaintext=tuple(plaintext),
        )


def _check_agreed(negotiation: Initiator | Responder, what: str) -> None:
    if negotiation.failed:
        raise RemoteProtocolError(f"the peer speaks no {what} of ours", close_code=CloseCode.NORMAL)

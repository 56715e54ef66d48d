"""Targets of the secure channel: handshakes, what is said inside them, and transport messages.

Theory of operation. Keys are fixed, so a transcript can be recorded once and mutated. What a
handshake or a receiver accepts must be what the honest peer said: any other byte that gets through
is a break of the channel, not of a parser.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.limits import NOISE_HANDSHAKE_MESSAGE_MAX
from sbp2p_protocol.noise import STATIC_KEY_DOMAIN, NoiseHandshake, NoiseReceiver, NoiseSender
from sbp2p_protocol.noise_suite import CipherState, NoiseSuite
from sbp2p_protocol.noise_xx import XXHandshake
from sbp2p_protocol.pb.noise_pb2 import NoiseExtensions, NoisePayload

from .corpus import KEYS
from .engine import Target
from .expect import Refused, attempt, cuts, expect, expect_equal, same_for_all_cuts
from .structure import protobuf
from .targets_keys import public_keys

# -- handshakes ------------------------------------------------------------------------------------


def _x25519(number: int) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def _handshake(suite: NoiseSuite, *, initiator: bool) -> NoiseHandshake:
    number = 1 if initiator else 2
    return NoiseHandshake(
        KEYS[number],
        initiator=initiator,
        expected_peer=KEYS[2].peer_id if initiator else None,
        suite=suite,
        static_key=_x25519(number),
        ephemeral_key=_x25519(number + 10),
    )


@cache
def _transcript(suite: NoiseSuite, *, initiator: bool) -> bytes:
    """Return what an honest peer sends to the side that is the initiator, or is not."""
    ends = {True: _handshake(suite, initiator=True), False: _handshake(suite, initiator=False)}
    heard = b""
    for turn in (True, False, True):
        data = ends[turn].data_to_send()
        ends[not turn].receive_data(data)
        heard += data if turn is not initiator else b""
    return heard


def _check_handshake(suite: NoiseSuite, data: bytes, *, initiator: bool) -> None:
    def run(pieces: list[bytes]) -> tuple[object, ...]:
        machine = _handshake(suite, initiator=initiator)
        out = machine.data_to_send()
        taken = 0
        for piece in pieces:
            if machine.done is not None:
                break
            taken += len(piece)
            refused = attempt(RemoteProtocolError, machine.receive_data, piece)
            out += machine.data_to_send()
            if refused is not None:
                again = attempt(RemoteProtocolError, machine.receive_data, b"")
                expect(isinstance(again, Refused), "it goes on after an error")
                return refused.message, out
        expect(len(out) <= 3 * NOISE_HANDSHAKE_MESSAGE_MAX, "too much output")
        done = machine.done
        if done is None:
            return "", out
        honest = KEYS[2 if initiator else 1]
        expect_equal(done.remote_peer, honest.peer_id, "another peer")
        return "", out, done.trailing + data[taken:], done.handshake_hash, done.muxer

    outcome = same_for_all_cuts(run, data)
    honest = _transcript(suite, initiator=initiator)
    accepted = len(outcome) > 2
    expect_equal(accepted, data.startswith(honest), "accepted what the honest peer says")
    if accepted:
        expect_equal(outcome[2], data[len(honest) :], "bytes behind the handshake")


def _handshake_seeds(suite: NoiseSuite, *, initiator: bool) -> list[bytes]:
    honest = _transcript(suite, initiator=initiator)
    return [honest, honest + b"transport", honest[:34], bytes(2), b"\x20\x00"]


# -- what is said inside ---------------------------------------------------------------------------


def _payload(identity: int = 1, muxers: tuple[bytes, ...] = (b"/yamux/1.0.0",)) -> bytes:
    """Return the payload of a handshake message whose sender has static key 1."""
    static = _x25519(1).public_key().public_bytes_raw()
    return NoisePayload(
        identity_key=KEYS[identity].public_key.to_protobuf(),
        identity_sig=KEYS[identity].sign(STATIC_KEY_DOMAIN + static),
        extensions=NoiseExtensions(stream_muxers=muxers),
    ).SerializeToString()


def _payload_seeds() -> list[bytes]:
    foreign = [NoisePayload(identity_key=key).SerializeToString() for key in public_keys()]
    twice = len(_payload()).to_bytes(2, "big") + _payload()
    return [_payload(), _payload(0, (b"/mplex/6.7.0", b"\xff")), _payload(0, ()), twice, *foreign]


def _check_payload(data: bytes, *, initiator: bool) -> None:
    """Say `data` as the payload of a handshake that is otherwise right."""
    suite = NoiseSuite.CHACHA
    machine = _handshake(suite, initiator=initiator)
    attacker = XXHandshake(
        initiator=not initiator,
        suite=suite,
        static_key=_x25519(1),
        ephemeral_key=_x25519(11),
    )
    refused = None
    if initiator:
        attacker.read(machine.data_to_send()[2:])
    else:
        refused = attempt(RemoteProtocolError, machine.receive_data, _framed(attacker.write(b"")))
        attacker.read(machine.data_to_send()[2:])
    if refused is None:
        message = _framed(attacker.write(data))
        refused = attempt(RemoteProtocolError, machine.receive_data, message)
    if refused is not None:
        return
    done = machine.done
    expect(done is not None, "neither done nor refused")
    if done is not None:
        payload = NoisePayload.FromString(data)
        static = _x25519(1).public_key().public_bytes_raw()
        done.remote_key.verify(payload.identity_sig, STATIC_KEY_DOMAIN + static)
        expect(not initiator or done.remote_peer == KEYS[2].peer_id, "not the expected peer")
        expect(done.muxer in (None, "/yamux/1.0.0"), f"muxer {done.muxer}")


def _framed(message: bytes) -> bytes:
    return len(message).to_bytes(2, "big") + message


# -- transport -------------------------------------------------------------------------------------

PLAINTEXT: Final = (b"", b"a", bytes(range(256)), bytes(3000), b"\xff" * 40)


@dataclass(frozen=True, slots=True)
class _Received:
    plaintext: bytes
    pending: int
    error: str


def _receive(suite: NoiseSuite, pieces: list[bytes]) -> _Received:
    receiver = NoiseReceiver(CipherState(suite, bytes(32)), buffer_bytes=0)
    plaintext = bytearray()
    for piece in pieces:
        batches = attempt(RemoteProtocolError, receiver.receive_data, piece)
        if isinstance(batches, Refused):
            again = attempt(RemoteProtocolError, receiver.bytes_received, 0)
            expect(isinstance(again, Refused), "it goes on after an error")
            return _Received(bytes(plaintext), 0, batches.message)
        for batch in batches:
            plaintext += batch
    return _Received(bytes(plaintext), receiver.pending, "")


def _check_transport(suite: NoiseSuite, data: bytes) -> None:
    whole, *others = (_receive(suite, pieces) for pieces in cuts(data))
    for other in others:
        expect_equal(bool(other.error), bool(whole.error), "refused, or not, by how it is cut")
        # of a batch with a bad message, nothing is handed over
        same = other.plaintext == whole.plaintext
        expect(same or (whole.error != "" and other.plaintext.startswith(whole.plaintext)), "text")
        expect_equal(other.pending, whole.pending, "pending")
        expect(b"".join(PLAINTEXT).startswith(other.plaintext), "plaintext that nobody sent")


def _transport_seeds(suite: NoiseSuite) -> list[bytes]:
    sender = NoiseSender(CipherState(suite, bytes(32)))
    out = bytearray()
    seeds = []
    for part in PLAINTEXT:
        sender.encrypt_parts([part], out)
        seeds.append(bytes(out))
    return seeds


def _handshake_targets() -> list[Target]:
    targets = []
    for suite in NoiseSuite:
        for initiator in (True, False):
            role = "initiator" if initiator else "responder"
            targets.append(
                Target(
                    name=f"noise_{role}_{suite.name.lower()}",
                    modules=(
                        "sbp2p_protocol.noise",
                        "sbp2p_protocol.noise_xx",
                        "sbp2p_protocol.noise_suite",
                    ),
                    check=partial(_check_handshake, suite, initiator=initiator),
                    seeds=partial(_handshake_seeds, suite, initiator=initiator),
                    max_size=1024,
                    test_runs=40,
                )
            )
    return targets


TARGETS: Final = (
    *_handshake_targets(),
    *(
        Target(
            name=f"noise_payload_{role}",
            modules=("sbp2p_protocol.noise",),
            check=partial(_check_payload, initiator=role == "initiator"),
            seeds=_payload_seeds,
            mutations=(protobuf,),
            test_runs=100,
        )
        for role in ("initiator", "responder")
    ),
    *(
        Target(
            name=f"noise_transport_{suite.name.lower()}",
            modules=("sbp2p_protocol.noise_transport",),
            check=partial(_check_transport, suite),
            seeds=partial(_transport_seeds, suite),
            max_size=6000,
            test_runs=60,
        )
        for suite in NoiseSuite
    ),
)

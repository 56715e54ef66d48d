"""Targets of the whole connection machine: before, during and after the upgrade.

    raw        bytes of a peer that nobody knows yet
    tampered   two honest machines, and somebody in between who edits what they say
    inside     a peer that is authenticated, and misbehaves then

The machine never raises on what a peer sends. It says `Established` first, `ConnectionLost` last
and once, and nothing that was edited on the way ever comes out as data.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sbp2p_protocol.connection import Connection, ConnectionMachineConfig, ConnectionState
from sbp2p_protocol.events import ConnectionLost, Established, Event, StreamData, StreamOpened
from sbp2p_protocol.limits import KIB, UPGRADE_MAX_BYTES
from sbp2p_protocol.multistream import HEADER, Initiator, Responder, encode_message
from sbp2p_protocol.noise import NoiseHandshake, NoiseSender
from sbp2p_protocol.noise_suite import NoiseSuite
from sbp2p_protocol.yamux_frames import HEADER_SIZE
from sbp2p_protocol.yamux_frames import PROTOCOL_ID as YAMUX

from .corpus import KEYS
from .engine import Target
from .expect import drained, error_text, expect, expect_equal, same_for_all_cuts
from .structure import blind, frames, records
from .targets_yamux import CONFIG, frames_of, joined

MODULES: Final = ("sbp2p_protocol.connection", "sbp2p_protocol.connection_upgrade")
SECURITY: Final = tuple(suite.protocol_id for suite in NoiseSuite)


def _machine(*, initiator: bool, early_muxers: tuple[str, ...] = (YAMUX,)) -> Connection:
    config = ConnectionMachineConfig(
        yamux=CONFIG, receive_buffer_bytes=0, early_muxers=early_muxers, wide_data_frame=1000
    )
    key = KEYS[0 if initiator else 1]
    peer = KEYS[1].peer_id if initiator else None
    return Connection(identity=key, initiator=initiator, expected_peer=peer, config=config, now=0.0)


class _Watch:
    """Takes the events of one machine and checks their order."""

    def __init__(self, machine: Connection) -> None:
        self.machine = machine
        self.events: list[Event] = []

    def take(self) -> None:
        events: list[Event] = drained(self.machine.next_event)
        for event in events:
            expect(not self.lost, f"an event after the loss: {event}")
            first = not self.events
            known = isinstance(event, ConnectionLost | Established)
            expect(known or not first, f"an event before the upgrade is done: {event}")
            expect(first or not isinstance(event, Established), "established twice")
            self.events.append(event)
            if isinstance(event, StreamData):
                self.machine.consumed(event.stream_id, len(event.data), 0.0)
        expect(self.machine.output_size <= 256 * KIB, "too much output")
        expect(len(self.machine.receive_buffer()) > 0, "no room to receive into")
        lost = self.machine.state is ConnectionState.LOST
        expect_equal(self.lost, lost, "lost, and no event says so")

    @property
    def lost(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], ConnectionLost)

    def end(self) -> str:
        """End the connection; return what the machine says about it."""
        self.machine.bytes_received(0, 0.0)
        self.machine.handle_timer(1e9)
        self.machine.take_output()
        self.machine.reset(1)
        self.machine.consumed(1, 0, 0.0)
        self.take()
        expect(self.lost, "not lost at its end")
        expect(self.machine.next_deadline() is None, "a deadline after the loss")
        last = self.events[-1]
        assert isinstance(last, ConnectionLost)
        return "" if last.error is None else error_text(last.error)


# -- before the upgrade ----------------------------------------------------------------------------


def _raw(data: bytes, *, initiator: bool) -> None:
    def run(pieces: list[bytes]) -> str:
        machine = _machine(initiator=initiator)
        watch = _Watch(machine)
        out = 0
        for piece in pieces:
            machine.receive_data(piece, 0.0)
            out += sum(map(len, machine.take_output()))
            watch.take()
        expect(out <= 8 * KIB, f"{out} bytes for a peer that nobody knows")
        expect(len(data) <= UPGRADE_MAX_BYTES or watch.lost, "it listens for too long")
        expect(not machine.established, "established with nobody")
        # what it still answers before it gives up depends on how much comes at once
        return watch.end()

    same_for_all_cuts(run, data)


def _raw_seeds(*, initiator: bool) -> list[bytes]:
    seeds = [encode_message(HEADER) + encode_message("/tls/1.0.0"), b"GET / HTTP/1.1\r\n\r\n"]
    for suite in NoiseSuite:
        greeting = encode_message(HEADER) + encode_message(suite.protocol_id)
        hello = NoiseHandshake(
            KEYS[1],
            initiator=True,
            suite=suite,
            ephemeral_key=X25519PrivateKey.from_private_bytes(bytes(32)),
        ).data_to_send()
        seeds += [greeting, greeting + hello, greeting + hello + b"\0\x80" + bytes(128)]
        if initiator:
            seeds.append(encode_message(HEADER) + encode_message("na") + greeting[20:] + hello)
    return seeds


# -- somebody in between ---------------------------------------------------------------------------

STEP: Final = 4
"""Bytes of a step: what is done to the next flight, where (two bytes), and with what."""

SECRET: Final = bytes(range(256)) * 16


def _edit(flight: bytes, step: bytes, earlier: bytes) -> bytes:
    if len(step) < STEP or not flight:
        return flight
    kind, at, value = step[0] % 8, int.from_bytes(step[1:3], "big") % len(flight), step[3]
    before, after = flight[:at], flight[at:]
    match kind:
        case 0:
            return before + bytes([after[0] ^ (value or 1)]) + after[1:]
        case 1:
            return before + after[1 + value :]
        case 2:
            return before + bytes([value]) * (1 + value) + after
        case 3:
            return before
        case 4:
            return flight + before
        case 5:
            return earlier[at:] + flight
        case _:
            return flight


def _tampered(data: bytes) -> None:
    dialler, listener = _machine(initiator=True), _machine(initiator=False)
    watches = {dialler: _Watch(dialler), listener: _Watch(listener)}
    peer = {dialler: listener, listener: dialler}
    earlier = {dialler: b"", listener: b""}
    steps = [data[at : at + STEP] for at in range(0, len(data), STEP)]
    edited = sent = False
    for turn in range(24):
        source = (dialler, listener)[turn % 2]
        flight = b"".join(source.take_output())
        step = steps[turn] if turn < len(steps) else b""
        changed = _edit(flight, step, earlier[source])
        earlier[source] += flight
        edited |= changed != flight
        peer[source].receive_data(changed, 0.0)
        for watch in watches.values():
            watch.take()
        if dialler.established and not sent:
            sent = True
            dialler.send(dialler.open_stream(), SECRET)
    heard = b"".join(
        bytes(event.data) for event in watches[listener].events if isinstance(event, StreamData)
    )
    expect(SECRET.startswith(heard), "data that nobody sent")
    opened = [event for event in watches[listener].events if isinstance(event, StreamOpened)]
    expect(len(opened) <= 1, "streams that nobody opened")
    if not edited:
        expect_equal(heard, SECRET, "an untouched connection")
    for watch in watches.values():
        watch.end()


# -- an authenticated peer -------------------------------------------------------------------------


class _Peer:
    """An honest peer up to the end of the handshake, which then says anything."""

    def __init__(self, machine: Connection, *, initiator: bool, muxers: tuple[str, ...]) -> None:
        negotiation = Initiator(SECURITY) if initiator else Responder(SECURITY.__contains__)
        while negotiation.selected is None:
            machine.receive_data(negotiation.data_to_send(), 0.0)
            negotiation.receive_data(b"".join(machine.take_output()))
        suite = NoiseSuite.from_protocol_id(negotiation.selected)
        assert suite is not None
        handshake = NoiseHandshake(KEYS[1], initiator=initiator, suite=suite, muxers=muxers)
        machine.receive_data(negotiation.data_to_send(), 0.0)
        handshake.receive_data(negotiation.trailing())
        for _ in range(2):
            machine.receive_data(handshake.data_to_send(), 0.0)
            output = b"".join(machine.take_output())
            if handshake.done is None:
                handshake.receive_data(output)
        machine.receive_data(handshake.data_to_send(), 0.0)
        assert handshake.done is not None
        self._sender = NoiseSender(handshake.done.send_cipher)

    def seal(self, plaintext: bytes) -> bytes:
        """Return plaintext as one or more transport messages."""
        out = bytearray()
        self._sender.encrypt_parts([plaintext], out)
        return bytes(out)


def _inside(data: bytes, *, initiator: bool, early: bool) -> None:
    muxers = (YAMUX,) if early else ()

    def run(pieces: list[bytes]) -> tuple[object, ...]:
        machine = _machine(initiator=initiator, early_muxers=muxers)
        watch = _Watch(machine)
        peer = _Peer(machine, initiator=not initiator, muxers=muxers)
        watch.take()
        expect_equal(machine.established, early, "established by the handshake alone")
        for piece in pieces:
            machine.receive_data(peer.seal(piece), 0.0)
            watch.take()
        end = watch.end()
        return joined(watch.events[:-1]), end

    same_for_all_cuts(run, data)


def _inside_seeds(*, initiator: bool, early: bool) -> list[bytes]:
    rows = [b"".join(row) for row in frames_of(initiator)]
    if early:
        return rows
    agreed = encode_message(HEADER) + encode_message(YAMUX)
    refused = encode_message(HEADER) + encode_message("na" if initiator else "/mplex/6.7.0")
    return [*(agreed + row for row in rows), agreed, refused, encode_message("/x")]


def _role(initiator: bool) -> str:
    return "dialler" if initiator else "listener"


TARGETS: Final = (
    *(
        Target(
            name=f"connection_raw_{_role(initiator)}",
            modules=MODULES,
            check=partial(_raw, initiator=initiator),
            seeds=partial(_raw_seeds, initiator=initiator),
            mutations=(frames(blind),),
            max_size=2048,
            test_runs=30,
        )
        for initiator in (True, False)
    ),
    Target(
        name="connection_tampered",
        modules=MODULES,
        check=_tampered,
        seeds=lambda: [b"\x07" * STEP * turn + bytes([turn % 7, 0, turn, 9]) for turn in range(12)],
        mutations=(records(STEP),),
        max_size=24 * STEP,
        test_runs=30,
    ),
    *(
        Target(
            name=f"connection_{'inside' if early else 'muxer'}_{_role(initiator)}",
            modules=MODULES,
            check=partial(_inside, initiator=initiator, early=early),
            seeds=partial(_inside_seeds, initiator=initiator, early=early),
            mutations=(records(HEADER_SIZE),) if early else (frames(blind),),
            max_size=2048,
            test_runs=20,
        )
        for early in (True, False)
        for initiator in (True, False)
    ),
)

"""The connection machine: upgrade, data, faults, ends and deadlines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p_protocol import limits
from sbp2p_protocol.connection import Connection, ConnectionMachineConfig, ConnectionState
from sbp2p_protocol.connection_upgrade import UpgradePhase
from sbp2p_protocol.errors import (
    CloseCode,
    IntegrityError,
    LocalProtocolError,
    RemoteProtocolError,
)
from sbp2p_protocol.events import (
    ConnectionLost,
    Established,
    GoAwayReceived,
    PongReceived,
    StreamData,
    StreamEof,
    StreamOpened,
    StreamReset,
    WindowOpened,
)
from sbp2p_protocol.multistream import encode_message
from sbp2p_protocol.noise import NoiseHandshake, WrongPeerError
from sbp2p_protocol.yamux_streams import YamuxConfig
from tests.protocol.connection_pair import (
    DIALER_KEY,
    LISTENER_KEY,
    STRANGER_KEY,
    ConnectionPair,
    bytewise,
    drain,
    only,
    random_cuts,
    stream_bytes,
    take_bytes,
    whole,
)

if TYPE_CHECKING:
    from sbp2p_protocol.events import Event
    from tests.protocol.connection_pair import Cut

AESGCM = "/sbp2p/noise-aesgcm/1.0.0"
CHACHA = "/noise"
YAMUX = "/yamux/1.0.0"
ONLY_CHACHA = ConnectionMachineConfig(security=(CHACHA,))
NO_EARLY_MUXER = ConnectionMachineConfig(early_muxers=())
CUTS = [whole, bytewise, random_cuts(1), random_cuts(2)]


def listener(config: ConnectionMachineConfig | None = None) -> Connection:
    return Connection(
        identity=LISTENER_KEY,
        initiator=False,
        expected_peer=None,
        config=config or ConnectionMachineConfig(),
        now=0.0,
    )


def loss(events: list[Event]) -> RemoteProtocolError:
    """Return the error of the one ConnectionLost, which must be the last event."""
    (lost,) = only(events, ConnectionLost)
    assert events[-1] is lost
    assert lost.error is not None
    return lost.error


class TestUpgrade:
    @pytest.mark.parametrize("cut", CUTS)
    @pytest.mark.parametrize(
        ("dialer", "peer", "security"),
        [
            (None, None, AESGCM),
            (ONLY_CHACHA, None, CHACHA),
            (None, ONLY_CHACHA, CHACHA),
            (NO_EARLY_MUXER, None, AESGCM),
            (None, NO_EARLY_MUXER, AESGCM),
        ],
    )
    def test_both_sides_agree(
        self,
        cut: Cut,
        dialer: ConnectionMachineConfig | None,
        peer: ConnectionMachineConfig | None,
        security: str,
    ) -> None:
        pair = ConnectionPair(cut=cut, dialer_config=dialer, listener_config=peer)
        pair.settle()
        assert only(pair.take(pair.dialer), Established) == [
            Established(LISTENER_KEY.peer_id, LISTENER_KEY.public_key, security, YAMUX)
        ]
        assert only(pair.take(pair.listener), Established) == [
            Established(DIALER_KEY.peer_id, DIALER_KEY.public_key, security, YAMUX)
        ]
        assert pair.dialer.remote_peer == LISTENER_KEY.peer_id
        assert pair.listener.security == security

    def test_nothing_is_known_before(self) -> None:
        machine = listener()
        assert machine.remote_peer is None
        assert machine.security == ""
        assert machine.rtt_s is None
        assert not machine.established

    def test_upgrade_of_two_sbp2p_peers_takes_three_flights(self) -> None:
        pair = ConnectionPair()
        flights = 0
        while not (pair.dialer.established and pair.listener.established):
            pair.carry(pair.dialer)
            flights += 1
            pair.carry(pair.listener)
        # negotiation; e; s, se and all that follows
        assert flights == 3

    def test_dialer_may_send_with_its_last_handshake_message(self) -> None:
        pair = ConnectionPair()
        while not pair.dialer.established:
            pair.carry(pair.dialer)
            pair.carry(pair.listener)
        stream = pair.dialer.open_stream()
        pair.dialer.send(stream, b"early")
        pair.carry(pair.dialer)
        events = pair.take(pair.listener)
        assert isinstance(events[0], Established)
        assert events[1:] == [StreamOpened(stream), StreamData(stream, b"early")]

    def test_wrong_peer(self) -> None:
        pair = ConnectionPair(expected_peer=STRANGER_KEY.peer_id)
        pair.settle()
        error = loss(pair.take(pair.dialer))
        assert isinstance(error, WrongPeerError)
        assert only(pair.take(pair.listener), Established) == []

    def test_no_common_secure_channel(self) -> None:
        pair = ConnectionPair(
            dialer_config=ConnectionMachineConfig(security=(AESGCM,)), listener_config=ONLY_CHACHA
        )
        pair.settle()
        error = loss(pair.take(pair.dialer))
        assert "secure channel" in str(error)
        assert error.close_code is CloseCode.NORMAL

    def test_first_bytes_are_header_and_best_proposal(self) -> None:
        pair = ConnectionPair()
        assert take_bytes(pair.dialer) == encode_message("/multistream/1.0.0") + encode_message(
            AESGCM
        )
        assert take_bytes(pair.listener) == encode_message("/multistream/1.0.0")

    def test_a_peer_that_talks_and_never_arrives(self) -> None:
        machine = listener(NO_EARLY_MUXER)
        machine.receive_data(encode_message("/multistream/1.0.0"), 0.0)
        for _ in range(limits.MULTISTREAM_PROPOSALS_MAX):
            machine.receive_data(encode_message("/" + "x" * 1000), 0.0)
        assert "proposals" in str(loss(drain(machine)))

    def test_messages_without_content_cannot_go_on_for_ever(self) -> None:
        # nothing below the upgrade sees them: only the sum does
        machine = listener()
        handshake = NoiseHandshake(DIALER_KEY, initiator=True, muxers=())
        hello = encode_message("/multistream/1.0.0") + encode_message(CHACHA)
        machine.receive_data(hello + handshake.data_to_send(), 0.0)
        handshake.receive_data(take_bytes(machine)[len(hello) :])
        machine.receive_data(handshake.data_to_send(), 0.0)
        assert machine.upgrade_phase is UpgradePhase.MUXER
        assert handshake.done is not None
        cipher = handshake.done.send_cipher
        for number in range(limits.UPGRADE_MAX_BYTES // 18):
            empty = cipher.aead.encrypt(cipher.pack_nonce(number), b"", None)
            machine.receive_data(b"\x00\x10" + empty, 0.0)
        assert "not done" in str(loss(drain(machine)))

    @pytest.mark.parametrize("wrong", [(), ("/tls/1.0.0",)])
    def test_config_is_checked(self, wrong: tuple[str, ...]) -> None:
        with pytest.raises(ValueError, match="secure channel"):
            ConnectionMachineConfig(security=wrong)


class TestStreams:
    @pytest.mark.parametrize("cut", CUTS)
    @pytest.mark.parametrize("config", [None, ONLY_CHACHA])
    def test_question_and_answer(self, cut: Cut, config: ConnectionMachineConfig | None) -> None:
        pair = ConnectionPair(cut=cut, dialer_config=config)
        pair.establish()
        stream = pair.dialer.open_stream()
        assert pair.dialer.send(stream, b"q" * 1000) == 1000
        pair.dialer.send_eof(stream)
        pair.settle()
        events = pair.take(pair.listener)
        assert events[0] == StreamOpened(stream)
        assert stream_bytes(events, stream) == b"q" * 1000
        assert events[-1] == StreamEof(stream)
        pair.listener.send(stream, b"a" * 2000)
        pair.listener.send_eof(stream)
        pair.settle()
        events = pair.take(pair.dialer)
        assert stream_bytes(events, stream) == b"a" * 2000
        assert events[-1] == StreamEof(stream)

    @pytest.mark.parametrize("config", [None, ONLY_CHACHA])
    def test_bulk_with_backpressure(self, config: ConnectionMachineConfig | None) -> None:
        pair = ConnectionPair(cut=random_cuts(7), dialer_config=config)
        pair.establish()
        content = bytes(range(256)) * 12_000
        stream = pair.dialer.open_stream()
        view = memoryview(content)
        received = bytearray()
        while len(received) < len(content):
            pair.now += 0.0001
            view = view[pair.dialer.send(stream, view) :]
            pair.settle()
            for event in only(pair.take(pair.listener), StreamData):
                received += event.data
                pair.listener.consumed(stream, len(event.data), pair.now)
        assert received == content

    def test_memory_is_free_once_send_returns(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        stream = pair.dialer.open_stream()
        data = bytearray(b"x" * 100_000)
        pair.dialer.send(stream, data)
        data[:] = bytes(100_000)
        pair.settle()
        assert stream_bytes(pair.take(pair.listener), stream) == b"x" * 100_000

    def test_large_payloads_are_handed_over_without_copies(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        stream = pair.dialer.open_stream()
        pair.dialer.send(stream, bytes(200_000))
        pair.settle()
        pieces = only(pair.take(pair.listener), StreamData)
        assert len(pieces) == 1
        assert isinstance(pieces[0].data, memoryview)

    def test_window_opened(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        stream = pair.dialer.open_stream()
        size = limits.YAMUX_BASE_WINDOW
        assert pair.dialer.send(stream, bytes(size + 1)) == size
        assert pair.dialer.send(stream, b"x") == 0
        pair.settle()
        pair.listener.consumed(stream, size, 0.0)
        pair.settle()
        assert WindowOpened(stream) in pair.take(pair.dialer)

    def test_reset_carries_a_code(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        stream = pair.listener.open_stream()
        pair.listener.reset(stream, 9)
        pair.settle()
        assert pair.take(pair.dialer) == [StreamOpened(stream), StreamReset(stream, 9)]

    def test_ping(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        pair.dialer.ping(0.0)
        pair.carry(pair.dialer)
        pair.now = 0.125
        pair.settle()
        assert pair.take(pair.dialer) == [PongReceived(0.125)]
        assert pair.dialer.rtt_s == 0.0  # the ping of the upgrade, at a standing clock

    def test_output_size_tells_what_take_output_returns(self) -> None:
        pair = ConnectionPair()
        assert pair.dialer.output_size == len(take_bytes(pair.dialer)) > 0
        pair = ConnectionPair()
        pair.establish()
        assert pair.dialer.output_size == 0
        stream = pair.dialer.open_stream()
        assert pair.dialer.output_size == len(take_bytes(pair.dialer)) > 0
        pair.dialer.send(stream, bytes(100_000))
        pair.dialer.send_eof(stream)
        assert pair.dialer.output_size == len(take_bytes(pair.dialer)) > 100_000
        assert pair.dialer.take_output() == []

    def test_frames_are_wide_only_between_our_own(self) -> None:
        sizes = {}
        for config in (None, ONLY_CHACHA):
            yamux = YamuxConfig(initial_window=limits.YAMUX_MAX_WINDOW)
            pair = ConnectionPair(
                dialer_config=config, listener_config=ConnectionMachineConfig(yamux=yamux)
            )
            pair.establish()
            stream = pair.dialer.open_stream()
            pair.settle()
            pair.dialer.send(stream, bytes(3 * limits.MIB))
            sizes[pair.dialer.security] = len(take_bytes(pair.dialer)) - 3 * limits.MIB
        assert sizes[AESGCM] < sizes[CHACHA]


class TestFaults:
    def garbage_on(self, machine: Connection, data: bytes) -> RemoteProtocolError:
        machine.receive_data(data, 0.0)
        error = loss(drain(machine))
        assert machine.state is ConnectionState.LOST
        machine.receive_data(b"more", 0.0)
        machine.bytes_received(0, 0.0)
        machine.handle_timer(1e9)
        assert drain(machine) == []
        assert machine.next_deadline() is None
        return error

    def test_not_multistream(self) -> None:
        error = self.garbage_on(listener(), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100))
        assert error.close_code is CloseCode.PROTOCOL_ERROR

    def test_garbage_in_the_handshake(self) -> None:
        machine = listener()
        hello = encode_message("/multistream/1.0.0") + encode_message(CHACHA)
        self.garbage_on(machine, hello + b"\x00\x10" + bytes(16))

    def test_broken_ciphertext_ends_with_a_go_away(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        error = self.garbage_on(pair.listener, b"\x00\x20" + bytes(32))
        assert isinstance(error, IntegrityError)
        pair.carry(pair.listener)
        assert GoAwayReceived(CloseCode.PROTOCOL_ERROR) in pair.take(pair.dialer)

    def test_yamux_violation(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        stream = pair.dialer.open_stream()
        pair.settle()
        # a sender that ignores its credit
        live = pair.dialer._live
        assert live is not None
        sending = live.mux._streams.get(stream)
        assert sending is not None
        sending.send_window = 1_000_000
        pair.dialer.send(stream, bytes(1_000_000))
        pair.settle()
        assert "overran" in str(loss(pair.take(pair.listener)))
        assert GoAwayReceived(CloseCode.PROTOCOL_ERROR) in pair.take(pair.dialer)

    def test_methods_after_the_loss(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        stream = pair.dialer.open_stream()
        pair.dialer.receive_data(b"\x00\x20" + bytes(32), 0.0)
        for call in (
            pair.dialer.open_stream,
            lambda: pair.dialer.send(stream, b"x"),
            lambda: pair.dialer.send_eof(stream),
            lambda: pair.dialer.ping(0.0),
        ):
            with pytest.raises(LocalProtocolError, match="lost"):
                call()
        pair.dialer.reset(stream)
        pair.dialer.consumed(stream, 1, 0.0)

    def test_streams_before_established(self) -> None:
        with pytest.raises(LocalProtocolError, match="upgrading"):
            listener().open_stream()

    def test_keys_that_are_used_up(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        live = pair.dialer._live
        assert live is not None
        cipher = live.secure.handshake.send_cipher
        cipher.messages_max = cipher.messages + 1024
        stream = pair.dialer.open_stream()
        pair.dialer.send(stream, b"last words")
        assert "used up" in str(loss(drain(pair.dialer)))
        pair.carry(pair.dialer)
        events = pair.take(pair.listener)
        assert StreamData(stream, b"last words") in events
        assert GoAwayReceived(CloseCode.NORMAL) in events


class TestEnds:
    @pytest.mark.parametrize("cut_after", range(0, 700, 23))
    def test_eof_anywhere_in_the_upgrade(self, cut_after: int) -> None:
        pair = ConnectionPair()
        budget = cut_after
        while budget > 0 and not pair.listener.established:
            data = take_bytes(pair.dialer)[:budget]
            budget -= len(data)
            pair.listener.receive_data(data, 0.0)
            pair.carry(pair.listener)
            if not data:
                break
        if pair.listener.established:
            return
        pair.listener.bytes_received(0, 0.0)
        error = loss(drain(pair.listener))
        assert error.close_code is CloseCode.NORMAL
        assert pair.listener.upgrade_phase.value in str(error)

    def test_eof_between_frames(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        pair.dialer.bytes_received(0, 0.0)
        assert drain(pair.dialer) == [ConnectionLost(None)]

    def test_eof_inside_a_noise_message(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        pair.dialer.receive_data(b"\x00\x20abc", 0.0)
        pair.dialer.bytes_received(0, 0.0)
        assert loss(drain(pair.dialer)).close_code is CloseCode.NORMAL

    def test_eof_inside_a_yamux_frame(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        stream = pair.dialer.open_stream()
        pair.dialer.send(stream, bytes(200_000))
        data = take_bytes(pair.dialer)
        pair.listener.receive_data(data[: 2 * 65537 + 100], 0.0)
        drain(pair.listener)
        pair.listener.bytes_received(0, 0.0)
        assert "middle" in str(loss(drain(pair.listener)))

    def test_eof_inside_a_message_after_our_close(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        pair.dialer.close()
        pair.dialer.receive_data(b"\x00\x20abc", 0.0)
        pair.dialer.bytes_received(0, 0.0)
        assert drain(pair.dialer) == [ConnectionLost(None)]

    def test_orderly_close(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        stream = pair.dialer.open_stream()
        pair.settle()
        pair.dialer.close()
        with pytest.raises(LocalProtocolError, match="going away"):
            pair.dialer.open_stream()
        pair.dialer.send(stream, b"still")
        pair.settle()
        events = pair.take(pair.listener)
        assert GoAwayReceived(0) in events
        assert stream_bytes(events, stream) == b"still"
        pair.listener.bytes_received(0, 0.0)
        assert drain(pair.listener) == [ConnectionLost(None)]

    def test_close_before_established(self) -> None:
        machine = listener()
        machine.close()
        assert drain(machine) == [ConnectionLost(None)]


class TestDeadlines:
    def test_upgrade(self) -> None:
        machine = listener(ConnectionMachineConfig(upgrade_timeout_s=3.0))
        assert machine.next_deadline() == 3.0
        machine.handle_timer(2.9)
        assert drain(machine) == []
        machine.handle_timer(3.0)
        error = loss(drain(machine))
        assert "3 s" in str(error)
        assert "security" in str(error)
        assert error.close_code is CloseCode.NORMAL

    def test_keep_alive_and_silence(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        assert pair.dialer.next_deadline() == 30.0
        pair.dialer.handle_timer(30.0)
        take_bytes(pair.dialer)
        assert pair.dialer.next_deadline() == 40.0
        pair.dialer.handle_timer(40.0)
        assert "nothing for 10 s" in str(loss(drain(pair.dialer)))

    def test_a_slow_uplink_is_no_silence(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        pair.dialer.handle_timer(30.0)
        take_bytes(pair.dialer)
        stream = pair.dialer.open_stream()
        pair.dialer.send(stream, bytes(20_000))
        take_bytes(pair.dialer)
        pair.dialer.handle_timer(40.0)
        assert pair.dialer.next_deadline() == 50.0
        pair.dialer.send(stream, bytes(20_000))
        take_bytes(pair.dialer)
        pair.dialer.handle_timer(50.0)
        assert pair.dialer.established
        pair.dialer.handle_timer(60.0)
        assert "nothing for 10 s" in str(loss(drain(pair.dialer)))

    def test_an_idle_connection_lives(self) -> None:
        pair = ConnectionPair()
        pair.establish()
        for _ in range(20):
            deadlines = [pair.dialer.next_deadline(), pair.listener.next_deadline()]
            pair.now = min(deadline for deadline in deadlines if deadline is not None)
            pair.dialer.handle_timer(pair.now)
            pair.listener.handle_timer(pair.now)
            pair.settle()
        assert pair.now >= 300.0
        assert pair.dialer.established
        assert pair.listener.established


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    flights=st.integers(0, 6),
    early=st.booleans(),
    bytes_in=st.one_of(st.binary(max_size=300), st.binary(min_size=1, max_size=40)),
)
def test_garbage_in_any_phase_is_one_loss(
    data: st.DataObject, flights: int, early: bool, bytes_in: bytes
) -> None:
    pair = ConnectionPair(cut=random_cuts(3), dialer_config=None if early else NO_EARLY_MUXER)
    for _ in range(flights):
        pair.carry(pair.dialer)
        pair.carry(pair.listener)
    machine = data.draw(st.sampled_from([pair.dialer, pair.listener]))
    drain(machine)
    for cut in data.draw(st.sampled_from([whole, bytewise]))(bytes_in):
        machine.receive_data(cut, 0.0)
    machine.bytes_received(0, 0.0)
    lost = only(drain(machine), ConnectionLost)
    assert len(lost) == 1
    machine.take_output()


@settings(max_examples=60, deadline=None)
@given(flip=st.integers(0, 2000), mask=st.integers(1, 255), early=st.booleans())
def test_no_changed_byte_is_believed(flip: int, mask: int, early: bool) -> None:
    """A man in the middle flips one byte: the two never both carry on with different views."""
    pair = ConnectionPair(dialer_config=None if early else NO_EARLY_MUXER)
    seen = 0

    def tamper(piece: bytes) -> bytes:
        nonlocal seen
        if seen <= flip < seen + len(piece):
            changed = bytearray(piece)
            changed[flip - seen] ^= mask
            piece = bytes(changed)
        seen += len(piece)
        return piece

    for _ in range(8):
        for source in (pair.dialer, pair.listener):
            pair.peer_of(source).receive_data(tamper(take_bytes(source)), 0.0)
    for machine, peer in ((pair.dialer, LISTENER_KEY), (pair.listener, DIALER_KEY)):
        events = drain(machine)
        assert all(event.peer_id == peer.peer_id for event in only(events, Established))
        assert len(only(events, ConnectionLost)) <= 1

"""Yamux sessions: vectors, stream life, credit, limits, and what a hostile peer can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol import limits
from sbp2p_protocol.errors import CloseCode, LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.events import (
    Event,
    GoAwayReceived,
    PongReceived,
    StreamData,
    StreamEof,
    StreamOpened,
    StreamReset,
    WindowOpened,
)
from sbp2p_protocol.yamux import YamuxSession
from sbp2p_protocol.yamux_frames import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    pack_header,
)
from sbp2p_protocol.yamux_liveness import MOVING
from sbp2p_protocol.yamux_streams import YamuxConfig
from tests.protocol.yamux_pair import YamuxEnd, YamuxPair, payload
from tests.vectors import load_vectors

if TYPE_CHECKING:
    from collections.abc import Callable

KIB = 1024
BASE = limits.YAMUX_BASE_WINDOW


def server(config: YamuxConfig | None = None) -> YamuxEnd:
    return YamuxEnd(initiator=False, config=config or YamuxConfig())


def client(config: YamuxConfig | None = None) -> YamuxEnd:
    return YamuxEnd(initiator=True, config=config or YamuxConfig())


def feed(end: YamuxEnd, data: bytes) -> list[Event]:
    end.session.receive_data(data, 0.0)
    return end.events()


def frame(name: str) -> bytes:
    return bytes.fromhex(load_vectors("yamux_frames")["frames"][name])


class TestVectors:
    def test_we_write_what_go_writes(self) -> None:
        end = client()
        end.open_stream()
        end.flush()
        assert end.wire == frame("open_stream_1_window_update_syn_delta0")
        end.wire.clear()
        end.send(1, b"hello")
        assert end.wire == frame("data_stream_1_hello")
        end.wire.clear()
        end.session.send_eof(1)
        end.flush()
        assert end.wire == frame("half_close_stream_1_wu_fin")

    def test_bigger_window_rides_on_syn(self) -> None:
        end = client(YamuxConfig(initial_window=limits.YAMUX_MAX_WINDOW))
        end.open_stream()
        assert end.session.take_control() == frame(
            "open_stream_1_syn_extra_window_16MiB_minus_256KiB"
        )

    def test_acceptance(self) -> None:
        end = server()
        assert feed(end, frame("open_stream_1_window_update_syn_delta0")) == [StreamOpened(1)]
        assert end.session.take_control() == frame("accept_stream_1_window_update_ack_delta0")

    def test_resets(self) -> None:
        end = server()
        assert end.open_stream() == 2
        end.session.take_control()
        end.session.reset(2)
        assert end.session.take_control() == frame("reset_stream_2_wu_rst")
        assert end.open_stream() == 4
        end.session.take_control()
        end.session.reset(4, 5)
        wanted = bytearray(frame("reset_stream_2_with_error_code_5"))
        wanted[7] = 4
        assert end.session.take_control() == wanted

    @pytest.mark.parametrize(
        ("name", "code"), [("reset_stream_2_wu_rst", 0), ("reset_stream_2_with_error_code_5", 5)]
    )
    def test_reset_is_read(self, name: str, code: int) -> None:
        end = server()
        end.open_stream()
        assert feed(end, frame(name)) == [StreamReset(2, code)]
        assert end.session.open_streams == 0

    def test_data_with_syn(self) -> None:
        end = server()
        assert feed(end, frame("data_syn_stream_3_hi")) == [StreamOpened(3), StreamData(3, b"hi")]

    def test_ping(self) -> None:
        end = server()
        feed(end, frame("ping_syn_0x2a"))
        assert end.session.take_control() == frame("ping_ack_0x2a")

    @pytest.mark.parametrize(
        ("name", "code"),
        [
            ("goaway_normal", CloseCode.NORMAL),
            ("goaway_protocol_error", CloseCode.PROTOCOL_ERROR),
            ("goaway_internal_error", CloseCode.INTERNAL_ERROR),
        ],
    )
    def test_go_away(self, name: str, code: CloseCode) -> None:
        end = client()
        end.session.go_away(code)
        end.session.go_away(code)
        assert end.session.take_control() == frame(name)
        assert feed(server(), frame(name)) == [GoAwayReceived(code)]

    def test_every_vector_is_read(self) -> None:
        for name, text in load_vectors("yamux_frames")["frames"].items():
            # streams 1 and 3 are the dialler's, stream 2 the listener's
            end = server()
            if "syn_" not in name and "_syn" not in name and "stream_1" in name:
                feed(end, pack_header(WINDOW_UPDATE, SYN, 1, 0))
            if "stream_2" in name or "accept" in name:
                end.open_stream()
            feed(end, bytes.fromhex(text))
            assert not end.session.in_frame


class TestLife:
    def test_both_directions_and_half_close(self) -> None:
        pair = YamuxPair()
        stream = pair.a.open_stream()
        assert pair.a.send(stream, b"question") == 8
        pair.a.session.send_eof(stream)
        pair.settle()
        assert pair.b.events() == [
            StreamOpened(stream),
            StreamData(stream, b"question"),
            StreamEof(stream),
        ]
        pair.b.send(stream, b"answer")
        pair.b.session.send_eof(stream)
        pair.settle()
        assert pair.a.events() == [StreamData(stream, b"answer"), StreamEof(stream)]
        assert pair.a.session.open_streams == pair.b.session.open_streams == 0

    def test_nothing_to_send_after_eof(self) -> None:
        pair = YamuxPair()
        stream = pair.a.open_stream()
        pair.a.session.send_eof(stream)
        with pytest.raises(LocalProtocolError):
            pair.a.send(stream, b"x")
        with pytest.raises(LocalProtocolError):
            pair.a.session.send_eof(stream)

    def test_fin_on_data(self) -> None:
        end = server()
        events = feed(end, pack_header(DATA, SYN | FIN, 1, 3) + b"abc")
        assert events == [StreamOpened(1), StreamData(1, b"abc"), StreamEof(1)]

    def test_fin_waits_for_the_payload_of_its_frame(self) -> None:
        end = server()
        feed(end, pack_header(DATA, SYN | FIN, 1, 3) + b"a")
        assert feed(end, b"b") == [StreamData(1, b"b")]
        assert feed(end, b"c") == [StreamData(1, b"c"), StreamEof(1)]

    def test_fin_and_rst_on_empty_data(self) -> None:
        end = server()
        assert feed(end, pack_header(DATA, SYN | FIN, 1, 0)) == [StreamOpened(1), StreamEof(1)]
        assert feed(end, pack_header(DATA, RST, 1, 0)) == [StreamReset(1, 0)]

    def test_second_fin_says_nothing(self) -> None:
        end = server()
        feed(end, pack_header(DATA, SYN | FIN, 1, 0))
        assert feed(end, pack_header(WINDOW_UPDATE, FIN, 1, 0)) == []

    def test_rst_on_data_drops_its_payload(self) -> None:
        end = server()
        events = feed(end, pack_header(DATA, SYN | RST, 1, 3) + b"abc")
        assert events == [StreamOpened(1), StreamReset(1, 0)]
        assert not end.session.in_frame

    def test_reset_in_the_middle_of_a_frame(self) -> None:
        end = server()
        assert feed(end, pack_header(DATA, SYN, 1, 6) + b"abc") == [
            StreamOpened(1),
            StreamData(1, b"abc"),
        ]
        end.session.reset(1, 7)
        assert feed(end, b"def" + pack_header(DATA, SYN, 3, 1) + b"x") == [
            StreamOpened(3),
            StreamData(3, b"x"),
        ]

    def test_late_frames_are_drained(self) -> None:
        end = server()
        feed(end, pack_header(DATA, SYN, 1, 0))
        end.session.reset(1)
        end.session.take_control()
        late = (
            pack_header(DATA, 0, 1, 5)
            + b"later"
            + pack_header(WINDOW_UPDATE, 0, 1, 100)
            + pack_header(WINDOW_UPDATE, FIN, 1, 0)
            + pack_header(WINDOW_UPDATE, RST, 1, 0)
            + pack_header(DATA, 0, 77, 2)
            + b"??"
        )
        assert feed(end, late) == []
        assert end.session.take_control() == b""

    def test_reset_of_a_done_stream_is_nothing(self) -> None:
        end = client()
        end.session.reset(1)
        end.session.consumed(1, 5, 0.0)
        assert end.session.take_control() == b""

    def test_a_frame_is_never_held_back(self) -> None:
        end = server()
        assert feed(end, pack_header(DATA, SYN, 1, 100 * KIB) + b"a") == [
            StreamOpened(1),
            StreamData(1, b"a"),
        ]
        assert feed(end, b"b" * 5) == [StreamData(1, b"bbbbb")]

    def test_control_goes_out_in_call_order(self) -> None:
        pair = YamuxPair()
        first, second = pair.a.open_stream(), pair.a.open_stream()
        pair.a.send(first, b"1")
        pair.a.session.send_eof(first)
        pair.a.send(second, b"2")
        pair.settle()
        assert pair.b.events() == [
            StreamOpened(first),
            StreamOpened(second),
            StreamData(first, b"1"),
            StreamEof(first),
            StreamData(second, b"2"),
        ]


class TestCredit:
    def test_send_stops_at_the_window(self) -> None:
        pair = YamuxPair()
        stream = pair.a.open_stream()
        data = bytes(BASE + 1)
        assert pair.a.send(stream, data) == BASE
        assert pair.a.send(stream, data[BASE:]) == 0
        pair.settle()
        assert len(payload(pair.b.events(), stream)) == BASE
        pair.b.session.consumed(stream, BASE // 2 - 1, 0.0)
        pair.settle()
        assert pair.a.events() == []
        pair.b.session.consumed(stream, 1, 0.0)
        pair.settle()
        assert pair.a.events() == [WindowOpened(stream)]
        assert pair.a.send(stream, data) == BASE // 2

    def test_window_opened_comes_once_and_only_when_wanted(self) -> None:
        end = client()
        end.open_stream()
        update = pack_header(WINDOW_UPDATE, 0, 1, 10)
        assert feed(end, update) == []
        assert end.send(1, bytes(BASE + 11)) == BASE + 10
        assert feed(end, update + update) == [WindowOpened(1)]

    def test_first_update_adds(self) -> None:
        end = client()
        end.open_stream()
        feed(end, pack_header(WINDOW_UPDATE, ACK, 1, 5))
        assert end.send(1, bytes(BASE + 100)) == BASE + 5

    def test_frames_are_cut(self) -> None:
        end = client(YamuxConfig(max_data_frame=10))
        end.open_stream()
        end.flush()
        end.wire.clear()
        end.send(1, b"0123456789abcde")
        assert end.wire == (
            pack_header(DATA, 0, 1, 10) + b"0123456789" + pack_header(DATA, 0, 1, 5) + b"abcde"
        )

    def test_send_takes_any_contiguous_memory(self) -> None:
        end = client()
        end.open_stream()
        numbers = memoryview(bytearray(8)).cast("I")
        assert end.send(1, numbers) == 8

    def test_overrun_ends_the_session(self) -> None:
        end = server()
        with pytest.raises(RemoteProtocolError, match="overran"):
            feed(end, pack_header(DATA, SYN, 1, BASE + 1))

    def test_overrun_in_two_frames(self) -> None:
        end = server()
        feed(end, pack_header(DATA, SYN, 1, BASE) + bytes(BASE))
        with pytest.raises(RemoteProtocolError, match="overran"):
            feed(end, pack_header(DATA, 0, 1, 1))

    def test_window_overflow(self) -> None:
        end = client()
        end.open_stream()
        feed(end, pack_header(WINDOW_UPDATE, 0, 1, 0xFFFF_FFFF - BASE))
        with pytest.raises(RemoteProtocolError, match="overflow"):
            feed(end, pack_header(WINDOW_UPDATE, 0, 1, 1))

    def test_no_credit_after_the_peers_fin(self) -> None:
        end = server()
        feed(end, pack_header(DATA, SYN | FIN, 1, BASE) + bytes(BASE))
        end.session.take_control()
        end.session.consumed(1, BASE, 0.0)
        assert end.session.take_control() == b""

    def test_credit_goes_on_after_our_fin(self) -> None:
        end = client()
        end.open_stream()
        end.session.send_eof(1)
        feed(end, pack_header(DATA, 0, 1, BASE) + bytes(BASE))
        end.session.take_control()
        end.session.consumed(1, BASE, 0.0)
        assert end.session.take_control() == pack_header(WINDOW_UPDATE, 0, 1, BASE)

    def test_consuming_what_never_came(self) -> None:
        end = server()
        feed(end, pack_header(DATA, SYN, 1, 10) + b"12345")
        with pytest.raises(LocalProtocolError):
            end.session.consumed(1, 6, 0.0)

    def test_credit_for_a_stream_we_closed_is_ignored(self) -> None:
        end = client()
        end.open_stream()
        end.session.send_eof(1)
        assert feed(end, pack_header(WINDOW_UPDATE, 0, 1, 0xFFFF_FFFF)) == []


class TestMemory:
    def test_large_payloads_are_views(self) -> None:
        end = server()
        size = 64 * KIB
        data = memoryview(bytearray(pack_header(DATA, SYN, 1, size) + bytes(size)))
        (_, event) = feed_view(end, data)
        assert isinstance(event, StreamData)
        assert isinstance(event.data, memoryview)
        assert event.data.obj is data.obj

    def test_small_payloads_do_not_pin_the_batch(self) -> None:
        end = server()
        small, large = 2 * KIB, 60 * KIB
        batch = pack_header(DATA, SYN, 1, small) + bytes(small)
        batch += pack_header(DATA, 0, 99, large) + bytes(large)
        events = feed_view(end, memoryview(batch))
        assert [type(e.data) for e in events if isinstance(e, StreamData)] == [bytes]

    def test_streams_that_share_a_batch_do_not_pin_it(self) -> None:
        end = server()
        batch = b"".join(
            pack_header(DATA, SYN, stream, 30 * KIB) + bytes(30 * KIB) for stream in (1, 3)
        )
        events = feed_view(end, memoryview(batch))
        assert [type(e.data) for e in events if isinstance(e, StreamData)] == [bytes, bytes]


def feed_view(end: YamuxEnd, data: memoryview) -> list[Event]:
    end.session.receive_data(data, 0.0)
    return end.events()


class TestIds:
    @pytest.mark.parametrize("stream_id", [2, 4, 0xFFFF_FFFE])
    def test_wrong_parity(self, stream_id: int) -> None:
        with pytest.raises(RemoteProtocolError, match="id of our side"):
            feed(server(), pack_header(DATA, SYN, stream_id, 0))

    @pytest.mark.parametrize("kind", [DATA, WINDOW_UPDATE])
    @pytest.mark.parametrize("flags", [0, SYN])
    @pytest.mark.parametrize("make", [client, server])
    def test_id_zero(self, kind: int, flags: int, make: Callable[[], YamuxEnd]) -> None:
        with pytest.raises(RemoteProtocolError, match="for the session"):
            feed(make(), pack_header(kind, flags, 0, 0))

    def test_open_twice(self) -> None:
        with pytest.raises(RemoteProtocolError, match="twice"):
            feed(server(), pack_header(DATA, SYN, 1, 0) * 2)

    def test_reuse(self) -> None:
        end = server()
        feed(end, pack_header(DATA, SYN | RST, 1, 0))
        with pytest.raises(RemoteProtocolError, match="twice"):
            feed(end, pack_header(DATA, SYN, 1, 0))

    def test_parallel_opens_may_arrive_out_of_order(self) -> None:
        end = server()
        for stream_id in (5, 1, 3):
            assert feed(end, pack_header(DATA, SYN, stream_id, 0)) == [StreamOpened(stream_id)]
        with pytest.raises(RemoteProtocolError, match="twice"):
            feed(end, pack_header(DATA, SYN, 3, 0))

    def test_memory_of_skipped_ids_is_bounded(self) -> None:
        end = server()
        feed(end, pack_header(DATA, SYN, 0x7FFF_FFFF, 0))
        feed(end, pack_header(DATA, SYN, 0xFFFF_FFFF, 0))
        with pytest.raises(RemoteProtocolError, match="twice"):
            feed(end, pack_header(DATA, SYN, 0x7FFF_FFFD, 0))
        assert feed(end, pack_header(DATA, SYN, 0xFFFF_FFFD, 0)) == [StreamOpened(0xFFFF_FFFD)]

    def test_the_oldest_skipped_ids_are_forgotten_first(self) -> None:
        end = server()
        feed(end, pack_header(DATA, SYN, 401, 0))  # skips 200
        feed(end, pack_header(DATA, SYN, 603, 0))  # skips 100 more, 44 beyond the bound
        assert feed(end, pack_header(DATA, SYN, 89, 0)) == [StreamOpened(89)]
        assert feed(end, pack_header(DATA, SYN, 601, 0)) == [StreamOpened(601)]
        with pytest.raises(RemoteProtocolError, match="twice"):
            feed(end, pack_header(DATA, SYN, 87, 0))

    def test_each_side_numbers_its_own(self) -> None:
        pair = YamuxPair()
        assert [pair.a.open_stream() for _ in range(3)] == [1, 3, 5]
        assert [pair.b.open_stream() for _ in range(3)] == [2, 4, 6]
        pair.settle()
        assert pair.a.events() == [StreamOpened(2), StreamOpened(4), StreamOpened(6)]


class TestLimits:
    def test_streams_beyond_the_cap_are_reset_and_the_session_lives(self) -> None:
        pair = YamuxPair(YamuxConfig(max_inbound_streams=2))
        streams = [pair.a.open_stream() for _ in range(3)]
        for stream in streams:
            pair.a.send(stream, b"x")
        pair.settle()
        assert pair.a.events() == [StreamReset(streams[2], 0)]
        assert [e.stream_id for e in pair.b.events() if isinstance(e, StreamData)] == streams[:2]
        pair.a.session.reset(streams[0])
        again = pair.a.open_stream()
        pair.settle()
        assert StreamOpened(again) in pair.b.events()

    def test_ack_backlog(self) -> None:
        pair = YamuxPair(YamuxConfig(ack_backlog=2))
        pair.a.open_stream()
        pair.a.open_stream()
        with pytest.raises(LocalProtocolError, match="acknowledged"):
            pair.a.open_stream()
        pair.settle()
        pair.a.open_stream()
        last = pair.a.open_stream()
        pair.a.session.reset(last)
        pair.a.open_stream()

    def test_own_streams(self) -> None:
        end = client(YamuxConfig(max_outbound_streams=1))
        end.open_stream()
        with pytest.raises(LocalProtocolError):
            end.open_stream()
        end.session.reset(1)
        end.open_stream()

    def test_pings_beyond_the_bound_go_unanswered(self) -> None:
        end = server()
        feed(end, b"".join(pack_header(PING, SYN, 0, n) for n in range(100)))
        assert len(end.session.take_control()) == 12 * limits.YAMUX_PENDING_PONGS
        feed(end, pack_header(PING, SYN, 0, 7))
        assert end.session.take_control() == pack_header(PING, ACK, 0, 7)

    def test_a_peer_that_opens_and_never_reads_is_cut_off(self) -> None:
        end = server(YamuxConfig(max_inbound_streams=0))
        opens = b"".join(pack_header(DATA, SYN, n, 0) for n in range(1, 20_000, 2))
        with pytest.raises(RemoteProtocolError, match="more than it reads"):
            feed(end, opens)
        assert end.session.control_size <= limits.YAMUX_CONTROL_QUEUE + 12

    def test_session_cap_refuses_growth_not_streams(self) -> None:
        end = server(YamuxConfig(initial_window=512 * KIB, session_window=640 * KIB))
        feed(end, pack_header(DATA, SYN, 1, 0))
        assert end.session.take_control() == pack_header(WINDOW_UPDATE, ACK, 1, 256 * KIB)
        feed(end, pack_header(DATA, SYN, 3, 0))
        assert end.session.take_control() == pack_header(WINDOW_UPDATE, ACK, 3, 0)
        end.session.reset(1)
        end.session.take_control()
        feed(end, pack_header(DATA, SYN, 5, 0))
        assert end.session.take_control() == pack_header(WINDOW_UPDATE, ACK, 5, 128 * KIB)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"initial_window": 1},
            {"max_window": limits.YAMUX_MAX_WINDOW + 1},
            {"max_data_frame": 0},
        ],
    )
    def test_config_is_checked(self, wrong: dict[str, int]) -> None:
        with pytest.raises(ValueError, match=r"window|max_data_frame"):
            YamuxConfig(**wrong)


class TestSession:
    @pytest.mark.parametrize(
        "header",
        [
            b"\x01" + pack_header(PING, SYN, 0, 0)[1:],
            pack_header(4, 0, 0, 0),
            pack_header(255, 0, 1, 0),
            pack_header(PING, SYN, 1, 0),
            pack_header(GO_AWAY, 0, 1, 0),
            pack_header(DATA, 0, 1, 0xFFFF_FFFF),
            pack_header(DATA, SYN | FIN, 1, 0) + pack_header(DATA, 0, 1, 1),
        ],
    )
    def test_violations(self, header: bytes) -> None:
        with pytest.raises(RemoteProtocolError) as caught:
            feed(server(), header)
        assert caught.value.close_code is CloseCode.PROTOCOL_ERROR

    def test_no_new_streams_once_the_peer_goes_away(self) -> None:
        pair = YamuxPair()
        stream = pair.a.open_stream()
        pair.settle()
        pair.b.events()
        pair.b.session.go_away(CloseCode.NORMAL)
        with pytest.raises(LocalProtocolError):
            pair.b.open_stream()
        pair.deliver(pair.b)
        assert pair.a.events() == [GoAwayReceived(0)]
        with pytest.raises(LocalProtocolError):
            pair.a.open_stream()
        pair.a.send(stream, b"still here")
        pair.settle()
        assert pair.b.events() == [StreamData(stream, b"still here")]

    def test_streams_opened_towards_our_go_away_are_reset(self) -> None:
        pair = YamuxPair()
        pair.b.session.go_away(CloseCode.NORMAL)
        stream = pair.a.open_stream()
        pair.settle()
        assert pair.b.events() == []
        assert StreamReset(stream, 0) in pair.a.events()

    def test_ping_measures(self) -> None:
        pair = YamuxPair()
        pair.a.session.ping(0.0)
        pair.a.session.ping(0.0)
        pair.deliver(pair.a)
        pair.now = 0.25
        pair.deliver(pair.b)
        assert pair.a.events() == [PongReceived(0.25)]
        assert pair.a.session.rtt_s == 0.25

    def test_pongs_nobody_asked_for(self) -> None:
        end = client()
        assert feed(end, pack_header(PING, ACK, 0, 1)) == []
        end.session.ping(0.0)
        assert feed(end, pack_header(PING, ACK, 0, 99)) == []
        assert feed(end, pack_header(PING, ACK, 0, 1) * 2) == [PongReceived(0.0)]

    def test_keep_alive(self) -> None:
        session = YamuxSession(initiator=True, config=YamuxConfig(), now=100.0)
        assert session.next_deadline() == 130.0
        session.handle_timer(129.9)
        assert session.take_control() == b""
        session.handle_timer(130.0)
        assert session.take_control() == pack_header(PING, SYN, 0, 1)
        assert session.next_deadline() == 140.0

    def test_silence_is_noticed(self) -> None:
        session = YamuxSession(initiator=True, config=YamuxConfig(), now=0.0)
        session.ping(0.0)
        session.receive_data(pack_header(PING, SYN, 0, 9), 6.0)
        assert session.next_deadline() == 16.0
        session.handle_timer(15.9)
        with pytest.raises(RemoteProtocolError) as caught:
            session.handle_timer(16.0)
        assert caught.value.close_code is CloseCode.NORMAL

    def test_output_that_moves_buys_one_more_wait(self) -> None:
        session = YamuxSession(initiator=True, config=YamuxConfig(), now=0.0)
        session.ping(0.0)
        session.output_taken(12)  # the ping leaves
        for _ in range(4):
            session.output_taken(MOVING // 4)  # what was behind it
        session.handle_timer(10.0)
        assert session.next_deadline() == 20.0
        with pytest.raises(RemoteProtocolError):
            session.handle_timer(20.0)

    def test_questions_to_a_peer_that_vanished_do_not_keep_it(self) -> None:
        session = YamuxSession(initiator=True, config=YamuxConfig(), now=0.0)
        session.ping(0.0)
        session.output_taken(2 * MOVING)  # the ping leaves, behind what was in front of it
        for _ in range(10):
            session.output_taken(100)
        with pytest.raises(RemoteProtocolError):
            session.handle_timer(10.0)


frames = st.builds(
    lambda kind, flags, stream_id, length, body: (
        pack_header(kind, flags, stream_id, len(body) if kind == DATA and length % 2 else length)
        + body
    ),
    st.integers(0, 4),
    st.integers(0, 31),
    st.integers(0, 6),
    st.one_of(st.integers(0, 40), st.integers(0, 0xFFFF_FFFF)),
    st.binary(max_size=20),
)


@given(st.one_of(st.binary(max_size=200), st.lists(frames, max_size=12).map(b"".join)))
def test_garbage_raises_only_remote_errors_and_cuts_do_not_matter(data: bytes) -> None:
    outcomes = []
    for step in (max(1, len(data)), 1):
        end = server()
        end.open_stream()
        error = None
        try:
            for start in range(0, len(data), step):
                end.session.receive_data(data[start : start + step], 0.0)
        except RemoteProtocolError as caught:
            error = str(caught)
        outcomes.append((error, merged(end.events()), end.session.take_control()))
    assert outcomes[0] == outcomes[1]


def merged(events: list[Event]) -> list[Event]:
    """Join neighbouring pieces of one stream, which depend on how the bytes were cut."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if (
            isinstance(event, StreamData)
            and isinstance(last, StreamData)
            and last.stream_id == event.stream_id
        ):
            joined[-1] = StreamData(event.stream_id, bytes(last.data) + bytes(event.data))
        else:
            joined.append(event)
    return joined

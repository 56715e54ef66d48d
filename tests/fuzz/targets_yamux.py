"""Targets of the stream multiplexer: raw bytes, and rows of headers with an application that acts.

The second kind gives each header the payload it announces and lets the application read, write,
end, reset and open streams in between, as the row says, so that short inputs reach deep states.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.events import (
    Event,
    StreamData,
    StreamEof,
    StreamOpened,
    StreamReset,
)
from sbp2p_protocol.limits import KIB, MIB, YAMUX_BASE_WINDOW, YAMUX_CONTROL_QUEUE
from sbp2p_protocol.yamux import YamuxSession
from sbp2p_protocol.yamux_frames import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    HEADER_SIZE,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    pack_header,
    unpack_header,
)
from sbp2p_protocol.yamux_streams import YamuxConfig

from .engine import Target
from .expect import Refused, attempt, drained, expect, same_for_all_cuts
from .structure import records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

CONFIG: Final = YamuxConfig(
    max_window=1 * MIB,
    session_window=2 * MIB,
    max_inbound_streams=6,
    max_outbound_streams=4,
    ack_backlog=3,
    max_data_frame=1000,
)
MODULES: Final = (
    "sbp2p_protocol.yamux",
    "sbp2p_protocol.yamux_streams",
    "sbp2p_protocol.yamux_stream",
    "sbp2p_protocol.yamux_window",
    "sbp2p_protocol.yamux_liveness",
)


def joined(events: Iterable[Event]) -> list[object]:
    """Return events as they are when every run of data of one stream is one piece."""
    result: list[object] = []
    for event in events:
        if not isinstance(event, StreamData):
            result.append(event)
            continue
        last = result[-1] if result else None
        if isinstance(last, tuple) and last[0] == event.stream_id:
            result[-1] = (event.stream_id, last[1] + bytes(event.data))
        else:
            result.append((event.stream_id, bytes(event.data)))
    return result


def frames_of(initiator: bool) -> list[list[bytes]]:
    """Return typical rows of frames that a peer sends to a side that is the initiator, or not."""
    theirs, ours = (2, 1) if initiator else (1, 2)
    opening = pack_header(WINDOW_UPDATE, SYN, theirs, 0)
    return [
        [
            opening,
            pack_header(DATA, 0, theirs, 5) + b"hello",
            pack_header(DATA, FIN, theirs, 3) + b"end",
            pack_header(WINDOW_UPDATE, ACK, ours, 1000),
            pack_header(DATA, 0, ours, 4) + b"back",
            pack_header(WINDOW_UPDATE, RST, ours, 7),
        ],
        [
            pack_header(DATA, SYN | FIN, theirs + 2, 2) + b"hi",
            pack_header(DATA, SYN, theirs, 1) + b"x",
            pack_header(WINDOW_UPDATE, ACK | FIN, ours, 0),
            pack_header(DATA, RST, theirs, 0),
        ],
        [
            pack_header(PING, SYN, 0, 99),
            pack_header(PING, ACK, 0, 1),
            pack_header(GO_AWAY, 0, 0, 0),
        ],
        [pack_header(WINDOW_UPDATE, SYN, theirs + 2 * number, 0) for number in range(9)],
        [
            opening,
            pack_header(WINDOW_UPDATE, 0, theirs, 2**32 - 1),
            pack_header(DATA, 0, theirs, YAMUX_BASE_WINDOW // 2) + bytes(100),
        ],
    ]


# -- raw bytes -------------------------------------------------------------------------------------


def _raw(data: bytes, *, initiator: bool) -> None:
    def run(pieces: list[bytes]) -> tuple[object, ...]:
        session = YamuxSession(initiator=initiator, config=CONFIG, now=0.0)
        for _ in range(2):
            session.open_stream()
        session.ping(0.0)
        events: list[Event] = []
        error = ""
        for piece in pieces:
            refused = attempt(RemoteProtocolError, session.receive_data, piece, 0.0)
            events += drained(session.next_event)
            if refused is not None:
                error = refused.message
                break
        expect(session.control_size <= YAMUX_CONTROL_QUEUE + KIB, "the control queue is too long")
        return joined(events), error, session.in_frame or bool(error), session.take_control()

    events = same_for_all_cuts(run, data)[0]
    assert isinstance(events, list)
    size = sum(len(event[1]) for event in events if isinstance(event, tuple))
    expect(size <= len(data), "more data than was sent")


# -- an application --------------------------------------------------------------------------------

ROW: Final = HEADER_SIZE + 2
"""Bytes of a row: a header, what the application does then, and how much of it."""

_PAYLOAD_MAX: Final = 512 * KIB
"""Bytes of payload that all rows of an input get together."""


class _Application:
    """Reads, writes and ends streams as it is told; checks what it sees on the way."""

    def __init__(self, *, initiator: bool) -> None:
        self.session = YamuxSession(initiator=initiator, config=CONFIG, now=0.0)
        self.now = 0.0
        self.unread: dict[int, int] = {}
        self.ended: set[int] = set()
        self.dead: set[int] = set()

    def take_events(self) -> None:
        for event in drained(self.session.next_event):
            if isinstance(event, StreamOpened):
                expect(event.stream_id not in self.unread, "a stream id was used twice")
                self.unread[event.stream_id] = 0
            elif isinstance(event, StreamData):
                known = event.stream_id in self.unread and event.stream_id not in self.ended
                expect(known, "data of a stream that is not open")
                self.unread[event.stream_id] += len(event.data)
            elif isinstance(event, StreamEof):
                expect(event.stream_id not in self.ended, "a stream ended twice")
                self.ended.add(event.stream_id)
            elif isinstance(event, StreamReset):
                expect(event.stream_id not in self.dead, "a stream was reset twice")
                self.ended.add(event.stream_id)
                self.dead.add(event.stream_id)
        session = self.session
        limit = max(CONFIG.session_window, 10 * YAMUX_BASE_WINDOW)
        expect(session.open_streams <= 10, f"{session.open_streams} streams")
        expect(0 <= session.receive_window_bytes <= limit, "windows add up to too much")

    def act(self, action: int, amount: int) -> None:
        """Do one thing; LocalProtocolError is how the session says that it cannot be done."""
        attempt(LocalProtocolError, self._act, action, amount)

    def _act(self, action: int, amount: int) -> None:
        session = self.session
        self.now += amount / 16
        ids = [*self.unread]
        stream_id = ids[amount % len(ids)] if ids else 0
        match action % 12:
            case 0 | 1:
                count, self.unread[stream_id] = self.unread.get(stream_id, 0), 0
                session.consumed(stream_id, count, self.now)
            case 2 | 3:
                parts: list[Buffer] = []
                accepted = session.send(stream_id, bytes(amount * 1000), parts)
                expect(accepted <= amount * 1000, "more was sent than there is")
                expect(bool(parts) == bool(accepted), "parts without bytes")
            case 4:
                session.send_eof(stream_id)
            case 5:
                session.reset(stream_id, amount)
            case 6 | 7:
                stream_id = session.open_stream()
                expect(stream_id not in self.unread, "our own id was used twice")
                self.unread[stream_id] = 0
            case 8:
                session.take_control()
            case 9:
                attempt(RemoteProtocolError, session.handle_timer, self.now)
            case 10:
                session.ping(self.now)
            case _:
                if amount > 200:
                    session.go_away(0)
        session.next_deadline()


def _rows(data: bytes, *, initiator: bool) -> None:
    application = _Application(initiator=initiator)
    room = _PAYLOAD_MAX
    for at in range(0, len(data) - ROW + 1, ROW):
        header = data[at : at + HEADER_SIZE]
        _, kind, _, _, length = unpack_header(header, 0)
        payload = bytes(length if kind == DATA and length <= room else 0)
        room -= len(payload)
        taken = application.session.receive_data
        if isinstance(
            attempt(RemoteProtocolError, taken, header + payload, application.now), Refused
        ):
            application.take_events()
            return
        application.take_events()
        application.act(data[at + HEADER_SIZE], data[at + HEADER_SIZE + 1])
        application.take_events()


def _row_seeds(*, initiator: bool) -> list[bytes]:
    seeds = []
    for frames in frames_of(initiator):
        for action in (0, 2, 5, 6):
            rows = [
                frame[:HEADER_SIZE] + bytes([action + n, 28 * n]) for n, frame in enumerate(frames)
            ]
            seeds.append(b"".join(rows))
    theirs = 2 if initiator else 1
    bulk = pack_header(DATA, 0, theirs, YAMUX_BASE_WINDOW // 2) + b"\x00\x00"
    opening = pack_header(WINDOW_UPDATE, SYN, theirs, 0) + b"\x0a\x00"
    pong = pack_header(PING, ACK, 0, 1) + b"\x08\x00"
    return [*seeds, opening + pong + bulk * 4]


TARGETS: Final = (
    *(
        Target(
            name=f"yamux_{role}",
            modules=MODULES,
            check=partial(_raw, initiator=role == "dialler"),
            seeds=lambda role=role: [b"".join(row) for row in frames_of(role == "dialler")],  # type: ignore[misc]
            mutations=(records(HEADER_SIZE),),
            max_size=2048,
            test_runs=80,
        )
        for role in ("dialler", "listener")
    ),
    *(
        Target(
            name=f"yamux_rows_{role}",
            modules=MODULES,
            check=partial(_rows, initiator=role == "dialler"),
            seeds=partial(_row_seeds, initiator=role == "dialler"),
            mutations=(records(ROW),),
            max_size=200 * ROW,
            test_runs=100,
        )
        for role in ("dialler", "listener")
    ),
)

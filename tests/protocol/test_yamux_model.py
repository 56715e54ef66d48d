"""Two sessions against a model of streams: credit, order and life under any schedule."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.events import StreamData, StreamEof, StreamOpened, StreamReset, WindowOpened
from sbp2p_protocol.yamux_streams import YamuxConfig
from tests.protocol.yamux_pair import YamuxEnd, YamuxPair

CONFIG = YamuxConfig(
    max_window=1024 * 1024,
    session_window=2 * 1024 * 1024,
    max_inbound_streams=3,
    ack_backlog=2,
    max_data_frame=40_000,
    initial_window=300 * 1024,
)
PATTERN = bytes(range(251)) * 4200


def content(offset: int, size: int) -> memoryview:
    """The bytes that any direction carries at `offset`."""
    return memoryview(PATTERN)[offset % 251 :][:size]


@dataclass
class Direction:
    """What one side has sent on a stream, and what the other side has seen of it."""

    sent: int = 0
    seen: int = 0
    unread: int = 0
    sent_eof: bool = False
    seen_eof: bool = False
    blocked: bool = False


@dataclass
class Stream:
    """The model of a stream: two directions, and who gave it up."""

    opener: YamuxEnd
    directions: dict[int, Direction] = field(default_factory=dict)
    reset: bool = False
    announced: bool = False

    def sent_by(self, end: YamuxEnd) -> Direction:
        return self.directions.setdefault(id(end), Direction())


class YamuxModel(RuleBasedStateMachine):
    """Every rule is a call a driver can make, or the link carrying some bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = YamuxPair(CONFIG)
        self.streams: dict[int, Stream] = {}

    ends = st.booleans()
    picks = st.integers(0, 1_000)

    def end(self, which: bool) -> YamuxEnd:
        return self.pair.a if which else self.pair.b

    def writable(self, end: YamuxEnd) -> list[int]:
        return [
            key
            for key, stream in self.streams.items()
            if not stream.reset
            and (stream.opener is end or stream.announced)
            and not stream.sent_by(end).sent_eof
        ]

    def known(self, end: YamuxEnd) -> list[int]:
        return [k for k, s in self.streams.items() if s.opener is end or s.announced]

    @rule(which=ends)
    def open(self, which: bool) -> None:
        end = self.end(which)
        unacknowledged = [
            s for s in self.streams.values() if s.opener is end and not s.announced and not s.reset
        ]
        try:
            stream_id = end.open_stream()
        except LocalProtocolError:
            assert len(self.streams) >= CONFIG.ack_backlog
            return
        assert len(unacknowledged) <= CONFIG.ack_backlog
        self.streams[stream_id] = Stream(end)

    @rule(which=ends, pick=picks, size=st.integers(0, 700_000))
    def send(self, which: bool, pick: int, size: int) -> None:
        end = self.end(which)
        if not (choices := self.writable(end)):
            return
        stream_id = choices[pick % len(choices)]
        direction = self.streams[stream_id].sent_by(end)
        accepted = end.send(stream_id, content(direction.sent, size))
        assert 0 <= accepted <= size
        direction.sent += accepted
        direction.blocked |= accepted < size
        assert direction.sent - direction.seen <= CONFIG.max_window

    @rule(which=ends, pick=picks)
    def send_eof(self, which: bool, pick: int) -> None:
        end = self.end(which)
        if choices := self.writable(end):
            stream_id = choices[pick % len(choices)]
            end.session.send_eof(stream_id)
            self.streams[stream_id].sent_by(end).sent_eof = True

    @rule(which=ends, pick=picks)
    def reset(self, which: bool, pick: int) -> None:
        end = self.end(which)
        if choices := self.known(end):
            stream_id = choices[pick % len(choices)]
            end.session.reset(stream_id, 3)
            self.streams[stream_id].reset = True

    @rule(which=ends, size=st.one_of(st.integers(1, 50), st.integers(1, 400_000), st.none()))
    def deliver(self, which: bool, size: int | None) -> None:
        source = self.end(which)
        self.pair.now += 0.001
        self.pair.deliver(source, size)
        self.take_events(self.pair.peer_of(source))

    @rule(which=ends, pick=picks, share=st.floats(0, 1))
    def consume(self, which: bool, pick: int, share: float) -> None:
        end = self.end(which)
        if choices := self.known(end):
            stream_id = choices[pick % len(choices)]
            incoming = self.streams[stream_id].sent_by(self.pair.peer_of(end))
            count = int(incoming.unread * share)
            end.session.consumed(stream_id, count, self.pair.now)
            incoming.unread -= count

    @rule(which=ends)
    def ping(self, which: bool) -> None:
        self.end(which).session.ping(self.pair.now)

    def take_events(self, end: YamuxEnd) -> None:
        peer = self.pair.peer_of(end)
        for event in end.events():
            match event:
                case StreamOpened(stream_id):
                    stream = self.streams[stream_id]
                    assert stream.opener is peer
                    stream.announced = True
                case StreamData(stream_id, data):
                    direction = self.streams[stream_id].sent_by(peer)
                    assert bytes(data) == content(direction.seen, len(data))
                    direction.seen += len(data)
                    direction.unread += len(data)
                    assert direction.seen <= direction.sent
                    assert not direction.seen_eof
                    assert direction.unread <= CONFIG.max_window
                case StreamEof(stream_id):
                    direction = self.streams[stream_id].sent_by(peer)
                    assert direction.sent_eof
                    assert not direction.seen_eof
                    assert direction.seen == direction.sent
                    direction.seen_eof = True
                case StreamReset(stream_id, code):
                    stream = self.streams[stream_id]
                    assert code == 3 or not stream.announced
                    stream.reset = True
                case WindowOpened(stream_id):
                    assert self.streams[stream_id].sent_by(end).blocked
                case _:
                    pass

    @invariant()
    def budget_is_kept(self) -> None:
        for end in (self.pair.a, self.pair.b):
            assert end.session.receive_window_bytes <= CONFIG.session_window + (
                end.session.open_streams * 256 * 1024
            )

    @rule()
    @precondition(lambda self: self.streams)
    def everything_arrives_in_the_end(self) -> None:
        """With the link open and both sides reading, all that was accepted gets through."""
        for _ in range(20):
            for end in (self.pair.a, self.pair.b):
                self.deliver(end is self.pair.a, None)
                for stream_id in self.known(end):
                    incoming = self.streams[stream_id].sent_by(self.pair.peer_of(end))
                    end.session.consumed(stream_id, incoming.unread, self.pair.now)
                    incoming.unread = 0
        for stream in self.streams.values():
            if stream.reset:
                continue
            for direction in stream.directions.values():
                assert direction.seen == direction.sent
                assert direction.seen_eof == direction.sent_eof

    def teardown(self) -> None:
        if self.streams:
            self.everything_arrives_in_the_end()
        for end in (self.pair.a, self.pair.b):
            for stream_id in self.streams:
                end.session.reset(stream_id)
            assert end.session.open_streams == 0
            assert end.session.receive_window_bytes == 0


TestYamuxModel = YamuxModel.TestCase
TestYamuxModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

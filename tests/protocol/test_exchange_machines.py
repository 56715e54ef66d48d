from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbp2p_protocol.bitmap import Bitmap
from sbp2p_protocol.cid import DAG_PB, Cid
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.exchange_client import ClientState, ExchangeClient
from sbp2p_protocol.exchange_events import (
    BitsArrived,
    BlockArrived,
    BlocksGained,
    ClientEvent,
    EverythingGained,
    Greeted,
    NameWanted,
    NodeArrived,
    NodeRejected,
    PeerLeft,
    Rejected,
    RootMissing,
    ServerEvent,
    Stalled,
    Subscribed,
    Unsubscribed,
    VersionArrived,
    VersionMissing,
    VersionWanted,
    WorkQueued,
)
from sbp2p_protocol.exchange_messages import (
    BlockHeader,
    Goodbye,
    GoodbyeCode,
    Have,
    HaveAll,
    HaveBitmap,
    Hello,
    Message,
    NotFound,
    Reject,
    RejectReason,
    Request,
    VersionHeader,
    encode_message,
)
from sbp2p_protocol.exchange_server import ExchangeServer
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.limits import BLOCK_MAX, EXCHANGE_ASKED_MAX, MIB

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT = 10.0
ROOT = Cid(1, DAG_PB, 0x1E, bytes(32))


def digest_of(data: bytes) -> bytes:
    return blake3(data).digest()


def frame(message: Message) -> bytes:
    return encode_length_prefixed(encode_message(message))


def new_client(pipeline_bytes: int = 16 * MIB) -> ExchangeClient:
    return ExchangeClient(pipeline_bytes=pipeline_bytes, progress_timeout_s=TIMEOUT, now=0.0)


def open_client(pipeline_bytes: int = 16 * MIB, rtt_s: float = 0.01) -> ExchangeClient:
    client = new_client(pipeline_bytes)
    client.receive_data(frame(Hello(1, (), 64 * MIB, 100)), rtt_s)
    client.data_to_send()
    assert isinstance(client.next_event(), Greeted)
    return client


def open_server(max_requests: int = 100) -> ExchangeServer:
    server = ExchangeServer(max_outstanding_bytes=64 * MIB, max_requests=max_requests)
    server.receive_data(frame(Hello(1, (), MIB, 100)))
    server.data_to_send()
    assert isinstance(server.next_event(), Greeted)
    return server


def client_events(client: ExchangeClient) -> list[ClientEvent]:
    return list(iter(client.next_event, None))


def server_events(server: ExchangeServer) -> list[ServerEvent]:
    return list(iter(server.next_event, None))


class Link:
    """A client and a server joined byte by byte or in larger pieces."""

    def __init__(self, blocks: dict[bytes, bytes], step: int = 1 << 20) -> None:
        self.client = new_client()
        self.server = ExchangeServer(max_outstanding_bytes=64 * MIB)
        self.blocks = blocks
        self.step = step
        self.now = 0.0

    def deliver(self, data: bytes, receive: Callable[[bytes], None]) -> None:
        for at in range(0, len(data), self.step):
            receive(data[at : at + self.step])

    def run(self) -> tuple[list[ClientEvent], list[ServerEvent]]:
        """Carry bytes until nothing more happens; serves blocks on the way."""
        told: list[ClientEvent] = []
        asked: list[ServerEvent] = []
        moved = True
        while moved:
            moved = False
            if data := self.client.data_to_send():
                self.deliver(data, self.server.receive_data)
                moved = True
            asked += server_events(self.server)
            while (wanted := self.server.next_wanted()) is not None:
                block = self.blocks.get(wanted.digest)
                if block is None:
                    self.server.reject(wanted.digest, RejectReason.NOT_HAVE)
                else:
                    header = self.server.block_header(wanted.digest, len(block))
                    self.deliver(
                        header + block, lambda data: self.client.receive_data(data, self.now)
                    )
            if data := self.server.data_to_send():
                self.deliver(data, lambda data: self.client.receive_data(data, self.now))
                moved = True
            told += client_events(self.client)
        return told, asked


@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
def test_everything_over_a_link(step: int) -> None:
    data = [bytes([n]) * (3000 + n) for n in range(3)]
    link = Link({digest_of(block): block for block in data}, step)
    client, server = link.client, link.server
    told, asked = link.run()
    assert [type(event) for event in (*told, *asked)] == [Greeted, Greeted]

    version = client.get_version(ROOT)
    name = client.resolve(b"peer", "model", 3)
    subscription = client.subscribe(ROOT, 20)
    assert link.run()[1] == [
        VersionWanted(version, ROOT),
        NameWanted(name, b"peer", "model", 3),
        Subscribed(subscription, ROOT),
    ]
    server.send_version(version, b"document" * 9000)
    server.send_not_found(name)
    server.send_bits(subscription, Bitmap(20, [1, 19]).to_bytes())
    server.send_have(subscription, [2, 3])
    server.send_have_all(subscription)
    assert link.run()[0] == [
        VersionArrived(version, b"document" * 9000),
        VersionMissing(name),
        BitsArrived(subscription, 0, Bitmap(20, [1, 19]).to_bytes()),
        BlocksGained(subscription, (2, 3)),
        EverythingGained(subscription),
    ]

    node = Cid.for_block(DAG_PB, data[0])
    absent = digest_of(b"absent")
    client.request([(digest_of(block), len(block)) for block in data[1:]] + [(absent, 9)], 0.0)
    client.get_nodes([node, ROOT], 0.0)
    told, asked = link.run()
    assert asked == [WorkQueued()]
    arrived = [event for event in told if isinstance(event, BlockArrived)]
    assert [b"".join(event.parts) for event in arrived] == data[1:]
    assert NodeArrived(node, data[0]) in told
    assert NodeRejected(ROOT, RejectReason.NOT_HAVE) in told
    assert Rejected((absent,), RejectReason.NOT_HAVE) in told
    assert client.owed_bytes == client.owed_blocks == 0

    client.unsubscribe(subscription)
    assert link.run()[1] == [Unsubscribed(subscription)]
    server.goodbye(GoodbyeCode.SHUTDOWN, "later")
    assert link.run()[0] == [PeerLeft(GoodbyeCode.SHUTDOWN, "later")]
    assert client.state is ClientState.CLOSED
    with pytest.raises(LocalProtocolError):
        client.request([(absent, 9)], 0.0)


def test_root_that_is_not_there() -> None:
    link = Link({})
    subscription = link.client.subscribe(ROOT, 8)
    link.run()
    link.server.send_not_found(subscription)
    assert link.run()[0] == [RootMissing(subscription)]


def test_empty_chunks_of_a_bitmap_are_not_sent() -> None:
    link = Link({})
    size = 32 * 1024 * 8 * 3
    subscription = link.client.subscribe(ROOT, size)
    link.run()
    link.server.send_bits(subscription, Bitmap(size, [size - 1]).to_bytes())
    events = link.run()[0]
    assert [event.start for event in events if isinstance(event, BitsArrived)] == [size // 3 * 2]


def test_full_queue_rejects_as_busy() -> None:
    server = open_server(max_requests=2)
    wanted = tuple(bytes([n]) * 32 for n in range(4))
    server.receive_data(frame(Request(wanted)))
    assert server.data_to_send() == frame(Reject(wanted[2:], RejectReason.BUSY))
    assert server_events(server) == [WorkQueued()]
    first = server.next_wanted()
    assert first is not None
    assert first.digest == wanted[0]


def test_cancel_is_answered_unless_the_block_is_under_way() -> None:
    link = Link({})
    client, server = link.client, link.server
    link.run()
    one, two = bytes(32), bytes([1]) * 32
    client.request([(one, 5), (two, 5)], 0.0)
    server.receive_data(client.data_to_send())
    taken = server.next_wanted()
    assert taken is not None
    client.cancel([one, two])
    server.receive_data(client.data_to_send())
    assert server.next_wanted() is None
    client.receive_data(server.block_header(one, 5) + b"12345", 0.1)
    assert client_events(client) == []
    assert client.owed_blocks == 0


def test_block_wanted_again_after_a_cancel_is_delivered_if_it_was_under_way() -> None:
    client = open_client()
    client.request([(bytes(32), 5)], 0.0)
    client.cancel([bytes(32)])
    client.request([(bytes(32), 5)], 0.0)
    client.receive_data(frame(BlockHeader(bytes(32), 5)) + b"12345", 0.1)
    assert [type(event) for event in client_events(client)] == [BlockArrived]


@pytest.mark.parametrize(
    "message",
    [
        BlockHeader(bytes(32), 5),
        BlockHeader(bytes([7]) * 32, 6),
        Reject((bytes(32),), RejectReason.BUSY),
        Reject((bytes([7]) * 32,) * 2, RejectReason.BUSY),
        VersionHeader(5, 10),
        NotFound(5),
        Have(9, (1,)),
        Have(1, (10,)),
        HaveBitmap(1, 8, b"\x04"),
        HaveBitmap(1, 16, b"\x01"),
        HaveAll(9),
        Hello(1, (), MIB, 1),
        Request((bytes(32),)),
    ],
)
def test_what_a_server_may_not_say(message: Message) -> None:
    client = open_client()
    assert client.subscribe(ROOT, 10) == 1
    client.request([(bytes([7]) * 32, 5)], 0.0)
    with pytest.raises(RemoteProtocolError):
        client.receive_data(frame(message), 0.1)


def test_first_message_is_hello() -> None:
    with pytest.raises(RemoteProtocolError, match="HELLO"):
        new_client().receive_data(frame(HaveAll(1)), 0.0)
    server = ExchangeServer(max_outstanding_bytes=MIB)
    with pytest.raises(RemoteProtocolError, match="HELLO"):
        server.receive_data(frame(Request((bytes(32),))))


def test_what_a_client_may_not_say() -> None:
    for messages in (
        [HaveAll(1)],
        [Hello(1, (), MIB, 1)],
        [Request((bytes(32),)), Request((bytes(32),))],
    ):
        server = open_server()
        with pytest.raises(RemoteProtocolError):
            server.receive_data(b"".join(map(frame, messages)))


def test_questions_and_subscriptions_are_bounded() -> None:
    client, server = open_client(), open_server()
    for _ in range(EXCHANGE_ASKED_MAX):
        client.get_version(ROOT)
    server.receive_data(client.data_to_send())
    client.get_version(ROOT)
    with pytest.raises(RemoteProtocolError):
        server.receive_data(client.data_to_send())
    client, server = open_client(), open_server()
    for _ in range(65):
        client.subscribe(ROOT, 1)
    with pytest.raises(RemoteProtocolError):
        server.receive_data(client.data_to_send())


def test_stream_may_not_end_inside_a_message() -> None:
    client = open_client()
    client.receive_data(frame(HaveAll(1))[:2], 0.0)
    with pytest.raises(RemoteProtocolError, match="inside"):
        client.receive_eof()
    server = open_server()
    server.receive_eof()
    assert server_events(server) == [PeerLeft(GoodbyeCode.DONE, "the stream ended")]


def test_stall_is_reported_once_and_ends_with_progress() -> None:
    client = open_client()
    assert client.next_deadline() is None
    one, two = bytes(32), bytes([1]) * 32
    client.request([(one, BLOCK_MAX), (two, BLOCK_MAX)], 5.0)
    client.cancel([two])
    client.get_nodes([Cid(1, DAG_PB, 0x1E, bytes([2]) * 32)], 5.0)
    assert client.next_deadline() == 15.0
    client.receive_data(frame(BlockHeader(one, BLOCK_MAX)), 6.0)
    client.receive_data(bytes(100), 14.0)  # a trickle is no progress
    client.handle_timer(14.9)
    assert client_events(client) == []
    client.handle_timer(15.0)
    assert client_events(client) == [Stalled((one,), (Cid(1, DAG_PB, 0x1E, bytes([2]) * 32),))]
    assert client.room() == 0
    client.handle_timer(100.0)
    assert client_events(client) == []
    client.receive_data(bytes(BLOCK_MAX - 100), 101.0)
    events = client_events(client)
    assert [type(event) for event in events] == [BlockArrived]
    assert not client.stalled
    assert client.room() > 0
    assert client.next_deadline() == 111.0


def test_time_in_which_we_did_not_read_does_not_count() -> None:
    client = open_client()
    client.request([(bytes(32), 5)], 0.0)
    client.resume(9.0)
    assert client.next_deadline() == 19.0


def test_peer_limits_bind() -> None:
    client = new_client()
    client.receive_data(frame(Hello(1, (), MIB, 2)), 0.01)
    assert client.room() == MIB
    client.request([(bytes([n]) * 32, 1) for n in range(2)], 0.1)
    assert client.room() == 0


def transfer(client: ExchangeClient, rate: float, rtt: float, seconds: float) -> float:
    """Keep the pipeline full over a simulated link; returns bytes a second received."""
    now, number, received = 0.1, 0, 0
    link_free_at = now
    queue: deque[tuple[float, bytes]] = deque()
    end = now + seconds
    while now < end:
        while client.room() > 0:
            digest = number.to_bytes(32, "big")
            number += 1
            client.request([(digest, BLOCK_MAX)], now)
            link_free_at = max(link_free_at, now + rtt) + BLOCK_MAX / rate
            queue.append((link_free_at, digest))
        client.data_to_send()
        now, digest = queue.popleft()
        client.receive_data(frame(BlockHeader(digest, BLOCK_MAX)) + bytes(BLOCK_MAX), now)
        client_events(client)
        received += BLOCK_MAX
    return received / seconds


def test_pipeline_grows_to_the_bandwidth_delay_product() -> None:
    client = open_client(64 * MIB, 0.1)
    rate = transfer(client, rate=100 * MIB, rtt=0.1, seconds=5)
    assert rate > 85 * MIB
    assert 10 * MIB <= client.pipeline.window <= 30 * MIB


def test_pipeline_stays_small_on_a_slow_link() -> None:
    client = open_client(64 * MIB, 0.02)
    rate = transfer(client, rate=5 * MIB, rtt=0.02, seconds=10)
    assert rate > 4.5 * MIB
    assert client.pipeline.window <= 3 * MIB


def take_rest(machine: ExchangeClient | ExchangeServer) -> int:
    """Take what was left unread; returns the number of slices."""
    slices = 1
    while machine.unread:
        slices += 1
        if isinstance(machine, ExchangeClient):
            machine.receive_more(0.0)
        else:
            machine.receive_more()
    return slices


def feed(machine: ExchangeClient | ExchangeServer, data: bytes, step: int) -> None:
    with suppress(RemoteProtocolError):
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            if isinstance(machine, ExchangeClient):
                machine.receive_data(piece, 0.0)
            else:
                machine.receive_data(piece)
            take_rest(machine)
        machine.receive_eof()


client_messages = st.sampled_from(
    [
        frame(Hello(1, (), MIB, 4)),
        frame(BlockHeader(bytes(32), 4)) + b"1234",
        frame(BlockHeader(bytes([1]) * 32, 4)) + b"1234",
        frame(Reject((bytes([1]) * 32,), RejectReason.CHANGED)),
        frame(Have(1, (3,))),
        frame(HaveBitmap(1, 0, b"\xff")),
        frame(HaveAll(1)),
        frame(NotFound(1)),
        frame(VersionHeader(2, 3)) + b"abc",
        frame(Goodbye(GoodbyeCode.DONE, "")),
        frame(Request((bytes(32),))),
        b"\x05\x82\x18\x1f\x01\x01",
    ]
)


@settings(max_examples=150)
@given(
    st.lists(client_messages | st.binary(max_size=30), max_size=8).map(b"".join),
    st.integers(1, 50),
    st.booleans(),
)
def test_garbage_to_either_side_raises_only_the_remote_error(
    data: bytes, step: int, greeted: bool
) -> None:
    client = open_client() if greeted else new_client()
    client.subscribe(ROOT, 10)
    client.get_version(ROOT)
    if greeted:
        client.request([(bytes(32), 4), (bytes([1]) * 32, 4)], 0.0)
    feed(client, data, step)
    feed(open_server() if greeted else ExchangeServer(max_outstanding_bytes=MIB), data, step)


class ExchangePair(RuleBasedStateMachine):
    """Client and server over queues with arbitrary delays: every request is answered once."""

    blocks = tuple(bytes([n]) * (n * 400 + 1) for n in range(12))

    @initialize(max_requests=st.integers(1, 6))
    def start(self, max_requests: int) -> None:
        self.client = new_client()
        self.server = ExchangeServer(max_outstanding_bytes=MIB, max_requests=max_requests)
        self.up = bytearray()
        self.down = bytearray()
        self.now = 0.0
        self.by_digest = {digest_of(block): block for block in self.blocks}
        self.wanted: set[bytes] = set()
        self.cancelled: set[bytes] = set()

    def is_open(self) -> bool:
        return self.client.state is ClientState.OPEN

    @rule(numbers=st.sets(st.integers(0, 11), min_size=1, max_size=5))
    def ask(self, numbers: set[int]) -> None:
        if self.is_open():
            picked = [digest_of(self.blocks[n]) for n in sorted(numbers)]
            self.client.request([(d, len(self.by_digest[d])) for d in picked], self.now)
            self.wanted |= set(picked)
            self.cancelled -= set(picked)

    @rule(number=st.integers(0, 11))
    def cancel(self, number: int) -> None:
        digest = digest_of(self.blocks[number])
        self.client.cancel([digest])
        if digest in self.wanted:
            self.wanted.discard(digest)
            self.cancelled.add(digest)

    @rule(count=st.integers(1, 3000))
    def carry_up(self, count: int) -> None:
        self.up += self.client.data_to_send()
        self.server.receive_data(bytes(self.up[:count]))
        del self.up[:count]
        server_events(self.server)

    @rule(count=st.integers(1, 3000))
    def carry_down(self, count: int) -> None:
        self.down += self.server.data_to_send()
        self.now += 0.01
        self.client.receive_data(bytes(self.down[:count]), self.now)
        del self.down[:count]
        for event in client_events(self.client):
            if isinstance(event, BlockArrived):
                assert b"".join(event.parts) == self.by_digest[event.digest]
                self.wanted.remove(event.digest)
            elif isinstance(event, Rejected):
                for digest in event.digests:
                    self.wanted.remove(digest)

    @rule(serve=st.booleans())
    def answer(self, serve: bool) -> None:
        wanted = self.server.next_wanted()
        if wanted is not None and serve:
            block = self.by_digest[wanted.digest]
            self.down += self.server.block_header(wanted.digest, len(block)) + block
        elif wanted is not None:
            self.server.reject(wanted.digest, RejectReason.CHANGED)

    @invariant()
    def debts_match(self) -> None:
        if hasattr(self, "client"):
            assert all(self.client.owes(digest) for digest in self.wanted)
            assert self.client.owed_blocks <= len(self.wanted) + len(self.cancelled)

    def teardown(self) -> None:
        if not hasattr(self, "client"):
            return
        for _ in range(100):
            self.carry_up(100_000)
            self.answer(True)
            self.carry_down(100_000)
        assert not self.wanted
        assert self.client.owed_blocks == self.client.owed_bytes == 0
        assert self.server.queued == 0


ExchangePair.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestExchangePair = ExchangePair.TestCase

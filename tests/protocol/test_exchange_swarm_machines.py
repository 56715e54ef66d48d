"""What the two machines of the exchange say of wants, gains, choking and peers."""

from __future__ import annotations

from sbp2p_protocol.cid import DAG_PB, Cid
from sbp2p_protocol.exchange_client import STUCK_S, ExchangeClient
from sbp2p_protocol.exchange_events import (
    BlockArrived,
    Choked,
    ClientEvent,
    GotTold,
    PeersTold,
    Rejected,
    ServerEvent,
    WantsTold,
)
from sbp2p_protocol.exchange_messages import RejectReason
from sbp2p_protocol.exchange_server import ExchangeServer
from sbp2p_protocol.limits import EXCHANGE_BITMAP_CHUNK, EXCHANGE_RECORDS_BATCH, MIB

ROOT = Cid(1, DAG_PB, 0x1E, bytes(32))
BLOCKS = [bytes([number]) * 32 for number in range(8)]


class Pair:
    """A client and a server that have greeted each other."""

    def __init__(self, *, ordered: bool = False) -> None:
        self.client = ExchangeClient(
            pipeline_bytes=16 * MIB, progress_timeout_s=10.0, now=0.0, ordered=ordered
        )
        self.server = ExchangeServer(max_outstanding_bytes=64 * MIB)
        self.now = 0.0
        self.carry()

    def carry(self) -> tuple[list[ClientEvent], list[ServerEvent]]:
        """Carry what both have to say, and return what came of it."""
        self.server.receive_data(self.client.data_to_send())
        while self.server.unread:
            self.server.receive_more()
        self.client.receive_data(self.server.data_to_send(), self.now)
        while self.client.unread:
            self.client.receive_more(self.now)
        return list(iter(self.client.next_event, None)), list(iter(self.server.next_event, None))

    def ask(self, *numbers: int) -> None:
        self.client.request([(BLOCKS[number], 10) for number in numbers], self.now)

    def serve(self) -> bytes:
        """Serve the request that is next."""
        wanted = self.server.next_wanted()
        assert wanted is not None
        if wanted.withdrawn is not None:
            self.server.reject(wanted.digest, wanted.withdrawn)
            return self.server.data_to_send()
        return self.server.block_header(wanted.digest, 10) + bytes(10)


def rejects(events: list[ClientEvent]) -> dict[bytes, RejectReason]:
    return {d: e.reason for e in events if isinstance(e, Rejected) for d in e.digests}


def test_each_side_says_what_it_speaks() -> None:
    pair = Pair()
    assert pair.client.tells
    assert pair.server.peer_tells
    assert pair.server.peer_is_shown
    assert not Pair(ordered=True).server.peer_is_shown


def test_wants_and_gains() -> None:
    pair = Pair()
    number = pair.client.subscribe(ROOT, 8 * EXCHANGE_BITMAP_CHUNK + 80)
    bits = bytes(EXCHANGE_BITMAP_CHUNK) + b"\x01" * 10
    pair.client.tell_wants(number, bits)
    pair.client.tell_got(number, [7, 9])
    _, events = pair.carry()
    assert events[1:] == [
        WantsTold(number, 0, bits[:EXCHANGE_BITMAP_CHUNK]),
        WantsTold(number, 8 * EXCHANGE_BITMAP_CHUNK, bits[EXCHANGE_BITMAP_CHUNK:]),
        GotTold(number, (7, 9)),
    ]
    pair.client.unsubscribe(number)
    pair.carry()


def test_peers_both_ways() -> None:
    pair = Pair()
    records = [bytes([number]) for number in range(EXCHANGE_RECORDS_BATCH + 1)]
    pair.client.tell_peers(ROOT, records[:2])
    pair.server.send_peers(ROOT, records)
    heard, told = pair.carry()
    assert told == [PeersTold(ROOT, (b"\0", b"\1"))]
    assert [len(event.records) for event in heard if isinstance(event, PeersTold)] == [16, 1]


def test_choking_rejects_what_waits_and_what_comes() -> None:
    pair = Pair()
    pair.ask(0, 1, 2)
    pair.carry()
    begun = pair.server.next_wanted()
    assert begun is not None
    pair.server.choke(choked=True)
    pair.ask(3)
    events, _ = pair.carry()
    more, _ = pair.carry()
    assert Choked(choked=True) in events
    assert rejects(events + more) == dict.fromkeys(BLOCKS[1:4], RejectReason.CHOKED)
    assert pair.client.room() == 0
    assert pair.client.room_nodes() > 0
    assert begun.withdrawn is RejectReason.CHOKED, "it may be let go of, or sent"
    header = pair.server.block_header(begun.digest, 10)
    pair.client.receive_data(header + bytes(10), 1.0)
    assert isinstance(pair.client.next_event(), BlockArrived)
    pair.server.choke(choked=False)
    assert pair.carry()[0] == [Choked(choked=False)]
    assert pair.client.room() > 0


def test_nodes_are_served_to_the_choked() -> None:
    pair = Pair()
    pair.server.choke(choked=True)
    pair.carry()
    pair.client.get_nodes([ROOT], 0.0)
    pair.carry()
    wanted = pair.server.next_wanted()
    assert wanted is not None
    assert wanted.cid == ROOT


def test_a_request_that_is_called_back_comes_back_or_is_served() -> None:
    pair = Pair()
    pair.ask(0, 1)
    pair.carry()
    begun = pair.server.next_wanted()
    assert begun is not None
    assert pair.client.recall(BLOCKS[:2])
    assert not pair.client.recall(BLOCKS[:2]), "once is enough"
    events, _ = pair.carry()
    assert rejects(events) == {BLOCKS[1]: RejectReason.CANCELLED}
    assert begun.withdrawn is RejectReason.CANCELLED
    pair.client.receive_data(pair.server.block_header(begun.digest, 10) + bytes(10), 1.0)
    assert isinstance(pair.client.next_event(), BlockArrived), "still wanted"
    assert pair.client.owed_blocks == 0


def test_what_was_read_and_not_begun_can_be_let_go() -> None:
    pair = Pair()
    pair.ask(0)
    pair.carry()
    wanted = pair.server.next_wanted()
    assert wanted is not None
    assert pair.server.owed == 1
    pair.client.recall(BLOCKS[:1])
    pair.carry()
    assert wanted.withdrawn is not None
    pair.server.reject(wanted.digest, wanted.withdrawn)
    assert rejects(pair.carry()[0]) == {BLOCKS[0]: RejectReason.CANCELLED}
    assert pair.server.owed == 0


def test_only_what_is_not_being_sent_is_worth_calling_back() -> None:
    pair = Pair()
    pair.ask(0, 1)
    assert not pair.client.may_give_back(BLOCKS[0], STUCK_S / 2)
    assert pair.client.may_give_back(BLOCKS[1], STUCK_S / 2)
    assert pair.client.may_give_back(BLOCKS[0], STUCK_S + 0.1), "it is stuck"


def test_the_wait_for_a_block_is_that_of_all_before_it() -> None:
    pair = Pair()
    pair.now = 1.0
    pair.ask(0, 1, 2)
    assert pair.client.expected_wait(BLOCKS[5], 1.0) == 0.0
    pair.carry()
    pair.now = 2.0
    pair.client.receive_data(pair.serve(), pair.now)  # ten bytes a second
    assert pair.client.expected_wait(BLOCKS[1], 2.0) == 1.0
    assert pair.client.expected_wait(BLOCKS[2], 2.0) == 2.0
    assert pair.client.expected_wait(BLOCKS[2], 12.0) == 10.0, "nothing has come since"

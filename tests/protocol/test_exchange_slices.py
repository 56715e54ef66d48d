"""A read full of short messages is taken in slices, whatever the messages are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p_protocol.cid import DAG_PB, Cid
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.exchange_client import ExchangeClient
from sbp2p_protocol.exchange_messages import (
    BlockHeader,
    Cancel,
    GetNodes,
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
    Subscribe,
    Unsubscribe,
    encode_message,
)
from sbp2p_protocol.exchange_server import ExchangeServer
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.limits import (
    EXCHANGE_FRAME_MAX,
    EXCHANGE_HAVE_BATCH,
    EXCHANGE_QUEUE_MAX,
    EXCHANGE_SLICE_BYTES,
    EXCHANGE_SLICE_FRAMES,
    MIB,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Cid(1, DAG_PB, 0x1E, bytes(32))
BLOCKS = 100_000


def frame(message: Message) -> bytes:
    return encode_length_prefixed(encode_message(message))


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


HELLO = frame(Hello(1, (), 64 * MIB, EXCHANGE_QUEUE_MAX))
UNKNOWN = encode_length_prefixed(b"\x81\x17")
LONG_UNKNOWN = encode_length_prefixed(b"\x82\x17\x59\xff\x00" + bytes(0xFF00))

# what a server may send to a client that follows subscription 1 and asked for blocks 0 to 9
FROM_SERVER = {
    "unknown": UNKNOWN,
    "unknown and long": LONG_UNKNOWN,
    "have all": frame(HaveAll(1)),
    "have one": frame(Have(1, (5,))),
    "have many": frame(Have(1, tuple(range(EXCHANGE_HAVE_BATCH)))),
    "bitmap of nothing": frame(HaveBitmap(1, 0, b"\0")),
    "root missing": frame(NotFound(1)),
}
FROM_CLIENT = {
    "unknown": UNKNOWN,
    "unknown and long": LONG_UNKNOWN,
    "cancel of nothing": frame(Cancel((digest(0),))),
    "unsubscribe from nothing": frame(Unsubscribe(9)),
    "subscribe and unsubscribe": frame(Subscribe(1, ROOT)) + frame(Unsubscribe(1)),
    "request and cancel": frame(Request((digest(1),))) + frame(Cancel((digest(1),))),
    "node and cancel": frame(GetNodes((ROOT,))) + frame(Cancel((ROOT.digest,))),
}


class Counted:
    """A machine's work on a chunk, a slice at a time: events, and frames in each slice."""

    def __init__(self, make: Callable[[], ExchangeClient | ExchangeServer]) -> None:
        self.machine = make()
        self.events: list[object] = []
        self.slices = 0

    def take(self, data: bytes) -> None:
        if isinstance(self.machine, ExchangeClient):
            self.machine.receive_data(data, 0.0)
        else:
            self.machine.receive_data(data)
        self._drain()
        while self.machine.unread:
            if isinstance(self.machine, ExchangeClient):
                self.machine.receive_more(0.0)
            else:
                self.machine.receive_more()
            self._drain()

    def _drain(self) -> None:
        self.slices += 1
        while (event := self.machine.next_event()) is not None:
            self.events.append(event)


def client() -> ExchangeClient:
    machine = ExchangeClient(pipeline_bytes=16 * MIB, progress_timeout_s=10.0, now=0.0)
    machine.subscribe(ROOT, BLOCKS)
    machine.receive_data(HELLO, 0.0)
    machine.request([(digest(number), 4) for number in range(10)], 0.0)
    return machine


def server() -> ExchangeServer:
    machine = ExchangeServer(max_outstanding_bytes=64 * MIB)
    machine.receive_data(HELLO)
    return machine


@pytest.mark.parametrize("kind", FROM_SERVER)
def test_client_takes_a_full_read_in_slices(kind: str) -> None:
    _check_slices(client, FROM_SERVER[kind])


@pytest.mark.parametrize("kind", FROM_CLIENT)
def test_server_takes_a_full_read_in_slices(kind: str) -> None:
    _check_slices(server, FROM_CLIENT[kind])


def _check_slices(make: Callable[[], ExchangeClient | ExchangeServer], unit: bytes) -> None:
    count = min(MIB // len(unit), 3_000)
    counted = Counted(make)
    counted.take(unit * count)
    frames = count * (2 if unit in list(FROM_CLIENT.values())[-3:] else 1)
    assert counted.slices >= frames // EXCHANGE_SLICE_FRAMES
    assert counted.slices >= count * len(unit) // (EXCHANGE_SLICE_BYTES + EXCHANGE_FRAME_MAX)
    one_by_one = Counted(make)
    for _ in range(count):
        one_by_one.take(unit)
    assert counted.events == one_by_one.events


def test_payload_is_not_cut_by_slices() -> None:
    counted = Counted(client)
    news = UNKNOWN * (EXCHANGE_SLICE_FRAMES - 1)
    block = frame(BlockHeader(digest(3), 4)) + b"abcd"
    counted.take(news + block + news + frame(Reject((digest(4),), RejectReason.BUSY)))
    arrived = [event for event in counted.events if type(event).__name__ == "BlockArrived"]
    assert [b"".join(event.parts) for event in arrived] == [b"abcd"]  # type: ignore[attr-defined]
    assert isinstance(counted.machine, ExchangeClient)
    assert counted.machine.owed_blocks == 8


def test_what_follows_a_goodbye_is_dropped() -> None:
    for make in (client, server):
        counted = Counted(make)
        counted.take(UNKNOWN * 1000 + frame(Goodbye(GoodbyeCode.DONE, "")) + b"\xff" * 1000)
        assert counted.machine.closed
        assert not counted.machine.unread


def test_the_next_chunk_waits_for_the_slices_of_the_last() -> None:
    machine = server()
    machine.receive_data(UNKNOWN * 1000)
    with pytest.raises(LocalProtocolError, match="before the last chunk"):
        machine.receive_data(UNKNOWN)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([*FROM_SERVER.values(), b"\x02\x81\x00"]), max_size=12), st.data())
def test_slices_change_nothing(units: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(unit * data.draw(st.integers(1, 300)) for unit in units)[: 8 * 1024]
    outcomes = []
    for size in (1, 1000, len(stream) + 1):
        counted = Counted(client)
        error = ""
        try:
            for at in range(0, len(stream), size):
                counted.take(stream[at : at + size])
        except RemoteProtocolError as refused:
            error = str(refused)
        # what is drained before the error depends on where the slice began
        outcomes.append((error, None if error else counted.events))
    assert outcomes[0] == outcomes[1] == outcomes[2]

"""Targets of the exchange: frames, messages, and both machines of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.exchange_client import ExchangeClient
from sbp2p_protocol.exchange_events import (
    BitsArrived,
    BlockArrived,
    BlocksGained,
    ClientEvent,
    NodeArrived,
    PeerLeft,
    Rejected,
    ServerEvent,
    Subscribed,
    VersionArrived,
    VersionWanted,
)
from sbp2p_protocol.exchange_events import NameWanted as NameWantedEvent
from sbp2p_protocol.exchange_frames import FrameSplitter
from sbp2p_protocol.exchange_messages import (
    BlockHeader,
    Cancel,
    Choke,
    GetNodes,
    GetVersion,
    Goodbye,
    GoodbyeCode,
    Got,
    Have,
    HaveAll,
    HaveBitmap,
    Hello,
    Message,
    NotFound,
    Peers,
    Reject,
    RejectReason,
    Request,
    Resolve,
    Subscribe,
    Unsubscribe,
    VersionHeader,
    Wants,
    decode_message,
    encode_message,
)
from sbp2p_protocol.exchange_server import ExchangeServer
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.limits import (
    EXCHANGE_ASKED_MAX,
    EXCHANGE_FRAME_MAX,
    EXCHANGE_SUBSCRIPTIONS_MAX,
    MIB,
)

from .corpus import DIGESTS, KEYS, MANIFEST_CID, TREE_ROOT
from .engine import Target
from .expect import Refused, attempt, drained, expect, expect_equal, same_for_all_cuts
from .structure import blind, cbor, frames

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCKS: Final = 77
"""Unique blocks of the version that the client follows; not a multiple of 8."""

LENGTHS: Final = {digest: 10 + 3 * number for number, digest in enumerate(DIGESTS[:4])}

MESSAGES: Final[tuple[Message, ...]] = (
    Hello(1, ("x",), 64 * MIB, 100),
    Request(DIGESTS[:3]),
    BlockHeader(DIGESTS[0], LENGTHS[DIGESTS[0]]),
    Reject(DIGESTS[1:3], RejectReason.CHANGED),
    Cancel(DIGESTS[:2]),
    Subscribe(3, TREE_ROOT),
    Unsubscribe(3),
    Have(1, (0, 5, BLOCKS - 1)),
    HaveBitmap(1, 8, b"\x0f\x01"),
    HaveAll(1),
    GetNodes((TREE_ROOT, MANIFEST_CID)),
    GetVersion(4, MANIFEST_CID),
    Resolve(5, KEYS[0].peer_id.to_bytes(), "org/model", None),
    Resolve(6, KEYS[0].peer_id.to_bytes(), "m", 7),
    VersionHeader(2, 9),
    NotFound(3),
    Goodbye(GoodbyeCode.SHUTDOWN, "bye"),
    Wants(3, 8, b"\x0f\x01"),
    Got(3, (0, 5, BLOCKS - 1)),
    Choke(choked=True),
    Choke(choked=False),
    Peers(TREE_ROOT, (b"no record", b"")),
)


def _frame(message: Message) -> bytes:
    return encode_length_prefixed(encode_message(message))


HELLO: Final = _frame(MESSAGES[0])

# -- frames and messages ---------------------------------------------------------------------------


def _frames(data: bytes) -> None:
    """Read frames; one that begins with an odd byte is followed by as much payload as it says."""

    def run(pieces: list[bytes]) -> tuple[object, ...]:
        splitter = FrameSplitter()
        found: list[bytes] = []
        in_payload = False
        for piece in pieces:
            splitter.feed(piece)
            while True:
                if in_payload:
                    parts = splitter.take_payload()
                    if parts is None:
                        break
                    found.append(b"".join(parts))
                    in_payload = False
                    continue
                frame = attempt(RemoteProtocolError, splitter.next_frame)
                if frame is None:
                    break
                if isinstance(frame, Refused):
                    return found, frame.message
                found.append(frame)
                if frame and frame[0] & 1:
                    splitter.begin_payload(int.from_bytes(frame[1:3], "big"))
                    in_payload = True
        return found, splitter.mid_message

    same_for_all_cuts(run, data)


def _message(data: bytes) -> None:
    message = attempt(RemoteProtocolError, decode_message, data)
    if message is None or isinstance(message, Refused):
        return
    # fields that are not known are dropped, and numbers that are not known read as others
    encoded = encode_message(message)
    expect(len(encoded) <= len(data), "longer than it was")
    expect_equal(decode_message(encoded), message, "read again")


def _receive(
    machine: ExchangeClient | ExchangeServer, data: bytes | bytearray, now: float = 0.0
) -> None:
    """Feed a piece and take all its slices."""
    if isinstance(machine, ExchangeClient):
        machine.receive_data(data, now)
        while machine.unread:
            machine.receive_more(now)
        return
    machine.receive_data(data)
    while machine.unread:
        machine.receive_more()


# -- the asking side -------------------------------------------------------------------------------


def _client_outcome(client: ExchangeClient, pieces: list[bytes]) -> tuple[object, ...]:
    events: list[object] = []
    error = ""
    for piece in pieces:
        # the machine keeps views of what it is given
        refused = attempt(RemoteProtocolError, _receive, client, bytearray(piece), 0.0)
        events += _taken(client)
        expect(client.owed_bytes >= 0 and client.owed_blocks >= 0, "owes less than nothing")
        if refused is not None:
            error = refused.message
            break
    if not error:
        ended = attempt(RemoteProtocolError, client.receive_eof)
        error = "" if ended is None else ended.message
        events += _taken(client)
        expect(bool(error) or client.closed, "open after its end")
        last = events[-1] if events else None
        expect(bool(error) or isinstance(last, PeerLeft), "nobody says that the peer left")
    return events, error, client.owed_bytes, client.owed_blocks


def _taken(client: ExchangeClient) -> list[object]:
    events: list[ClientEvent] = drained(client.next_event)
    return [_shown(event) for event in events]


def _shown(event: ClientEvent) -> object:
    """Return what does not depend on how the stream was cut; check the rest."""
    match event:
        case BlockArrived(digest, parts, length):
            data = b"".join(parts)
            expect_equal(len(data), length, "bytes of a block")
            expect_equal(length, LENGTHS.get(digest), "length of a block")
            return digest, data
        case BlocksGained(_, indices):
            expect(all(0 <= index < BLOCKS for index in indices), "a block beyond the version")
        case BitsArrived(_, start, bits):
            expect(start % 8 == 0 and start // 8 + len(bits) <= 10, "bits beyond the version")
            top = int.from_bytes(bits, "little").bit_length()
            expect(start + top <= BLOCKS, "padding bits are set")
        case Rejected(digests, _):
            expect(set(digests) <= LENGTHS.keys(), "a block that nobody asked for")
        case NodeArrived(cid, _):
            expect(cid == MANIFEST_CID, "a node that nobody asked for")
        case VersionArrived(request, _):
            expect(request in (2, 3), "a version that nobody asked for")
    return event


def _greeting_client() -> ExchangeClient:
    client = ExchangeClient(pipeline_bytes=16 * MIB, progress_timeout_s=10.0, now=0.0)
    client.subscribe(TREE_ROOT, BLOCKS)
    client.get_version(MANIFEST_CID)
    client.resolve(KEYS[0].peer_id.to_bytes(), "m")
    return client


def open_client() -> ExchangeClient:
    """Return a client that has greeted and is owed blocks, a node and answers."""
    client = _greeting_client()
    client.receive_data(bytearray(HELLO), 0.0)
    drained(client.next_event)
    client.request(LENGTHS.items(), 0.0)
    client.get_nodes([MANIFEST_CID], 0.0)
    client.cancel([DIGESTS[3]])
    client.subscribe(TREE_ROOT, BLOCKS)
    client.unsubscribe(4)
    return client


def _client(data: bytes) -> None:
    makers: tuple[Callable[[], ExchangeClient], ...] = (_greeting_client, open_client)
    for make in makers:
        same_for_all_cuts(lambda pieces, make=make: _client_outcome(make(), pieces), data)  # type: ignore[misc]
    client = open_client()
    now = 0.0
    for at in range(0, len(data), 50):
        if isinstance(
            attempt(RemoteProtocolError, _receive, client, bytearray(data[at : at + 50]), now),
            Refused,
        ):
            break
        now += 4.0
        client.handle_timer(now)
        client.expected_wait(DIGESTS[5], now)
        drained(client.next_event)
        if not client.closed and client.room() > 0 and client.room_requests() > 0:
            client.request([(DIGESTS[5], 10)], now)


def _client_seeds() -> list[bytes]:
    blocks = [
        _frame(BlockHeader(digest, length)) + bytes([65 + length] * length)
        for digest, length in LENGTHS.items()
    ]
    rejects = [_frame(Reject((digest,), RejectReason.BUSY)) for digest in LENGTHS]
    news = [_frame(message) for message in MESSAGES[7:10]]
    node = _frame(BlockHeader(MANIFEST_CID.digest, 20)) + bytes(20)
    version = _frame(VersionHeader(2, 9)) + b"documents" + _frame(NotFound(3))
    return [
        b"".join(blocks),
        b"".join(rejects),
        b"".join([*news, node, version, _frame(NotFound(1)), _frame(HaveAll(4)), *blocks[:2]]),
        HELLO + b"".join(news) + _frame(Goodbye(GoodbyeCode.DONE, "")) + b"rest",
        node + version + _frame(NotFound(1)) + _frame(NotFound(4)) + _frame(HaveAll(9)),
        _frame(Reject((MANIFEST_CID.digest, DIGESTS[3]), RejectReason.NOT_HAVE)),
        *(_frame(HaveBitmap(1, start, b"\x1f\xff")) for start in (56, 64, 72)),
        _frame(Have(1, (BLOCKS,))),
        *(_frame(message) for message in MESSAGES),
    ]


# -- the serving side ------------------------------------------------------------------------------


def _new_server() -> ExchangeServer:
    return ExchangeServer(max_outstanding_bytes=64 * MIB, max_requests=5)


def _idle_server(pieces: list[bytes]) -> tuple[object, ...]:
    """A side that takes questions and answers none."""
    server = _new_server()
    events: list[ServerEvent] = []
    error = ""
    for piece in pieces:
        refused = attempt(RemoteProtocolError, _receive, server, piece)
        events += drained(server.next_event)
        expect(server.queued <= 5, "more requests than it allows")
        if refused is not None:
            error = refused.message
            break
    if not error:
        ended = attempt(RemoteProtocolError, server.receive_eof)
        error = "" if ended is None else ended.message
        events += drained(server.next_event)
    asked = sum(isinstance(event, VersionWanted | NameWantedEvent) for event in events)
    expect(asked <= EXCHANGE_ASKED_MAX, "more questions than it allows")
    followed = sum(isinstance(event, Subscribed) for event in events)
    gone = sum(type(event).__name__ == "Unsubscribed" for event in events)
    expect(followed - gone <= EXCHANGE_SUBSCRIPTIONS_MAX, "more subscriptions than it allows")
    return events, error, server.closed, server.data_to_send()


def _busy_server(data: bytes) -> None:
    """A side that answers at once, one way or the other."""
    server = _new_server()
    answered = 0
    for at in range(0, len(data), 40):
        if isinstance(attempt(RemoteProtocolError, _receive, server, data[at : at + 40]), Refused):
            break
        for event in drained(server.next_event):
            if server.closed:
                break
            match event:
                case VersionWanted(request, _):
                    server.send_version(request, b"document")
                case NameWantedEvent(request, _, _, _):
                    server.send_not_found(request)
                case Subscribed(subscription, _):
                    server.send_bits(subscription, b"\xff" * 10)
                    server.send_have(subscription, [1, 2])
        while (wanted := server.next_wanted()) is not None:
            answered += 1
            if wanted.digest[0] & 1:
                server.block_header(wanted.digest, 10)
            else:
                server.reject(wanted.digest, RejectReason.NOT_HAVE)
        expect_equal(server.queued, 0, "requests that cannot be taken")
        server.data_to_send()
    expect(answered * 30 <= len(data), "more answers than questions")


def _server(data: bytes) -> None:
    for start in (b"", HELLO):
        _, _, _, output = same_for_all_cuts(_idle_server, start + data)
        assert isinstance(output, bytes)
        expect(len(output) <= 2 * len(data) + 200, f"{len(output)} bytes of answers")
        _busy_server(start + data)


def _server_seeds() -> list[bytes]:
    asking = [_frame(MESSAGES[index]) for index in (1, 4, 5, 6, 10, 11, 12, 13, 16)]
    many = [
        _frame(Subscribe(number, TREE_ROOT)) for number in range(EXCHANGE_SUBSCRIPTIONS_MAX + 1)
    ]
    questions = [
        _frame(GetVersion(number, MANIFEST_CID)) for number in range(EXCHANGE_ASKED_MAX + 1)
    ]
    return [
        HELLO + b"".join(asking),
        b"".join(asking[:-1]),
        _frame(Request(DIGESTS)) + _frame(Cancel(DIGESTS)),
        b"".join(many),
        b"".join(questions),
        *(_frame(message) for message in MESSAGES),
    ]


def _splitter_seeds() -> list[bytes]:
    bodies = (b"\x01\x00\x05", b"\x02frame", b"", b"\x03\x10\x00")
    payloads = (b"12345", b"", b"", bytes(0x1000))
    pairs = zip(bodies, payloads, strict=True)
    stream = b"".join(encode_length_prefixed(body) + payload for body, payload in pairs)
    return [stream, stream[:20], encode_length_prefixed(bytes(EXCHANGE_FRAME_MAX))[:100]]


TARGETS: Final = (
    Target(
        name="exchange_frames",
        modules=("sbp2p_protocol.exchange_frames",),
        check=_frames,
        seeds=_splitter_seeds,
        max_size=8192,
        test_runs=80,
    ),
    Target(
        name="exchange_message",
        modules=("sbp2p_protocol.exchange_messages", "sbp2p_protocol.message_fields"),
        check=_message,
        seeds=lambda: [encode_message(message) for message in MESSAGES],
        mutations=(cbor,),
        max_size=EXCHANGE_FRAME_MAX + 10,
    ),
    Target(
        name="exchange_client",
        modules=("sbp2p_protocol.exchange_client", "sbp2p_protocol.exchange_news"),
        check=_client,
        seeds=_client_seeds,
        mutations=(frames(cbor), frames(blind)),
        max_size=2048,
        test_runs=40,
    ),
    Target(
        name="exchange_server",
        modules=("sbp2p_protocol.exchange_server",),
        check=_server,
        seeds=_server_seeds,
        mutations=(frames(cbor), frames(blind)),
        max_size=4096,
        test_runs=40,
    ),
)

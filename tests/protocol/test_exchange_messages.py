from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol import dag_cbor
from sbp2p_protocol.cid import DAG_CBOR, DAG_PB, Cid, raw_cid
from sbp2p_protocol.errors import RemoteProtocolError
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
    Kind,
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
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.limits import (
    BLOCK_MAX,
    EXCHANGE_BITMAP_CHUNK,
    EXCHANGE_FRAME_MAX,
    EXCHANGE_HAVE_BATCH,
    EXCHANGE_NODES_BATCH,
    EXCHANGE_REQUEST_BATCH,
    VERSION_LEAVES_MAX,
)

DIGEST = bytes(range(32))
CID = Cid(1, DAG_PB, 0x1E, DIGEST)

digests = st.binary(min_size=32, max_size=32)
digest_tuples = st.lists(digests, min_size=1, max_size=5).map(tuple)
numbers = st.integers(0, 2**32 - 1)
cids = digests.map(lambda digest: Cid(1, DAG_PB, 0x1E, digest))
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Hello,
        st.integers(1, 9),
        st.lists(names, max_size=3).map(tuple),
        st.integers(BLOCK_MAX, 2**40),
        st.integers(1, 10**6),
    ),
    st.builds(Request, digest_tuples),
    st.builds(BlockHeader, digests, st.integers(0, BLOCK_MAX)),
    st.builds(Reject, digest_tuples, st.sampled_from(RejectReason)),
    st.builds(Cancel, digest_tuples),
    st.builds(Subscribe, numbers, cids),
    st.builds(Unsubscribe, numbers),
    st.builds(Have, numbers, st.lists(st.integers(0, VERSION_LEAVES_MAX - 1)).map(tuple)),
    st.builds(HaveBitmap, numbers, st.integers(0, 1000).map(lambda n: 8 * n), st.binary()),
    st.builds(HaveAll, numbers),
    st.builds(GetNodes, st.lists(cids, min_size=1, max_size=5).map(tuple)),
    st.builds(GetVersion, numbers, cids),
    st.builds(
        Resolve,
        numbers,
        st.binary(min_size=1, max_size=40),
        names,
        st.none() | st.integers(0, 2**63 - 1),
    ),
    st.builds(VersionHeader, numbers, st.integers(0, 4 * BLOCK_MAX)),
    st.builds(NotFound, numbers),
    st.builds(Goodbye, st.sampled_from(GoodbyeCode), st.just("") | names),
    st.builds(Wants, numbers, st.integers(0, 1000).map(lambda n: 8 * n), st.binary()),
    st.builds(Got, numbers, st.lists(st.integers(0, VERSION_LEAVES_MAX - 1)).map(tuple)),
    st.builds(Choke, st.booleans()),
    st.builds(Peers, cids, st.lists(st.binary(max_size=100), max_size=5).map(tuple)),
)


@given(messages)
def test_messages_round_trip(message: Message) -> None:
    frame = encode_message(message)
    assert decode_message(frame) == message
    value = dag_cbor.decode(frame)
    assert isinstance(value, list)
    assert decode_message(dag_cbor.encode([*value, {"later": 1}])) == message


@given(st.binary(max_size=200))
def test_garbage_raises_only_the_remote_error(frame: bytes) -> None:
    with suppress(RemoteProtocolError):
        decode_message(frame)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40) | names,
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from([*Kind, 1, 3, 99, 100]), st.lists(values, max_size=5))
def test_well_formed_nonsense_raises_only_the_remote_error(kind: int, fields: list[object]) -> None:
    with suppress(RemoteProtocolError):
        decode_message(dag_cbor.encode([kind, *fields]))


def test_unknown_odd_kind_is_ignored_and_even_is_not() -> None:
    assert decode_message(dag_cbor.encode([31, "choke"])) is None
    with pytest.raises(RemoteProtocolError, match="must be understood"):
        decode_message(dag_cbor.encode([32, "choke"]))


@pytest.mark.parametrize(
    "fields",
    [
        [],
        ["HELLO"],
        [Kind.REQUEST, []],
        [Kind.REQUEST, [b"short"]],
        [Kind.REQUEST, [DIGEST] * (EXCHANGE_REQUEST_BATCH + 1)],
        [Kind.GET_NODES, [CID] * (EXCHANGE_NODES_BATCH + 1)],
        [Kind.GET_NODES, [Cid(1, DAG_PB, 0, b"inline")]],
        [Kind.BLOCK, DIGEST, BLOCK_MAX + 1],
        [Kind.BLOCK, DIGEST, -1],
        [Kind.HAVE, 1, [VERSION_LEAVES_MAX]],
        [Kind.HAVE, 1, [0] * (EXCHANGE_HAVE_BATCH + 1)],
        [Kind.HAVE_BITMAP, 1, 4, b"\x01"],
        [Kind.HAVE_BITMAP, 1, 0, bytes(EXCHANGE_BITMAP_CHUNK + 1)],
        [Kind.HELLO, 0, [], BLOCK_MAX, 1],
        [Kind.HELLO, True, [], BLOCK_MAX, 1],
        [Kind.HELLO, 1, [], 10, 1],
        [Kind.SUBSCRIBE, 1, "root"],
        [Kind.RESOLVE, 1, b"p", "", None],
        [Kind.RESOLVE, 1, b"p", "x" * 300, None],
        [Kind.GOODBYE, 0],
    ],
)
def test_out_of_bounds_is_refused(fields: list[object]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_message(dag_cbor.encode(fields))


def test_the_largest_messages_fit_in_a_frame() -> None:
    largest: list[Message] = [
        Request((DIGEST,) * EXCHANGE_REQUEST_BATCH),
        GetNodes((CID,) * EXCHANGE_NODES_BATCH),
        Have(2**32 - 1, (VERSION_LEAVES_MAX - 1,) * EXCHANGE_HAVE_BATCH),
        HaveBitmap(2**32 - 1, 0, bytes(EXCHANGE_BITMAP_CHUNK)),
    ]
    for message in largest:
        assert len(encode_message(message)) <= EXCHANGE_FRAME_MAX


def test_unknown_reasons_and_codes_have_a_meaning() -> None:
    assert decode_message(dag_cbor.encode([Kind.REJECT, [DIGEST], 77])) == Reject(
        (DIGEST,), RejectReason.BUSY
    )
    assert decode_message(dag_cbor.encode([Kind.GOODBYE, 77, "x"])) == Goodbye(
        GoodbyeCode.DONE, "x"
    )


def split(stream: bytes, cuts: list[int], lengths: dict[bytes, int]) -> list[bytes]:
    """Read frames and, after those named in `lengths`, that many bytes of payload."""
    splitter = FrameSplitter()
    found: list[bytes] = []
    edges = [0, *sorted(cuts), len(stream)]
    in_payload = False
    for start, end in pairwise(edges):
        splitter.feed(stream[start:end])
        while True:
            if in_payload:
                parts = splitter.take_payload()
                if parts is None:
                    break
                found.append(b"".join(parts))
                in_payload = False
            frame = splitter.next_frame()
            if frame is None:
                break
            found.append(frame)
            if frame in lengths:
                splitter.begin_payload(lengths[frame])
                in_payload = True
    assert not splitter.mid_message
    return found


@given(st.data())
def test_frames_and_payloads_survive_any_cut(data: st.DataObject) -> None:
    frames = data.draw(st.lists(st.binary(min_size=3, max_size=300), max_size=4, unique=True))
    lengths = {frame: data.draw(st.sampled_from([0, 1, 5000, 70_000])) for frame in frames[::2]}
    stream, expected = b"", []
    for frame in frames:
        stream += encode_length_prefixed(frame)
        expected.append(frame)
        if frame in lengths:
            payload = bytes([len(expected)]) * lengths[frame]
            stream += payload
            expected.append(payload)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    assert split(stream, cuts, lengths) == expected


def test_byte_by_byte_payload_is_coalesced() -> None:
    splitter = FrameSplitter()
    splitter.feed(b"")
    splitter.begin_payload(10_000)
    parts = None
    for index in range(10_000):
        splitter.feed(bytes([index & 255]))
        parts = splitter.take_payload()
    assert parts is not None
    assert len(parts) == 1
    assert len(parts[0]) == 10_000


@given(st.binary(max_size=40))
def test_garbage_lengths_raise_only_the_remote_error(data: bytes) -> None:
    splitter = FrameSplitter()
    with suppress(RemoteProtocolError):
        for index in range(len(data)):
            splitter.feed(data[index : index + 1])
            while splitter.next_frame() is not None:
                pass


def test_oversized_frame_is_refused_at_its_length() -> None:
    splitter = FrameSplitter()
    splitter.feed(b"\x81\x80\x04")
    with pytest.raises(RemoteProtocolError):
        splitter.next_frame()


def test_leaf_ids_are_not_tree_ids() -> None:
    assert decode_message(encode_message(GetNodes((raw_cid(DIGEST),)))) == GetNodes(
        (raw_cid(DIGEST),)
    )


VECTORS = json.loads(
    (Path(__file__).parents[2] / "protocol" / "vectors" / "exchange_messages.json").read_text()
)
DIGEST_2 = bytes(range(32, 64))
PUBLISHER = bytes.fromhex("002408011220") + DIGEST
MANIFEST = Cid(1, DAG_CBOR, 0x1E, DIGEST_2)
EXPECTED: dict[str, Message] = {
    "hello": Hello(1, ("a-feature",), 16 * BLOCK_MAX, 1024),
    "request": Request((DIGEST, DIGEST_2)),
    "block": BlockHeader(DIGEST, BLOCK_MAX),
    "reject": Reject((DIGEST,), RejectReason.CHANGED),
    "cancel": Cancel((DIGEST_2,)),
    "subscribe": Subscribe(1, CID),
    "unsubscribe": Unsubscribe(1),
    "have": Have(1, (0, 7, 65_536)),
    "have_bitmap": HaveBitmap(1, 262_144, b"\x81\x01"),
    "have_all": HaveAll(1),
    "get_nodes": GetNodes((CID, raw_cid(DIGEST_2))),
    "get_version": GetVersion(2, MANIFEST),
    "resolve_newest": Resolve(3, PUBLISHER, "org/model", None),
    "resolve_exact": Resolve(4, PUBLISHER, "org/model", 12),
    "version": VersionHeader(2, 300),
    "not_found": NotFound(4),
    "goodbye": Goodbye(GoodbyeCode.SHUTDOWN, "restarting"),
    "wants": Wants(1, 262_144, b"\x81\x01"),
    "got": Got(1, (0, 7, 65_536)),
    "choke": Choke(choked=True),
    "unchoke": Choke(choked=False),
    "peers": Peers(CID, (b"a record", b"another")),
}


def named(section: str) -> list[object]:
    return [pytest.param(entry, id=entry["name"]) for entry in VECTORS[section]]


@pytest.mark.parametrize("entry", named("messages"))
def test_message_vectors(entry: dict[str, str]) -> None:
    body = bytes.fromhex(entry["body"])
    assert decode_message(body) == EXPECTED[entry["name"]]
    assert encode_message(EXPECTED[entry["name"]]) == body


def test_every_kind_has_a_vector() -> None:
    assert {entry["kind"] for entry in VECTORS["messages"]} == set(Kind)


@pytest.mark.parametrize("entry", named("extra_fields"))
def test_extra_fields_vectors(entry: dict[str, str]) -> None:
    assert decode_message(bytes.fromhex(entry["body"])) == EXPECTED[entry["like"]]


@pytest.mark.parametrize("entry", named("ignored"))
def test_ignored_vectors(entry: dict[str, str]) -> None:
    assert decode_message(bytes.fromhex(entry["body"])) is None


@pytest.mark.parametrize("entry", named("errors"))
def test_error_vectors(entry: dict[str, str]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_message(bytes.fromhex(entry["body"]))

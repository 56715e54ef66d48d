from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol import dag_cbor
from sbp2p_protocol.cid import DAG_PB, Cid
from sbp2p_protocol.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.limits import (
    NAMESPACE_DATA_MAX,
    NAMESPACE_FRAME_MAX,
    NAMESPACE_NAME_MAX,
    NAMESPACE_UPDATE_MAX,
    NAMESPACE_UPDATES_RATE,
)
from sbp2p_protocol.manifest import Manifest, sign_manifest
from sbp2p_protocol.namespace_messages import (
    MESSAGE_OVERHEAD,
    WINDOW_MIN,
    Ack,
    Data,
    Goodbye,
    GoodbyeCode,
    Hello,
    Kind,
    Message,
    Peers,
    Stance,
    UpdateMessage,
    check_namespace,
    decode_message,
    encode_message,
    read_update,
    update_meta,
)
from sbp2p_protocol.namespace_peer import Acknowledged, LinkState, NamespaceLink

ALICE = PrivateKey.from_seed(b"a" * 32)
BOB = PrivateKey.from_seed(b"b" * 32)
ROOT = Cid(1, DAG_PB, 0x1E, bytes(32))
STANCE = Stance(sends=True, receives=True, round=0)
HELLO = Hello(1, "digits", (), WINDOW_MIN, STANCE)

stances = st.builds(Stance, st.booleans(), st.booleans(), st.integers(0, 2**40))
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Hello,
        st.integers(1, 9),
        st.sampled_from(["digits", "org/model", "x" * NAMESPACE_NAME_MAX]),
        st.lists(names, max_size=3).map(tuple),
        st.integers(WINDOW_MIN, 2**40),
        stances,
        st.binary(max_size=100),
    ),
    st.builds(Goodbye, st.sampled_from(GoodbyeCode), names),
    st.builds(UpdateMessage, st.binary(max_size=100)),
    stances,
    st.builds(Peers, st.lists(st.binary(max_size=50), max_size=16).map(tuple)),
    st.builds(Data, st.binary(max_size=300)),
    st.builds(Ack, st.integers(0, 2**40), st.integers(0, 2**40)),
)


def frame(message: Message) -> bytes:
    return encode_length_prefixed(encode_message(message))


# -- the codec ----------------------------------------------------------------------------------


@given(messages)
def test_every_message_is_read_as_it_was_written(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_error_of_the_peer(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        decode_message(data)


@given(
    st.lists(st.one_of(st.integers(-(2**63), 2**63), st.binary(), names, st.none()), max_size=10)
)
def test_any_list_is_a_message_or_an_error_of_the_peer(value: list[object]) -> None:
    with suppress(RemoteProtocolError):
        decode_message(dag_cbor.encode(value))


def test_what_later_versions_add_is_ignored_if_it_may_be() -> None:
    assert decode_message(dag_cbor.encode([99, "new"])) is None
    assert decode_message(dag_cbor.encode([Kind.ACK, 1, 2, "more"])) == Ack(1, 2)
    with pytest.raises(RemoteProtocolError, match="must be understood"):
        decode_message(dag_cbor.encode([98]))


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        [Kind.HELLO, 1, "digits", [], WINDOW_MIN, 1, 1, 0],
        [Kind.HELLO, 0, "digits", [], WINDOW_MIN, 1, 1, 0, b""],
        [Kind.HELLO, 1, "digits/rounds", [], WINDOW_MIN, 1, 1, 0, b""],
        [Kind.HELLO, 1, "../digits", [], WINDOW_MIN, 1, 1, 0, b""],
        [Kind.HELLO, 1, "digits", [], WINDOW_MIN - 1, 1, 1, 0, b""],
        [Kind.HELLO, 1, "digits", [], WINDOW_MIN, 2, 1, 0, b""],
        [Kind.HELLO, 1, "digits", [], WINDOW_MIN, 1, 1, -1, b""],
        [Kind.HELLO, 1, "digits", [], WINDOW_MIN, 1, 1, 0, bytes(NAMESPACE_UPDATE_MAX + 1)],
        [Kind.STANCE, True, 1, 0],
        [Kind.PEERS, [b""] * 17],
        [Kind.DATA, "text"],
        [Kind.DATA, bytes(NAMESPACE_DATA_MAX + 1)],
        [Kind.ACK, -1, 0],
        [Kind.GOODBYE, 0],
    ],
)
def test_what_is_out_of_bounds_is_an_error_of_the_peer(value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_message(dag_cbor.encode(value))


def test_the_longest_messages_fit_a_frame() -> None:
    assert len(encode_message(Data(bytes(NAMESPACE_DATA_MAX)))) <= NAMESPACE_FRAME_MAX
    assert decode_message(dag_cbor.encode([Kind.GOODBYE, 77, "x"])) == Goodbye(
        GoodbyeCode.LEFT, "x"
    )


def test_names() -> None:
    assert check_namespace("org/digits") is None
    for name in ("", "a/rounds", "../x", "x" * (NAMESPACE_NAME_MAX + 1), "a//b"):
        assert check_namespace(name) is not None


# -- updates ------------------------------------------------------------------------------------


def update(key: PrivateKey = ALICE, name: str = "digits", **meta: object) -> bytes:
    said = update_meta(ALICE.peer_id, round=2, samples=10, codec="lossless") | meta
    manifest = Manifest(
        name=name,
        version=7,
        root=ROOT,
        publisher=ALICE.peer_id,
        created=1,
        meta=said,  # type: ignore[arg-type]
    )
    return sign_manifest(manifest, key).to_bytes()


def test_an_update_says_what_its_publisher_signed() -> None:
    found = read_update(update(), "digits", ALICE.peer_id)
    assert (found.round, found.samples, found.codec) == (2, 10, "lossless")
    assert found.cid == found.manifest.cid


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (update(name="letters"), "another namespace"),
        (update(peer=BOB.peer_id.to_bytes()), "another peer"),
        (update(peer="x"), "another peer"),
        (update(round=0), "round"),
        (update(round=True), "round"),
        (update(round=2**41), "round"),
        (update(samples=0), "samples"),
        (update(samples=b""), "samples"),
        (update(codec=""), "codec"),
        (update(codec="x" * 65), "codec"),
        (update(codec=1), "codec"),
        (b"", "manifest"),
    ],
)
def test_an_update_that_says_something_else_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        read_update(data, "digits", ALICE.peer_id)


def test_an_update_that_its_publisher_did_not_sign_is_refused() -> None:
    with pytest.raises(IntegrityError):
        read_update(update(BOB), "digits", ALICE.peer_id)
    with pytest.raises(RemoteProtocolError):
        read_update(update(), "digits", BOB.peer_id)


# -- the machine of a stream --------------------------------------------------------------------


def pair(window: int = WINDOW_MIN) -> tuple[NamespaceLink, NamespaceLink]:
    """Two sides that have greeted."""
    one, other = NamespaceLink(window), NamespaceLink(window)
    for machine in (one, other):
        machine.greet(Hello(1, "digits", (), window, STANCE))
    carry(one, other)
    carry(other, one)
    return one, other


def carry(source: NamespaceLink, target: NamespaceLink) -> list[object]:
    return list(target.receive_data(source.data_to_send(), 0.0))


def test_messages_are_numbered_confirmed_and_bounded_by_the_window() -> None:
    one, other = pair()
    assert one.room_for(NAMESPACE_DATA_MAX)
    assert one.send_data(bytes(NAMESPACE_DATA_MAX)) == 1
    assert not one.room_for(0)
    with pytest.raises(LocalProtocolError, match="no room"):
        one.send_data(b"")
    (data,) = carry(one, other)
    assert isinstance(data, Data)
    assert carry(other, one) == [Acknowledged(1)]
    assert not one.room_for(0)
    other.taken(len(data.payload))
    assert carry(other, one) == [Acknowledged(1)]
    assert one.send_data(b"next") == 2
    assert other.data_to_send() == b""


def test_a_side_sends_no_more_than_it_would_keep_itself() -> None:
    one, other = pair()
    other.peer = one.peer = Hello(1, "digits", (), 2**50, STANCE)
    one.send_data(bytes(NAMESPACE_DATA_MAX))
    assert not one.room_for(0)


@pytest.mark.parametrize(
    "said",
    [
        [HELLO, HELLO],
        [STANCE],
        [Data(b"")],
        [HELLO, Ack(1, 0)],
        [HELLO, Ack(0, 1)],
        [HELLO, Data(bytes(NAMESPACE_DATA_MAX)), Data(b"")],
        [HELLO, *[UpdateMessage(b"")] * (NAMESPACE_UPDATES_RATE + 1)],
    ],
)
def test_what_breaks_the_protocol_ends_it(said: list[Message]) -> None:
    machine = NamespaceLink(WINDOW_MIN)
    with pytest.raises(RemoteProtocolError):
        machine.receive_data(b"".join(map(frame, said)), 0.0)
    assert machine.state is LinkState.OVER
    with pytest.raises(RemoteProtocolError):
        machine.receive_data(b"", 0.0)


def test_acknowledgements_do_not_go_back() -> None:
    one, other = pair()
    one.send_data(b"x")
    carry(one, other)
    one.receive_data(frame(Ack(1, MESSAGE_OVERHEAD)), 0.0)
    with pytest.raises(RemoteProtocolError, match="ACK"):
        one.receive_data(frame(Ack(0, MESSAGE_OVERHEAD)), 0.0)


def test_updates_are_counted_by_the_minute() -> None:
    machine = NamespaceLink(WINDOW_MIN)
    machine.receive_data(frame(HELLO), 0.0)
    for minute in range(3):
        machine.receive_data(frame(UpdateMessage(b"")) * NAMESPACE_UPDATES_RATE, 60.0 * minute)


def test_what_follows_goodbye_is_ignored() -> None:
    machine = NamespaceLink(WINDOW_MIN)
    bye = Goodbye(GoodbyeCode.LEFT, "")
    data = frame(HELLO) + frame(bye)
    assert machine.receive_data(data + frame(STANCE)[:2], 0.0) == [HELLO, bye]
    assert machine.receive_data(frame(STANCE), 0.0) == []
    machine.receive_eof()


def test_a_side_greets_once_and_first() -> None:
    machine = NamespaceLink(WINDOW_MIN)
    with pytest.raises(LocalProtocolError, match="first"):
        machine.say(STANCE)
    machine.greet(HELLO)
    with pytest.raises(LocalProtocolError, match="already"):
        machine.greet(HELLO)
    machine.receive_eof()
    assert machine.state is LinkState.OVER
    cut = NamespaceLink(WINDOW_MIN)
    cut.receive_data(frame(HELLO)[:-1], 0.0)
    with pytest.raises(RemoteProtocolError, match="inside"):
        cut.receive_eof()

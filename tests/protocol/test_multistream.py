"""multistream-select: the published frames, agreement, refusal, and garbage."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import MULTISTREAM_PROPOSALS_MAX
from sbp2p_protocol.multistream import (
    HEADER,
    Initiator,
    NegotiationState,
    Responder,
    encode_message,
)
from tests.vectors import load_vectors

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

PROTOCOLS = ("/a/1", "/b/1", "/c/1")


def negotiate(
    wanted: Sequence[str], served: Collection[str], *, pipelined: bool = True, cut: int = 1 << 20
) -> tuple[Initiator, Responder, int]:
    """Run both sides to the end; also return how many times the initiator wrote."""
    initiator, responder = Initiator(wanted, pipelined=pipelined), Responder(served.__contains__)
    writes = 0
    while True:
        to_responder, to_initiator = initiator.data_to_send(), responder.data_to_send()
        if not to_responder and not to_initiator:
            return initiator, responder, writes
        writes += bool(to_responder)
        for start in range(0, len(to_responder), cut):
            responder.receive_data(to_responder[start : start + cut])
        for start in range(0, len(to_initiator), cut):
            initiator.receive_data(to_initiator[start : start + cut])


@pytest.fixture
def messages() -> dict[str, Any]:
    vectors: dict[str, Any] = load_vectors("multistream")["messages"]
    return vectors


def test_published_messages(messages: dict[str, Any]) -> None:
    assert encode_message(HEADER).hex() == messages["header"]
    assert encode_message("na").hex() == messages["na"]
    assert encode_message("/noise").hex() == messages["noise"]
    assert encode_message("/tls/1.0.0").hex() == messages["tls"]
    assert encode_message("/yamux/1.0.0").hex() == messages["yamux"]
    opened = Initiator(["/noise"]).data_to_send()
    assert opened.hex() == messages["lazy_open_header_plus_noise"]


def test_ls_is_refused_like_any_unknown_protocol(messages: dict[str, Any]) -> None:
    responder = Responder(lambda _: True)
    responder.receive_data(encode_message(HEADER) + bytes.fromhex(messages["ls"]))
    assert responder.data_to_send().hex() == messages["header"] + messages["na"]
    assert responder.state is NegotiationState.WAIT_PROPOSAL


def test_an_ls_answer_is_no_answer_to_a_proposal(messages: dict[str, Any]) -> None:
    initiator = Initiator(["/noise"])
    initiator.receive_data(encode_message(HEADER))
    with pytest.raises(RemoteProtocolError):
        initiator.receive_data(bytes.fromhex(messages["ls_response_two_protocols"]))


@pytest.mark.parametrize("cut", [1, 7, 1 << 20])
@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("chosen", PROTOCOLS)
def test_the_first_served_protocol_is_selected(chosen: str, pipelined: bool, cut: int) -> None:
    initiator, responder, _ = negotiate(PROTOCOLS, {chosen}, pipelined=pipelined, cut=cut)
    assert initiator.selected == responder.selected == chosen
    assert initiator.state is responder.state is NegotiationState.SELECTED
    assert not initiator.failed


def test_pipelining_needs_one_write() -> None:
    assert negotiate(["/a/1"], {"/a/1"})[2] == 1
    assert negotiate(["/a/1"], {"/a/1"}, pipelined=False)[2] == 2


def test_refusal_of_everything_is_failure_without_an_error() -> None:
    initiator, responder, _ = negotiate(PROTOCOLS, ())
    assert initiator.failed
    assert initiator.selected is None
    assert responder.state is NegotiationState.WAIT_PROPOSAL


def test_bytes_after_the_negotiation_are_handed_over() -> None:
    responder = Responder(lambda _: True)
    responder.receive_data(encode_message(HEADER) + encode_message("/a/1") + b"appli")
    responder.receive_data(b"cation")
    assert responder.trailing() == b"application"
    assert responder.trailing() == b""


def test_too_many_proposals_end_it() -> None:
    responder = Responder(lambda _: False)
    responder.receive_data(encode_message(HEADER))
    for _ in range(MULTISTREAM_PROPOSALS_MAX - 1):
        responder.receive_data(encode_message("/x"))
    with pytest.raises(RemoteProtocolError, match="proposals"):
        responder.receive_data(encode_message("/x"))
    with pytest.raises(RemoteProtocolError):
        responder.receive_data(encode_message("/x"))
    assert responder.failed


@pytest.mark.parametrize(
    "first",
    [
        encode_message("/noise"),
        b"\x00",
        b"\x01\n",
        b"\x04/ab/",
        b"\x05/a\nb\n",
        b"\x03\xff\xff\n",
        b"\x81\x08",
        b"GET / HTTP/1.1\r\n" * 8,
    ],
)
def test_strangers_are_refused(first: bytes) -> None:
    for machine in (Initiator(["/a/1"]), Responder(lambda _: True)):
        with pytest.raises(RemoteProtocolError):
            machine.receive_data(first)
        assert machine.failed


def test_a_newline_inside_a_proposal_is_refused() -> None:
    responder = Responder(lambda _: True)
    responder.receive_data(encode_message(HEADER))
    with pytest.raises(RemoteProtocolError):
        responder.receive_data(b"\x05/a\nb\n")


@pytest.mark.parametrize("name", ["", "/a\n", "/" + "x" * 1023])
def test_names_that_cannot_be_sent(name: str) -> None:
    with pytest.raises(LocalProtocolError):
        Initiator(["/ok", name])


def test_nothing_to_propose() -> None:
    with pytest.raises(LocalProtocolError):
        Initiator([])


@given(st.lists(st.binary(max_size=60), max_size=20), st.booleans())
def test_garbage_raises_only_the_remote_error(chunks: list[bytes], greet: bool) -> None:
    for machine in (Initiator(PROTOCOLS), Responder(lambda _: True)):
        if greet:
            machine.receive_data(encode_message(HEADER))
        with contextlib.suppress(RemoteProtocolError):
            for chunk in chunks:
                machine.receive_data(chunk)
        machine.data_to_send()
        machine.trailing()


@given(st.lists(st.text(max_size=20).map(str.encode), max_size=20))
def test_framed_garbage_raises_only_the_remote_error(texts: list[bytes]) -> None:
    for machine in (Initiator(PROTOCOLS), Responder(lambda _: True)):
        machine.receive_data(encode_message(HEADER))
        with contextlib.suppress(RemoteProtocolError):
            for text in texts:
                machine.receive_data(bytes([len(text) + 1]) + text + b"\n")

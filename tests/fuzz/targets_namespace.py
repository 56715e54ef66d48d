"""Targets of namespaces: messages, the machine of a stream, updates."""

from __future__ import annotations

from typing import Final

from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.manifest import Manifest, sign_manifest
from sbp2p_protocol.namespace_messages import (
    WINDOW_MIN,
    Ack,
    Data,
    Goodbye,
    GoodbyeCode,
    Hello,
    Message,
    Peers,
    Stance,
    UpdateMessage,
    decode_message,
    encode_message,
    read_update,
    update_meta,
)
from sbp2p_protocol.namespace_peer import LinkState, NamespaceLink

from .corpus import KEYS, TREE_ROOT
from .engine import Target
from .expect import Refused, attempt, expect, expect_equal, same_for_all_cuts
from .structure import blind, cbor, frames

STANCE: Final = Stance(sends=True, receives=True, round=3)
MESSAGES: Final[tuple[Message, ...]] = (
    Hello(1, "digits", ("x",), WINDOW_MIN, STANCE, b"document"),
    Stance(sends=False, receives=True, round=2**40),
    UpdateMessage(b"document"),
    Peers((b"a record", b"")),
    Data(b"payload"),
    Data(b""),
    Ack(2, 135),
    Goodbye(GoodbyeCode.DUPLICATE, "there is another stream"),
)


def _frame(message: Message) -> bytes:
    return encode_length_prefixed(encode_message(message))


def _message(data: bytes) -> None:
    message = attempt(RemoteProtocolError, decode_message, data)
    if message is None or isinstance(message, Refused):
        return
    # fields that are not known are dropped, and numbers that are not known read as others
    encoded = encode_message(message)
    expect(len(encoded) <= len(data), "longer than it was")
    expect_equal(decode_message(encoded), message, "read again")


def _link(data: bytes) -> None:
    def run(pieces: list[bytes]) -> tuple[object, ...]:
        machine = NamespaceLink(WINDOW_MIN)
        machine.greet(Hello(1, "digits", (), WINDOW_MIN, STANCE))
        events: list[object] = []
        sent = machine.data_to_send()
        for piece in pieces:
            found = attempt(RemoteProtocolError, machine.receive_data, piece, 0.0)
            if isinstance(found, Refused):
                expect(machine.state is LinkState.OVER, "goes on after an error")
                return (found.message,)
            events += found
            sent += machine.data_to_send()[:0]  # how often it acknowledges depends on the cuts
        ended = attempt(RemoteProtocolError, machine.receive_eof)
        return events, ended and ended.message, sent

    same_for_all_cuts(run, data)


def _link_after_data(data: bytes) -> None:
    """A side that has sent messages, and takes what it gets."""
    machine = NamespaceLink(WINDOW_MIN)
    machine.greet(Hello(1, "digits", (), WINDOW_MIN, STANCE))
    machine.receive_data(_frame(MESSAGES[0]), 0.0)
    number = machine.send_data(b"one")
    expect_equal(machine.send_data(b"two"), number + 1, "its number")
    for at in range(0, len(data), 40):
        found = attempt(RemoteProtocolError, machine.receive_data, data[at : at + 40], 1.0 * at)
        if isinstance(found, Refused):
            return
        for event in found:
            if isinstance(event, Data):
                machine.taken(len(event.payload))
        machine.data_to_send()
        expect_equal(machine.queued, 0, "bytes that were sent")


def _update(data: bytes) -> None:
    for key in KEYS[:2]:
        found = attempt(RemoteProtocolError, read_update, data, "digits", key.peer_id)
        if not isinstance(found, Refused):
            expect(found.manifest.publisher in found.document.signers(), "nobody signed it")
            expect(found.round >= 1 and found.samples >= 1, "counts that cannot be")


def _updates() -> list[bytes]:
    key = KEYS[0]
    found = []
    for change in ({}, {"round": 0}, {"samples": True}, {"codec": ""}, {"peer": b"x"}):
        meta = {**update_meta(key.peer_id, round=2, samples=10, codec="lossless"), **change}
        manifest = Manifest(
            name="digits", version=3, root=TREE_ROOT, publisher=key.peer_id, created=1, meta=meta
        )
        found.append(sign_manifest(manifest, key).to_bytes())
    return found


TARGETS: Final = (
    Target(
        name="namespace_messages",
        modules=("sbp2p_protocol.namespace_messages",),
        check=_message,
        seeds=lambda: [encode_message(message) for message in MESSAGES],
        mutations=(cbor,),
        max_size=4096,
    ),
    Target(
        name="namespace_link",
        modules=("sbp2p_protocol.namespace_peer",),
        check=_link,
        seeds=lambda: [
            b"".join(map(_frame, MESSAGES)),
            _frame(MESSAGES[-1]),
            *(_frame(MESSAGES[0]) + _frame(message) for message in MESSAGES),
        ],
        mutations=(frames(cbor), frames(blind)),
        max_size=4096,
        test_runs=100,
    ),
    Target(
        name="namespace_link_after_data",
        modules=("sbp2p_protocol.namespace_peer",),
        check=_link_after_data,
        seeds=lambda: [
            _frame(Ack(1, 67)) + _frame(Ack(2, 134)),
            _frame(Ack(2, 0)) * 3,
            _frame(Data(b"x" * 100)) * 5 + _frame(MESSAGES[1]) + _frame(MESSAGES[2]),
        ],
        mutations=(frames(cbor), frames(blind)),
        max_size=4096,
        test_runs=100,
    ),
    Target(
        name="namespace_update",
        modules=("sbp2p_protocol.namespace_messages",),
        check=_update,
        seeds=_updates,
        mutations=(cbor,),
        max_size=4096,
        test_runs=100,
    ),
)

"""Targets of the DHT: the message that every request and reply is."""

from __future__ import annotations

from typing import Final

from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader
from sbp2p_protocol.kad_messages import KadMessage, KadPeer, KadRecord, KadType
from sbp2p_protocol.limits import (
    KAD_CLOSER_MAX,
    KAD_KEY_MAX,
    KAD_PEER_ADDRESSES_MAX,
    KAD_PROVIDERS_MAX,
    KAD_SEND_MAX,
    KAD_VALUE_MAX,
)
from sbp2p_protocol.multiaddr import parse_address

from .corpus import KEYS
from .engine import Target
from .expect import Refused, attempt, expect, expect_equal
from .structure import protobuf

_PEERS: Final = tuple(
    KadPeer(key.peer_id, (parse_address("/ip4/192.0.2.1/tcp/4001"),)) for key in KEYS
)


def _kad_message(data: bytes) -> None:
    message = attempt(RemoteProtocolError, KadMessage.decode, data)
    if isinstance(message, Refused):
        return
    expect(len(message.key) <= KAD_KEY_MAX, "a long key")
    expect(len(message.closer) <= KAD_CLOSER_MAX, "many closer peers")
    expect(len(message.providers) <= KAD_PROVIDERS_MAX, "many providers")
    for peer in (*message.closer, *message.providers):
        expect(len(peer.addresses) <= KAD_PEER_ADDRESSES_MAX, "many addresses")
    if message.record is not None:
        expect(len(message.record.value) <= KAD_VALUE_MAX, "a long value")
    reader = LengthPrefixedReader(KAD_SEND_MAX)
    reader.feed(message.encode())
    again = reader.next()
    expect(again is not None, "the frame is cut")
    if again is not None and len(data) < KAD_SEND_MAX // 2:
        expect_equal(KadMessage.decode(again), message, "a message read back")


def _seeds() -> list[bytes]:
    peer = _PEERS[0].peer_id.to_bytes()
    record = KadRecord(b"/ipns/" + peer, b"value", "2026-01-02T03:04:05Z")
    messages = (
        KadMessage(KadType.FIND_NODE, peer, closer=_PEERS),
        KadMessage(KadType.GET_PROVIDERS, b"\x12\x20" + bytes(32), None, _PEERS, _PEERS),
        KadMessage(KadType.ADD_PROVIDER, b"\x12\x20" + bytes(32), providers=_PEERS[:1]),
        KadMessage(KadType.PUT_VALUE, record.key, record),
        KadMessage(KadType.GET_VALUE, record.key, record, _PEERS),
        KadMessage(KadType.PING),
    )
    found = []
    for message in messages:
        reader = LengthPrefixedReader(KAD_SEND_MAX)
        reader.feed(message.encode())
        found.append(reader.next() or b"")
    return found


TARGETS: Final = (
    Target(
        name="kad_message",
        modules=("sbp2p_protocol.kad_messages",),
        check=_kad_message,
        seeds=_seeds,
        mutations=(protobuf,),
        max_size=2048,
    ),
)

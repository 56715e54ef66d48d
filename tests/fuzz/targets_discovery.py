"""Targets of how peers find each other: AutoNAT's messages, and DNS messages by multicast."""

from __future__ import annotations

import random
from typing import Final

from sbp2p_protocol.address_scope import Scope, host_of, scope_of
from sbp2p_protocol.autonat import DialBackPolicy, DialRequest, DialResponse, DialStatus
from sbp2p_protocol.autonat2 import (
    Data,
    DataRequest,
    DialOutcome,
    NonceRequest,
    NonceResponse,
    RequestStatus,
    decode_dial_back,
    decode_message,
    decode_thanks,
    encode_dial_back,
    encode_message,
    encode_thanks,
)
from sbp2p_protocol.dns_message import DnsMessage, PtrRecord, Question, TxtRecord
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader
from sbp2p_protocol.limits import (
    AUTONAT_ADDRESSES_MAX,
    AUTONAT_DIAL_DATA_CHUNK,
    AUTONAT_DIAL_DATA_MAX,
    AUTONAT_MESSAGE_MAX,
    AUTONAT_TWO_MESSAGE_MAX,
    DIAL_BACK_ADDRESSES_MAX,
    MDNS_PACKET_MAX,
    MDNS_PEERS_MAX,
    MDNS_RECEIVED_MAX,
    MDNS_RECORDS_MAX,
)
from sbp2p_protocol.mdns import SERVICE, SERVICES, MdnsMachine, advertised, instance_name
from sbp2p_protocol.multiaddr import parse_address

from .corpus import KEYS
from .engine import Target
from .expect import Refused, attempt, expect, expect_equal
from .structure import blind, protobuf

_HERE: Final = parse_address("/ip4/192.0.2.1/tcp/4001")
_ELSEWHERE: Final = parse_address("/ip6/2001:db8::1/tcp/4001")


def _unframed(frame: bytes) -> bytes:
    reader = LengthPrefixedReader(AUTONAT_MESSAGE_MAX)
    reader.feed(frame)
    return reader.next() or b""


def _autonat(data: bytes) -> None:
    request = attempt(RemoteProtocolError, DialRequest.decode, data)
    if not isinstance(request, Refused):
        expect(len(request.addresses) <= AUTONAT_ADDRESSES_MAX, "many addresses")
        if len(data) < AUTONAT_MESSAGE_MAX // 2:
            expect_equal(DialRequest.decode(_unframed(request.encode())), request, "read back")
        policy = DialBackPolicy(requests_max=1, total_max=1, allow_private=True)
        verdict = policy.judge(request, KEYS[0].peer_id, _HERE, 0.0)
        if not isinstance(verdict, DialResponse):
            expect(0 < len(verdict) <= DIAL_BACK_ADDRESSES_MAX, "how much is dialled")
            expect(request.peer_id == KEYS[0].peer_id, "somebody else is dialled")
            expect(all(host_of(each) == host_of(_HERE) for each in verdict), "another host")
            expect(all(each.is_dialable and each.port for each in verdict), "undialable")
    response = attempt(RemoteProtocolError, DialResponse.decode, data)
    if not isinstance(response, Refused):
        expect(response.status in DialStatus, "a status that is none")
        again = DialResponse.decode(_unframed(response.encode()))
        expect_equal((again.status, again.address), (response.status, response.address), "again")


def _seeds() -> list[bytes]:
    messages = (
        DialRequest(KEYS[0].peer_id, (_HERE, _ELSEWHERE)),
        DialRequest(KEYS[1].peer_id, ()),
        DialResponse(DialStatus.OK, "", _HERE),
        DialResponse(DialStatus.DIAL_ERROR, "connection refused"),
    )
    return [_unframed(message.encode()) for message in messages]


def _autonat2(data: bytes) -> None:
    for read in (decode_dial_back, decode_thanks):
        attempt(RemoteProtocolError, read, data)
    message = attempt(RemoteProtocolError, decode_message, data)
    if isinstance(message, Refused):
        return
    if isinstance(message, NonceRequest):
        expect(len(message.addresses) <= AUTONAT_ADDRESSES_MAX, "many addresses")
        if None in message.addresses:
            return
    if isinstance(message, DataRequest):
        expect(message.count <= AUTONAT_DIAL_DATA_MAX, "much data")
    if isinstance(message, Data) and message.size > AUTONAT_DIAL_DATA_CHUNK:
        return
    reader = LengthPrefixedReader(AUTONAT_TWO_MESSAGE_MAX)
    reader.feed(encode_message(message))
    if (again := reader.next()) is not None:
        expect_equal(decode_message(again), message, "read back")


def _autonat2_seeds() -> list[bytes]:
    messages: tuple[NonceRequest | NonceResponse | DataRequest | Data, ...] = (
        NonceRequest((_HERE, _ELSEWHERE), 2**63),
        NonceResponse(RequestStatus.OK, 1, DialOutcome.OK),
        DataRequest(1, 30_000),
        Data(3),
    )
    frames = [*map(encode_message, messages), encode_dial_back(7), encode_thanks()]
    return list(map(_unframed, frames))


# -- multicast DNS ---------------------------------------------------------------------------------


def _dns(data: bytes) -> None:
    message = attempt(RemoteProtocolError, DnsMessage.decode, data)
    if isinstance(message, Refused):
        return
    entries = len(message.questions) + len(message.answers) + len(message.additional)
    expect(entries <= MDNS_RECORDS_MAX, "many entries")
    again = attempt(LocalProtocolError, message.encode)
    if not isinstance(again, Refused) and len(again) <= MDNS_RECEIVED_MAX:
        read = DnsMessage.decode(again)
        expect_equal(read, message, "a message read back")
    rng = random.Random(1)  # noqa: S311
    machine = MdnsMachine(
        KEYS[0].peer_id,
        service=SERVICE,
        instance=instance_name(rng),
        query_s=300.0,
        ttl_s=360.0,
        rng=rng,
        now=0.0,
    )
    found = machine.receive(message, 0.0)
    expect(len(found) <= MDNS_PEERS_MAX, "many peers")
    for peer in found:
        expect(peer.peer_id != KEYS[0].peer_id, "this node itself")
        expect(all(scope_of(each) is not Scope.HERE for each in peer.addresses), "loopback")
        expect(all(each.is_dialable for each in peer.addresses), "undialable")
    for answer in machine.handle_timer(0.2, advertised([_ELSEWHERE], KEYS[0].peer_id)):
        expect(len(answer.encode()) <= MDNS_PACKET_MAX, "a large packet")


def _dns_seeds() -> list[bytes]:
    name = f"abc.{SERVICE}"
    text = f"dnsaddr={_HERE.with_peer(KEYS[1].peer_id).text}".encode()
    pointer, record = PtrRecord(SERVICE, name, 360), TxtRecord(name, (text, b"x"), 360)
    return [
        DnsMessage(False, (Question(SERVICE, 12),)).encode(),
        DnsMessage(False, (Question(SERVICES, 255), Question(name, 16)), (pointer,)).encode(),
        DnsMessage(True, (), (pointer,), (record,)).encode(),
        DnsMessage(False, (Question(SERVICE, 12),)).encode()[:-4] + b"\0\x0c\x80\1",
        bytes(5) + b"\2" + bytes(6) + b"\1a\0\0\x0c\0\1" + b"\1b\xc0\x0c\0\x0c\0\1",
    ]


TARGETS: Final = (
    Target(
        name="autonat2_message",
        modules=("sbp2p_protocol.autonat2",),
        check=_autonat2,
        seeds=_autonat2_seeds,
        mutations=(protobuf,),
        max_size=2048,
    ),
    Target(
        name="dns_message",
        modules=("sbp2p_protocol.dns_message", "sbp2p_protocol.mdns"),
        check=_dns,
        seeds=_dns_seeds,
        mutations=(blind,),
        max_size=1024,
    ),
    Target(
        name="autonat_message",
        modules=("sbp2p_protocol.autonat",),
        check=_autonat,
        seeds=_seeds,
        mutations=(protobuf,),
        max_size=2048,
    ),
)

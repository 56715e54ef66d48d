"""Targets of how peers find each other: AutoNAT's messages."""

from __future__ import annotations

from typing import Final

from sbp2p_protocol.address_scope import host_of
from sbp2p_protocol.autonat import DialBackPolicy, DialRequest, DialResponse, DialStatus
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader
from sbp2p_protocol.limits import (
    AUTONAT_ADDRESSES_MAX,
    AUTONAT_MESSAGE_MAX,
    DIAL_BACK_ADDRESSES_MAX,
)
from sbp2p_protocol.multiaddr import parse_address

from .corpus import KEYS
from .engine import Target
from .expect import Refused, attempt, expect, expect_equal
from .structure import protobuf

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


TARGETS: Final = (
    Target(
        name="autonat_message",
        modules=("sbp2p_protocol.autonat", "sbp2p_protocol.address_scope"),
        check=_autonat,
        seeds=_seeds,
        mutations=(protobuf,),
        max_size=2048,
    ),
)

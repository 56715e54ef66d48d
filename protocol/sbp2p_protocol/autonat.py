"""AutoNAT, first version: one peer asks another to dial it back, and is told whether that worked.

Theory of operation. On `/libp2p/autonat/1.0.0` the asking side sends one length-prefixed message
with its peer id and addresses, the other answers with one, and the stream ends. `DialBackPolicy` is
what decides on the serving side, because a careless server dials whatever it is told to:

1. Only the requester itself is dialled, only with ports at the host that it is seen at. So nobody
   can be hit who is not asking, and a spoofed source cannot ask at all.
2. No private host, unless the owner of this node says so: who is behind a port forward is seen at
   an address of this node's own network, and could have that scanned.
3. So many requests of one group of observers and of all together a minute, DIAL_BACK_ADDRESSES_MAX
   addresses each. A dial-back costs less than the request did, so nothing is amplified.

A refusal says nothing about the requester; only OK and DIAL_ERROR do.

Error cases: `RemoteProtocolError` for bytes that are no such message, or lack their part.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId

from .address_scope import Scope, host_of, observer_group, scope_of
from .errors import RemoteProtocolError
from .framing import encode_length_prefixed
from .identify import understood
from .limits import (
    AUTONAT_ADDRESSES_MAX,
    AUTONAT_TEXT_MAX,
    DIAL_BACK_ADDRESSES_MAX,
    OBSERVER_GROUPS_MAX,
)
from .pb import autonat_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .multiaddr import Address

AUTONAT_PROTOCOL: Final = "/libp2p/autonat/1.0.0"

_DIAL: Final = 0
_DIAL_RESPONSE: Final = 1
_WINDOW_S: Final = 60.0


class DialStatus(IntEnum):
    """How a dial-back went."""

    OK = 0
    DIAL_ERROR = 100
    DIAL_REFUSED = 101
    BAD_REQUEST = 200
    INTERNAL_ERROR = 300


@dataclass(frozen=True, slots=True)
class DialRequest:
    """Dial me back."""

    peer_id: PeerId
    addresses: tuple[Address, ...]
    """Those that are understood here."""

    def encode(self) -> bytes:
        """Return the frame to send; addresses beyond AUTONAT_ADDRESSES_MAX are left out."""
        message = autonat_pb2.AutonatMessage(type=_DIAL)
        message.dial.peer.id = self.peer_id.to_bytes()
        addresses = self.addresses[:AUTONAT_ADDRESSES_MAX]
        message.dial.peer.addrs.extend(each.to_bytes() for each in addresses)
        return encode_length_prefixed(message.SerializeToString())

    @classmethod
    def decode(cls, data: bytes) -> DialRequest:
        """Read a message without its length prefix; raises RemoteProtocolError."""
        message = _read(data, _DIAL, "dial")
        try:
            peer_id = PeerId.from_bytes(message.dial.peer.id)
        except KeysError as error:
            raise RemoteProtocolError(f"autonat request: bad peer id: {error}") from None
        listed = message.dial.peer.addrs[:AUTONAT_ADDRESSES_MAX]
        return cls(peer_id, tuple(understood(listed)))


@dataclass(frozen=True, slots=True)
class DialResponse:
    """What came of it."""

    status: DialStatus
    text: str = ""
    address: Address | None = None
    """The address that was reached."""

    def encode(self) -> bytes:
        """Return the frame to send."""
        message = autonat_pb2.AutonatMessage(type=_DIAL_RESPONSE)
        message.dial_response.status = self.status
        if self.text:
            message.dial_response.status_text = self.text.encode()[:AUTONAT_TEXT_MAX]
        if self.address is not None:
            message.dial_response.addr = self.address.to_bytes()
        return encode_length_prefixed(message.SerializeToString())

    @classmethod
    def decode(cls, data: bytes) -> DialResponse:
        """Read a message without its length prefix; raises RemoteProtocolError."""
        response = _read(data, _DIAL_RESPONSE, "dial_response").dial_response
        try:
            status = DialStatus(response.status)
        except ValueError:
            raise RemoteProtocolError(f"autonat status {response.status}") from None
        text = response.status_text[:AUTONAT_TEXT_MAX].decode(errors="replace")
        return cls(status, text, next(understood(filter(None, [response.addr])), None))


def _read(data: bytes, kind: int, part: str) -> autonat_pb2.AutonatMessage:
    try:
        message = autonat_pb2.AutonatMessage.FromString(data)
    except DecodeError:
        raise RemoteProtocolError("autonat message is not a protobuf") from None
    if message.type != kind or not message.HasField(part):
        raise RemoteProtocolError(f"autonat message of type {message.type} without its {part}")
    return message


class DialBackPolicy:
    """Decides whom to dial back, and where.

    Args:
        requests_max: requests of one group of observers in a minute that are served.
        total_max: requests of all together.
        allow_private: whether to dial peers that are seen at private addresses, or on this machine.
    """

    def __init__(self, *, requests_max: int, total_max: int, allow_private: bool) -> None:
        self._requests_max = requests_max
        self._total_max = total_max
        self._allow_private = allow_private
        self._served: dict[str, deque[float]] = {}
        self._total: deque[float] = deque()

    def judge(
        self, request: DialRequest, requester: PeerId, remote: Address, now: float
    ) -> Sequence[Address] | DialResponse:
        """Return the addresses to dial, at least one, or the answer that refuses.

        Args:
            request: what is asked.
            requester: who asks, as the connection proved.
            remote: where the requester is seen.
            now: seconds.
        """
        if request.peer_id != requester:
            return DialResponse(DialStatus.BAD_REQUEST, "that is another peer's id")
        allowed = (
            (Scope.PUBLIC, Scope.PRIVATE, Scope.HERE) if self._allow_private else (Scope.PUBLIC,)
        )
        if (host := host_of(remote)) is None or scope_of(remote) not in allowed:
            return DialResponse(DialStatus.DIAL_REFUSED, "peers at such an address are not dialled")
        found = [
            each.without_peer()
            for each in request.addresses
            if each.is_dialable and host_of(each) == host and each.port
        ]
        if not found:
            return DialResponse(
                DialStatus.DIAL_REFUSED, "no address has the host that the requester is seen at"
            )
        if not self._admit(observer_group(remote, requester), now):
            return DialResponse(DialStatus.DIAL_REFUSED, "too many requests")
        return list(dict.fromkeys(found))[:DIAL_BACK_ADDRESSES_MAX]

    def _admit(self, group: str, now: float) -> bool:
        """Count a request unless there were too many in the last minute."""
        _expire(self._total, now)
        served = self._served.get(group, deque())
        _expire(served, now)
        if len(served) >= self._requests_max or len(self._total) >= self._total_max:
            return False
        served.append(now)
        self._total.append(now)
        self._served.pop(group, None)
        self._served[group] = served
        if len(self._served) > OBSERVER_GROUPS_MAX:
            del self._served[next(iter(self._served))]
        return True


def _expire(times: deque[float], now: float) -> None:
    while times and times[0] <= now - _WINDOW_S:
        times.popleft()

"""AutoNAT, second version: the dial-back carries a number that only the asking side has told.

Theory of operation. On `/libp2p/autonat/2/dial-request` the asking side sends its addresses, the
most interesting first, and a random nonce. The server takes the first address that it would dial,
dials it over a new connection, sends the nonce on a stream of `/libp2p/autonat/2/dial-back`, gets a
word of thanks, and reports on the first stream. So a server cannot say that it got through when it
did not, and the answer is about one address and not about any of them.

A server may ask for 30 to 100 kB before it dials an address at another host than the one that it
sees, so that it is no amplifier. This node, as a server, dials no such address at all; as a client
it pays up to AUTONAT_DIAL_DATA_MAX.

Every message is length-prefixed. Error cases: `RemoteProtocolError` for bytes that are none, and
for numbers that mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from google.protobuf.message import DecodeError

from .errors import RemoteProtocolError
from .framing import encode_length_prefixed
from .identify import understood
from .limits import AUTONAT_ADDRESSES_MAX, AUTONAT_DIAL_DATA_CHUNK, AUTONAT_DIAL_DATA_MAX
from .pb import autonat2_pb2

if TYPE_CHECKING:
    from .multiaddr import Address

DIAL_REQUEST_PROTOCOL: Final = "/libp2p/autonat/2/dial-request"
DIAL_BACK_PROTOCOL: Final = "/libp2p/autonat/2/dial-back"


class RequestStatus(IntEnum):
    """Whether the request was served."""

    INTERNAL_ERROR = 0
    REQUEST_REJECTED = 100
    DIAL_REFUSED = 101
    OK = 200


class DialOutcome(IntEnum):
    """How the dial went."""

    UNUSED = 0
    DIAL_ERROR = 100
    DIAL_BACK_ERROR = 101
    OK = 200


@dataclass(frozen=True, slots=True)
class NonceRequest:
    """Dial one of these addresses, and say this number there."""

    addresses: tuple[Address | None, ...]
    """In the sender's order; None for those that are not understood here."""
    nonce: int


@dataclass(frozen=True, slots=True)
class NonceResponse:
    """What came of it; `index` is that of the address that was dialled."""

    status: RequestStatus
    index: int = 0
    outcome: DialOutcome = DialOutcome.UNUSED


@dataclass(frozen=True, slots=True)
class DataRequest:
    """Send so many bytes first."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Data:
    """Some of them."""

    size: int


NonceMessage: TypeAlias = NonceRequest | NonceResponse | DataRequest | Data


def encode_message(message: NonceMessage) -> bytes:
    """Return the frame of a message."""
    out = autonat2_pb2.AutonatTwoMessage()
    match message:
        case NonceRequest(addresses, nonce):
            known = [each.to_bytes() for each in addresses if each is not None]
            out.dial_request.addrs.extend(known[:AUTONAT_ADDRESSES_MAX])
            out.dial_request.nonce = nonce
        case NonceResponse(status, index, outcome):
            out.dial_response.status = status
            out.dial_response.addr_idx = index
            out.dial_response.dial_status = outcome
        case DataRequest(index, count):
            out.dial_data_request.addr_idx = index
            out.dial_data_request.num_bytes = count
        case Data(size):
            out.dial_data_response.data = bytes(min(size, AUTONAT_DIAL_DATA_CHUNK))
    return encode_length_prefixed(out.SerializeToString())


def decode_message(data: bytes) -> NonceMessage:
    """Read a message without its length prefix; raises RemoteProtocolError."""
    try:
        read = autonat2_pb2.AutonatTwoMessage.FromString(data)
    except DecodeError:
        raise RemoteProtocolError("autonat message is not a protobuf") from None
    match read.WhichOneof("msg"):
        case "dial_request":
            listed = read.dial_request.addrs[:AUTONAT_ADDRESSES_MAX]
            addresses = tuple(next(understood([each]), None) for each in listed)
            return NonceRequest(addresses, read.dial_request.nonce)
        case "dial_response":
            return _response(read.dial_response)
        case "dial_data_request":
            wanted = read.dial_data_request
            if wanted.num_bytes > AUTONAT_DIAL_DATA_MAX:
                raise RemoteProtocolError(f"autonat server wants {wanted.num_bytes} bytes")
            return DataRequest(wanted.addr_idx, wanted.num_bytes)
        case "dial_data_response":
            return Data(len(read.dial_data_response.data))
        case _:
            raise RemoteProtocolError("autonat message without content")


def _response(read: autonat2_pb2.AutonatTwoMessage.DialResponse) -> NonceResponse:
    try:
        status, outcome = RequestStatus(read.status), DialOutcome(read.dial_status)
    except ValueError:
        raise RemoteProtocolError(f"autonat status {read.status}, {read.dial_status}") from None
    return NonceResponse(status, read.addr_idx, outcome)


def encode_dial_back(nonce: int) -> bytes:
    """Return the frame that a server sends where it has dialled."""
    return encode_length_prefixed(autonat2_pb2.AutonatTwoDialBack(nonce=nonce).SerializeToString())


def decode_dial_back(data: bytes) -> int:
    """Return the nonce; raises RemoteProtocolError."""
    try:
        return autonat2_pb2.AutonatTwoDialBack.FromString(data).nonce
    except DecodeError:
        raise RemoteProtocolError("autonat dial-back is not a protobuf") from None


def encode_thanks() -> bytes:
    """Return the frame that answers a dial-back: status OK, which is 0, written out."""
    thanks = autonat2_pb2.AutonatTwoDialBackResponse(status=0)
    return encode_length_prefixed(thanks.SerializeToString())


def decode_thanks(data: bytes) -> bool:
    """Return whether the dial-back was taken; raises RemoteProtocolError."""
    try:
        return autonat2_pb2.AutonatTwoDialBackResponse.FromString(data).status == 0
    except DecodeError:
        raise RemoteProtocolError("autonat answer is not a protobuf") from None

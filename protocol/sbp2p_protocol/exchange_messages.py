"""The messages of `/sbp2p/exchange/1.0.0` and their one codec.

Theory of operation: a message is a dag-cbor list `[kind, field, ...]` in one length-prefixed frame
of at most EXCHANGE_FRAME_MAX bytes. BLOCK and VERSION announce a length, and that many raw bytes
follow their frame: payload never passes through CBOR. A reader ignores fields beyond those it
knows, and skips a kind it does not know when that kind is odd; an unknown even kind is an error.
That is how later versions add to the protocol (protocol/exchange.md section 7).

Error cases: `decode_message` raises RemoteProtocolError whatever the frame; `encode_message` never
fails on a message that this side built within limits.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from . import dag_cbor
from .cid import DIGEST_SIZE, Cid
from .errors import RemoteProtocolError
from .limits import (
    BLOCK_MAX,
    EXCHANGE_BITMAP_CHUNK,
    EXCHANGE_DOCUMENT_MAX,
    EXCHANGE_FEATURES_MAX,
    EXCHANGE_FRAME_MAX,
    EXCHANGE_HAVE_BATCH,
    EXCHANGE_NODES_BATCH,
    EXCHANGE_PEER_ID_MAX,
    EXCHANGE_RECORD_MAX,
    EXCHANGE_RECORDS_BATCH,
    EXCHANGE_REQUEST_BATCH,
    EXCHANGE_TEXT_MAX,
    NODE_BLOCK_MAX,
    VERSION_LEAVES_MAX,
)
from .message_fields import NUMBER_MAX, blob, integer, read_message, sequence, text

if TYPE_CHECKING:
    from collections.abc import Callable

PROTOCOL_ID: Final = "/sbp2p/exchange/1.0.0"
EXCHANGE_VERSION: Final = 1
"""What HELLO says; a peer that says more still speaks this one."""

SWARM_FEATURE: Final = "swarm"
"""In a HELLO: the sender tells what it wants and gains (WANTS, GOT), and heeds CHOKE."""
ORDERED_FEATURE: Final = "ordered"
"""In the asking side's HELLO: it asks in an order of its own, so it must know all that is there."""

_PAYLOAD_MAX: Final = max(BLOCK_MAX, NODE_BLOCK_MAX)
_ID_MAX: Final = 2**32 - 1


class Kind(IntEnum):
    """The first element of every message; odd kinds may be ignored by who does not know them."""

    HELLO = 0
    WANTS = 1
    REQUEST = 2
    GOT = 3
    BLOCK = 4
    CHOKE = 5
    REJECT = 6
    PEERS = 7
    CANCEL = 8
    SUBSCRIBE = 10
    UNSUBSCRIBE = 12
    HAVE = 14
    HAVE_BITMAP = 16
    HAVE_ALL = 18
    GET_NODES = 20
    GET_VERSION = 22
    RESOLVE = 24
    VERSION = 26
    NOT_FOUND = 28
    GOODBYE = 30


class RejectReason(IntEnum):
    """Why a request is not answered with its block; an unknown reason reads as BUSY."""

    NOT_HAVE = 0
    CHOKED = 1
    BUSY = 2
    CHANGED = 3
    CANCELLED = 4
    REFUSED = 5


class GoodbyeCode(IntEnum):
    """Why a stream ends; an unknown code reads as DONE."""

    DONE = 0
    SHUTDOWN = 1
    REFUSED = 2


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of both sides: what the sender speaks and bears.

    `max_outstanding_bytes` and `max_requests` bound what the receiver may have asked of the sender
    and not yet got.
    """

    version: int
    features: tuple[str, ...]
    max_outstanding_bytes: int
    max_requests: int


@dataclass(frozen=True, slots=True)
class Request:
    """Send these blocks; each is answered by one BLOCK or REJECT."""

    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """`length` raw bytes follow: the block that was asked for under this digest."""

    digest: bytes
    length: int


@dataclass(frozen=True, slots=True)
class Reject:
    """These requests are over without a block."""

    digests: tuple[bytes, ...]
    reason: RejectReason


@dataclass(frozen=True, slots=True)
class Cancel:
    """These blocks are no longer wanted; each is still answered (BLOCK, or REJECT CANCELLED)."""

    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Tell me what you have of the version whose tree has this root, now and as it grows."""

    subscription: int
    root: Cid


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Say no more about this subscription."""

    subscription: int


@dataclass(frozen=True, slots=True)
class Have:
    """The sender has these blocks (indices in block table order) besides what it said before."""

    subscription: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HaveBitmap:
    """What the sender has of blocks `start` to `start + 8 * len(bits)`; `start` is 8-aligned."""

    subscription: int
    start: int
    bits: bytes


@dataclass(frozen=True, slots=True)
class HaveAll:
    """The sender has every block of the version."""

    subscription: int


@dataclass(frozen=True, slots=True)
class GetNodes:
    """Send these tree nodes, index pages or other loose blocks; answered like REQUEST."""

    cids: tuple[Cid, ...]


@dataclass(frozen=True, slots=True)
class GetVersion:
    """Send the signed document whose manifest has this CID."""

    request: int
    manifest: Cid


@dataclass(frozen=True, slots=True)
class Resolve:
    """Send the newest version of this publisher's name that you know, or exactly `version`."""

    request: int
    publisher: bytes
    name: str
    version: int | None


@dataclass(frozen=True, slots=True)
class VersionHeader:
    """`length` raw bytes follow: the signed document that answers `request`."""

    request: int
    length: int


@dataclass(frozen=True, slots=True)
class NotFound:
    """GET_VERSION, RESOLVE or SUBSCRIBE named something the sender does not have."""

    request: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """Last message of a side: it asks and answers nothing more."""

    code: GoodbyeCode
    reason: str


@dataclass(frozen=True, slots=True)
class Wants:
    """Of blocks `start` to `start + 8 * len(bits)` the sender wants those whose bit is set."""

    subscription: int
    start: int
    bits: bytes


@dataclass(frozen=True, slots=True)
class Got:
    """The sender has these blocks now: it wants them no longer, and can serve them."""

    subscription: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choke:
    """Whether requests for leaf blocks are rejected from now on; at first they are not."""

    choked: bool


@dataclass(frozen=True, slots=True)
class Peers:
    """Signed peer records of peers that serve or fetch the version with this root."""

    root: Cid
    records: tuple[bytes, ...]


Message: TypeAlias = (
    Hello
    | Request
    | BlockHeader
    | Reject
    | Cancel
    | Subscribe
    | Unsubscribe
    | Have
    | HaveBitmap
    | HaveAll
    | GetNodes
    | GetVersion
    | Resolve
    | VersionHeader
    | NotFound
    | Goodbye
    | Wants
    | Got
    | Choke
    | Peers
)


def encode_message(message: Message) -> bytes:
    """Return the body of the frame that carries `message` (without the length prefix)."""
    return dag_cbor.encode(_to_list(message))


def _to_list(message: Message) -> list[object]:
    match message:
        case Hello(version, features, outstanding, requests):
            return [Kind.HELLO, version, features, outstanding, requests]
        case Request(digests):
            return [Kind.REQUEST, digests]
        case BlockHeader(digest, length):
            return [Kind.BLOCK, digest, length]
        case Reject(digests, reason):
            return [Kind.REJECT, digests, reason]
        case Cancel(digests):
            return [Kind.CANCEL, digests]
        case Subscribe(subscription, root):
            return [Kind.SUBSCRIBE, subscription, root]
        case Unsubscribe(subscription):
            return [Kind.UNSUBSCRIBE, subscription]
        case Have(subscription, indices):
            return [Kind.HAVE, subscription, indices]
        case HaveBitmap(subscription, start, bits):
            return [Kind.HAVE_BITMAP, subscription, start, bits]
        case HaveAll(subscription):
            return [Kind.HAVE_ALL, subscription]
        case GetNodes(cids):
            return [Kind.GET_NODES, cids]
        case GetVersion(request, manifest):
            return [Kind.GET_VERSION, request, manifest]
        case Resolve(request, publisher, name, version):
            return [Kind.RESOLVE, request, publisher, name, version]
        case VersionHeader(request, length):
            return [Kind.VERSION, request, length]
        case NotFound(request):
            return [Kind.NOT_FOUND, request]
        case Goodbye(code, reason):
            return [Kind.GOODBYE, code, reason]
        case Wants(subscription, start, bits):
            return [Kind.WANTS, subscription, start, bits]
        case Got(subscription, indices):
            return [Kind.GOT, subscription, indices]
        case Choke(choked):
            return [Kind.CHOKE, int(choked)]
        case Peers(root, records):
            return [Kind.PEERS, root, records]


def decode_message(frame: bytes) -> Message | None:
    """Read one frame's body; None means a message this side does not know and may ignore.

    Raises:
        RemoteProtocolError: malformed, out of bounds, or an unknown kind that must be understood.
    """
    return read_message(frame, _READERS, Kind, max_size=EXCHANGE_FRAME_MAX, what="the exchange")


def _digest(value: object) -> bytes:
    return blob(value, DIGEST_SIZE, DIGEST_SIZE)


def _text(value: object, least: int = 0) -> str:
    return text(value, EXCHANGE_TEXT_MAX, least)


def _digests(value: object) -> tuple[bytes, ...]:
    return tuple([_digest(item) for item in sequence(value, EXCHANGE_REQUEST_BATCH, 1)])


def _cid(value: object) -> Cid:
    if type(value) is not Cid or len(value.digest) != DIGEST_SIZE:
        raise RemoteProtocolError("not a CID with a 32-byte digest")
    return value


def _reason(value: object) -> RejectReason:
    number = integer(value, NUMBER_MAX)
    return RejectReason(number) if number in _REASONS else RejectReason.BUSY


def _goodbye_code(value: object) -> GoodbyeCode:
    number = integer(value, NUMBER_MAX)
    return GoodbyeCode(number) if number in _CODES else GoodbyeCode.DONE


def _read_hello(value: list[dag_cbor.CborValue]) -> Hello:
    features = tuple(_text(item, 1) for item in sequence(value[2], EXCHANGE_FEATURES_MAX))
    return Hello(
        integer(value[1], NUMBER_MAX, 1),
        features,
        integer(value[3], NUMBER_MAX, BLOCK_MAX),
        integer(value[4], NUMBER_MAX, 1),
    )


def _indices(value: list[dag_cbor.CborValue]) -> tuple[int, tuple[int, ...]]:
    items = sequence(value[2], EXCHANGE_HAVE_BATCH)
    indices = tuple([integer(item, VERSION_LEAVES_MAX - 1) for item in items])
    return integer(value[1], _ID_MAX), indices


def _bits(value: list[dag_cbor.CborValue]) -> tuple[int, int, bytes]:
    start = integer(value[2], VERSION_LEAVES_MAX - 1)
    if start % 8:
        raise RemoteProtocolError(f"bitmap starts at block {start}, inside a byte")
    return integer(value[1], _ID_MAX), start, blob(value[3], EXCHANGE_BITMAP_CHUNK)


def _read_peers(value: list[dag_cbor.CborValue]) -> Peers:
    records = [
        blob(item, EXCHANGE_RECORD_MAX) for item in sequence(value[2], EXCHANGE_RECORDS_BATCH)
    ]
    return Peers(_cid(value[1]), tuple(records))


def _read_nodes(value: list[dag_cbor.CborValue]) -> GetNodes:
    return GetNodes(tuple([_cid(item) for item in sequence(value[1], EXCHANGE_NODES_BATCH, 1)]))


def _read_resolve(value: list[dag_cbor.CborValue]) -> Resolve:
    return Resolve(
        integer(value[1], _ID_MAX),
        blob(value[2], EXCHANGE_PEER_ID_MAX, 1),
        _text(value[3], 1),
        None if value[4] is None else integer(value[4], NUMBER_MAX),
    )


_REASONS: Final = frozenset(RejectReason)
_CODES: Final = frozenset(GoodbyeCode)

_READERS: Final[dict[int, tuple[int, Callable[[list[dag_cbor.CborValue]], Message]]]] = {
    Kind.HELLO: (4, _read_hello),
    Kind.REQUEST: (1, lambda v: Request(_digests(v[1]))),
    Kind.BLOCK: (2, lambda v: BlockHeader(_digest(v[1]), integer(v[2], _PAYLOAD_MAX))),
    Kind.REJECT: (2, lambda v: Reject(_digests(v[1]), _reason(v[2]))),
    Kind.CANCEL: (1, lambda v: Cancel(_digests(v[1]))),
    Kind.SUBSCRIBE: (2, lambda v: Subscribe(integer(v[1], _ID_MAX), _cid(v[2]))),
    Kind.UNSUBSCRIBE: (1, lambda v: Unsubscribe(integer(v[1], _ID_MAX))),
    Kind.HAVE: (2, lambda v: Have(*_indices(v))),
    Kind.HAVE_BITMAP: (3, lambda v: HaveBitmap(*_bits(v))),
    Kind.HAVE_ALL: (1, lambda v: HaveAll(integer(v[1], _ID_MAX))),
    Kind.GET_NODES: (1, _read_nodes),
    Kind.GET_VERSION: (2, lambda v: GetVersion(integer(v[1], _ID_MAX), _cid(v[2]))),
    Kind.RESOLVE: (4, _read_resolve),
    Kind.VERSION: (
        2,
        lambda v: VersionHeader(integer(v[1], _ID_MAX), integer(v[2], EXCHANGE_DOCUMENT_MAX)),
    ),
    Kind.NOT_FOUND: (1, lambda v: NotFound(integer(v[1], _ID_MAX))),
    Kind.GOODBYE: (2, lambda v: Goodbye(_goodbye_code(v[1]), _text(v[2]))),
    Kind.WANTS: (3, lambda v: Wants(*_bits(v))),
    Kind.GOT: (2, lambda v: Got(*_indices(v))),
    Kind.CHOKE: (1, lambda v: Choke(integer(v[1], NUMBER_MAX) != 0)),
    Kind.PEERS: (2, _read_peers),
}
"""Kind to the number of fields it must have and the function that reads them."""

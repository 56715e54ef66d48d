"""The messages of `/sbp2p/namespace/1.0.0`, their one codec, and what an update says of itself.

Theory of operation: a message is a dag-cbor list `[kind, field, ...]` in one length-prefixed frame
of at most NAMESPACE_FRAME_MAX bytes. A reader ignores fields beyond those it knows, and skips a
kind it does not know when that kind is odd; an unknown even kind is an error. That is how later
versions add to the protocol (protocol/namespace.md).

An update is the signed manifest of a version of the model that is named after the namespace. Round,
samples and codec stand in its `meta`, so they are signed with the rest, and so does the peer that
may tell of it: what one peer signed means nothing from another.

Error cases: `decode_message` and `read_update` raise RemoteProtocolError (IntegrityError for bad
signatures) whatever the bytes; `encode_message` never fails on a message that this side built
within limits.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from . import dag_cbor
from .errors import RemoteProtocolError
from .limits import (
    NAMESPACE_CODEC_MAX,
    NAMESPACE_DATA_MAX,
    NAMESPACE_FEATURES_MAX,
    NAMESPACE_FRAME_MAX,
    NAMESPACE_NAME_MAX,
    NAMESPACE_RECORD_MAX,
    NAMESPACE_RECORDS_BATCH,
    NAMESPACE_ROUND_MAX,
    NAMESPACE_SAMPLES_MAX,
    NAMESPACE_TEXT_MAX,
    NAMESPACE_UPDATE_MAX,
)
from .manifest import Manifest, check_model_name, read_signed_manifest
from .message_fields import NUMBER_MAX, blob, integer, read_message, sequence, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sbp2p_keys.identity import PeerId
    from sbp2p_keys.signing import SignedDocument

    from .cid import Cid
    from .manifest import MetaValue

PROTOCOL_ID: Final = "/sbp2p/namespace/1.0.0"
NAMESPACE_VERSION: Final = 1
"""What HELLO says; a peer that says more still speaks this one."""

ROUNDS_SUFFIX: Final = "/rounds"
"""After a namespace's name: the model whose versions are the records of its rounds."""

MESSAGE_OVERHEAD: Final = 64
"""Bytes that a DATA takes of the window besides its payload, so that empty ones cost something."""

WINDOW_MIN: Final = NAMESPACE_DATA_MAX + MESSAGE_OVERHEAD
"""Least window: one message of any allowed size."""


class Kind(IntEnum):
    """The first element of every message; odd kinds may be ignored by who does not know them."""

    HELLO = 0
    GOODBYE = 2
    UPDATE = 4
    STANCE = 6
    PEERS = 7
    DATA = 8
    ACK = 10


class GoodbyeCode(IntEnum):
    """Why a stream ends; an unknown code reads as LEFT."""

    LEFT = 0
    """The sender leaves the namespace."""
    UNKNOWN = 1
    """The sender is not in this namespace."""
    REFUSED = 2
    """The sender does not want the receiver in it, or has no room."""
    DUPLICATE = 3
    """There is another stream of the same pair for it."""


@dataclass(frozen=True, slots=True)
class Stance:
    """What the sender does for the receiver, and how far it is.

    Attributes:
        sends: it tells of its updates.
        receives: it wants to be told of updates.
        round: the last round that it has finished; 0 before the first.
    """

    sends: bool
    receives: bool
    round: int


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of both sides; the dialled one's tells whether it is in the namespace.

    Attributes:
        version: of the protocol.
        namespace: its name.
        features: what else the sender speaks; unknown ones are ignored.
        window: bytes of DATA that the sender keeps before its application takes them.
        stance: what it does.
        update: its newest update as a signed document; empty if it has none.
    """

    version: int
    namespace: str
    features: tuple[str, ...]
    window: int
    stance: Stance
    update: bytes = b""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """Last message of a side."""

    code: GoodbyeCode
    reason: str


@dataclass(frozen=True, slots=True)
class UpdateMessage:
    """The sender has published this: a signed document, see `read_update`."""

    document: bytes


@dataclass(frozen=True, slots=True)
class Peers:
    """Signed peer records of members."""

    records: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Data:
    """A message of the application."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    """How much DATA the sender of this has received, and how much its application has taken.

    Attributes:
        received: messages since the stream began.
        taken: bytes of them, MESSAGE_OVERHEAD each included, that occupy no window any more.
    """

    received: int
    taken: int


Message: TypeAlias = Hello | Goodbye | UpdateMessage | Stance | Peers | Data | Ack


def check_namespace(name: str) -> str | None:
    """Return why `name` may not name a namespace, or None if it may.

    A model is named after it, and another one with ROUNDS_SUFFIX behind it.
    """
    if len(name) > NAMESPACE_NAME_MAX:
        return f"a namespace's name has at most {NAMESPACE_NAME_MAX} characters"
    if name.endswith(ROUNDS_SUFFIX):
        return f"a namespace's name does not end in {ROUNDS_SUFFIX}"
    return check_model_name(name)


def encode_message(message: Message) -> bytes:
    """Return the body of the frame that carries `message` (without the length prefix)."""
    return dag_cbor.encode(_to_list(message))


def _to_list(message: Message) -> list[object]:
    match message:
        case Hello(version, namespace, features, window, stance, update):
            return [Kind.HELLO, version, namespace, features, window, *_stance(stance), update]
        case Goodbye(code, reason):
            return [Kind.GOODBYE, code, reason]
        case UpdateMessage(document):
            return [Kind.UPDATE, document]
        case Stance():
            return [Kind.STANCE, *_stance(message)]
        case Peers(records):
            return [Kind.PEERS, records]
        case Data(payload):
            return [Kind.DATA, payload]
        case Ack(received, taken):
            return [Kind.ACK, received, taken]


def _stance(stance: Stance) -> list[int]:
    return [int(stance.sends), int(stance.receives), stance.round]


def decode_message(frame: bytes) -> Message | None:
    """Read one frame's body; None means a message this side does not know and may ignore.

    Raises:
        RemoteProtocolError: malformed, out of bounds, or an unknown kind that must be understood.
    """
    return read_message(frame, _READERS, Kind, max_size=NAMESPACE_FRAME_MAX, what="a namespace")


def _text(value: object) -> str:
    return text(value, NAMESPACE_TEXT_MAX)


def _read_stance(value: list[dag_cbor.CborValue], at: int) -> Stance:
    return Stance(
        integer(value[at], 1) == 1,
        integer(value[at + 1], 1) == 1,
        integer(value[at + 2], NAMESPACE_ROUND_MAX),
    )


def _read_hello(value: list[dag_cbor.CborValue]) -> Hello:
    name = _text(value[2])
    if (reason := check_namespace(name)) is not None:
        raise RemoteProtocolError(f"HELLO: {reason}")
    return Hello(
        integer(value[1], NUMBER_MAX, 1),
        name,
        tuple(_text(item) for item in sequence(value[3], NAMESPACE_FEATURES_MAX)),
        integer(value[4], NUMBER_MAX, WINDOW_MIN),
        _read_stance(value, 5),
        blob(value[8], NAMESPACE_UPDATE_MAX),
    )


def _goodbye_code(value: object) -> GoodbyeCode:
    number = integer(value, NUMBER_MAX)
    return GoodbyeCode(number) if number in _CODES else GoodbyeCode.LEFT


def _read_peers(value: list[dag_cbor.CborValue]) -> Peers:
    items = sequence(value[1], NAMESPACE_RECORDS_BATCH)
    return Peers(tuple(blob(item, NAMESPACE_RECORD_MAX) for item in items))


_CODES: Final = frozenset(GoodbyeCode)

_READERS: Final[dict[int, tuple[int, Callable[[list[dag_cbor.CborValue]], Message]]]] = {
    Kind.HELLO: (8, _read_hello),
    Kind.GOODBYE: (2, lambda v: Goodbye(_goodbye_code(v[1]), _text(v[2]))),
    Kind.UPDATE: (1, lambda v: UpdateMessage(blob(v[1], NAMESPACE_UPDATE_MAX))),
    Kind.STANCE: (3, lambda v: _read_stance(v, 1)),
    Kind.PEERS: (1, _read_peers),
    Kind.DATA: (1, lambda v: Data(blob(v[1], NAMESPACE_DATA_MAX))),
    Kind.ACK: (2, lambda v: Ack(integer(v[1], NUMBER_MAX), integer(v[2], NUMBER_MAX))),
}
"""Kind to the number of fields it must have and the function that reads them."""


# -- updates --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Update:
    """What a peer has published in a namespace for one round.

    Attributes:
        document: the signed manifest.
        manifest: what it says.
        round: from 1.
        samples: how many the peer says that it has trained on since the last round; from 1.
        codec: how the tensors in its file are to be read.
    """

    document: SignedDocument
    manifest: Manifest
    round: int
    samples: int
    codec: str

    @property
    def cid(self) -> Cid:
        """What identifies it: the manifest's."""
        return self.manifest.cid


def update_meta(peer: PeerId, *, round: int, samples: int, codec: str) -> dict[str, MetaValue]:  # noqa: A002
    """Return what the manifest of an update says in its `meta`."""
    return {"peer": peer.to_bytes(), "round": round, "samples": samples, "codec": codec}


def read_update(data: bytes, namespace: str, peer: PeerId) -> Update:
    """Read and verify what `peer` says to have published in a namespace.

    Raises:
        IntegrityError: a signature is bad, or the publisher's is missing.
        RemoteProtocolError: it is no update of this peer in this namespace.
    """
    document, manifest = read_signed_manifest(data)
    meta = manifest.meta
    if manifest.name != namespace:
        raise RemoteProtocolError("an update of another namespace")
    if meta.get("peer") != peer.to_bytes():
        raise RemoteProtocolError("an update that another peer published")
    codec = meta.get("codec")
    if type(codec) is not str or not 1 <= len(codec.encode()) <= NAMESPACE_CODEC_MAX:
        raise RemoteProtocolError("an update without a codec")
    return Update(
        document,
        manifest,
        _count(meta, "round", NAMESPACE_ROUND_MAX),
        _count(meta, "samples", NAMESPACE_SAMPLES_MAX),
        codec,
    )


def _count(meta: Mapping[str, MetaValue], key: str, most: int) -> int:
    value = meta.get(key)
    if type(value) is not int or not 1 <= value <= most:
        raise RemoteProtocolError(f"an update whose {key} is not from 1 to {most}")
    return value

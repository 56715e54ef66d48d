"""identify: what a peer tells of itself once a connection is up.

Theory of operation. On `/ipfs/id/1.0.0` the opener writes nothing; the other side sends one
length-prefixed message and closes. On `/ipfs/id/push/1.0.0` the opener sends the same message, and
only the fields that are in it change. go splits what is long over several messages of one stream,
so a reader merges: later single fields replace, lists grow. `IdentifyReader` takes the stream.

The message is a claim by an authenticated peer about itself, no more. `checked_against` the
connection, its key must be the peer's own and a signed record must be about that peer. The address
it observed us at is a hint until several peers agree. Addresses stay bytes, because new protocols
keep arriving and one unknown address must not cost the message.

Errors, all `RemoteProtocolError`: a frame above the bound, bytes that are no protobuf, a stream cut
inside a frame or without a message, another peer's key or record. Lists above their bounds are cut;
text that is too long or not UTF-8 is dropped: none of that is worth a connection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError

from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PublicKey

from .errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from .framing import LengthPrefixedReader, encode_length_prefixed
from .limits import (
    ADDRESS_MAX,
    IDENTIFY_ADDRESSES_MAX,
    IDENTIFY_MESSAGE_MAX,
    IDENTIFY_MESSAGES_MAX,
    IDENTIFY_PROTOCOLS_MAX,
    IDENTIFY_SEND_MAX,
    IDENTIFY_TEXT_MAX,
)
from .multiaddr import Address, address_from_bytes
from .pb import identify_pb2
from .peer_record import PeerRecord, open_peer_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer

    from sbp2p_keys.identity import PeerId

T = TypeVar("T")

IDENTIFY_PROTOCOL: Final = "/ipfs/id/1.0.0"
IDENTIFY_PUSH_PROTOCOL: Final = "/ipfs/id/push/1.0.0"
PROTOCOL_VERSION: Final = "ipfs/0.1.0"
"""What most of the network sends; nobody compares it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifyMessage:
    """What one peer tells another. A field that is None or empty was not told.

    Attributes:
        public_key: The sender's key protobuf.
        listen_addresses: Binary multiaddrs, in the sender's order, not checked.
        protocols: Protocol ids the sender serves.
        observed_address: Binary multiaddr at which the sender sees the receiver.
        protocol_version: Family and version of the sender's network.
        agent_version: Name and version of the sender's software.
        signed_peer_record: Serialised envelope, not checked.
    """

    public_key: bytes | None = None
    listen_addresses: tuple[bytes, ...] = ()
    protocols: tuple[str, ...] = ()
    observed_address: bytes | None = None
    protocol_version: str | None = None
    agent_version: str | None = None
    signed_peer_record: bytes | None = None

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The listen addresses that are understood here."""
        return tuple(understood(self.listen_addresses))

    @property
    def observed(self) -> Address | None:
        """The address the sender sees the receiver at, if it is understood here."""
        return next(understood(filter(None, [self.observed_address])), None)

    def checked_against(self, peer_id: PeerId) -> PeerRecord | None:
        """Check that the message is about `peer_id`, whom the connection authenticated.

        Returns:
            The verified peer record, if the message has one.

        Raises:
            RemoteProtocolError: The key or the record is malformed.
            IntegrityError: The key or the record is another peer's, or the record was not signed.
        """
        if self.public_key is not None:
            try:
                key = PublicKey.from_protobuf(self.public_key)
            except KeysError as error:
                raise RemoteProtocolError(f"identify: bad key: {error}") from None
            if not peer_id.matches(key):
                raise IntegrityError(f"identify: {peer_id} sent the key of {key.peer_id}")
        if self.signed_peer_record is None:
            return None
        record = open_peer_record(self.signed_peer_record)
        if record.peer_id != peer_id:
            raise IntegrityError(f"identify: {peer_id} sent the record of {record.peer_id}")
        return record

    def updated_by(self, push: IdentifyMessage) -> IdentifyMessage:
        """Return this message with the fields of a push in place of its own."""
        told = {name: value for name in push.__slots__ if (value := getattr(push, name))}
        return replace(self, **told)

    def merged_with(self, later: IdentifyMessage) -> IdentifyMessage:
        """Return this message continued by a later one of the same stream."""
        return replace(
            self.updated_by(later),
            listen_addresses=_cut(
                (*self.listen_addresses, *later.listen_addresses), IDENTIFY_ADDRESSES_MAX
            ),
            protocols=_cut((*self.protocols, *later.protocols), IDENTIFY_PROTOCOLS_MAX),
        )

    def encode(self) -> bytes:
        """Return the frame to send: at most 4 KiB of message, which every stack accepts.

        Listen addresses are left out from the end until it fits.

        Raises:
            LocalProtocolError: It does not fit even without addresses.
        """
        message = identify_pb2.Identify(
            public_key=self.public_key,
            listen_addresses=self.listen_addresses[:IDENTIFY_ADDRESSES_MAX],
            protocols=[protocol.encode() for protocol in self.protocols],
            observed_address=self.observed_address,
            protocol_version=_encoded(self.protocol_version),
            agent_version=_encoded(self.agent_version),
            signed_peer_record=self.signed_peer_record,
        )
        while message.ByteSize() > IDENTIFY_SEND_MAX and message.listen_addresses:
            message.listen_addresses.pop()
        if message.ByteSize() > IDENTIFY_SEND_MAX:
            raise LocalProtocolError(f"identify message of {message.ByteSize()} bytes")
        return encode_length_prefixed(message.SerializeToString())

    @classmethod
    def decode(cls, data: bytes) -> IdentifyMessage:
        """Read one message without its length prefix; raises RemoteProtocolError."""
        try:
            message = identify_pb2.Identify.FromString(data)
        except DecodeError:
            raise RemoteProtocolError("identify message is not a protobuf") from None

        def single(name: str) -> bytes | None:
            value: bytes = getattr(message, name)
            return value or None  # proto2 writers send empty fields that they never set

        return cls(
            public_key=single("public_key"),
            listen_addresses=_cut(
                filter(_is_kept, message.listen_addresses), IDENTIFY_ADDRESSES_MAX
            ),
            protocols=_cut(filter(None, map(_text, message.protocols)), IDENTIFY_PROTOCOLS_MAX),
            observed_address=single("observed_address"),
            protocol_version=_text(single("protocol_version")),
            agent_version=_text(single("agent_version")),
            signed_peer_record=single("signed_peer_record"),
        )


class IdentifyReader:
    """Reads one identify or push stream: feed it until `finish` at the end of the stream."""

    __slots__ = ("_count", "_message", "_reader")

    def __init__(self) -> None:
        self._reader = LengthPrefixedReader(IDENTIFY_MESSAGE_MAX)
        self._message = IdentifyMessage()
        self._count = 0

    def receive_data(self, data: Buffer) -> None:
        """Take bytes of the stream, cut anywhere.

        Raises:
            RemoteProtocolError: They are no identify messages, or too many.
        """
        self._reader.feed(data)
        while (frame := self._reader.next()) is not None:
            self._count += 1
            if self._count > IDENTIFY_MESSAGES_MAX:
                raise RemoteProtocolError(f"more than {IDENTIFY_MESSAGES_MAX} identify messages")
            self._message = self._message.merged_with(IdentifyMessage.decode(frame))

    def finish(self) -> IdentifyMessage:
        """Return what the stream said, now that it has ended.

        Raises:
            RemoteProtocolError: It ended inside a message, or held none.
        """
        self._reader.finish()
        if not self._count:
            raise RemoteProtocolError("identify stream ended without a message")
        return self._message


def understood(addresses: Iterable[bytes]) -> Iterator[Address]:
    """Yield the addresses that can be read here; the others are somebody else's to dial."""
    for data in addresses:
        try:
            yield address_from_bytes(data)
        except RemoteProtocolError:
            continue


def _is_kept(address: bytes) -> bool:
    return 0 < len(address) <= ADDRESS_MAX


def _text(data: bytes | None) -> str | None:
    if not data or len(data) > IDENTIFY_TEXT_MAX:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _cut(values: Iterable[T], count: int) -> tuple[T, ...]:
    return tuple(islice(values, count))

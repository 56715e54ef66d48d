"""Kademlia's one message: every request and every reply of the DHT.

Theory of operation. A request and its reply are each one length-prefixed protobuf on a stream that
may carry many of them in sequence. Type says which of five requests it is, and a reply repeats it.
The fields that count beside it:

    FIND_NODE      key (a peer id, or any bytes)  -> closer
    GET_PROVIDERS  key (a multihash)              -> providers, closer
    ADD_PROVIDER   key, providers (the sender)    -> nothing
    GET_VALUE      key                            -> record, closer
    PUT_VALUE      key, record of the same key    -> the request again
    PING                                          -> the request again

Peers of a list are hints by somebody else. One whose id is none is left out, so is an address that
is not understood here, and so is what is beyond a bound: one strange entry must not cost a reply.
A peer without addresses stays: the receiver may know some.

What is sent fits in 16 KiB with its length prefix, because rust-libp2p drops longer frames. To make
it fit, addresses are taken from the entries that have most of them, then closer peers and then
providers from the end of their lists.

Errors, all `RemoteProtocolError`: bytes that are no protobuf, a type that is none of the six, a
key or value above its bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId

from .errors import LocalProtocolError, RemoteProtocolError
from .framing import encode_length_prefixed
from .limits import (
    ADDRESS_MAX,
    KAD_CLOSER_MAX,
    KAD_KEY_MAX,
    KAD_MESSAGE_MAX,
    KAD_PEER_ADDRESSES_MAX,
    KAD_PROVIDERS_MAX,
    KAD_RECEIVED_MAX,
    KAD_SEND_MAX,
    KAD_VALUE_MAX,
)
from .multiaddr import Address, address_from_bytes
from .pb import kad_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

KAD_PROTOCOL_SUFFIX: Final = "/kad/1.0.0"
"""What follows the network's name in the protocol id."""

DEFAULT_NETWORK: Final = "/sbp2p"
"""The network that a node joins if it is told nothing else; the public one is `/ipfs`."""

_PREFIX_MAX: Final = 3
"""Bytes in the length prefix of a frame of KAD_SEND_MAX."""


def kad_protocol(network: str = DEFAULT_NETWORK) -> str:
    """Return the protocol id of a network: `/sbp2p/kad/1.0.0` unless another is named."""
    return network + KAD_PROTOCOL_SUFFIX


class KadType(IntEnum):
    """What is asked, by its protobuf number."""

    PUT_VALUE = 0
    GET_VALUE = 1
    ADD_PROVIDER = 2
    GET_PROVIDERS = 3
    FIND_NODE = 4
    PING = 5


@dataclass(frozen=True, slots=True)
class KadPeer:
    """A peer as another one describes it. Nothing about it is proven."""

    peer_id: PeerId
    addresses: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True)
class KadRecord:
    """A value as it travels.

    Attributes:
        key: What it is stored under; begins with its namespace.
        value: At most KAD_VALUE_MAX bytes, valid or not: that is the namespace's to judge.
        received: When its holder got it, in RFC 3339; empty if that was not told.
    """

    key: bytes
    value: bytes
    received: str = ""


@dataclass(frozen=True, slots=True)
class KadMessage:
    """One request or reply. Which fields count depends on the type."""

    type: KadType
    key: bytes = b""
    record: KadRecord | None = None
    closer: tuple[KadPeer, ...] = ()
    providers: tuple[KadPeer, ...] = ()

    def encode(self) -> bytes:
        """Return the frame to send, at most KAD_SEND_MAX bytes with its length prefix.

        Raises:
            LocalProtocolError: Key or record are above their bounds.
        """
        _check_own(self)
        message = kad_pb2.Kad(
            type=self.type,
            key=self.key,
            record=None
            if self.record is None
            else kad_pb2.Kad.Record(
                key=self.record.key,
                value=self.record.value,
                time_received=self.record.received.encode(),
            ),
            closer_peers=_written(self.closer[:KAD_CLOSER_MAX]),
            provider_peers=_written(self.providers[:KAD_PROVIDERS_MAX]),
        )
        _trim(message, KAD_SEND_MAX - _PREFIX_MAX)
        return encode_length_prefixed(message.SerializeToString())

    @classmethod
    def decode(cls, data: bytes) -> KadMessage:
        """Read one message without its length prefix; raises RemoteProtocolError."""
        if len(data) > KAD_MESSAGE_MAX:
            raise RemoteProtocolError(f"kad message of {len(data)} bytes")
        try:
            message = kad_pb2.Kad.FromString(data)
        except DecodeError:
            raise RemoteProtocolError("kad message is not a protobuf") from None
        try:
            kad_type = KadType(message.type)
        except ValueError:
            raise RemoteProtocolError(f"kad message of type {message.type}") from None
        return cls(
            kad_type,
            _bounded(message.key, KAD_KEY_MAX, "key"),
            _record(message.record) if message.HasField("record") else None,
            tuple(islice(_read(message.closer_peers), KAD_CLOSER_MAX)),
            tuple(islice(_read(message.provider_peers), KAD_PROVIDERS_MAX)),
        )


def _check_own(message: KadMessage) -> None:
    sizes = [("key", message.key, KAD_KEY_MAX)]
    if message.record is not None:
        sizes.append(("record key", message.record.key, KAD_KEY_MAX))
        sizes.append(("value", message.record.value, KAD_VALUE_MAX))
        sizes.append(("time", message.record.received.encode(), KAD_RECEIVED_MAX))
    for what, data, limit in sizes:
        if len(data) > limit:
            raise LocalProtocolError(f"kad {what} of {len(data)} bytes, {limit} at most")


def _written(peers: Iterable[KadPeer]) -> list[kad_pb2.Kad.Peer]:
    return [
        kad_pb2.Kad.Peer(
            id=peer.peer_id.to_bytes(),
            addresses=[address.to_bytes() for address in peer.addresses[:KAD_PEER_ADDRESSES_MAX]],
        )
        for peer in peers
    ]


def _trim(message: kad_pb2.Kad, limit: int) -> None:
    """Take out what can best be missed until the message has at most `limit` bytes."""
    entries = [*message.provider_peers, *message.closer_peers]
    most = KAD_PEER_ADDRESSES_MAX
    while message.ByteSize() > limit and most > 1:
        most -= 1
        for entry in entries:
            del entry.addresses[most:]
    while message.ByteSize() > limit and message.closer_peers:
        message.closer_peers.pop()
    while message.ByteSize() > limit and message.provider_peers:
        message.provider_peers.pop()


def _record(record: kad_pb2.Kad.Record) -> KadRecord:
    return KadRecord(
        _bounded(record.key, KAD_KEY_MAX, "record key"),
        _bounded(record.value, KAD_VALUE_MAX, "value"),
        _text(record.time_received),
    )


def _read(peers: Sequence[kad_pb2.Kad.Peer]) -> Iterator[KadPeer]:
    for peer in peers:
        try:
            peer_id = PeerId.from_bytes(peer.id)
        except KeysError:
            continue
        understood = filter(None, map(_address, peer.addresses[:KAD_PEER_ADDRESSES_MAX]))
        yield KadPeer(peer_id, tuple(understood))


def _address(data: bytes) -> Address | None:
    return _cached_address(data) if 0 < len(data) <= ADDRESS_MAX else None


# a lookup is told the same addresses by many peers, and reading one takes 50 us
@lru_cache(maxsize=4096)
def _cached_address(data: bytes) -> Address | None:
    try:
        return address_from_bytes(data)
    except RemoteProtocolError:
        return None


def _text(data: bytes) -> str:
    if len(data) > KAD_RECEIVED_MAX:
        return ""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ""


def _bounded(data: bytes, limit: int, what: str) -> bytes:
    if len(data) > limit:
        raise RemoteProtocolError(f"kad {what} of {len(data)} bytes")
    return data

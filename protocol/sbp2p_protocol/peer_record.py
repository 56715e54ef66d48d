"""Signed peer records: where a peer says it can be found, in words that others may pass on.

Theory of operation. A record is a protobuf of peer id, sequence number and addresses, inside a
signed envelope (`sbp2p_keys.signing`). Domain and payload type are those of go and js, which
differ from the text of libp2p RFC 0003. A record replaces an older one of the same peer only if its
sequence number is greater; go counts nanoseconds since 1970.

Addresses stay bytes: one that is not understood here may be dialled by whoever it is passed to.

Errors: `open_peer_record` raises `IntegrityError` when the signature is not that of the peer the
record is about, `RemoteProtocolError` for everything else that is not a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from sbp2p_keys.errors import BadSignatureError, KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_keys.signing import SignedEnvelope

from .errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from .limits import ADDRESS_MAX, PEER_RECORD_ADDRESSES_MAX
from .pb import peer_record_pb2

if TYPE_CHECKING:
    from sbp2p_keys.identity import PrivateKey

PEER_RECORD_DOMAIN: Final = "libp2p-peer-record"
PEER_RECORD_TYPE: Final = b"\x03\x01"
"""The code of the record type, as two bytes and not as the varint that it looks like."""

_SEQ_MAX: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecord:
    """What a peer says of itself.

    Attributes:
        peer_id: Who says it.
        seq: Later records have greater numbers; 0 <= seq < 2**64.
        addresses: Binary multiaddrs without the peer id, not checked.
    """

    peer_id: PeerId
    seq: int
    addresses: tuple[bytes, ...]

    def is_newer_than(self, other: PeerRecord | None) -> bool:
        """Whether this record replaces `other`, of the same peer."""
        return other is None or self.seq > other.seq


def seal_peer_record(private_key: PrivateKey, seq: int, addresses: tuple[bytes, ...]) -> bytes:
    """Return a serialised envelope with the record of `private_key`'s peer.

    Raises:
        LocalProtocolError: `seq` is out of range, or the addresses are too many or too long.
    """
    if not 0 <= seq <= _SEQ_MAX or len(addresses) > PEER_RECORD_ADDRESSES_MAX:
        raise LocalProtocolError(f"not a peer record: seq {seq}, {len(addresses)} addresses")
    info = peer_record_pb2.PeerRecord.AddressInfo
    payload = peer_record_pb2.PeerRecord(
        peer_id=private_key.peer_id.to_bytes(),
        seq=seq,
        addresses=[info(multiaddr=address) for address in addresses],
    ).SerializeToString()
    try:
        envelope = SignedEnvelope.seal(private_key, PEER_RECORD_DOMAIN, PEER_RECORD_TYPE, payload)
    except KeysError as error:
        raise LocalProtocolError(f"not a peer record: {error}") from None
    return envelope.to_bytes()


def open_peer_record(data: bytes) -> PeerRecord:
    """Read and verify a serialised envelope with a peer record.

    At most `PEER_RECORD_ADDRESSES_MAX` addresses are kept; empty and oversized ones are dropped.

    Raises:
        RemoteProtocolError: It is no peer record.
        IntegrityError: The peer it is about did not sign it.
    """
    try:
        envelope = SignedEnvelope.from_bytes(data)
        if envelope.payload_type != PEER_RECORD_TYPE:
            raise RemoteProtocolError(f"not a peer record: type {envelope.payload_type[:8].hex()}")
        signer = envelope.verify(PEER_RECORD_DOMAIN)
        message = peer_record_pb2.PeerRecord.FromString(envelope.payload)
        peer_id = PeerId.from_bytes(message.peer_id)
    except BadSignatureError:
        raise IntegrityError("peer record: the signature does not match") from None
    except (KeysError, DecodeError) as error:
        raise RemoteProtocolError(f"not a peer record: {error}") from None
    if not peer_id.matches(signer):
        raise IntegrityError(f"peer record of {peer_id} is signed by {signer.peer_id}")
    listed = (info.multiaddr for info in message.addresses[:PEER_RECORD_ADDRESSES_MAX])
    addresses = tuple(address for address in listed if 0 < len(address) <= ADDRESS_MAX)
    return PeerRecord(peer_id=peer_id, seq=message.seq, addresses=addresses)

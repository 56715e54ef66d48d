"""IPNS records: a peer's own statement of what its name points to, for a time.

Theory of operation. A record is a protobuf around `data`, a dag-cbor map that is signed as its
bytes under the bare prefix `ipns-signature:`. The name is a peer id, so it says itself whose
signature counts. Sequence numbers order the records of a name; `valid_until` ends each one.

    checks, in order             what fails
    size                         above 10 KiB, before anything is parsed
    signature and data present   a record of the first kind alone; its signature covers too little
    key                          the record's own, which must be the name's, or the one in the name
    data                         strict dag-cbor with the five keys; others are skipped
    signature                    over the bytes of `data` as received
    copies outside `data`        if there are any, all five must equal what is signed
    validity                     has passed; `open_ipns_record` looks at it, `read` does not

Of several valid records of one name the one with the greatest `order` counts: sequence, then
validity, then bytes. Two of the same sequence with different values are equivocation: no order
heals that, and who keeps both can show it (`contradicts`).

Written are records of the second kind only (signature over `data`, no copies), which every reader
since 2022 takes.

Errors: `IntegrityError` for a signature or a key that does not match, `RemoteProtocolError` for
everything else that is no record, `LocalProtocolError` for values that no record can have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from sbp2p_keys.errors import BadSignatureError, KeysError
from sbp2p_keys.identity import PeerId, PublicKey

from . import dag_cbor
from .cid import BadCidError, Cid
from .errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from .limits import IPNS_RECORD_MAX, IPNS_VALUE_MAX
from .pb import ipns_pb2

if TYPE_CHECKING:
    from sbp2p_keys.identity import PrivateKey

IPNS_NAMESPACE: Final = b"/ipns/"
"""What a record's key in the DHT begins with; the binary peer id follows."""

SIGNATURE_PREFIX: Final = b"ipns-signature:"
SEQUENCE_MAX: Final = 2**64 - 1
SECOND_NS: Final = 1_000_000_000

_IPFS_PATH: Final = b"/ipfs/"
_EOL: Final = 0
_TIME: Final = re.compile(
    rb"(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?Z", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MAX_NS: Final = 253_402_300_799 * SECOND_NS
"""The last second of the year 9999, which is what the format can write."""


class RecordExpiredError(RemoteProtocolError):
    """A record that was right until its validity passed; clocks differ, so nobody is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IpnsRecord:
    """A record whose signature was verified.

    Attributes:
        name: Whose record it is.
        value: What the name points to: a path, by custom.
        valid_until_ns: Unix time in nanoseconds from which it says nothing any more.
        sequence: Later records have greater numbers.
        ttl_ns: How long a reader may go without asking again; a hint.
        encoded: The record as it was received: what is stored and passed on.
    """

    name: PeerId
    value: bytes
    valid_until_ns: int
    sequence: int
    ttl_ns: int
    encoded: bytes = field(repr=False)

    @property
    def order(self) -> tuple[int, int, bytes]:
        """Of the valid records of one name, the one where this is greatest counts."""
        return self.sequence, self.valid_until_ns, self.encoded

    @property
    def valid_until(self) -> float:
        """Unix time in seconds."""
        return self.valid_until_ns / SECOND_NS

    @property
    def ttl_s(self) -> float:
        """`ttl_ns` in seconds."""
        return self.ttl_ns / SECOND_NS

    @property
    def cid(self) -> Cid | None:
        """The CID in a value of the form `/ipfs/<cid>`; None for any other value."""
        if not self.value.startswith(_IPFS_PATH):
            return None
        try:
            return Cid.parse(self.value[len(_IPFS_PATH) :].decode("ascii"))
        except (UnicodeDecodeError, BadCidError):
            return None

    def is_valid_at(self, now: float) -> bool:
        """Whether it still says something at Unix time `now`."""
        return self.valid_until_ns > int(now * SECOND_NS)

    def contradicts(self, other: IpnsRecord) -> bool:
        """Whether the owner signed two different values under one sequence number."""
        return (
            self.name == other.name
            and self.sequence == other.sequence
            and self.value != other.value
        )


def ipns_key(name: PeerId) -> bytes:
    """Return the key under which the DHT keeps the record of `name`."""
    return IPNS_NAMESPACE + name.to_bytes()


def name_of_key(key: bytes) -> PeerId:
    """Return whose record has this key in the DHT; raises RemoteProtocolError."""
    if not key.startswith(IPNS_NAMESPACE):
        raise RemoteProtocolError(f"not the key of an IPNS record: {key[:16].hex()}")
    try:
        return PeerId.from_bytes(key[len(IPNS_NAMESPACE) :])
    except KeysError as error:
        raise RemoteProtocolError(f"key of an IPNS record: {error}") from None


def ipfs_path(cid: Cid) -> bytes:
    """Return the value that points to a block."""
    return _IPFS_PATH + str(cid).encode("ascii")


def make_ipns_record(
    private_key: PrivateKey, value: bytes, *, sequence: int, valid_until_ns: int, ttl_ns: int
) -> bytes:
    """Sign a record of `private_key`'s name.

    Args:
        private_key: Its peer id is the name.
        value: What to point to.
        sequence: Greater than every one that was used with another value.
        valid_until_ns: Unix time in nanoseconds, before the year 10000.
        ttl_ns: For how long readers may keep it without asking again.

    Raises:
        LocalProtocolError: A value is out of range.
    """
    if not 0 < len(value) <= IPNS_VALUE_MAX or not 0 <= valid_until_ns <= _TIME_MAX_NS:
        raise LocalProtocolError(f"no IPNS record: {len(value)} bytes of value, or its end")
    if not (0 <= sequence <= SEQUENCE_MAX and 0 <= ttl_ns <= SEQUENCE_MAX):
        raise LocalProtocolError(f"no IPNS record: sequence {sequence}, ttl {ttl_ns}")
    data = dag_cbor.encode(
        {
            "Value": value,
            "Validity": format_time(valid_until_ns),
            "ValidityType": _EOL,
            "Sequence": sequence,
            "TTL": ttl_ns,
        }
    )
    public_key = private_key.public_key
    inlined = private_key.peer_id.public_key() is not None
    return ipns_pb2.IpnsEntry(
        pub_key=b"" if inlined else public_key.to_protobuf(),
        signature_v2=private_key.sign(SIGNATURE_PREFIX + data),
        data=data,
    ).SerializeToString()


def open_ipns_record(encoded: bytes, name: PeerId, now: float) -> IpnsRecord:
    """Read and verify a record of `name` that is valid at Unix time `now`.

    Raises:
        RecordExpiredError: Its time has passed.
        RemoteProtocolError: It is no record of this name.
        IntegrityError: The owner of the name did not sign it.
    """
    record = read_ipns_record(encoded, name)
    if not record.is_valid_at(now):
        raise RecordExpiredError(f"the IPNS record of {name} has expired")
    return record


def read_ipns_record(encoded: bytes, name: PeerId) -> IpnsRecord:
    """Read and verify a record of `name`, expired or not; raises as `open_ipns_record`."""
    if len(encoded) > IPNS_RECORD_MAX:
        raise RemoteProtocolError(f"IPNS record of {len(encoded)} bytes")
    try:
        entry = ipns_pb2.IpnsEntry.FromString(bytes(encoded))
    except DecodeError:
        raise RemoteProtocolError("IPNS record is not a protobuf") from None
    if not entry.signature_v2 or not entry.data:
        raise RemoteProtocolError("IPNS record without a signature of its data")
    public_key = _key(entry, name)
    record = _read_data(entry.data, name, encoded)
    try:
        public_key.verify(entry.signature_v2, SIGNATURE_PREFIX + entry.data)
    except BadSignatureError:
        raise IntegrityError(f"IPNS record of {name}: the signature does not match") from None
    if entry.signature_v1 or entry.value:
        _check_copies(entry, record)
    return record


def _key(entry: ipns_pb2.IpnsEntry, name: PeerId) -> PublicKey:
    if not entry.pub_key:
        inlined = name.public_key()
        if inlined is None:
            raise RemoteProtocolError(f"IPNS record of {name} lacks the key")
        return inlined
    try:
        key = PublicKey.from_protobuf(entry.pub_key)
    except KeysError as error:
        raise RemoteProtocolError(f"IPNS record: bad key: {error}") from None
    if not name.matches(key):
        raise IntegrityError(f"IPNS record of {name} has the key of {key.peer_id}")
    return key


def _read_data(data: bytes, name: PeerId, encoded: bytes) -> IpnsRecord:
    signed = dag_cbor.decode(data, max_size=IPNS_RECORD_MAX)
    if not isinstance(signed, dict):
        raise RemoteProtocolError("IPNS record: the data is not a map")
    value, validity = signed.get("Value"), signed.get("Validity")
    if not isinstance(value, bytes) or not isinstance(validity, bytes):
        raise RemoteProtocolError("IPNS record without Value or Validity")
    if len(value) > IPNS_VALUE_MAX:
        raise RemoteProtocolError(f"IPNS record with a value of {len(value)} bytes")
    if _unsigned(signed, "ValidityType") != _EOL:
        raise RemoteProtocolError("IPNS record with an unknown type of validity")
    return IpnsRecord(
        name=name,
        value=value,
        valid_until_ns=parse_time(validity),
        sequence=_unsigned(signed, "Sequence"),
        ttl_ns=_unsigned(signed, "TTL"),
        encoded=bytes(encoded),
    )


def _unsigned(signed: dict[str, dag_cbor.CborValue], key: str) -> int:
    value = signed.get(key)
    if type(value) is not int or value < 0:
        raise RemoteProtocolError(f"IPNS record: {key} is not an unsigned integer")
    return value


def _check_copies(entry: ipns_pb2.IpnsEntry, record: IpnsRecord) -> None:
    """Raise unless the unsigned copies say what is signed: old readers believe them."""
    told = dag_cbor.decode(entry.data)
    copies = {
        "Value": entry.value,
        "Validity": entry.validity,
        "ValidityType": entry.validity_type,
        "Sequence": entry.sequence,
        "TTL": entry.ttl,
    }
    if not isinstance(told, dict) or any(told.get(key) != copies[key] for key in copies):
        raise IntegrityError(f"IPNS record of {record.name}: a copy differs from what is signed")


def parse_time(text: bytes) -> int:
    """Return the Unix time in nanoseconds of an RFC 3339 time in UTC; RemoteProtocolError."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise RemoteProtocolError(f"not a time in UTC: {text[:40].hex()}")
    fields = [int(part) for part in match.groups()[:6]]
    try:
        seconds = int((datetime(*fields, tzinfo=UTC) - _EPOCH).total_seconds())  # type: ignore[misc, arg-type]
    except ValueError:
        raise RemoteProtocolError(f"no such time: {text[:40].decode('ascii')}") from None
    fraction = (match.group(7) or b"").ljust(9, b"0")
    return seconds * SECOND_NS + int(fraction)


def format_time(nanoseconds: int) -> bytes:
    """Return Unix time as RFC 3339 in UTC, with as many digits of a second as it needs."""
    seconds, fraction = divmod(nanoseconds, SECOND_NS)
    moment = datetime.fromtimestamp(seconds, tz=UTC)
    digits = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{digits}Z".encode("ascii")

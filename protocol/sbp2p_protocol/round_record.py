"""The record of one round: who contributed which version with which weight, and who did not.

Theory of operation: whoever has the record, the versions that it names and the merge methods can
do the merge again and compare the result with `digest`. Weights are exact fractions over one
denominator, since merged weights are exact too. The record is dag-cbor with a fixed set of keys and
one order of everything, so a round has one record. It carries no signature: it is published in a
version, whose manifest is signed by the author and has the contributions among its parents
(protocol/round.md).

Error cases: `from_bytes` raises RemoteProtocolError whatever the bytes. A record made here with
values that the format does not allow raises LocalProtocolError.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_protocol.cid import DAG_CBOR, Cid
from sbp2p_protocol.dag_cbor import decode, encode
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.fields import FORMAT, Fields
from sbp2p_protocol.limits import (
    META_ENTRIES_MAX,
    META_KEY_MAX,
    META_VALUE_MAX,
    NAMESPACE_ROUND_MAX,
    NAMESPACE_SAMPLES_MAX,
    ROUND_CONTRIBUTIONS_MAX,
    ROUND_METHOD_MAX,
    ROUND_REASON_MAX,
    ROUND_RECORD_MAX,
    ROUND_WEIGHT_BYTES_MAX,
    TOPOLOGY_TEXT_MAX,
)
from sbp2p_protocol.manifest import check_model_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sbp2p_protocol.dag_cbor import CborValue

Option: TypeAlias = str | int | float | bool | bytes
"""A value of a method's option."""

DIGEST_SIZE: Final = 32

_KEYS: Final = frozenset(
    (
        *("format", "namespace", "author", "round", "method", "options", "topology"),
        *("denominator", "contributions", "rejected", "missing", "digest"),
    )
)


@dataclass(frozen=True, slots=True)
class Contribution:
    """One model that was merged.

    Attributes:
        peer_id: whose.
        cid: the manifest of the version.
        round: the round of that peer that it was published for.
        weight: over 0; the weights of a round add up to 1.
        samples: that the peer trained on, as it says.
    """

    peer_id: PeerId
    cid: Cid
    round: int
    weight: Fraction
    samples: int = 1


@dataclass(frozen=True, slots=True)
class Rejection:
    """A version that was not merged, and why, in one line that prints."""

    peer_id: PeerId
    cid: Cid
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """What one peer did in one round; a value of this class is always encodable.

    Attributes:
        namespace: its name; what a model may be called.
        author: whose round it was.
        round: its number at the author.
        method: the name of the merge method.
        options: what the method was told, by name.
        topology: the text form, see `parse_topology`; a custom one's name.
        contributions: what was merged, the author's own among it unless it merges others only;
            sorted by peer id, each peer once.
        rejected: versions that failed, were malformed, or were turned down by the merge; sorted.
        missing: neighbours of which nothing was merged or rejected; sorted.
        digest: BLAKE3 of the result, as the merge reports it.
    """

    format: int = FORMAT
    namespace: str
    author: PeerId
    round: int
    method: str
    options: Mapping[str, Option] = field(default_factory=dict, hash=False)
    topology: str
    contributions: tuple[Contribution, ...]
    rejected: tuple[Rejection, ...] = ()
    missing: tuple[PeerId, ...] = ()
    digest: bytes

    def __post_init__(self) -> None:
        """Sort what has an order, and refuse with LocalProtocolError what the format forbids."""
        merged = sorted(self.contributions, key=lambda each: each.peer_id.to_bytes())
        rejected = sorted(self.rejected, key=_rejection_order)
        object.__setattr__(self, "contributions", tuple(merged))
        object.__setattr__(self, "rejected", tuple(rejected))
        object.__setattr__(self, "missing", tuple(sorted(self.missing, key=PeerId.to_bytes)))
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        if (reason := _fault(self)) is not None:
            raise LocalProtocolError(f"round record: {reason}")
        if len(self.to_bytes()) > ROUND_RECORD_MAX:
            raise LocalProtocolError(f"round record: over {ROUND_RECORD_MAX} bytes")

    @classmethod
    def from_bytes(cls, data: bytes) -> RoundRecord:
        """Read a record; raises RemoteProtocolError."""
        value = decode(data, max_size=ROUND_RECORD_MAX)
        fields = Fields(value, _KEYS, "round record")
        fields.check_format()
        denominator = _read_number(fields, "denominator", fields.blob("denominator"))
        most = ROUND_CONTRIBUTIONS_MAX
        try:
            record = cls(
                namespace=fields.text("namespace"),
                author=PeerId.from_bytes(fields.blob("author")),
                round=fields.integer("round", 0, NAMESPACE_ROUND_MAX),
                method=fields.text("method"),
                options=_read_options(fields),
                topology=fields.text("topology"),
                contributions=tuple(
                    _read_contribution(fields, each, denominator)
                    for each in fields.items("contributions", most)
                ),
                rejected=tuple(
                    _read_rejection(fields, each) for each in fields.items("rejected", most)
                ),
                missing=tuple(_read_peer(fields, each) for each in fields.items("missing", most)),
                digest=fields.blob("digest"),
            )
        except (LocalProtocolError, KeysError) as error:
            raise RemoteProtocolError(str(error)) from error
        if record.to_bytes() != data:  # another order, or weights over another denominator
            raise RemoteProtocolError("round record: not in its one form")
        return record

    def to_bytes(self) -> bytes:
        """Return the one encoding."""
        denominator = self.denominator
        return encode(
            {
                "format": self.format,
                "namespace": self.namespace,
                "author": self.author.to_bytes(),
                "round": self.round,
                "method": self.method,
                "options": self.options,
                "topology": self.topology,
                "denominator": _number(denominator),
                "contributions": [
                    [
                        each.peer_id.to_bytes(),
                        each.cid,
                        each.round,
                        each.samples,
                        _number(int(each.weight * denominator)),
                    ]
                    for each in self.contributions
                ],
                "rejected": [
                    [each.peer_id.to_bytes(), each.cid, each.reason] for each in self.rejected
                ],
                "missing": [peer.to_bytes() for peer in self.missing],
                "digest": self.digest,
            }
        )

    @property
    def denominator(self) -> int:
        """The least number that makes every weight, multiplied by it, an integer; 1 if none."""
        return lcm(*(each.weight.denominator for each in self.contributions))

    @property
    def weights(self) -> dict[PeerId, Fraction]:
        """The weight of each peer that contributed."""
        return {each.peer_id: each.weight for each in self.contributions}

    @property
    def parents(self) -> tuple[Cid, ...]:
        """The versions that were merged, each once, in the order of their peers."""
        return tuple(dict.fromkeys(each.cid for each in self.contributions))


def _rejection_order(each: Rejection) -> tuple[bytes, bytes, str]:
    return each.peer_id.to_bytes(), each.cid.to_bytes(), each.reason


def _number(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


# -- reading -------------------------------------------------------------------------------------


def _read_number(fields: Fields, key: str, data: CborValue) -> int:
    if not isinstance(data, bytes) or not 1 <= len(data) <= ROUND_WEIGHT_BYTES_MAX:
        raise fields.fault(key, f"is not a number of 1 to {ROUND_WEIGHT_BYTES_MAX} bytes")
    if data[0] == 0:
        raise fields.fault(key, "is 0, or begins with a zero byte")
    return int.from_bytes(data, "big")


def _read_peer(fields: Fields, value: CborValue, key: str = "missing") -> PeerId:
    if not isinstance(value, bytes):
        raise fields.fault(key, "holds something that is not a peer id")
    return PeerId.from_bytes(value)


def _read_row(fields: Fields, key: str, value: CborValue, count: int) -> Sequence[CborValue]:
    if not isinstance(value, list) or len(value) != count:
        raise fields.fault(key, f"holds something that is not a list of {count}")
    return value


def _read_contribution(fields: Fields, value: CborValue, denominator: int) -> Contribution:
    key = "contributions"
    peer, cid, round_number, samples, part = _read_row(fields, key, value, 5)
    if not isinstance(cid, Cid) or type(round_number) is not int or type(samples) is not int:
        raise fields.fault(key, "holds a value of another type")
    numerator = _read_number(fields, key, part)
    if numerator > denominator:
        raise fields.fault(key, "holds a weight over 1")
    return Contribution(
        _read_peer(fields, peer, key), cid, round_number, Fraction(numerator, denominator), samples
    )


def _read_rejection(fields: Fields, value: CborValue) -> Rejection:
    key = "rejected"
    peer, cid, reason = _read_row(fields, key, value, 3)
    if not isinstance(cid, Cid) or not isinstance(reason, str):
        raise fields.fault(key, "holds a value of another type")
    return Rejection(_read_peer(fields, peer, key), cid, reason)


def _read_options(fields: Fields) -> dict[str, Option]:
    options: dict[str, Option] = {}
    for key, value in fields.mapping("options").items():
        if not isinstance(value, (str, int, float, bytes)):  # bool is an int
            raise fields.fault("options", f"value of {key[:META_KEY_MAX]!a} is of another type")
        options[key] = value
    return options


# -- what the format allows ----------------------------------------------------------------------


def _fault(record: RoundRecord) -> str | None:
    """Return what the format does not allow about the values, or None."""
    if record.format != FORMAT:
        return f"format {record.format} is not {FORMAT}"
    if (reason := check_model_name(record.namespace)) is not None:
        return f"namespace {record.namespace[:80]!a}: {reason}"
    if not 0 <= record.round <= NAMESPACE_ROUND_MAX:
        return f"round {record.round} out of range"
    if not _is_line(record.method, 1, ROUND_METHOD_MAX):
        return f"method {record.method[:80]!a} is not the name of one"
    if not _is_line(record.topology, 1, TOPOLOGY_TEXT_MAX):
        return f"topology {record.topology[:80]!a} is not one line of text"
    if len(record.digest) != DIGEST_SIZE:
        return f"a digest of {len(record.digest)} bytes"
    return _options_fault(record.options) or _peers_fault(record) or _weights_fault(record)


def _options_fault(options: Mapping[str, Option]) -> str | None:
    if len(options) > META_ENTRIES_MAX:
        return f"{len(options)} options (at most {META_ENTRIES_MAX})"
    for key, value in options.items():
        if not _is_line(key, 1, META_KEY_MAX):
            return f"option {key[:META_KEY_MAX]!a} has no name that prints"
        if isinstance(value, int):  # bool too
            if not -(2**63) <= value < 2**63:
                return f"option {key!a} does not fit 64 signed bits"
        elif isinstance(value, float):
            continue  # the encoding refuses what is not finite
        elif not isinstance(value, (str, bytes)):
            return f"option {key!a} is a {type(value).__name__}"
        elif len(value.encode(errors="replace") if isinstance(value, str) else value) > (
            META_VALUE_MAX
        ):
            return f"option {key!a} has over {META_VALUE_MAX} bytes"
    return None


def _peers_fault(record: RoundRecord) -> str | None:
    most = ROUND_CONTRIBUTIONS_MAX
    merged = [each.peer_id for each in record.contributions]
    if max(len(merged), len(record.rejected), len(record.missing)) > most:
        return f"over {most} contributions, rejections or missing peers"
    if len(set(merged)) != len(merged) or len(set(record.missing)) != len(record.missing):
        return "a peer contributed twice, or is missing twice"
    others = {each.peer_id for each in record.rejected} | set(merged)
    if others & set(record.missing):
        return "a peer is missing that contributed or was rejected"
    if len(set(record.rejected)) != len(record.rejected):
        return "the same rejection twice"
    links = [each.cid for each in record.contributions] + [each.cid for each in record.rejected]
    for link in links:
        if not link.is_blake3 or link.codec != DAG_CBOR:
            return f"link {link} is not dag-cbor with BLAKE3"
    for rejection in record.rejected:
        if not _is_line(rejection.reason, 1, ROUND_REASON_MAX):
            return f"reason {rejection.reason[:80]!a} is not one line of text"
    return None


def _weights_fault(record: RoundRecord) -> str | None:
    for each in record.contributions:
        if not 0 <= each.round <= NAMESPACE_ROUND_MAX:
            return f"a contribution of round {each.round}"
        if not 0 <= each.samples <= NAMESPACE_SAMPLES_MAX:
            return f"a contribution of {each.samples} samples"
        if each.weight <= 0:
            return f"weight {each.weight} is not over 0"
    if record.denominator.bit_length() > 8 * ROUND_WEIGHT_BYTES_MAX:
        return f"weights whose denominator has over {ROUND_WEIGHT_BYTES_MAX} bytes"
    # as integers: a sum of a thousand fractions would reduce a thousand times
    parts = [
        each.weight.numerator * (record.denominator // each.weight.denominator)
        for each in record.contributions
    ]
    if parts and sum(parts) != record.denominator:
        return "the weights do not add up to 1"
    return None


def _is_line(text: str, least: int, most: int) -> bool:
    """Whether a text is one line that prints, of so many UTF-8 bytes."""
    return text.isprintable() and least <= len(text.encode("utf-8", "replace")) <= most

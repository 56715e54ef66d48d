"""Who belongs to a private swarm: certificates, their delegates, and what was revoked.

Theory of operation. A private swarm is an owner's key. Its owner signs a certificate for each
member: who, from when until when, for what. A member may hand it on for a short time to a key that
it has just made (a second process of its node), with a certificate of its own of another kind. The
owner signs one list of revoked members, with a number that only grows; who has two lists keeps the
higher one.

Everything is a `SignedDocument` with exactly one signature. The domain says which of the three
kinds it is, so a certificate for a member of one's own swarm never passes for a delegate of
oneself.

What makes a peer that has proved its id a member at a time (`check_member`), in this order:

    the certificate is by another owner                              OTHER_SWARM
    the list revokes its member up to this serial, or a higher one   REVOKED
    the time is before not_before                                    NOT_YET
    the time is expires, or later                                    EXPIRED
    there is no delegate, and the peer is not the member             OTHER_MEMBER
    there is one: by somebody else, or for another peer              OTHER_MEMBER
                  out of its own time                                NOT_YET, EXPIRED
    otherwise                                                        a member

Times are whole seconds since 1970 and an argument. A revocation holds for every certificate of the
member up to a serial: whoever is invited again gets a higher one.

Errors: BadDocumentError, BadSignatureError and BadMembershipError from the parsers, whatever the
bytes; NotAMemberError from the check; ValueError for a certificate that cannot be made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntFlag
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from .errors import (
    BadEncodingError,
    BadMembershipError,
    BadPeerIdError,
    MembershipProblem,
    NotAMemberError,
)
from .identity import PeerId
from .limits import (
    CERTIFICATE_MAX,
    MEMBERSHIP_NUMBER_MAX,
    REVOCATIONS_MAX,
    REVOKED_MEMBERS_MAX,
)
from .multi import decode_uvarint, encode_uvarint, multibase_encode
from .signing import SignedDocument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .identity import PrivateKey
    from .multi import BytesLike

CERTIFICATE_DOMAIN: Final = "sbp2p-membership"
DELEGATE_DOMAIN: Final = "sbp2p-membership-delegate"
REVOCATIONS_DOMAIN: Final = "sbp2p-membership-revocations"

_FORMAT: Final = 1
_CAPABILITIES_MAX: Final = 2**32 - 1
_PEER_ID_MAX: Final = 128


class Capability(IntFlag):
    """What a member may do; bits that are unknown here allow nothing here."""

    RECEIVE = 1
    """Be sent blocks and documents."""
    SEND = 2
    """Be asked for them."""


EVERYTHING: Final = Capability.RECEIVE | Capability.SEND


@dataclass(frozen=True, slots=True)
class Certificate:
    """An issuer's word that a peer belongs to it.

    Attributes:
        issuer: who signs: the swarm's owner, or, of a delegate, the member.
        member: whom it is for.
        not_before: first second at which it holds.
        expires: first second at which it no longer does.
        serial: grows with each certificate of an issuer, from 1.
        capabilities: what the member may do.
    """

    issuer: PeerId
    member: PeerId
    not_before: int
    expires: int
    serial: int
    capabilities: Capability = EVERYTHING

    def __post_init__(self) -> None:
        """Refuse with BadMembershipError what has no encoding."""
        _check_number("not_before", self.not_before)
        _check_number("expires", self.expires)
        _check_number("serial", self.serial, least=1)
        if self.expires <= self.not_before:
            raise BadMembershipError("a certificate that expires before it begins")
        if not 0 <= self.capabilities <= _CAPABILITIES_MAX:
            raise BadMembershipError(f"capabilities {self.capabilities} are not 32 bits")

    def sign(self, key: PrivateKey, domain: str = CERTIFICATE_DOMAIN) -> bytes:
        """Return the signed document; raises ValueError when the key is not the issuer's."""
        return _sign(self.issuer, self._payload(), key, domain)

    def _payload(self) -> bytes:
        numbers = (self.not_before, self.expires, self.serial, int(self.capabilities))
        return (
            encode_uvarint(_FORMAT)
            + _prefixed(self.issuer.to_bytes())
            + _prefixed(self.member.to_bytes())
            + b"".join(map(encode_uvarint, numbers))
        )


@dataclass(frozen=True, slots=True)
class Revocations:
    """Who is no longer a member. The empty list with number 0 is what there is at first.

    Attributes:
        owner: of the swarm.
        number: grows with each list.
        members: of each revoked member, the highest serial that is revoked.
    """

    owner: PeerId
    number: int = 0
    members: Mapping[PeerId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse with BadMembershipError what has no encoding."""
        _check_number("the list's number", self.number)
        if len(self.members) > REVOKED_MEMBERS_MAX:
            raise BadMembershipError(f"more than {REVOKED_MEMBERS_MAX} revoked members")
        for serial in self.members.values():
            _check_number("serial", serial, least=1)

    def revoke(self, member: PeerId, serial: int) -> Revocations:
        """Return the next list, in which a member's certificates up to a serial are revoked."""
        highest = max(serial, self.members.get(member, 0))
        return Revocations(self.owner, self.number + 1, {**self.members, member: highest})

    def sign(self, key: PrivateKey) -> bytes:
        """Return the signed document; raises ValueError when the key is not the owner's."""
        entries = sorted(self.members.items())
        payload = (
            encode_uvarint(_FORMAT)
            + _prefixed(self.owner.to_bytes())
            + encode_uvarint(self.number)
            + encode_uvarint(len(entries))
            + b"".join(
                _prefixed(member.to_bytes()) + encode_uvarint(serial) for member, serial in entries
            )
        )
        return _sign(self.owner, payload, key, REVOCATIONS_DOMAIN)


def read_certificate(data: BytesLike, domain: str = CERTIFICATE_DOMAIN) -> Certificate:
    """Return a certificate that its issuer has signed. Whether it counts is `check_member`'s.

    Raises:
        BadDocumentError, BadMembershipError: it is none, in its one encoding.
        BadSignatureError: the signature is not the issuer's.
    """
    payload, signer = _read_signed(data, domain, CERTIFICATE_MAX)
    reader = _Reader(payload, "certificate")
    reader.format()
    issuer, member = reader.peer(), reader.peer()
    not_before, expires, serial = reader.number(), reader.number(), reader.number()
    capabilities = reader.number()
    reader.end()
    if capabilities > _CAPABILITIES_MAX:
        raise BadMembershipError(f"capabilities {capabilities} are not 32 bits")
    if signer != issuer:
        raise BadMembershipError(f"a certificate by {issuer}, signed by {signer}")
    return Certificate(issuer, member, not_before, expires, serial, Capability(capabilities))


def read_revocations(data: BytesLike) -> Revocations:
    """Return a list that its owner has signed; errors as for `read_certificate`."""
    payload, signer = _read_signed(data, REVOCATIONS_DOMAIN, REVOCATIONS_MAX)
    reader = _Reader(payload, "revocation list")
    reader.format()
    owner, number, count = reader.peer(), reader.number(), reader.number()
    if count > REVOKED_MEMBERS_MAX:
        raise BadMembershipError(f"more than {REVOKED_MEMBERS_MAX} revoked members")
    members: dict[PeerId, int] = {}
    last: PeerId | None = None
    for _ in range(count):
        member = reader.peer()
        if last is not None and member <= last:
            raise BadMembershipError("revoked members do not ascend")
        members[member] = reader.number()
        last = member
    reader.end()
    if signer != owner:
        raise BadMembershipError(f"a revocation list of {owner}, signed by {signer}")
    return Revocations(owner, number, members)


def check_member(
    peer: PeerId,
    certificate: Certificate,
    delegate: Certificate | None,
    revocations: Revocations,
    now: float,
) -> None:
    """Return if a peer that has proved its id is a member now; the table is in the module.

    Args:
        peer: who it has proved to be.
        certificate: what it shows, as `read_certificate` returned it.
        delegate: the certificate of DELEGATE_DOMAIN that it shows besides, if it does.
        revocations: the highest list known; it names the swarm's owner.
        now: seconds since 1970.

    Raises:
        NotAMemberError: it is not.
    """
    if certificate.issuer != revocations.owner:
        raise NotAMemberError(
            MembershipProblem.OTHER_SWARM, f"a certificate of another swarm, {certificate.issuer}"
        )
    if certificate.serial <= revocations.members.get(certificate.member, 0):
        raise NotAMemberError(
            MembershipProblem.REVOKED, f"the membership of {certificate.member} is revoked"
        )
    _check_time(certificate, now)
    if delegate is None:
        if certificate.member != peer:
            raise _other_member(certificate.member)
        return
    if delegate.issuer != certificate.member or delegate.member != peer:
        raise _other_member(certificate.member)
    _check_time(delegate, now)


def network_id(owner: PeerId) -> str:
    """Return the network that a swarm's members announce and look for each other in.

    Whoever knows the owner can make it, nobody can tell the owner from it.
    """
    digest = sha256(b"sbp2p-private-network\0" + owner.to_bytes()).digest()
    return "/sbp2p-" + multibase_encode("b", digest[:16])[1:]


def _other_member(member: PeerId) -> NotAMemberError:
    return NotAMemberError(MembershipProblem.OTHER_MEMBER, f"the certificate is {member}'s")


def _check_time(certificate: Certificate, now: float) -> None:
    if now < certificate.not_before:
        raise NotAMemberError(MembershipProblem.NOT_YET, "the certificate does not hold yet")
    if now >= certificate.expires:
        raise NotAMemberError(MembershipProblem.EXPIRED, "the certificate has expired")


def _check_number(what: str, value: int, least: int = 0) -> None:
    if not least <= value <= MEMBERSHIP_NUMBER_MAX:
        raise BadMembershipError(f"{what} {value} is not from {least} to {MEMBERSHIP_NUMBER_MAX}")


def _prefixed(data: bytes) -> bytes:
    return encode_uvarint(len(data)) + data


def _sign(issuer: PeerId, payload: bytes, key: PrivateKey, domain: str) -> bytes:
    if key.peer_id != issuer:
        raise ValueError(f"the key is {key.peer_id}'s, and {issuer} would have to sign")
    return SignedDocument(domain, payload).sign(key).to_bytes()


def _read_signed(data: BytesLike, domain: str, most: int) -> tuple[bytes, PeerId]:
    """Return payload and signer of a document with one good signature."""
    if len(data) > most:
        raise BadMembershipError(f"longer than {most} bytes")
    document = SignedDocument.from_bytes(data, domain=domain)
    if len(document.signatures) != 1:
        raise BadMembershipError(f"{len(document.signatures)} signatures, not one")
    return document.payload, next(iter(document.signers()))


class _Reader:
    """Fields of a payload, in order; raises BadMembershipError."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._at = 0

    def format(self) -> None:
        found = self.number()
        if found != _FORMAT:
            raise BadMembershipError(f"a {self._what} of format {found}, not {_FORMAT}")

    def number(self) -> int:
        try:
            value, self._at = decode_uvarint(self._data, self._at)
        except BadEncodingError as error:
            raise BadMembershipError(f"{self._what}: {error}") from None
        return value

    def peer(self) -> PeerId:
        length = self.number()
        end = self._at + length
        if length > _PEER_ID_MAX or end > len(self._data):
            raise BadMembershipError(f"{self._what}: a peer id of {length} bytes")
        data, self._at = self._data[self._at : end], end
        try:
            return PeerId.from_bytes(data)
        except BadPeerIdError as error:
            raise BadMembershipError(f"{self._what}: {error}") from None

    def end(self) -> None:
        if self._at != len(self._data):
            raise BadMembershipError(f"{self._what}: bytes behind its end")

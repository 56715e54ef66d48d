"""How two members of a private swarm show each other that they are: the handshake, and lists.

Theory of operation: the first thing on a new connection, before anything else of either side is
served. The dialling side shows its certificate first, so a stranger who dials learns nothing; the
listening side answers with its own and with the revocation list that it knows, only if it was
satisfied; and the dialling side ends with the list that it knows. Both go by the newer list.

    state      side       hears          then
    WAITING    listens    SHOW           checks, sends SHOW and LIST -> ENDING
    SHOWN      dials      SHOW, LIST     checks, sends LIST -> DONE
    ENDING     listens    LIST           checks again -> DONE

The certificate names its member, and the connection has proved who the peer is, so one that was
seen elsewhere is of no use to anybody else.

Error cases: `receive_data` raises RemoteProtocolError for bytes that are none of this, and
MembershipRefusedError, one of them with a close code that blames nobody, for a peer that is no
member. After either the machine is of no more use.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from sbp2p_keys.errors import KeysError, NotAMemberError
from sbp2p_keys.limits import CERTIFICATE_MAX, REVOCATIONS_MAX
from sbp2p_keys.membership import (
    DELEGATE_DOMAIN,
    Certificate,
    Revocations,
    check_member,
    read_certificate,
    read_revocations,
)

from .errors import CloseCode, RemoteProtocolError
from .framing import LengthPrefixedReader, encode_length_prefixed

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from sbp2p_keys.errors import MembershipProblem
    from sbp2p_keys.identity import PeerId

MEMBERSHIP_PROTOCOL: Final = "/sbp2p/membership/1.0.0"
REVOCATIONS_PROTOCOL: Final = "/sbp2p/revocations/1.0.0"

_SHOW_MAX: Final = 2 * (CERTIFICATE_MAX + 2)


class MembershipRefusedError(RemoteProtocolError):
    """The peer is no member of this swarm; it has broken no rule by trying."""

    def __init__(self, message: str, problem: MembershipProblem) -> None:
        super().__init__(message, close_code=CloseCode.NORMAL)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a side shows: documents as they were signed.

    Attributes:
        certificate: of the member, by the owner.
        delegate: of the key that this side runs as, by the member; empty if it runs as the member.
    """

    certificate: bytes
    delegate: bytes = b""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a peer has shown, read and verified."""

    certificate: Certificate
    delegate: Certificate | None

    def check(self, peer: PeerId, revocations: Revocations, now: float) -> None:
        """Return if it makes `peer` a member at a time; raises MembershipRefusedError."""
        try:
            check_member(peer, self.certificate, self.delegate, revocations, now)
        except NotAMemberError as error:
            raise MembershipRefusedError(str(error), error.problem) from None


@dataclass(frozen=True, slots=True)
class RevocationList:
    """A revocation list, and its document; no document while it is the empty one."""

    value: Revocations
    document: bytes = b""

    def newer(self, document: bytes) -> RevocationList:
        """Return the list of a document if it is newer than this one, else this one.

        Raises:
            RemoteProtocolError: it is no list of this owner.
        """
        if not document or document == self.document:
            return self
        try:
            value = read_revocations(document)
        except KeysError as error:
            raise RemoteProtocolError(f"not a revocation list: {error}") from None
        if value.owner != self.value.owner:
            raise RemoteProtocolError("a revocation list of another owner")
        return RevocationList(value, document) if value.number > self.value.number else self


class MembershipState(Enum):
    """Where the handshake is."""

    WAITING = auto()
    SHOWN = auto()
    ENDING = auto()
    DONE = auto()


class MembershipHandshake:
    """One side of the handshake.

    Args:
        initiator: whether this side dialled.
        peer: who the other side has proved to be.
        credentials: this side's.
        revocations: the newest list that this side knows; it names the owner.
    """

    def __init__(
        self,
        *,
        initiator: bool,
        peer: PeerId,
        credentials: Credentials,
        revocations: RevocationList,
    ) -> None:
        self.state = MembershipState.SHOWN if initiator else MembershipState.WAITING
        self.revocations = revocations
        """The newer one of both sides' lists, once the peer's has come."""
        self.shown: Shown | None = None
        """What the peer has shown; it is a member once the state is DONE."""
        self._peer = peer
        self._credentials = credentials
        self._reader = LengthPrefixedReader(_SHOW_MAX)
        self._out: list[bytes] = []
        if initiator:
            self._show()

    @property
    def done(self) -> bool:
        """Whether both sides are members, and what is left to send is the last of it."""
        return self.state is MembershipState.DONE

    def data_to_send(self) -> bytes:
        """Return and forget the bytes to send."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def receive_data(self, data: Buffer, now: float) -> None:
        """Take bytes of the stream; `now` is in seconds since 1970.

        Raises:
            MembershipRefusedError: the peer is no member.
            RemoteProtocolError: the peer broke the protocol.
        """
        self._reader.feed(data)
        while not self.done and (frame := self._reader.next()) is not None:
            if self.shown is None:
                self._take_show(frame, now)
            else:
                self._take_list(frame, now)
        if self.done and self._reader.buffered:
            raise RemoteProtocolError("bytes behind the membership handshake")

    def _take_show(self, frame: bytes, now: float) -> None:
        self.shown = _read_show(frame)
        self._check(self.shown, now)
        rest = self._reader.take_rest()
        self._reader = LengthPrefixedReader(REVOCATIONS_MAX)
        self._reader.feed(rest)
        if self.state is MembershipState.WAITING:
            self._show()
            self._send(self.revocations.document)
            self.state = MembershipState.ENDING

    def _take_list(self, frame: bytes, now: float) -> None:
        known = self.revocations.document
        self.revocations = self.revocations.newer(frame)
        if self.shown is not None:
            self._check(self.shown, now)
        if self.state is MembershipState.SHOWN:
            self._send(known)
        self.state = MembershipState.DONE

    def _check(self, shown: Shown, now: float) -> None:
        shown.check(self._peer, self.revocations.value, now)

    def _show(self) -> None:
        certificate, delegate = self._credentials.certificate, self._credentials.delegate
        self._send(encode_length_prefixed(certificate) + encode_length_prefixed(delegate))

    def _send(self, frame: bytes) -> None:
        self._out.append(encode_length_prefixed(frame))


def _read_show(frame: bytes) -> Shown:
    reader = LengthPrefixedReader(CERTIFICATE_MAX)
    reader.feed(frame)
    certificate, delegate = reader.next(), reader.next()
    if certificate is None or delegate is None or reader.buffered:
        raise RemoteProtocolError("not a certificate and a delegate")
    try:
        return Shown(
            read_certificate(certificate),
            read_certificate(delegate, DELEGATE_DOMAIN) if delegate else None,
        )
    except KeysError as error:
        raise RemoteProtocolError(f"not a certificate: {error}") from None


class RevocationsReader:
    """Reads one revocation list that a member sends because it is new: `LP(document)`."""

    def __init__(self) -> None:
        self._reader = LengthPrefixedReader(REVOCATIONS_MAX)

    def receive_data(self, data: Buffer) -> bytes | None:
        """Take bytes of the stream; returns the document once it is whole.

        Raises:
            RemoteProtocolError: it is too long, or more than one.
        """
        self._reader.feed(data)
        document = self._reader.next()
        if document is not None and self._reader.buffered:
            raise RemoteProtocolError("bytes behind a revocation list")
        return document

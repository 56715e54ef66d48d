"""Signatures over payloads: the libp2p envelope and the document that several keys sign.

Theory of operation: a signature is only ever made over a buffer that begins with the length and
text of a domain string, a constant of the protocol that uses it. So a signature made for one
purpose is none for another, and the buffers parse in one way only:

    envelope   uv(len D) || D || uv(len T) || T || uv(len P) || P     T = payload type
    document   uv(len D) || D || uv(len P) || P

A domain has 1 to 64 printable ASCII characters, so the first byte is below every letter: no buffer
here equals one that libp2p signs under a bare prefix (Noise, TLS, IPNS, pubsub).

Rules:
- Verification is over the payload bytes as received; nothing is decoded before it holds.
- An envelope is libp2p's and read as libp2p does: unknown fields are skipped.
- A document is ours and has one encoding: signatures ascend by peer id, one for each key. It is
  decoded, re-encoded and compared, so that its hash can name it.
- One bad signature makes the whole document bad: who added it is not known, so nothing is.

Errors: BadEnvelopeError and BadDocumentError for bytes that are neither, BadSignatureError,
MissingSignaturesError; ValueError for a caller's domain that is none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from .errors import (
    BadDocumentError,
    BadEncodingError,
    BadEnvelopeError,
    BadKeyError,
    MissingSignaturesError,
)
from .identity import PeerId, PrivateKey, PublicKey
from .limits import (
    DOCUMENT_MAX,
    DOCUMENT_SIGNATURES_MAX,
    DOMAIN_MAX,
    ENVELOPE_MAX,
    SIGNATURE_MAX,
)
from .multi import BytesLike, decode_uvarint, encode_uvarint
from .pb import envelope_pb2

if TYPE_CHECKING:
    from collections.abc import Collection


def is_domain(text: str) -> bool:
    """Tell whether `text` may be a domain string: 1 to 64 printable ASCII characters."""
    return 1 <= len(text) <= DOMAIN_MAX and all("!" <= character <= "~" for character in text)


@dataclass(frozen=True, slots=True)
class SignedEnvelope:
    """A payload, its type, one key and that key's signature, as libp2p sends them.

    The domain is not in the envelope: the reader must know what it is reading.
    """

    public_key: PublicKey
    payload_type: bytes
    payload: bytes
    signature: bytes

    @classmethod
    def seal(
        cls, private_key: PrivateKey, domain: str, payload_type: bytes, payload: bytes
    ) -> SignedEnvelope:
        """Sign a payload; raises BadEnvelopeError when it is too long to send."""
        signature = private_key.sign(_signed_bytes(domain, payload_type, payload))
        envelope = cls(private_key.public_key, payload_type, payload, signature)
        if len(envelope.to_bytes()) > ENVELOPE_MAX:
            raise BadEnvelopeError(f"envelope is longer than {ENVELOPE_MAX} bytes")
        return envelope

    @classmethod
    def from_bytes(cls, data: BytesLike) -> SignedEnvelope:
        """Decode an envelope without verifying it; raises BadEnvelopeError."""
        if len(data) > ENVELOPE_MAX:
            raise BadEnvelopeError(f"envelope is longer than {ENVELOPE_MAX} bytes")
        message = envelope_pb2.Envelope()
        try:
            message.ParseFromString(bytes(data))
            public_key = PublicKey.from_protobuf(message.public_key)
        except DecodeError:
            raise BadEnvelopeError("not a signed envelope") from None
        except BadKeyError as error:
            raise BadEnvelopeError(f"key of the envelope: {error}") from None
        return cls(public_key, message.payload_type, message.payload, message.signature)

    def to_bytes(self) -> bytes:
        """Return the protobuf of the envelope."""
        return envelope_pb2.Envelope(
            public_key=self.public_key.to_protobuf(),
            payload_type=self.payload_type,
            payload=self.payload,
            signature=self.signature,
        ).SerializeToString()

    def verify(self, domain: str) -> PublicKey:
        """Return the key that signed this payload for `domain`; raises BadSignatureError.

        Call this before decoding the payload. Whether that key may say what the payload says is
        the caller's next question.
        """
        self.public_key.verify(
            self.signature, _signed_bytes(domain, self.payload_type, self.payload)
        )
        return self.public_key


@dataclass(frozen=True, slots=True)
class Signature:
    """One key's signature of a document."""

    public_key: PublicKey
    signature: bytes


@dataclass(frozen=True, slots=True)
class SignedDocument:
    """A payload under a domain, with the signatures of any number of keys up to 64.

    Attributes:
        domain: what kind of document this is; signed together with the payload.
        payload: the bytes that the signatures cover.
        signatures: in ascending order of peer ids. Not verified until `signers` is called.
    """

    domain: str
    payload: bytes
    signatures: tuple[Signature, ...] = ()

    def __post_init__(self) -> None:
        """Refuse with BadDocumentError what has no encoding."""
        if not is_domain(self.domain):
            raise BadDocumentError(f"not a domain: {self.domain[:80]!r}")
        if len(self.signatures) > DOCUMENT_SIGNATURES_MAX:
            raise BadDocumentError(f"more than {DOCUMENT_SIGNATURES_MAX} signatures")
        if any(len(item.signature) > SIGNATURE_MAX for item in self.signatures):
            raise BadDocumentError(f"a signature is longer than {SIGNATURE_MAX} bytes")
        signers = [item.public_key.peer_id for item in self.signatures]
        if any(first >= second for first, second in pairwise(signers)):
            raise BadDocumentError("signatures do not ascend by peer id")

    @classmethod
    def from_bytes(cls, data: BytesLike, *, domain: str | None = None) -> SignedDocument:
        """Decode a document without verifying it.

        Args:
            data: the encoded document.
            domain: what it must be; None leaves that check to the caller, who must make it.

        Raises:
            BadDocumentError: too long, not in the one encoding, or of another domain.
        """
        if len(data) > DOCUMENT_MAX:
            raise BadDocumentError(f"document is longer than {DOCUMENT_MAX} bytes")
        _check_fields(data)
        message = envelope_pb2.Document()
        try:
            message.ParseFromString(bytes(data))
        except DecodeError:
            raise BadDocumentError("not a signed document") from None
        try:
            signatures = tuple(
                Signature(PublicKey.from_protobuf(item.public_key), item.signature)
                for item in message.signatures
            )
        except BadKeyError as error:
            raise BadDocumentError(f"key of a signature: {error}") from None
        document = cls(message.domain, message.payload, signatures)
        if document._encode() != data:
            raise BadDocumentError("document is not in its one encoding")
        if domain is not None and document.domain != domain:
            raise BadDocumentError(f"a document of domain {document.domain!r}, not {domain!r}")
        return document

    def to_bytes(self) -> bytes:
        """Return the one encoding; raises BadDocumentError when it is longer than 4 MiB."""
        encoded = self._encode()
        if len(encoded) > DOCUMENT_MAX:
            raise BadDocumentError(f"document is longer than {DOCUMENT_MAX} bytes")
        return encoded

    def sign(self, private_key: PrivateKey) -> SignedDocument:
        """Return this document with the signature of one more key, or with its new one."""
        public_key = private_key.public_key
        added = Signature(public_key, private_key.sign(_signed_bytes(self.domain, self.payload)))
        others = [item for item in self.signatures if item.public_key != public_key]
        ordered = sorted([*others, added], key=lambda item: item.public_key.peer_id)
        return replace(self, signatures=tuple(ordered))

    def signers(self) -> frozenset[PeerId]:
        """Verify every signature and return who signed; raises BadSignatureError if one is bad."""
        signed = _signed_bytes(self.domain, self.payload)
        for item in self.signatures:
            item.public_key.verify(item.signature, signed)
        return frozenset(item.public_key.peer_id for item in self.signatures)

    def require(self, allowed: Collection[PeerId], threshold: int = 1) -> frozenset[PeerId]:
        """Return which of the `allowed` signed, if they are at least `threshold`.

        Raises:
            MissingSignaturesError: fewer of them signed. Signatures of others do not count.
            BadSignatureError: any signature is bad, whoever is claimed to have made it.
            ValueError: the threshold is below 1, which would accept an unsigned document.
        """
        if threshold < 1:
            raise ValueError(f"threshold must be at least 1, not {threshold}")
        signed = self.signers() & frozenset(allowed)
        if len(signed) < threshold:
            raise MissingSignaturesError(
                f"signed by {len(signed)} of {len(frozenset(allowed))} allowed keys, "
                f"{threshold} needed"
            )
        return signed

    def _encode(self) -> bytes:
        return envelope_pb2.Document(
            domain=self.domain,
            payload=self.payload,
            signatures=[
                envelope_pb2.DetachedSignature(
                    public_key=item.public_key.to_protobuf(), signature=item.signature
                )
                for item in self.signatures
            ],
        ).SerializeToString()


_DOCUMENT_FIELDS: Final = {0x0A: 1, 0x12: 1, 0x1A: DOCUMENT_SIGNATURES_MAX}
"""Keys of a document's fields, and how often each may stand in it: domain, payload, signatures."""


def _check_fields(data: BytesLike) -> None:
    """Refuse a document by its outermost fields, before objects are made of what they hold.

    protobuf makes 50 bytes of objects from every 2 bytes of empty signature.
    """
    room = dict(_DOCUMENT_FIELDS)
    at = 0
    while at < len(data):
        key = data[at]
        if key not in room:
            raise BadDocumentError("not a signed document")
        if not room[key]:
            raise BadDocumentError(f"more than {_DOCUMENT_FIELDS[key]} fields {key >> 3}")
        room[key] -= 1
        try:
            length, start = decode_uvarint(data, at + 1)
        except BadEncodingError as error:
            raise BadDocumentError(f"not a signed document: {error}") from None
        at = start + length
    if at != len(data):
        raise BadDocumentError("not a signed document: it is cut off")


def _signed_bytes(domain: str, *parts: bytes) -> bytes:
    """Return domain and parts, each behind its length: the one buffer a signature is made over."""
    if not is_domain(domain):
        raise ValueError(f"not a domain: {domain[:80]!r}")
    fields = (domain.encode("ascii"), *parts)
    return b"".join(piece for item in fields for piece in (encode_uvarint(len(item)), item))

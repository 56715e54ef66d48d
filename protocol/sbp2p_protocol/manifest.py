"""The signed description of one version: what it is called, what it holds, who says so.

Theory of operation: a manifest is a dag-cbor map with a fixed set of keys, and its CID identifies
the version. The signatures stand beside it in a signed document whose payload is exactly the
manifest's bytes, so a version keeps its CID when more people sign. It counts only if the publisher
it names is among the verified signers.

Error cases: what reads a peer's bytes (`from_bytes`, `verify_manifest`, `read_signed_manifest`)
raises RemoteProtocolError, IntegrityError for signatures. A Manifest made here with values that the
format does not allow raises LocalProtocolError.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from sbp2p_keys.errors import BadSignatureError, KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_keys.signing import SignedDocument
from sbp2p_protocol.cid import DAG_CBOR, DAG_PB, Cid
from sbp2p_protocol.dag_cbor import decode, encode
from sbp2p_protocol.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.fields import FORMAT, Fields
from sbp2p_protocol.limits import (
    MANIFEST_MAX,
    META_ENTRIES_MAX,
    META_KEY_MAX,
    META_VALUE_MAX,
    MODEL_NAME_MAX,
    PARENTS_MAX,
)
from sbp2p_protocol.paths import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbp2p_keys.identity import PrivateKey
    from sbp2p_keys.multi import BytesLike

MANIFEST_DOMAIN: Final = "sbp2p-manifest"
"""What a manifest's signatures are made under, so that they mean nothing elsewhere."""

COUNTER_MAX: Final = 2**53 - 1
"""Largest version number and time: what every language reads without loss, JSON included."""

MetaValue: TypeAlias = str | int | bytes | bool

_KEYS: Final = frozenset(
    ("format", "name", "version", "root", "tensors", "parents", "publisher", "created", "meta")
)


def check_model_name(name: str) -> str | None:
    """Return why `name` may not name a model, or None if it may.

    A name is one or more path-safe names joined by '/' (`all-minilm`, `org/model`), in NFC.
    """
    if not 1 <= len(name) <= MODEL_NAME_MAX:
        return f"a model name has 1 to {MODEL_NAME_MAX} characters, not {len(name)}"
    for part in name.split("/"):
        if (reason := check_name(part)) is not None:
            return reason
    if unicodedata.normalize("NFC", name) != name:
        return "a model name is in Unicode normal form C"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of a model; a value of this class is always encodable.

    Attributes:
        name: the model's name, see check_model_name; unique per publisher.
        version: 1 to COUNTER_MAX; grows with every version of this name.
        root: the directory that holds the files.
        tensors: the tensor index, or None if the files hold no tensors that it can list.
        parents: manifests this one was made from: base model, previous version, merged inputs.
        publisher: the peer that must have signed.
        created: Unix time in whole seconds, as the publisher tells it.
        meta: small facts for people and tools: text to text, integer, bytes or bool.
    """

    format: int = FORMAT
    name: str
    version: int
    root: Cid
    tensors: Cid | None = None
    parents: tuple[Cid, ...] = ()
    publisher: PeerId
    created: int
    meta: Mapping[str, MetaValue] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse with LocalProtocolError what the format does not allow."""
        if (reason := _fault(self)) is not None:
            raise LocalProtocolError(f"manifest: {reason}")
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))
        if len(self.to_bytes()) > MANIFEST_MAX:
            raise LocalProtocolError(f"manifest: over {MANIFEST_MAX} bytes")

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read a manifest; raises RemoteProtocolError."""
        fields = Fields(decode(data, max_size=MANIFEST_MAX), _KEYS, "manifest")
        fields.check_format()
        try:
            return cls(
                name=fields.text("name"),
                version=fields.integer("version", 1, COUNTER_MAX),
                root=fields.cid("root"),
                tensors=fields.cid_or_none("tensors"),
                parents=tuple(fields.cids("parents", PARENTS_MAX)),
                publisher=PeerId.from_bytes(fields.blob("publisher")),
                created=fields.integer("created", 0, COUNTER_MAX),
                meta=_meta(fields),
            )
        except (LocalProtocolError, KeysError) as error:
            raise RemoteProtocolError(str(error)) from error

    def to_bytes(self) -> bytes:
        """Return the one encoding."""
        return encode(
            {
                "format": self.format,
                "name": self.name,
                "version": self.version,
                "root": self.root,
                "tensors": self.tensors,
                "parents": self.parents,
                "publisher": self.publisher.to_bytes(),
                "created": self.created,
                "meta": self.meta,
            }
        )

    @property
    def cid(self) -> Cid:
        """What identifies this version."""
        return Cid.for_block(DAG_CBOR, self.to_bytes())


def _meta(fields: Fields) -> dict[str, MetaValue]:
    meta: dict[str, MetaValue] = {}
    for key, value in fields.mapping("meta").items():
        if not isinstance(value, (str, int, bytes)):  # bool is an int
            raise fields.fault("meta", f"value of {key!r} is of a type that is not allowed")
        meta[key] = value
    return meta


def _fault(manifest: Manifest) -> str | None:
    """Return what the format does not allow about the values, or None."""
    if manifest.format != FORMAT:
        return f"format {manifest.format} is not {FORMAT}"
    if (reason := check_model_name(manifest.name)) is not None:
        return f"name {manifest.name[:MODEL_NAME_MAX]!r}: {reason}"
    if not 1 <= manifest.version <= COUNTER_MAX or not 0 <= manifest.created <= COUNTER_MAX:
        return f"version {manifest.version} or time {manifest.created} out of range"
    if not manifest.root.is_blake3 or manifest.root.codec != DAG_PB:
        return f"root {manifest.root} is not dag-pb with BLAKE3"
    links = [*manifest.parents] + ([manifest.tensors] if manifest.tensors is not None else [])
    for link in links:
        if not link.is_blake3 or link.codec != DAG_CBOR:
            return f"link {link} is not dag-cbor with BLAKE3"
    parents = manifest.parents
    if len(parents) > PARENTS_MAX or len(set(parents)) != len(parents):
        return f"over {PARENTS_MAX} parents, or one twice"
    return _meta_fault(manifest.meta)


def _meta_fault(meta: Mapping[str, MetaValue]) -> str | None:
    if len(meta) > META_ENTRIES_MAX:
        return f"{len(meta)} meta entries (at most {META_ENTRIES_MAX})"
    for key, value in meta.items():
        if not 1 <= len(_utf8(key)) <= META_KEY_MAX:
            return f"a meta key of {len(key)} characters (1 to {META_KEY_MAX} bytes allowed)"
        if (reason := _meta_value_fault(value)) is not None:
            return f"meta value of {key!r} {reason}"
    return None


def _meta_value_fault(value: object) -> str | None:
    if isinstance(value, int):  # bool too
        return None if -(2**63) <= value < 2**63 else "does not fit 64 signed bits"
    if not isinstance(value, (str, bytes)):
        return f"is neither text, integer, bytes nor bool but {type(value).__name__}"
    size = len(_utf8(value) if isinstance(value, str) else value)
    return None if size <= META_VALUE_MAX else f"has {size} bytes (at most {META_VALUE_MAX})"


def _utf8(text: str) -> bytes:
    # lone surrogates have no encoding and are refused by `encode`; here only the size matters
    return text.encode("utf-8", "surrogatepass")


def sign_manifest(manifest: Manifest, private_key: PrivateKey) -> SignedDocument:
    """Return the signed document of a manifest, with one signature."""
    return SignedDocument(MANIFEST_DOMAIN, manifest.to_bytes()).sign(private_key)


def verify_manifest(document: SignedDocument) -> Manifest:
    """Return the manifest that this document holds, if its publisher signed it.

    Raises:
        IntegrityError: a signature is bad, or the publisher's is missing.
        RemoteProtocolError: a document of another kind, or the payload is not a manifest.
    """
    if document.domain != MANIFEST_DOMAIN:
        raise RemoteProtocolError(f"a document of domain {document.domain!r}, not a manifest")
    # before the payload is looked at: nothing unsigned is parsed further than it must be
    try:
        signers = document.signers()
    except BadSignatureError as error:
        raise IntegrityError(f"manifest: {error}") from error
    manifest = Manifest.from_bytes(document.payload)
    if manifest.publisher not in signers:
        raise IntegrityError(f"manifest: not signed by its publisher {manifest.publisher}")
    return manifest


def read_signed_manifest(data: BytesLike) -> tuple[SignedDocument, Manifest]:
    """Read and verify an encoded signed document; raises as verify_manifest does."""
    try:
        document = SignedDocument.from_bytes(data, domain=MANIFEST_DOMAIN)
    except KeysError as error:
        raise RemoteProtocolError(f"manifest: {error}") from error
    return document, verify_manifest(document)

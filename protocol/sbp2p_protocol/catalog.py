"""The catalog: what a publisher offers, by name, in one signed block.

Theory of operation: a catalog is a dag-cbor map in a signed document of its own domain, and the
document is one block (codec raw), so its CID is what an IPNS record can point to. For each model it
lists versions as (number, manifest), the newest first. A reader needs the publisher's peer id and
nothing else: the record leads to the catalog, the catalog to the manifest.

    rule                                                      why
    numbers of a name strictly fall from the first on         one answer to "the newest"
    a manifest stands in one place only                       it has one name and one number
    names are as manifests have them, in NFC, each once       no two entries for one name
    the document is at most 1 MiB and has one encoding        it is hashed, signed and fetched whole
    signed by the publisher that it names                     anybody may pass it on

A catalog only grows newer: `merged` takes, name by name, what has the highest numbers, so that two
machines with one key do not undo each other's work.

Errors: `RemoteProtocolError` for bytes that are no catalog, `IntegrityError` for its signature,
`LocalProtocolError` for values that no catalog may have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from sbp2p_keys.errors import BadSignatureError, KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_keys.signing import SignedDocument

from .cid import DAG_CBOR, RAW, Cid
from .dag_cbor import decode, encode
from .errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from .fields import FORMAT, Fields
from .limits import CATALOG_MAX, CATALOG_OLDER_MAX
from .manifest import COUNTER_MAX, check_model_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sbp2p_keys.identity import PrivateKey

    from .dag_cbor import CborValue

CATALOG_DOMAIN: Final = "sbp2p-catalog"
"""What a catalog's signatures are made under, so that they mean nothing elsewhere."""

_KEYS: Final = frozenset(("format", "publisher", "sequence", "models"))
_SIGNED_EXTRA: Final = 256
"""Bytes that a document with one signature adds to its payload, at most."""


class CatalogEntry(NamedTuple):
    """One version of a model."""

    version: int
    manifest: Cid


Models = dict[str, tuple[CatalogEntry, ...]]
"""Name to versions, the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """What one publisher offers; a value of this class is always encodable.

    Attributes:
        publisher: Who must have signed it.
        sequence: That of the IPNS record that first pointed to it; greater in every later one.
        models: Name to versions, the newest first, at most one and CATALOG_OLDER_MAX older ones.
    """

    publisher: PeerId
    sequence: int
    models: Mapping[str, tuple[CatalogEntry, ...]] = field(hash=False)

    def __post_init__(self) -> None:
        """Refuse with LocalProtocolError what the format does not allow."""
        if not 0 <= self.sequence <= COUNTER_MAX:
            raise LocalProtocolError(f"catalog: sequence {self.sequence} out of range")
        _check_models(self.models)
        object.__setattr__(self, "models", MappingProxyType(dict(self.models)))
        if self.size > CATALOG_MAX - _SIGNED_EXTRA:
            raise LocalProtocolError(f"catalog: over {CATALOG_MAX} bytes")

    @property
    def size(self) -> int:
        """Bytes without the signature."""
        return len(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Catalog:
        """Read a catalog; raises RemoteProtocolError."""
        fields = Fields(decode(data, max_size=CATALOG_MAX), _KEYS, "catalog")
        fields.check_format()
        models = {name: _versions(item) for name, item in fields.mapping("models").items()}
        try:
            return cls(
                publisher=PeerId.from_bytes(fields.blob("publisher")),
                sequence=fields.integer("sequence", 0, COUNTER_MAX),
                models=models,
            )
        except (LocalProtocolError, KeysError) as error:
            raise RemoteProtocolError(str(error)) from error

    def to_bytes(self) -> bytes:
        """Return the one encoding."""
        return encode(
            {
                "format": FORMAT,
                "publisher": self.publisher.to_bytes(),
                "sequence": self.sequence,
                "models": {
                    name: [list(entry) for entry in self.models[name]] for name in self.models
                },
            }
        )

    def find(self, name: str, version: int | None = None) -> CatalogEntry | None:
        """Return the newest version of a name, or exactly that one; None if it is not listed."""
        entries = self.models.get(name, ())
        if version is None:
            return entries[0] if entries else None
        return next((entry for entry in entries if entry.version == version), None)


def _versions(value: CborValue) -> tuple[CatalogEntry, ...]:
    if not isinstance(value, list):
        raise RemoteProtocolError("catalog: the versions of a model are no array")
    entries = []
    for item in value:
        if not isinstance(item, list) or len(item) != 2:
            raise RemoteProtocolError("catalog: a version is not a pair")
        number, manifest = item
        if type(number) is not int or not isinstance(manifest, Cid):
            raise RemoteProtocolError("catalog: a version is not a number and a manifest")
        entries.append(CatalogEntry(number, manifest))
    return tuple(entries)


def _check_models(models: Mapping[str, Sequence[CatalogEntry]]) -> None:
    seen: set[Cid] = set()
    for name, entries in models.items():
        if (reason := check_model_name(name)) is not None:
            raise LocalProtocolError(f"catalog: name {name[:200]!r}: {reason}")
        if not 1 <= len(entries) <= 1 + CATALOG_OLDER_MAX:
            raise LocalProtocolError(f"catalog: {len(entries)} versions of {name!r}")
        if any(newer.version <= older.version for newer, older in pairwise(entries)):
            raise LocalProtocolError(f"catalog: the versions of {name!r} do not fall")
        for entry in entries:
            _check_entry(name, entry)
            if entry.manifest in seen:
                raise LocalProtocolError(f"catalog: {entry.manifest} stands in two places")
            seen.add(entry.manifest)


def _check_entry(name: str, entry: CatalogEntry) -> None:
    if not 1 <= entry.version <= COUNTER_MAX:
        raise LocalProtocolError(f"catalog: version {entry.version} of {name!r} out of range")
    if not entry.manifest.is_blake3 or entry.manifest.codec != DAG_CBOR:
        raise LocalProtocolError(f"catalog: {entry.manifest} is not dag-cbor with BLAKE3")


# -- making ----------------------------------------------------------------------------------------


def merged(*sources: Mapping[str, Iterable[CatalogEntry]]) -> Models:
    """Return, for each name, the newest versions of all sources, the newest first.

    Where two sources give one number to different manifests, the first source is believed.
    """
    numbers: dict[str, dict[int, Cid]] = {}
    for source in sources:
        for name, entries in source.items():
            known = numbers.setdefault(name, {})
            for entry in entries:
                known.setdefault(entry.version, entry.manifest)
    return {
        name: tuple(
            CatalogEntry(number, known[number])
            for number in sorted(known, reverse=True)[: 1 + CATALOG_OLDER_MAX]
        )
        for name, known in sorted(numbers.items())
        if known
    }


def make_catalog(publisher: PeerId, sequence: int, models: Models) -> Catalog:
    """Make a catalog, leaving out as many older versions of every model as it takes to fit.

    Raises:
        LocalProtocolError: The newest versions alone do not fit, or a value is not allowed.
    """
    older = CATALOG_OLDER_MAX
    while True:
        kept = {name: entries[: 1 + older] for name, entries in models.items()}
        try:
            return Catalog(publisher=publisher, sequence=sequence, models=kept)
        except LocalProtocolError:
            if older == 0:
                raise
            older //= 2


def sign_catalog(catalog: Catalog, private_key: PrivateKey) -> bytes:
    """Return the block of a catalog: its signed document, encoded."""
    return SignedDocument(CATALOG_DOMAIN, catalog.to_bytes()).sign(private_key).to_bytes()


def catalog_cid(block: bytes) -> Cid:
    """Return the name of a signed catalog's block."""
    return Cid.for_block(RAW, block)


# -- reading ---------------------------------------------------------------------------------------


def read_signed_catalog(block: bytes, publisher: PeerId) -> Catalog:
    """Read and verify the block of a catalog of `publisher`.

    Raises:
        IntegrityError: It is signed by somebody else, or a signature is bad.
        RemoteProtocolError: It is no catalog, or that of another publisher.
    """
    if len(block) > CATALOG_MAX:
        raise RemoteProtocolError(f"catalog of {len(block)} bytes")
    try:
        document = SignedDocument.from_bytes(block, domain=CATALOG_DOMAIN)
        # before the payload is looked at: nothing unsigned is parsed further than it must be
        signers = document.signers()
    except BadSignatureError as error:
        raise IntegrityError(f"catalog: {error}") from error
    except KeysError as error:
        raise RemoteProtocolError(f"catalog: {error}") from error
    if publisher not in signers:
        raise IntegrityError(f"catalog: not signed by its publisher {publisher}")
    catalog = Catalog.from_bytes(document.payload)
    if catalog.publisher != publisher:
        raise RemoteProtocolError(f"catalog of {catalog.publisher}, not of {publisher}")
    return catalog

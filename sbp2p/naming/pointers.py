"""What this node remembers about names, durably, because a lie can be told a day later.

Theory of operation. For every publisher whose name was ever resolved here the best pointer is kept,
with the catalog that it led to; for every name the highest version. Nothing that comes later may go
below either: that is what refuses a rollback, and it must outlast a restart. Two statements of one
publisher that cannot both be honest are kept as evidence, with both signatures. For the keys that
publish here, the last sequence number is written down before it is used, so that no number ever
stands for two catalogs, whatever is killed in between.

    a record comes                           what happens
    higher sequence                          it is kept: NEWER
    same sequence, same value                the one that lasts longer is kept: SAME
    same sequence, another value             evidence; the first one stays: CONTRADICTED
    lower sequence                           nothing: OLDER

Bounds: POINTERS_MAX publishers, CATALOGS_KEPT_MAX bytes of catalogs, VERSIONS_KEPT_MAX names, and
EVIDENCE_MAX contradictions; of each, what was looked at longest ago gives way, evidence excepted:
there the first ones stay.

Errors: StoreError. Synchronous and thread-safe; several processes may share the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from sbp2p.database import Database
from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_protocol.catalog import Catalog, CatalogEntry, catalog_cid, read_signed_catalog
from sbp2p_protocol.cid import Cid
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.ipns import IpnsRecord, read_ipns_record
from sbp2p_protocol.limits import (
    CATALOGS_KEPT_MAX,
    EVIDENCE_MAX,
    POINTERS_MAX,
    VERSIONS_KEPT_MAX,
)

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

DATABASE_NAME: Final = "names.sqlite"

_SCHEMA: Final = (
    """
CREATE TABLE pointer (
    publisher BLOB NOT NULL PRIMARY KEY,
    record    BLOB NOT NULL,
    seen      REAL NOT NULL
) STRICT;
CREATE TABLE catalog (
    publisher BLOB NOT NULL PRIMARY KEY,
    block     BLOB NOT NULL,
    seen      REAL NOT NULL
) STRICT;
CREATE TABLE version (
    publisher BLOB    NOT NULL,
    name      TEXT    NOT NULL,
    number    INTEGER NOT NULL,
    manifest  BLOB    NOT NULL,
    document  BLOB,
    seen      REAL    NOT NULL,
    PRIMARY KEY (publisher, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE evidence (
    publisher BLOB NOT NULL,
    kind      TEXT NOT NULL,
    subject   TEXT NOT NULL,
    first     BLOB NOT NULL,
    second    BLOB NOT NULL,
    found     REAL NOT NULL,
    PRIMARY KEY (publisher, kind, subject)
) STRICT;
CREATE TABLE own (
    publisher BLOB NOT NULL PRIMARY KEY,
    record    BLOB NOT NULL,
    block     BLOB NOT NULL,
    made      REAL NOT NULL
) STRICT;
""",
)

_SEEN_S: Final = 30.0
"""A statement that says nothing new is written down again after this: each costs a sync."""

EvidenceKind: TypeAlias = Literal["pointer", "version"]


class Verdict(Enum):
    """What a record is beside the one that was known."""

    NEWER = "newer"
    SAME = "same"
    OLDER = "older"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True)
class KnownPointer:
    """The best record of a publisher, and when it was last heard of (Unix seconds, to 30 s)."""

    record: IpnsRecord
    seen: float


@dataclass(frozen=True, slots=True)
class KnownCatalog:
    """A publisher's catalog and the block that it was read from."""

    catalog: Catalog
    block: bytes

    @property
    def cid(self) -> Cid:
        """The name of the block."""
        return catalog_cid(self.block)


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """The highest version of a name that was ever seen; the signed manifest, if it was at hand."""

    entry: CatalogEntry
    document: bytes | None
    seen: float
    """Unix time of the last time it was told, about."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two statements that one publisher signed and that cannot both be honest.

    Attributes:
        publisher: Whose signatures they bear.
        kind: "pointer": two IPNS records with one sequence and different values. "version": two
            manifests of one name with one number.
        subject: The sequence, or NAME@NUMBER.
        first: The statement that was known, as it was signed.
        second: The one that contradicts it.
        found: Unix time in seconds.
    """

    publisher: PeerId
    kind: EvidenceKind
    subject: str
    first: bytes
    second: bytes
    found: float


@dataclass(frozen=True, slots=True)
class OwnPointer:
    """What a key of this home published last, and when it was made (Unix seconds)."""

    record: IpnsRecord
    catalog: Catalog
    block: bytes
    made: float


class Pointers:
    """The file. A context manager that closes it.

    Args:
        path: the file; None keeps everything in memory.

    Raises:
        StoreError: the file can be neither used nor set aside.
    """

    def __init__(self, path: Path | None) -> None:
        self._database = Database(path, _SCHEMA, durable=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @property
    def begun_anew(self) -> str:
        """Why what was remembered is gone, if it is."""
        return self._database.set_aside

    # -- pointers of others ---------------------------------------------------------------------

    def pointer(self, publisher: PeerId) -> KnownPointer | None:
        """Return the best record of a publisher that was ever seen, valid still or not."""
        rows = self._database.read(
            "SELECT record, seen FROM pointer WHERE publisher = ?", (publisher.to_bytes(),)
        )
        return _known(rows, publisher)

    def take(self, record: IpnsRecord, now: float) -> Verdict:
        """Compare a verified record with the best one, and keep what is to be kept."""
        publisher = record.name
        with self._database.writing() as db:
            rows = db.execute(
                "SELECT record, seen FROM pointer WHERE publisher = ?", (publisher.to_bytes(),)
            ).fetchall()
            known = _known(rows, publisher)
            verdict = _compare(record, known)
            if verdict is Verdict.CONTRADICTED and known is not None:
                _keep_evidence(
                    db,
                    Evidence(
                        publisher,
                        "pointer",
                        str(record.sequence),
                        known.record.encoded,
                        record.encoded,
                        now,
                    ),
                )
            elif verdict is Verdict.NEWER or verdict is Verdict.SAME:
                best = record
                if verdict is Verdict.SAME and known is not None:
                    best = max(known.record, record, key=lambda each: each.order)
                    if best == known.record and 0 <= now - known.seen < _SEEN_S:
                        return verdict
                db.execute(
                    "INSERT OR REPLACE INTO pointer VALUES (?, ?, ?)",
                    (publisher.to_bytes(), best.encoded, now),
                )
                _limit(db, "pointer", POINTERS_MAX)
        return verdict

    # -- catalogs ---------------------------------------------------------------------------------

    def catalog(self, publisher: PeerId) -> KnownCatalog | None:
        """Return the last catalog of a publisher, if it is kept."""
        rows = self._database.read(
            "SELECT block FROM catalog WHERE publisher = ?", (publisher.to_bytes(),)
        )
        for (block,) in rows:
            try:
                return KnownCatalog(_read_catalog(block, publisher), block)
            except RemoteProtocolError:
                return None
        return None

    def keep_catalog(self, publisher: PeerId, block: bytes, now: float) -> None:
        """Keep a verified catalog in place of the last one."""
        with self._database.writing() as db:
            db.execute(
                "INSERT OR REPLACE INTO catalog VALUES (?, ?, ?)",
                (publisher.to_bytes(), block, now),
            )
            while True:
                ((size,),) = db.execute("SELECT coalesce(sum(length(block)), 0) FROM catalog")
                if size <= CATALOGS_KEPT_MAX:
                    break
                db.execute(
                    "DELETE FROM catalog WHERE rowid ="
                    " (SELECT rowid FROM catalog ORDER BY seen, rowid LIMIT 1)"
                )

    # -- versions ---------------------------------------------------------------------------------

    def version(self, publisher: PeerId, name: str) -> KnownVersion | None:
        """Return the highest version of a name that was ever seen."""
        rows = self._database.read(_VERSION, (publisher.to_bytes(), name))
        return _version(rows)

    def take_version(
        self,
        publisher: PeerId,
        name: str,
        entry: CatalogEntry,
        now: float,
        *,
        document: bytes | None = None,
    ) -> Verdict:
        """Compare what a verified catalog or manifest says with the highest version, and keep it.

        Args:
            publisher: who signed it.
            name: of the model.
            entry: number and manifest.
            now: Unix time.
            document: the signed manifest, if it is at hand: without both there is no evidence.
        """
        with self._database.writing() as db:
            known = _version(db.execute(_VERSION, (publisher.to_bytes(), name)).fetchall())
            verdict = _compare_versions(entry, known)
            if verdict is Verdict.CONTRADICTED and known is not None:
                if known.document is not None and document is not None:
                    subject = f"{name}@{entry.version}"
                    statements = (known.document, document)
                    _keep_evidence(db, Evidence(publisher, "version", subject, *statements, now))
            elif verdict is not Verdict.OLDER:
                if verdict is Verdict.SAME and known is not None:
                    document = document or known.document
                    if document == known.document and 0 <= now - known.seen < _SEEN_S:
                        return verdict
                db.execute(
                    "INSERT OR REPLACE INTO version VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        publisher.to_bytes(),
                        name,
                        entry.version,
                        entry.manifest.to_bytes(),
                        document,
                        now,
                    ),
                )
                _limit(db, "version", VERSIONS_KEPT_MAX)
        return verdict

    # -- evidence ---------------------------------------------------------------------------------

    def evidence(self, publisher: PeerId | None = None) -> list[Evidence]:
        """Return all evidence, or that against one publisher, the oldest first."""
        query = "SELECT publisher, kind, subject, first, second, found FROM evidence"
        if publisher is None:
            rows = self._database.read(f"{query} ORDER BY found, subject")
        else:
            rows = self._database.read(
                f"{query} WHERE publisher = ? ORDER BY found, subject", (publisher.to_bytes(),)
            )
        return [Evidence(PeerId.from_bytes(row[0]), *row[1:]) for row in rows]

    # -- what is published here -----------------------------------------------------------------

    def own(self, publisher: PeerId) -> OwnPointer | None:
        """Return what a key of this home published last."""
        rows = self._database.read(
            "SELECT record, block, made FROM own WHERE publisher = ?", (publisher.to_bytes(),)
        )
        return _own(rows, publisher)

    def set_own(self, record: IpnsRecord, block: bytes, now: float) -> bool:
        """Write down what is about to be published; when this returns, a power cut does no harm.

        Args:
            record: the pointer.
            block: the catalog that it points to.
            now: Unix time.

        Returns:
            False if another process has used this sequence, or a higher one, for another value:
            then nothing may be published under it.
        """
        publisher = record.name
        with self._database.writing() as db:
            rows = db.execute(
                "SELECT record, block, made FROM own WHERE publisher = ?", (publisher.to_bytes(),)
            ).fetchall()
            before = _own(rows, publisher)
            if before is not None and before.record.order >= record.order:
                return before.record.encoded == record.encoded
            if before is not None and record.contradicts(before.record):
                return False
            db.execute(
                "INSERT OR REPLACE INTO own VALUES (?, ?, ?, ?)",
                (publisher.to_bytes(), record.encoded, block, now),
            )
        return True


_read_catalog = lru_cache(maxsize=4)(read_signed_catalog)
"""Who publishes reads its own catalog every few seconds; a long one takes a tenth of a second."""

_VERSION: Final = (
    "SELECT number, manifest, document, seen FROM version WHERE publisher = ? AND name = ?"
)


def _compare(record: IpnsRecord, known: KnownPointer | None) -> Verdict:
    if known is None or record.sequence > known.record.sequence:
        return Verdict.NEWER
    if record.sequence < known.record.sequence:
        return Verdict.OLDER
    return Verdict.CONTRADICTED if record.contradicts(known.record) else Verdict.SAME


def _compare_versions(entry: CatalogEntry, known: KnownVersion | None) -> Verdict:
    if known is None or entry.version > known.entry.version:
        return Verdict.NEWER
    if entry.version < known.entry.version:
        return Verdict.OLDER
    return Verdict.SAME if entry == known.entry else Verdict.CONTRADICTED


def _keep_evidence(db: sqlite3.Connection, evidence: Evidence) -> None:
    ((count,),) = db.execute("SELECT count(*) FROM evidence")
    if count >= EVIDENCE_MAX:
        return
    db.execute(
        "INSERT INTO evidence VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            evidence.publisher.to_bytes(),
            evidence.kind,
            evidence.subject,
            evidence.first,
            evidence.second,
            evidence.found,
        ),
    )


def _limit(db: sqlite3.Connection, table: Literal["pointer", "version"], most: int) -> None:
    ((count,),) = db.execute(f"SELECT count(*) FROM {table}")  # noqa: S608  (one of two constants)
    if count <= most:
        return
    keys = "publisher" if table == "pointer" else "publisher, name"
    db.execute(
        f"DELETE FROM {table} WHERE ({keys}) IN"  # noqa: S608
        f" (SELECT {keys} FROM {table} ORDER BY seen LIMIT ?)",
        (count - most,),
    )


# What does not read any more was damaged: it counts for nothing, as if it had never been seen.


def _known(rows: list[tuple[bytes, float]], publisher: PeerId) -> KnownPointer | None:
    for record, seen in rows:
        try:
            return KnownPointer(read_ipns_record(record, publisher), seen)
        except RemoteProtocolError:
            return None
    return None


def _version(rows: list[tuple[int, bytes, bytes | None, float]]) -> KnownVersion | None:
    for number, manifest, document, seen in rows:
        try:
            return KnownVersion(CatalogEntry(number, Cid.from_bytes(manifest)), document, seen)
        except (RemoteProtocolError, KeysError):
            return None
    return None


def _own(rows: list[tuple[bytes, bytes, float]], publisher: PeerId) -> OwnPointer | None:
    for record, block, made in rows:
        try:
            return OwnPointer(
                read_ipns_record(record, publisher),
                _read_catalog(block, publisher),
                block,
                made,
            )
        except RemoteProtocolError:
            return None
    return None

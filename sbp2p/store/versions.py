"""Which versions are here, in which folder, and what they consist of.

Theory of operation: a `version` row is one manifest in one folder, whole or not; fetching a version
into two folders makes two rows. Its files and leaves are kept with it, so that its block table can
be built again without asking anyone, also when the files have changed since.

A row is made when a download starts, so that an unfinished one is listed and can be continued or
removed; `complete` says whether all files were in place when last looked at.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sbp2p.errors import NotFoundError, StoreError
from sbp2p.store.records import VersionRecord
from sbp2p_keys.errors import KeysError
from sbp2p_keys.signing import SignedDocument
from sbp2p_protocol.blocktable import BlockTable, BlockTableBuilder
from sbp2p_protocol.cid import Cid
from sbp2p_protocol.errors import ProtocolError
from sbp2p_protocol.manifest import MANIFEST_DOMAIN, Manifest

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from sbp2p.store.index import Index
    from sbp2p.store.records import Role
    from sbp2p_keys.identity import PeerId

_LEAF: Final = struct.Struct("<32sI")
_LEAVES_PER_PAGE: Final = 1024
_TABLE_BLOCKS_KEPT: Final = 1_000_000
"""Blocks in the tables that are kept: 60 MB, and each peer that asks would cost 3 s otherwise."""

_PARSED_KEPT: Final = 512
"""Manifests that are not parsed again, about 1 KiB each: every look at what is here reads all."""

_RECORD: Final = "SELECT id, document, root_path, role, pinned, complete, files, bytes FROM version"

_USE_S: Final = 3600
"""Seconds to which the last use of a version is known: a write an hour for each that is served."""


class Versions:
    """Finds versions and rebuilds their tables. Thread-safe."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._tables: OrderedDict[Cid, BlockTable] = OrderedDict()

    def all(self) -> list[VersionRecord]:
        """Return every version in every folder, by publisher, name and number."""
        return self._select("ORDER BY publisher, name, number, id")

    def find(self, cid: Cid, root_path: Path | None = None) -> VersionRecord | None:
        """Return a version, complete rather than not, in `root_path` if that is given."""
        where = "WHERE manifest = ? AND root_path = coalesce(?, root_path)"
        folder = None if root_path is None else os.fsencode(root_path)
        found = self._select(f"{where} ORDER BY complete DESC, id LIMIT 1", cid.to_bytes(), folder)
        return found[0] if found else None

    def newest(self, publisher: PeerId, name: str) -> VersionRecord | None:
        """Return the version of a model with the highest number, complete rather than not."""
        found = self._select(
            "WHERE publisher = ? AND name = ? ORDER BY number DESC, complete DESC, id DESC LIMIT 1",
            publisher.to_bytes(),
            name,
        )
        return found[0] if found else None

    def table(self, record: VersionRecord) -> BlockTable:
        """Build the block table of a version again, or return the one that was built last."""
        with self._lock:
            found = self._tables.get(record.cid)
            if found is not None:
                self._tables.move_to_end(record.cid)
                return found
        table = self._build_table(record)
        with self._lock:
            self._tables[record.cid] = table
            while sum(each.occurrences for each in self._tables.values()) > _TABLE_BLOCKS_KEPT:
                self._tables.popitem(last=False)
        return table

    def _build_table(self, record: VersionRecord) -> BlockTable:
        builder = BlockTableBuilder()
        with self._index.reading() as db:
            files = db.execute(
                "SELECT path, cid, leaves FROM version_file WHERE version_id = ? ORDER BY ordinal",
                (record.row,),
            ).fetchall()
            leaves = _read_leaves(db, record.row)
            for path, cid, count in files:
                builder.add_file(path, Cid.from_bytes(cid), islice(leaves, count))
        return builder.build()

    def file_cids(self, record: VersionRecord, most: int) -> list[Cid]:
        """Return the CIDs of a version's first files, without building its block table."""
        with self._index.reading() as db:
            rows = db.execute(
                "SELECT cid FROM version_file WHERE version_id = ? ORDER BY ordinal LIMIT ?",
                (record.row, most),
            ).fetchall()
        return [Cid.from_bytes(cid) for (cid,) in rows]

    def set_pinned(self, cid: Cid, pinned: bool) -> None:
        """Pin or unpin a version in every folder; raises NotFoundError if there is none."""
        with self._index.writing() as db:
            changed = db.execute(
                "UPDATE version SET pinned = ? WHERE manifest = ?", (pinned, cid.to_bytes())
            ).rowcount
        if not changed:
            raise no_version(cid)

    def unpinned(self) -> list[VersionRecord]:
        """Return the fetched versions that are not pinned, the least lately used first."""
        return self._select("WHERE role = 'fetch' AND NOT pinned ORDER BY used, id")

    def note_use(self, cid: Cid) -> None:
        """Note that a version is used just now; costs a write at most once in `_USE_S`."""
        with self._index.reading() as db:
            late = db.execute(
                "SELECT 1 FROM version WHERE manifest = ?"
                " AND used NOT BETWEEN unixepoch() - ? AND unixepoch()",
                (cid.to_bytes(), _USE_S),
            ).fetchone()
        if late:
            with self._index.writing() as db:
                db.execute(
                    "UPDATE version SET used = unixepoch() WHERE manifest = ?", (cid.to_bytes(),)
                )

    def _select(self, rest: str, *arguments: object) -> list[VersionRecord]:
        with self._index.reading() as db:
            return [_record(row) for row in db.execute(f"{_RECORD} {rest}", arguments)]


def no_version(cid: Cid) -> NotFoundError:
    """Return the error for a version that the index does not have."""
    return NotFoundError(f"no version {cid} in the store", hint="List them with `sbp2p ls`.")


def register(
    db: sqlite3.Connection,
    document: SignedDocument,
    manifest: Manifest,
    table: BlockTable,
    root_path: Path,
    *,
    role: Role,
    pinned: bool,
) -> int:
    """Add a version in a folder, or find it there again; returns its row.

    A new one is not complete and has no files yet; one that was there keeps both.
    """
    if document.payload != manifest.to_bytes():
        raise ValueError("the document is not the signed form of the manifest")
    key = (manifest.cid.to_bytes(), os.fsencode(root_path))
    row = db.execute(
        "UPDATE version SET document = ?, pinned = max(pinned, ?), used = unixepoch()"
        " WHERE manifest = ? AND root_path = ? RETURNING id",
        (document.to_bytes(), pinned, *key),
    ).fetchone()
    if row is not None:
        return int(row[0])
    (version_id,) = db.execute(
        "INSERT INTO version (manifest, root_path, publisher, name, number, document, role,"
        " pinned, complete, files, bytes, used)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, unixepoch()) RETURNING id",
        (
            *key,
            manifest.publisher.to_bytes(),
            manifest.name,
            manifest.version,
            document.to_bytes(),
            role,
            pinned,
            len(table.files),
            table.file_bytes,
        ),
    ).fetchone()
    db.executemany(
        "INSERT INTO version_file (version_id, ordinal, path, size, cid, leaves)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            (version_id, number, file.path, file.size, file.cid.to_bytes(), file.count)
            for number, file in enumerate(table.files)
        ),
    )
    db.executemany(
        "INSERT INTO version_leaves (version_id, page, packed) VALUES (?, ?, ?)",
        ((version_id, page, packed) for page, packed in enumerate(_pack_leaves(table))),
    )
    return int(version_id)


def link_files(
    db: sqlite3.Connection, version_id: int, files: Sequence[tuple[int, int | None]]
) -> None:
    """Say which rows of `file` hold which files of a version: (ordinal, file id) pairs."""
    db.executemany(
        "UPDATE version_file SET file_id = ? WHERE version_id = ? AND ordinal = ?",
        ((file_id, version_id, ordinal) for ordinal, file_id in files),
    )


def _pack_leaves(table: BlockTable) -> Iterator[bytes]:
    page = bytearray()
    for number in range(len(table.files)):
        for block, _, length in table.file_blocks(number):
            page += _LEAF.pack(table.digest(block), length)
            if len(page) == _LEAVES_PER_PAGE * _LEAF.size:
                yield bytes(page)
                page.clear()
    if page:
        yield bytes(page)


def _read_leaves(db: sqlite3.Connection, version_id: int) -> Iterator[tuple[bytes, int]]:
    for (packed,) in db.execute(
        "SELECT packed FROM version_leaves WHERE version_id = ? ORDER BY page", (version_id,)
    ):
        yield from _LEAF.iter_unpack(packed)


@lru_cache(maxsize=_PARSED_KEPT)
def _parse(document: bytes) -> tuple[SignedDocument, Manifest]:
    signed = SignedDocument.from_bytes(document, domain=MANIFEST_DOMAIN)
    return signed, Manifest.from_bytes(signed.payload)


def _record(row: Sequence[Any]) -> VersionRecord:
    version_id, document, root_path, role, pinned, complete, files, total = row
    try:
        signed, manifest = _parse(document)
    except (KeysError, ProtocolError) as error:
        raise StoreError(
            f"version {version_id} in the index is damaged: {error}",
            hint="Move the index away and publish or get again.",
        ) from error
    return VersionRecord(
        row=version_id,
        document=signed,
        manifest=manifest,
        root_path=Path(os.fsdecode(root_path)),
        role=role,
        pinned=bool(pinned),
        complete=bool(complete),
        files=files,
        total_bytes=total,
    )

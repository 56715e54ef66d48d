"""Blocks that lie in no user's file: manifests, tree nodes, tensor index pages.

Theory of operation: they are at most 1 MiB each and about a thousandth of what they describe, so
they sit in the index itself. A version holds on to those that can be reached from its root and its
tensor index (`version_loose`); parents are other versions and hold on to their own. When the last
version that holds a block is removed, so is the block. One that no version ever held (a fetch that
ended before its manifest was understood) goes with the next removal after a day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbp2p_protocol import dag_cbor
from sbp2p_protocol.cid import DAG_CBOR, DAG_PB, Cid, verify_block
from sbp2p_protocol.dag_pb import decode_node
from sbp2p_protocol.errors import RemoteProtocolError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator

    from sbp2p.store.index import Index
    from sbp2p_protocol.manifest import Manifest

_UNHELD_S: Final = 24 * 3600


class LooseBlocks:
    """Keeps loose blocks. Thread-safe."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def put(self, blocks: Iterable[tuple[Cid, bytes]]) -> None:
        """Keep blocks, all or none; raises IntegrityError for bytes that are not their block."""
        rows = []
        for cid, data in blocks:
            verify_block(cid, data)
            rows.append((cid.to_bytes(), data))
        with self._index.writing() as db:
            db.executemany(
                "INSERT INTO loose (cid, data, added) VALUES (?, ?, unixepoch())"
                " ON CONFLICT (cid) DO UPDATE SET added = excluded.added",
                rows,
            )

    def get(self, cid: Cid) -> bytes | None:
        """Return a block, or None."""
        with self._index.reading() as db:
            return _get(db, cid)


def hold(db: sqlite3.Connection, version_id: int, manifest: Manifest) -> None:
    """Note which loose blocks a version needs; called again when more of them have come."""
    data = manifest.to_bytes()
    db.execute(
        "INSERT INTO loose (cid, data, added) VALUES (?, ?, unixepoch()) ON CONFLICT DO NOTHING",
        (manifest.cid.to_bytes(), data),
    )
    db.executemany(
        "INSERT INTO version_loose (cid, version_id) VALUES (?, ?) ON CONFLICT DO NOTHING",
        ((cid.to_bytes(), version_id) for cid in [manifest.cid, *_reachable(db, manifest)]),
    )


def held(db: sqlite3.Connection, version_id: int) -> list[bytes]:
    """Return the names of the loose blocks that a version holds, for `sweep` once it is gone."""
    rows = db.execute("SELECT cid FROM version_loose WHERE version_id = ?", (version_id,))
    return [cid for (cid,) in rows]


def sweep(db: sqlite3.Connection, cids: Iterable[bytes]) -> None:
    """Remove those of the named blocks that no version holds any more, and old stray ones."""
    db.executemany(
        "DELETE FROM loose WHERE cid = ?"
        " AND NOT EXISTS (SELECT 1 FROM version_loose v WHERE v.cid = loose.cid)",
        ((cid,) for cid in cids),
    )
    db.execute(
        "DELETE FROM loose WHERE added < unixepoch() - ?"
        " AND NOT EXISTS (SELECT 1 FROM version_loose v WHERE v.cid = loose.cid)",
        (_UNHELD_S,),
    )


def _get(db: sqlite3.Connection, cid: Cid) -> bytes | None:
    row = db.execute("SELECT data FROM loose WHERE cid = ?", (cid.to_bytes(),)).fetchone()
    return None if row is None else row[0]


def _reachable(db: sqlite3.Connection, manifest: Manifest) -> Iterator[Cid]:
    """Yield the loose blocks under a version's root and tensor index that are here."""
    waiting = [cid for cid in (manifest.root, manifest.tensors) if cid is not None]
    seen = set(waiting)
    while waiting:
        cid = waiting.pop()
        data = _get(db, cid)
        if data is None:
            continue
        yield cid
        for child in _links(cid, data):
            if child not in seen and child.codec in (DAG_PB, DAG_CBOR):
                seen.add(child)
                waiting.append(child)


def _links(cid: Cid, data: bytes) -> Iterator[Cid]:
    try:
        if cid.codec == DAG_PB:
            yield from (link.cid for link in decode_node(data).links)
        elif cid.codec == DAG_CBOR:
            yield from _cids(dag_cbor.decode(data))
    except RemoteProtocolError:
        return  # kept because someone put it; whoever reads it as a node finds out


def _cids(value: dag_cbor.CborValue) -> Iterator[Cid]:
    if isinstance(value, Cid):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _cids(item)
    elif isinstance(value, list):
        for item in value:
            yield from _cids(item)

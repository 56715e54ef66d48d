"""Peers that worked last time, on disk: a small SQLite database in the node's home.

Theory of operation. Only a peer that this node dialled itself is remembered, with the address that
led to it first: what others say about peers is not worth keeping. Each success adds to a peer's
score and each failure takes more, so an address that went away is forgotten after a few tries
however long it worked. At REMEMBERED_PEERS_MAX peers those with the lowest score and the oldest
success give way, and after `keep_s` without a success a peer is forgotten.

Crash safety is SQLite's: write-ahead log, one transaction for each change, so a file is as it was
before or after it. `synchronous` is NORMAL: a power cut may lose the newest changes and never
damages the file. Several processes on one home share it.

Error cases: nothing here is worth failing for. A database that is damaged or of a newer version is
set aside as `peers.sqlite.bad` and a new one begun; a disk that cannot be written is a StoreError.
Synchronous: it runs in the node's calls.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from sbp2p.errors import StoreError
from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_protocol.limits import CANDIDATE_ADDRESSES_MAX, REMEMBERED_PEERS_MAX
from sbp2p_protocol.multiaddr import Address, BadAddressError, parse_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

DATABASE_NAME: Final = "peers.sqlite"

_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE peer (
    peer_id      BLOB    NOT NULL PRIMARY KEY,
    addresses    TEXT    NOT NULL,
    last_success INTEGER NOT NULL,
    score        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
PRAGMA user_version = 1;
"""

_SCORE_MAX: Final = 8
"""Successes beyond this add nothing, so that four failures in a row outweigh any past."""
_FAILURE_COST: Final = 2


@dataclass(frozen=True, slots=True)
class RememberedPeer:
    """A peer that could be dialled."""

    peer_id: PeerId
    addresses: tuple[Address, ...]
    """The one that led to it last comes first."""
    last_success: int
    """Unix seconds."""
    score: int
    """From 1 to 8."""


class RememberedPeers:
    """The database. Thread-safe; close it when done.

    Args:
        home: the node's folder.
        keep_s: seconds without a success after which a peer is forgotten.
        busy_timeout_s: how long another process may hold the database.

    Raises:
        StoreError: the folder cannot be written.
    """

    def __init__(self, home: Path, *, keep_s: float, busy_timeout_s: float) -> None:
        self.path = home / DATABASE_NAME
        self._keep_s = keep_s
        self._timeout_s = busy_timeout_s
        self._lock = threading.Lock()
        try:
            self._database = self._open()
        except sqlite3.DatabaseError:
            self._set_aside()
            self._database = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    def all(self, now: float) -> list[RememberedPeer]:
        """Return the peers of some use, best first. `now` is Unix seconds."""
        with self._lock, _errors(self.path):
            rows = self._database.execute(
                "SELECT peer_id, addresses, last_success, score FROM peer"
                " WHERE last_success > ? ORDER BY score DESC, last_success DESC LIMIT ?",
                (now - self._keep_s, REMEMBERED_PEERS_MAX),
            ).fetchall()
        return [peer for row in rows if (peer := _peer(*row)) is not None]

    def worked(self, peer_id: PeerId, addresses: Sequence[Address], now: float) -> None:
        """Remember that a peer was reached; the address that led to it comes first."""
        texts = list(dict.fromkeys(each.without_peer().text for each in addresses))
        row = (
            peer_id.to_bytes(),
            json.dumps(texts[:CANDIDATE_ADDRESSES_MAX]),
            int(now),
            _SCORE_MAX,
        )
        with self._lock, _errors(self.path), self._database:
            self._database.execute(
                "INSERT INTO peer VALUES (?1, ?2, ?3, 1) ON CONFLICT (peer_id) DO UPDATE SET"
                " addresses = ?2, last_success = ?3, score = MIN(score + 1, ?4)",
                row,
            )
            self._trim(now)

    def failed(self, peer_id: PeerId) -> None:
        """Hold a failure against a peer, if it is one that is remembered."""
        key = peer_id.to_bytes()
        with self._lock, _errors(self.path), self._database:
            self._database.execute(
                "UPDATE peer SET score = score - ? WHERE peer_id = ?", (_FAILURE_COST, key)
            )
            self._database.execute("DELETE FROM peer WHERE peer_id = ? AND score < 1", (key,))

    def _trim(self, now: float) -> None:
        self._database.execute("DELETE FROM peer WHERE last_success <= ?", (now - self._keep_s,))
        self._database.execute(
            "DELETE FROM peer WHERE peer_id IN (SELECT peer_id FROM peer"
            " ORDER BY score DESC, last_success DESC LIMIT -1 OFFSET ?)",
            (REMEMBERED_PEERS_MAX,),
        )

    def _open(self) -> sqlite3.Connection:
        with _errors(self.path, sqlite3.OperationalError):
            database = sqlite3.connect(self.path, timeout=self._timeout_s, check_same_thread=False)
        try:
            # damage goes on to the caller
            with _errors(self.path, sqlite3.OperationalError):
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = NORMAL")
                database.execute("BEGIN IMMEDIATE")
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        database.execute(statement)
                elif version != _VERSION:
                    raise sqlite3.DatabaseError(f"version {version}")
                database.execute("SELECT COUNT(score) FROM peer").fetchone()
                database.commit()
        except BaseException:
            database.close()
            raise
        return database

    def _set_aside(self) -> None:
        """Make room for a new database; what this one held can be found out again."""
        for suffix in ("-wal", "-shm"):
            with suppress(OSError):
                self.path.with_name(DATABASE_NAME + suffix).unlink()
        try:
            self.path.replace(self.path.with_name(DATABASE_NAME + ".bad"))
        except OSError as error:
            raise StoreError(f"{self.path} is damaged and in the way: {error.strerror}") from error


@contextmanager
def _errors(path: Path, kind: type[sqlite3.Error] = sqlite3.Error) -> Iterator[None]:
    """Turn SQLite's complaints of a kind into StoreError."""
    try:
        yield
    except kind as error:
        raise StoreError(
            f"{path} cannot be used: {error}",
            hint="check the disk and who owns the home; without it peers are not remembered",
        ) from error


def _peer(key: bytes, addresses: str, last_success: int, score: int) -> RememberedPeer | None:
    try:
        texts: Iterable[str] = json.loads(addresses)
        peer_id = PeerId.from_bytes(key)
        found = tuple(parse_address(text).with_peer(peer_id) for text in texts)
    except (KeysError, BadAddressError, ValueError, TypeError, AttributeError):
        return None  # of another version, or somebody edited it
    return RememberedPeer(peer_id, found, last_success, score) if found else None

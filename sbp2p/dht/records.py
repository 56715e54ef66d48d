"""What the DHT remembers across restarts: records kept for others, and the routing table's peers.

Theory of operation. Everything is used from memory (`ProviderRecords`, `ValueRecords`), and the
file follows in batches. `flush` takes what changed since the last batch, in the event loop, and
writes it in one transaction, in the node's calls; so a kill loses at most what came since, and a
file is never half of a batch. At the start everything is read back, with the same bounds and checks
as if it came from peers: a row that makes no sense is left out.

None of it is worth failing for. A damaged file is set aside (`sbp2p.database`); one that cannot be
opened at all is done without; a batch that cannot be written is written whole the next time.

Only the process that runs as the home's identity opens the file; others keep records in memory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from sbp2p import observe
from sbp2p.database import Database
from sbp2p.errors import StoreError
from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_protocol import dag_cbor
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.kad_messages import DEFAULT_NETWORK
from sbp2p_protocol.limits import KAD_CONTACTS_SAVED_MAX
from sbp2p_protocol.multiaddr import address_from_bytes
from sbp2p_protocol.provider_records import (
    AddressRow,
    ProviderChanges,
    ProviderRecords,
    ProviderRow,
)
from sbp2p_protocol.value_records import ValueChanges, ValueRecords, ValueRow

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from sbp2p.calls import Calls
    from sbp2p_protocol.multiaddr import Address

DATABASE_NAME: Final = "dht.sqlite"
"""Of sbp2p's own network; see `database_name`."""

_SCHEMA: Final = (
    """
CREATE TABLE provider (
    key       BLOB NOT NULL,
    provider  BLOB NOT NULL,
    account   TEXT NOT NULL,
    announced REAL NOT NULL,
    PRIMARY KEY (key, provider)
) STRICT, WITHOUT ROWID;
CREATE TABLE provider_address (
    provider  BLOB NOT NULL PRIMARY KEY,
    addresses BLOB NOT NULL,
    told      REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE value (
    key      BLOB NOT NULL PRIMARY KEY,
    value    BLOB NOT NULL,
    account  TEXT NOT NULL,
    received REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE contact (
    peer      BLOB NOT NULL PRIMARY KEY,
    addresses BLOB NOT NULL
) STRICT, WITHOUT ROWID;
""",
)


def database_name(network: str = DEFAULT_NETWORK) -> str:
    """Return the name of the file of one network: records and contacts are of no use in another."""
    if network == DEFAULT_NETWORK:
        return DATABASE_NAME
    return f"dht-{hashlib.sha256(network.encode()).hexdigest()[:16]}.sqlite"


@dataclass(frozen=True, slots=True)
class Contact:
    """A server that was in the routing table."""

    peer_id: PeerId
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one transaction writes."""

    providers: ProviderChanges
    values: ValueChanges
    contacts: tuple[Contact, ...] | None


class DhtRecords:
    """Records and contacts of one node in one network. Made by `open`."""

    def __init__(self, database: Database | None) -> None:
        self.providers = ProviderRecords()
        self.values = ValueRecords()
        self.contacts: tuple[Contact, ...] = ()
        """The routing table as it was when the file was written last."""
        self._database = database
        self._unsaved_contacts: tuple[Contact, ...] | None = None

    @classmethod
    def open(cls, path: Path | None, now: float) -> Self:
        """Read a file, or begin one; never fails. Blocks: call it in the node's calls.

        Args:
            path: the file; None keeps everything in memory alone.
            now: Unix time in seconds, at which values have to be valid.
        """
        if path is None:
            return cls(None)
        database: Database | None = None
        try:
            database = Database(path, _SCHEMA, durable=False)
            records = cls(database)
            records._load(database, now)
        except StoreError as error:
            observe.report_not_saved("the DHT's records", error)
            if database is not None:
                database.close()
            return cls(None)
        return records

    def close(self) -> None:
        """Close the file. What was not flushed is lost."""
        if self._database is not None:
            self._database.close()

    def set_contacts(self, contacts: Iterable[Contact]) -> None:
        """Remember these servers, and no others, from the next `flush` on."""
        self._unsaved_contacts = tuple(contacts)[:KAD_CONTACTS_SAVED_MAX]

    @property
    def unsaved(self) -> int:
        """How many rows the next `flush` writes, about."""
        return self.providers.changes + self.values.changes

    async def flush(self, calls: Calls) -> None:
        """Write what changed since the last time; a failure is logged and made up for later.

        A cancellation waits for the transaction once it has begun.
        """
        batch = _Batch(
            self.providers.take_changes(), self.values.take_changes(), self._unsaved_contacts
        )
        if self._database is None:
            return
        written = False
        try:
            await calls.run_to_end(_write, self._database, batch)
            written = True
        except StoreError as error:
            observe.report_not_saved("the DHT's records", error)
        finally:
            if not written:
                self.providers.write_anew()
                self.values.write_anew()
        if written and self._unsaved_contacts is batch.contacts:
            self._unsaved_contacts = None

    # -- reading --------------------------------------------------------------------------------

    def _load(self, database: Database, now: float) -> None:
        rows = database.read(
            "SELECT key, provider, account, announced FROM provider ORDER BY announced"
        )
        told = database.read("SELECT provider, addresses, told FROM provider_address")
        self.providers.restore(_provider_rows(rows), _address_rows(told))
        if len(rows) != len(self.providers):
            self.providers.write_anew()
        values = database.read("SELECT key, value, account, received FROM value ORDER BY received")
        self.values.restore((ValueRow(*row) for row in values), now)
        if len(values) != len(self.values):
            self.values.write_anew()
        contacts = database.read("SELECT peer, addresses FROM contact")
        self.contacts = tuple(_contacts(contacts))[:KAD_CONTACTS_SAVED_MAX]


def _provider_rows(rows: Iterable[tuple[bytes, bytes, str, float]]) -> Iterator[ProviderRow]:
    for key, provider, account, announced in rows:
        peer_id = _peer_id(provider)
        if peer_id is not None:
            yield ProviderRow(key, peer_id, account, announced)


def _address_rows(rows: Iterable[tuple[bytes, bytes, float]]) -> Iterator[AddressRow]:
    for provider, packed, told in rows:
        peer_id = _peer_id(provider)
        if peer_id is not None:
            yield AddressRow(peer_id, tuple(_unpack(packed)), told)


def _contacts(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[Contact]:
    for peer, packed in rows:
        peer_id = _peer_id(peer)
        if peer_id is None:
            continue
        addresses = []
        for data in _unpack(packed):
            try:
                addresses.append(address_from_bytes(data))
            except RemoteProtocolError:
                continue
        if addresses:
            yield Contact(peer_id, tuple(addresses))


def _peer_id(data: bytes) -> PeerId | None:
    try:
        return PeerId.from_bytes(data)
    except KeysError:
        return None


def _unpack(packed: bytes) -> list[bytes]:
    try:
        value = dag_cbor.decode(packed)
    except RemoteProtocolError:
        return []
    return [each for each in value if isinstance(each, bytes)] if isinstance(value, list) else []


# -- writing ---------------------------------------------------------------------------------------


def _write(database: Database, batch: _Batch) -> None:
    """Write one batch, all or nothing; runs in a thread."""
    with database.writing() as db:
        _write_providers(db, batch.providers)
        _write_values(db, batch.values)
        if batch.contacts is not None:
            db.execute("DELETE FROM contact")
            db.executemany(
                "INSERT OR REPLACE INTO contact VALUES (?, ?)",
                (
                    (each.peer_id.to_bytes(), _pack(a.to_bytes() for a in each.addresses))
                    for each in batch.contacts
                ),
            )


def _write_providers(db: sqlite3.Connection, changes: ProviderChanges) -> None:
    if changes.anew:
        db.execute("DELETE FROM provider")
        db.execute("DELETE FROM provider_address")
    db.executemany(
        "DELETE FROM provider WHERE key = ? AND provider = ?",
        ((item.key, item.provider.to_bytes()) for item in changes.gone),
    )
    db.executemany(
        "DELETE FROM provider_address WHERE provider = ?",
        ((peer.to_bytes(),) for peer in changes.gone_addresses),
    )
    db.executemany(
        "INSERT OR REPLACE INTO provider VALUES (?, ?, ?, ?)",
        ((row.key, row.provider.to_bytes(), row.account, row.announced) for row in changes.records),
    )
    db.executemany(
        "INSERT OR REPLACE INTO provider_address VALUES (?, ?, ?)",
        ((row.provider.to_bytes(), _pack(row.addresses), row.told) for row in changes.addresses),
    )


def _write_values(db: sqlite3.Connection, changes: ValueChanges) -> None:
    if changes.anew:
        db.execute("DELETE FROM value")
    db.executemany("DELETE FROM value WHERE key = ?", ((key,) for key in changes.gone))
    db.executemany(
        "INSERT OR REPLACE INTO value VALUES (?, ?, ?, ?)",
        ((row.key, row.value, row.account, row.received) for row in changes.records),
    )


def _pack(addresses: Iterable[bytes]) -> bytes:
    return dag_cbor.encode(list(addresses))

"""The DHT's file: what comes back after a restart, a kill, damage, and a disk that fails."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.calls import InlineCalls, ThreadCalls
from sbp2p.database import Database
from sbp2p.dht.records import Contact, DhtRecords, database_name
from sbp2p.errors import StoreError
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.ipns import SECOND_NS, ipns_key, make_ipns_record
from sbp2p_protocol.multiaddr import parse_address

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [PrivateKey.from_seed(bytes([number]) * 32) for number in range(1, 6)]
PEERS = [key.peer_id for key in KEYS]
ADDRESS = parse_address("/ip4/127.0.0.1/tcp/4001")
NOW = 1_800_000_000.0
CALLS = InlineCalls()
RNG = Random(1)  # noqa: S311


def pointer(owner: int, *, until: float = NOW + 1e5) -> bytes:
    return make_ipns_record(
        KEYS[owner], b"/x", sequence=1, valid_until_ns=int(until) * SECOND_NS, ttl_ns=0
    )


def fill(records: DhtRecords) -> None:
    for number, peer in enumerate(PEERS):
        records.providers.add(b"key", peer, [b"at%d" % number], NOW + number, account="here")
    records.values.put(ipns_key(PEERS[0]), pointer(0), NOW, account="there")
    records.values.put(ipns_key(PEERS[1]), pointer(1, until=NOW + 10), NOW, account="there")
    records.set_contacts([Contact(PEERS[0], (ADDRESS,)), Contact(PEERS[1], (ADDRESS,))])


async def test_everything_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "dht.sqlite"
    with closing(DhtRecords.open(path, NOW)) as records:
        fill(records)
        assert records.unsaved == 7
        await records.flush(CALLS)
        assert records.unsaved == 0
        before = set(records.providers.rows())
    with closing(DhtRecords.open(path, NOW + 5)) as records:
        assert set(records.providers.rows()) == before
        found = records.providers.find(b"key", NOW, count=9, rng=RNG)
        assert {each.addresses for each in found} == {(b"at%d" % n,) for n in range(5)}
        assert len(records.values) == 2
        assert set(records.contacts) == {
            Contact(PEERS[0], (ADDRESS,)),
            Contact(PEERS[1], (ADDRESS,)),
        }
        assert records.unsaved == 0
    with closing(DhtRecords.open(path, NOW + 11)) as records:
        assert [row.key for row in records.values.rows()] == [ipns_key(PEERS[0])], "expired"
        assert records.unsaved == 1
        await records.flush(CALLS)
    assert rows(path, "value") == 1


async def test_what_goes_away_goes_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "dht.sqlite"
    with closing(DhtRecords.open(path, NOW)) as records:
        fill(records)
        await records.flush(CALLS)
        records.providers.remove(b"key", PEERS[0])
        records.values.expire(NOW + 50)
        records.set_contacts([])
        await records.flush(CALLS)
    assert (rows(path, "provider"), rows(path, "provider_address")) == (4, 4)
    assert (rows(path, "value"), rows(path, "contact")) == (1, 0)


async def test_a_kill_loses_what_came_after_the_last_batch(tmp_path: Path) -> None:
    path = tmp_path / "dht.sqlite"
    records = DhtRecords.open(path, NOW)
    fill(records)
    await records.flush(ThreadCalls())
    records.providers.add(b"late", PEERS[0], [b"x"], NOW)
    # not closed: what a killed process leaves is the file and its log
    with closing(DhtRecords.open(path, NOW)) as after:
        assert {row.key for row in after.providers.rows()} == {b"key"}
    records.close()


def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with Database(
        tmp_path / "x.sqlite", ("CREATE TABLE t (a INTEGER) STRICT;",), durable=True
    ) as db:
        with pytest.raises(StoreError):
            insert(db, 1, "not a number")
        with pytest.raises(KeyError):
            insert(db, 1, KeyError())
        assert db.read("SELECT * FROM t") == []
    with pytest.raises(StoreError, match="closed"):
        db.read("SELECT * FROM t")


def insert(database: Database, *values: object) -> None:
    with database.writing() as connection:
        for value in values:
            if isinstance(value, Exception):
                raise value
            connection.execute("INSERT INTO t VALUES (?)", (value,))


def rows(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
        return int(count)


# -- damage ----------------------------------------------------------------------------------------


def scribble(path: Path) -> None:
    path.write_bytes(b"this is no database, " * 500)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def damage_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)


def make_newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


def make_another(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE value (something TEXT)")


@pytest.mark.parametrize("spoil", [scribble, cut, damage_pages, make_newer, make_another])
async def test_a_file_that_cannot_be_used_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: object
) -> None:
    path = tmp_path / "dht.sqlite"
    with closing(DhtRecords.open(path, NOW)) as records:
        fill(records)
        await records.flush(CALLS)
    assert callable(spoil)
    spoil(path)
    spoiled = path.read_bytes()
    with caplog.at_level(logging.WARNING, "sbp2p"), closing(DhtRecords.open(path, NOW)) as records:
        assert len(records.providers) == 0
        fill(records)
        await records.flush(CALLS)
    assert "dht.sqlite is kept as" in caplog.text
    assert path.with_name("dht.sqlite.bad").read_bytes() == spoiled
    assert rows(path, "provider") == 5


async def test_rows_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "dht.sqlite"
    with closing(DhtRecords.open(path, NOW)) as records:
        fill(records)
        await records.flush(CALLS)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE provider SET provider = x'00' WHERE announced = ?", (NOW,))
        connection.execute("UPDATE provider_address SET addresses = x'ff', provider = x'01'"
                           " WHERE told = ?", (NOW + 1,))  # fmt: skip
        connection.execute("UPDATE value SET value = x'00'")
        connection.execute("UPDATE contact SET addresses = x'8141ff'")
        connection.commit()
    with closing(DhtRecords.open(path, NOW)) as records:
        assert len(records.providers) == 4
        assert len(records.values) == 0
        assert records.contacts == ()
        await records.flush(CALLS)
    assert (rows(path, "provider"), rows(path, "value")) == (4, 0)


def test_where_no_file_can_be_nothing_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "dht.sqlite").mkdir()
    with closing(DhtRecords.open(tmp_path / "dht.sqlite", NOW)) as records:
        fill(records)
    assert "cannot be saved" in caplog.text
    with closing(DhtRecords.open(tmp_path / "no-such-folder" / "x", NOW)) as records:
        fill(records)


async def test_a_batch_that_failed_is_made_up_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dht.sqlite"
    with closing(DhtRecords.open(path, NOW)) as records:
        fill(records)
        await records.flush(CALLS)
        records.providers.remove(b"key", PEERS[0])
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("ALTER TABLE provider RENAME TO elsewhere")
            await records.flush(CALLS)
            connection.execute("ALTER TABLE elsewhere RENAME TO provider")
        assert "cannot be saved" in caplog.text
        await records.flush(CALLS)
    assert rows(path, "provider") == 4


async def test_a_batch_that_was_cancelled_is_made_up_for(tmp_path: Path) -> None:
    path = tmp_path / "dht.sqlite"
    with closing(DhtRecords.open(path, NOW)) as records:
        fill(records)
        with trio.CancelScope() as scope:
            scope.cancel()
            await records.flush(ThreadCalls())
        assert scope.cancelled_caught
        await records.flush(ThreadCalls())
    assert (rows(path, "provider"), rows(path, "value"), rows(path, "contact")) == (5, 2, 2)


def test_each_network_has_a_file_of_its_own() -> None:
    names = [database_name(), database_name("/ipfs"), database_name("/ipfs/lan")]
    assert names[0] == "dht.sqlite"
    assert len(set(names)) == 3
    assert all("/" not in name for name in names)


async def test_without_a_file_everything_is_in_memory() -> None:
    with closing(DhtRecords.open(None, NOW)) as records:
        fill(records)
        await records.flush(CALLS)
        assert len(records.providers) == 5
        assert records.unsaved == 0

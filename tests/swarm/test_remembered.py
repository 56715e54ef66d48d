from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sbp2p.discovery.remembered import DATABASE_NAME, RememberedPeers
from sbp2p.errors import StoreError
from sbp2p_keys.identity import PeerId
from sbp2p_protocol.limits import REMEMBERED_PEERS_MAX
from sbp2p_protocol.multiaddr import Address, parse_address
from tests.runtime.pair import KEYS

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO, THREE = (key.peer_id for key in KEYS[:3])
DAY = 86400.0


def at(port: int) -> Address:
    return parse_address(f"/ip4/10.0.0.1/tcp/{port}")


def open_peers(home: Path) -> RememberedPeers:
    return RememberedPeers(home, keep_s=30 * DAY, busy_timeout_s=5.0)


def test_peers_outlive_the_process_best_first(tmp_path: Path) -> None:
    with open_peers(tmp_path) as peers:
        assert peers.all(0.0) == []
        peers.worked(ONE, [at(1), at(2).with_peer(ONE), at(1)], 100.0)
        peers.worked(TWO, [at(3)], 101.0)
        peers.worked(THREE, [at(4)], 90.0)
        peers.worked(THREE, [at(5)], 95.0)
    with open_peers(tmp_path) as peers:
        found = peers.all(200.0)
    assert [each.peer_id for each in found] == [THREE, TWO, ONE]
    assert found[0].addresses == (at(5).with_peer(THREE),)
    assert found[2].addresses == (at(1).with_peer(ONE), at(2).with_peer(ONE))
    assert [(each.last_success, each.score) for each in found] == [(95, 2), (101, 1), (100, 1)]


def test_failures_outweigh_any_past(tmp_path: Path) -> None:
    with open_peers(tmp_path) as peers:
        for _ in range(100):
            peers.worked(ONE, [at(1)], 1.0)
        for left in (3, 2, 1):
            peers.failed(ONE)
            assert [each.score for each in peers.all(2.0)] == [2 * left]
        peers.failed(ONE)
        assert peers.all(2.0) == []
        peers.failed(TWO)  # nobody we know


def test_they_are_bounded_and_grow_old(tmp_path: Path) -> None:
    with open_peers(tmp_path) as peers:
        peers.worked(ONE, [at(1)], 0.0)
        peers.worked(ONE, [at(1)], 0.0)
        for number in range(REMEMBERED_PEERS_MAX + 20):
            peer = PeerId.from_bytes(b"\x12\x20" + number.to_bytes(2, "big") * 16)
            peers.worked(peer, [at(1)], float(number))
        found = peers.all(1000.0)
        assert len(found) == REMEMBERED_PEERS_MAX
        assert found[0].peer_id == ONE
        assert min(each.last_success for each in found[1:]) == 21
        assert peers.all(1000.0 + 31 * DAY) == []
        peers.worked(TWO, [at(1)], 1000.0 + 31 * DAY)
        assert [each.peer_id for each in peers.all(1000.0 + 31 * DAY)] == [TWO]


def test_a_damaged_database_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    path.write_bytes(b"not a database, but something else entirely" * 100)
    with open_peers(tmp_path) as peers:
        peers.worked(ONE, [at(1)], 1.0)
        assert len(peers.all(2.0)) == 1
    assert (tmp_path / f"{DATABASE_NAME}.bad").read_bytes().startswith(b"not a database")
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with open_peers(tmp_path) as peers:
        assert peers.all(2.0) == []


def test_damage_that_shows_later_is_a_store_error(tmp_path: Path) -> None:
    with open_peers(tmp_path) as peers:
        peers.worked(ONE, [at(1)], 1.0)
        database = sqlite3.connect(tmp_path / DATABASE_NAME)
        database.execute("DROP TABLE peer")
        database.execute("CREATE TABLE peer (peer_id)")
        database.close()
        for call in (lambda: peers.all(2.0), lambda: peers.failed(ONE)):
            with pytest.raises(StoreError):
                call()


def test_rows_that_make_no_sense_are_passed_over(tmp_path: Path) -> None:
    with open_peers(tmp_path) as peers:
        peers.worked(ONE, [at(1)], 1.0)
        database = sqlite3.connect(tmp_path / DATABASE_NAME)
        for key, addresses in [(b"x", "[]"), (b"y", "{"), (TWO.to_bytes(), "[1]"), (b"", '["/a"]')]:
            database.execute("INSERT INTO peer VALUES (?, ?, 5, 5)", (key, addresses))
        database.commit()
        database.close()
        assert [each.peer_id for each in peers.all(2.0)] == [ONE]


def test_a_home_that_is_not_there_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be used"):
        open_peers(tmp_path / "nowhere")


_CHILD = """
import sys
from pathlib import Path
from sbp2p.discovery.remembered import RememberedPeers
from sbp2p_protocol.multiaddr import parse_address
from tests.runtime.pair import KEYS
peers = RememberedPeers(Path(sys.argv[1]), keep_s=1e9, busy_timeout_s=5.0)
for number in range(100000):
    peers.worked(KEYS[number % 8].peer_id, [parse_address("/ip4/10.0.0.1/tcp/1")], float(number))
    print(number, flush=True)
"""


def test_a_kill_in_mid_write_loses_nothing_that_was_told(tmp_path: Path) -> None:
    told = -1
    for round_number in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(10 + 7 * round_number):
            told = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        with open_peers(tmp_path) as peers:
            assert max(each.last_success for each in peers.all(1e6)) >= told
    assert not (tmp_path / f"{DATABASE_NAME}.bad").exists()

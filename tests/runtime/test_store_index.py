"""The database: schema, damage, and other processes that use it at the same time."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sbp2p.config import StoreConfig
from sbp2p.errors import StoreBusyError, StoreError
from sbp2p.store import FileLock, NoSpaceError, Store
from sbp2p.store.index import INDEX_NAME, MIGRATIONS
from tests.runtime.store_samples import BLOCK, SMALL_BATCH, model, noise, sample

_REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_fresh_index_has_the_newest_schema(tmp_path: Path) -> None:
    with Store.open(tmp_path / "new/home", SMALL_BATCH):
        pass
    with sqlite3.connect(tmp_path / "new/home" / INDEX_NAME) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


def test_every_migration_is_reached_from_the_one_before(tmp_path: Path) -> None:
    """An index of each older schema opens and comes out like a fresh one."""
    with Store.open(tmp_path / "fresh", SMALL_BATCH):
        pass
    fresh = sqlite3.connect(tmp_path / "fresh" / INDEX_NAME)
    wanted = fresh.execute("SELECT sql FROM sqlite_schema ORDER BY name").fetchall()
    fresh.close()
    for number in range(len(MIGRATIONS)):
        home = tmp_path / str(number)
        home.mkdir()
        db = sqlite3.connect(home / INDEX_NAME)
        for script in MIGRATIONS[:number]:
            db.executescript(script)
        db.execute(f"PRAGMA user_version = {number}")
        db.close()
        with Store.open(home, SMALL_BATCH):
            pass
        db = sqlite3.connect(home / INDEX_NAME)
        assert db.execute("SELECT sql FROM sqlite_schema ORDER BY name").fetchall() == wanted
        db.close()


def test_an_index_from_the_future_is_refused(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / INDEX_NAME)
    db.execute("PRAGMA user_version = 999")
    db.close()
    with pytest.raises(StoreError, match="newer sbp2p") as caught:
        Store.open(tmp_path, SMALL_BATCH)
    assert "Upgrade" in caught.value.hint


def test_a_damaged_index_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).write_bytes(noise("not a database", 8192))
    with pytest.raises(StoreError, match="not a database") as caught:
        Store.open(tmp_path, SMALL_BATCH)
    assert "Move the index away" in caught.value.hint


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot create"):
        Store.open(tmp_path / "home", SMALL_BATCH)


def test_a_busy_index_keeps_the_batch_for_the_next_commit(tmp_path: Path) -> None:
    config = StoreConfig(commit_batch_bytes=1 << 30, busy_timeout_s=0.05)
    version = sample({"f": noise("busy", 3 * BLOCK)})
    with Store.open(tmp_path / "home", config) as store:
        with version.open(store, tmp_path / "out") as download:
            download.write_block(0, [version.block(0)])
            with _Locked(tmp_path / "home") as blocker:
                with pytest.raises(StoreBusyError, match=r"waited 0[.]05 s"):
                    download.commit()
                assert download.have.get(0)
                assert store.read_block(version.table.digest(0)) == version.block(0)
                blocker.rollback()
            assert download.commit() == [0]


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_interrupted_finish_is_completed_by_the_next(tmp_path: Path, overwrite: bool) -> None:
    config = StoreConfig(busy_timeout_s=0.05)
    version, root = model(), tmp_path / "out"
    with Store.open(tmp_path / "home", config) as store:
        download = version.open(store, root, overwrite=overwrite)
        version.fetch(download)
        download.commit()
        with _Locked(tmp_path / "home") as blocker:
            with pytest.raises(StoreBusyError):
                download.finish()  # the files have their names, the index does not know
            version.assert_finals(root)
            for index in range(len(version.table)):
                assert store.read_block(version.table.digest(index)) == version.block(index)
            with pytest.raises(StoreError):
                download.close()
            blocker.rollback()
        with version.open(store, root, overwrite=overwrite) as download:
            assert download.have.all()
            download.finish()
        version.assert_at(root)
        assert store.versions()[0].complete
        assert store.have_bitmap(version.table).all()


def test_part_names_that_finish_had_no_time_to_remove(tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    with Store.open(tmp_path / "home", SMALL_BATCH) as store:
        with version.open(store, root) as download:
            version.fetch(download)
            parts = [download.file_path(number) for number in range(len(version.table.files))]
            download.finish()
            for part, file in zip(parts, version.table.files, strict=True):
                assert part is not None
                part.hardlink_to(root / file.path)
        with version.open(store, root) as download:
            assert download.have.all()
            download.finish()
        version.assert_at(root)


def test_a_full_index_is_said_in_words(tmp_path: Path) -> None:
    with Store.open(tmp_path / "home", SMALL_BATCH) as store:
        with store._index.writing() as db:
            db.execute("PRAGMA max_page_count = 1")
        version = sample({f"{i:03d}": noise(f"full{i}", 3000) for i in range(60)}, block=16)
        with pytest.raises(NoSpaceError, match="full") as caught:
            version.publish(store, tmp_path / "files")
        assert "Free some space" in caught.value.hint
        assert store.versions() == []


def test_two_processes_write_to_one_store(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from sbp2p.store import Store;"
        "from tests.runtime.store_samples import *\n"
        "who = sys.argv[1]; home = Path(sys.argv[2])\n"
        "with Store.open(home, SMALL_BATCH) as store:\n"
        "    for n in range(8):\n"
        "        v = sample({'f': noise(f'{who}{n}', 8 * BLOCK)}, name=who, version=n + 1)\n"
        "        with v.open(store, home / f'{who}{n}') as download:\n"
        "            v.fetch(download); download.finish()\n"
    )
    home = tmp_path / "home"
    children = [_python(script, who, str(home)) for who in ("ann", "bob", "cid")]
    for child in children:
        child.communicate()
    assert [child.returncode for child in children] == [0, 0, 0]
    with Store.open(home, SMALL_BATCH) as store:
        records = store.versions()
        assert [(r.name, r.version) for r in records] == [
            (who, n + 1) for who in ("ann", "bob", "cid") for n in range(8)
        ]
        assert all(record.complete for record in records)
        for record in records:
            assert store.have_bitmap(store.table(record)).all()


def test_a_lock_names_the_process_that_holds_it_and_ends_with_it(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from sbp2p.store import FileLock\n"
        "with FileLock(Path(sys.argv[1]), 'it'):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with _python(script, str(tmp_path / "lock")) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(StoreBusyError, match=f"the thing is in use by process {child.pid}"):
            FileLock(tmp_path / "lock", "the thing").acquire()
        child.kill()
    with FileLock(tmp_path / "lock", "the thing"):
        pass


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_not_kept(tmp_path: Path) -> None:
    first = FileLock(tmp_path / "lock", "it")
    first.acquire()
    first.release(unlink=True)
    assert not (tmp_path / "lock").exists()
    with FileLock(tmp_path / "lock", "it"):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


class _Locked:
    """Hold the index's write lock, as a process does that writes for long."""

    def __init__(self, home: Path) -> None:
        self._db = sqlite3.connect(home / INDEX_NAME, isolation_level=None)

    def __enter__(self) -> sqlite3.Connection:
        self._db.execute("BEGIN IMMEDIATE")
        return self._db

    def __exit__(self, *_: object) -> None:
        self._db.close()


def _python(script: str, *arguments: str) -> subprocess.Popen[str]:
    paths = [_REPOSITORY, _REPOSITORY / "protocol", _REPOSITORY / "keys"]
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=_REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

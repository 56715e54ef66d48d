"""Quota, pins and what goes when space is wanted."""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sbp2p.errors import NotFoundError, StoreError
from sbp2p.store import NoSpaceError, Store
from sbp2p.store.collect import FILES_A_STEP
from tests.runtime.store_samples import BLOCK, SMALL_BATCH, noise, quick_folder, sample, true_claims
from tests.runtime.system_calls import Failing, SystemCalls, failing_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.runtime.store_samples import Sample


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "home", SMALL_BATCH) as opened:
        yield opened


def version_of(number: int, blocks: int = 4, shared: str = "") -> Sample:
    """Return a version of a model of its own, with some blocks that others may share."""
    return sample(
        {
            "w/weights": noise(f"w{number}", blocks * BLOCK - 7),
            "config": noise(f"c{number}", 100),
            "empty": b"",
            **({"shared": noise(shared, 2 * BLOCK)} if shared else {}),
        },
        version=number + 1,
        name=f"model{number}",
    )


def fetch(store: Store, version: Sample, root: Path, *, pinned: bool = False) -> None:
    with store.open_download(
        version.document, version.manifest, version.table, root, version.all, pinned=pinned
    ) as download:
        for _ in download.adopt_local():
            pass
        version.fetch(download)
        download.finish()


def age(store: Store, version: Sample, seconds: int) -> None:
    """Let the last use of a version be so long ago."""
    with contextlib.closing(sqlite3.connect(store.home / "index.sqlite")) as db, db:
        db.execute(
            "UPDATE version SET used = unixepoch() - ? WHERE manifest = ?",
            (seconds, version.manifest.cid.to_bytes()),
        )


def names(store: Store) -> set[str]:
    return {record.name for record in store.versions()}


def test_the_longest_unused_goes_first_and_only_as_far_as_needed(
    store: Store, tmp_path: Path
) -> None:
    versions = [version_of(number) for number in range(4)]
    for number, version in enumerate(versions):
        fetch(store, version, tmp_path / f"v{number}")
        age(store, version, [30_000, 90_000, 10_000, 50_000][number])
    size = versions[0].table.file_bytes
    assert store.bytes_used == 4 * size
    assert [record.name for record in store.collectable()] == [
        "model1",
        "model3",
        "model0",
        "model2",
    ]
    steps = list(store.collect(2 * size))
    assert names(store) == {"model0", "model2"}
    assert [step.version.name for step in steps if step.done] == ["model1", "model3"]
    assert sum(step.bytes_freed for step in steps) == 2 * size
    assert steps[-1].bytes_used == store.bytes_used == 2 * size
    assert not list((tmp_path / "v1").rglob("*"))
    versions[0].assert_at(tmp_path / "v0")
    assert list(store.collect(2 * size)) == []
    store.note_use(versions[0].manifest.cid)
    list(store.collect(size))
    assert names(store) == {"model0"}


def test_what_is_pinned_published_or_the_users_stays(store: Store, tmp_path: Path) -> None:
    pinned, mine, loose = version_of(1), version_of(2), version_of(3)
    fetch(store, pinned, tmp_path / "pinned", pinned=True)
    mine.publish(store, tmp_path / "mine")
    store.unpin(mine.manifest.cid)
    fetch(store, loose, tmp_path / "loose")
    (tmp_path / "loose" / "config").write_bytes(b"edited by the user")
    (tmp_path / "loose" / "notes").write_bytes(b"the user's")
    list(store.collect(0))
    assert names(store) == {"model1", "model2"}
    pinned.assert_at(tmp_path / "pinned")
    mine.assert_at(tmp_path / "mine")
    left = {path.name for path in (tmp_path / "loose").rglob("*")}
    assert left == {"config", "notes"}
    store.unpin(pinned.manifest.cid)
    list(store.collect(0))
    assert names(store) == {"model2"}
    assert store.bytes_used == 0


def test_pinned_while_it_goes_it_stays_as_far_as_it_is_there(store: Store, tmp_path: Path) -> None:
    files = {f"f{number:03}": noise(f"f{number}", 10) for number in range(2 * FILES_A_STEP + 5)}
    version = sample(files)
    fetch(store, version, tmp_path / "out")
    steps = store.collect(0)
    first = next(steps)
    assert (first.files_deleted, first.done) == (FILES_A_STEP, False)
    store.pin(version.manifest.cid)
    assert list(steps) == []
    (record,) = store.versions()
    assert not record.complete
    assert len(list((tmp_path / "out").rglob("f*"))) == FILES_A_STEP + 5
    fetch(store, version, tmp_path / "out", pinned=True)
    version.assert_at(tmp_path / "out")


def test_work_is_done_in_steps(store: Store, tmp_path: Path) -> None:
    files = {f"{n % 7}/f{n:03}": noise(f"f{n}", 10) for n in range(2 * FILES_A_STEP + 5)}
    version = sample(files)
    fetch(store, version, tmp_path / "out")
    for _ in store.collect(0):
        break  # and then nobody goes on
    again = list(store.collect(0))
    assert [step.files_deleted for step in again] == [FILES_A_STEP, 5, 0]
    assert [step.done for step in again] == [False, False, True]
    assert list((tmp_path / "out").iterdir()) == []


def test_what_a_running_fetch_needs_stays(store: Store, tmp_path: Path) -> None:
    old, other, new = version_of(1, shared="s"), version_of(2), version_of(3, shared="s")
    fetch(store, old, tmp_path / "old")
    fetch(store, other, tmp_path / "other")
    with store.open_download(
        new.document, new.manifest, new.table, tmp_path / "new", new.all, pinned=False
    ) as download:
        list(store.collect(0))
        assert names(store) == {"model1", "model3"}
        for _ in download.adopt_local():
            pass
        assert download.have.any()
        new.fetch(download)
        download.finish()
    new.assert_at(tmp_path / "new")
    list(store.collect(0))
    assert names(store) == set()


def test_a_folder_that_is_not_there_is_not_forgotten(store: Store, tmp_path: Path) -> None:
    version = version_of(1)
    fetch(store, version, tmp_path / "disk" / "v")
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    assert list(store.collect(0)) == []
    (tmp_path / "unmounted").rename(tmp_path / "disk")
    list(store.collect(0))
    assert names(store) == set()


def test_a_quota_makes_room_or_refuses(tmp_path: Path) -> None:
    size = version_of(1).table.file_bytes
    config = replace(SMALL_BATCH, quota_bytes=2 * size + 2 * BLOCK)
    with Store.open(tmp_path / "home", config) as store:
        for number in range(1, 6):
            version = version_of(number)
            fetch(store, version, tmp_path / f"v{number}", pinned=number == 1)
            age(store, version, 100_000 - number)
            assert store.bytes_used <= config.quota_bytes  # type: ignore[operator]
        assert names(store) == {"model1", "model5"}
        large = version_of(9, blocks=20)
        with pytest.raises(NoSpaceError, match="of the quota of") as caught:
            fetch(store, large, tmp_path / "large")
        assert "unpin" in caught.value.hint
        assert not list((tmp_path / "large").rglob("*"))
        assert names(store) == {"model1"}  # it was tried
        version_of(1).assert_at(tmp_path / "v1")
        # what is here already needs no room
        fetch(store, version_of(1), tmp_path / "v1", pinned=True)


# -- faults ----------------------------------------------------------------------------------------


class Run:
    """A store with a version to collect, one to keep, and one of the user's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.going, self.pinned, self.mine = version_of(1, shared="s"), version_of(2), version_of(3)

    def prepare(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        with Store.open(self.root / "home", SMALL_BATCH) as store:
            fetch(store, self.going, self.root / "going")
            fetch(store, self.pinned, self.root / "pinned", pinned=True)
            self.mine.publish(store, self.root / "mine")

    def collect(self) -> None:
        with Store.open(self.root / "home", SMALL_BATCH) as store:
            for _ in store.collect(0):
                pass

    def check(self, why: str) -> None:
        true_claims(self.root / "home")
        self.collect()
        with Store.open(self.root / "home", SMALL_BATCH) as store:
            assert names(store) == {"model2", "model3"}, why
            left = {path.name for path in (self.root / "going").rglob("*") if path.is_file()}
            assert left <= {"lock"}, why  # nobody holds it
            self.pinned.assert_at(self.root / "pinned")
            self.mine.assert_at(self.root / "mine")
            fetch(store, self.going, self.root / "going")
            self.going.assert_at(self.root / "going")


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_every_system_call_of_a_collection(code: int) -> None:
    with quick_folder() as folder:
        run = Run(folder / "run")
        run.prepare()
        calls = SystemCalls(run.root)
        with calls.watching():
            run.collect()
        for number in range(1, calls.count + 1):
            run.prepare()
            failing = Failing(run.root, number, code, for_good=code == errno.EROFS)
            with failing.watching(), contextlib.suppress(StoreError):
                run.collect()
            run.check(f"call {number}, {failing.failed}")


@pytest.mark.parametrize("done", [False, True])
def test_every_statement_of_a_collection(done: bool) -> None:
    with quick_folder() as folder:
        run = Run(folder / "run")
        number = 0
        while True:
            number += 1
            run.prepare()
            with (
                failing_index(number, sqlite3.SQLITE_IOERR, done=done) as failed,
                contextlib.suppress(StoreError),
            ):
                run.collect()
            if not failed:
                return
            run.check(f"statement {number}: {failed[0]}")


# -- any order -------------------------------------------------------------------------------------


class Collecting(RuleBasedStateMachine):
    """Versions that share blocks come, are pinned, used, edited and collected in any order."""

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))  # noqa: S108
        self.store = Store.open(self.folder / "home", SMALL_BATCH)
        self.fetched: dict[int, Sample] = {}
        self.pinned: set[int] = set()
        self.mine: dict[int, Sample] = {}
        self.edited: dict[Path, bytes] = {}
        self.running: dict[int, tuple[Sample, object]] = {}
        self.count = 0

    def _new(self, shared: int) -> tuple[int, Sample]:
        self.count += 1
        return self.count, version_of(self.count, blocks=2, shared=f"s{shared}")

    def _at(self, number: int) -> Path:
        return self.folder / f"v{number}"

    @rule(shared=st.integers(0, 2), pinned=st.booleans())
    def fetch(self, shared: int, pinned: bool) -> None:
        number, version = self._new(shared)
        fetch(self.store, version, self._at(number), pinned=pinned)
        age(self.store, version, 10_000 * number % 7_777)
        self.fetched[number] = version
        if pinned:
            self.pinned.add(number)

    @rule(shared=st.integers(0, 2))
    def publish(self, shared: int) -> None:
        number, version = self._new(shared)
        version.publish(self.store, self._at(number))
        self.store.unpin(version.manifest.cid)
        self.mine[number] = version

    @rule(shared=st.integers(0, 2))
    def begin_to_fetch(self, shared: int) -> None:
        if len(self.running) < 2:
            number, version = self._new(shared)
            download = self.store.open_download(
                *(version.document, version.manifest, version.table, self._at(number)),
                version.all,
                pinned=False,
            )
            download.write_block(0, [version.block(0)])
            self.running[number] = version, download

    @precondition(lambda self: self.running)
    @rule()
    def end_a_fetch(self) -> None:
        number, (version, download) = self.running.popitem()
        for _ in download.adopt_local():  # type: ignore[attr-defined]
            pass
        version.fetch(download)  # type: ignore[arg-type]
        download.finish()  # type: ignore[attr-defined]
        download.close()  # type: ignore[attr-defined]
        version.assert_at(self._at(number))
        self.fetched[number] = version

    @precondition(lambda self: self.fetched)
    @rule(data=st.data(), pin=st.booleans())
    def pin(self, data: st.DataObject, pin: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.fetched)))
        version = self.fetched[number].manifest
        gone = version.name not in {record.name for record in self.store.versions()}
        with pytest.raises(NotFoundError) if gone else contextlib.nullcontext():
            (self.store.pin if pin else self.store.unpin)(version.cid)
        if not gone:
            (self.pinned.add if pin else self.pinned.discard)(number)

    @precondition(lambda self: self.fetched)
    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.fetched)))
        path = self._at(number) / "config"
        if number not in self.pinned and path.exists():
            path.write_bytes(b"mine now")
            self.edited[path] = b"mine now"

    @rule(limit=st.integers(0, 12), most=st.integers(0, 4))
    def collect(self, limit: int, most: int) -> None:
        steps = self.store.collect(limit * BLOCK)
        for _ in range(most):
            if next(steps, None) is None:
                assert self.store.bytes_used <= limit * BLOCK or not self.store.collectable()
                break
        steps.close()  # type: ignore[attr-defined]

    @rule()
    def open_again(self) -> None:
        if not self.running:
            self.store.close()
            self.store = Store.open(self.folder / "home", SMALL_BATCH)

    @invariant()
    def nothing_is_lost_that_should_stay(self) -> None:
        if not hasattr(self, "store"):
            return
        here = {record.name for record in self.store.versions()}
        for number, version in self.mine.items():
            version.assert_at(self._at(number))
            assert version.manifest.name in here
        for number in self.pinned:
            assert self.fetched[number].manifest.name in here
        for path, data in self.edited.items():
            assert path.read_bytes() == data
        for number, (version, download) in self.running.items():
            assert version.manifest.name in here
            assert download.have.any()  # type: ignore[attr-defined]
            assert (self._at(number) / ".sbp2p").is_dir()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            for _, download in self.running.values():
                download.close()  # type: ignore[attr-defined]
            self.store.close()
            shutil.rmtree(self.folder)


TestCollecting = Collecting.TestCase
TestCollecting.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)

"""Every system call and every statement of a download fails once: nothing wrong is ever claimed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from sbp2p.errors import StoreError
from sbp2p.store import Store
from tests.runtime.store_samples import (
    BLOCK,
    SMALL_BATCH,
    noise,
    quick_folder,
    sample,
    true_claims,
)
from tests.runtime.system_calls import Failing, SystemCalls, failing_index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds paths in /proc")

_SHARED = noise("fault-shared", 2 * BLOCK)
_OLD = sample({"old": _SHARED + noise("fault-old", BLOCK)})
_NEW = sample(
    {
        "a/b": noise("fault-a", 3 * BLOCK + 7) + _SHARED,
        "c": _SHARED[BLOCK:] + noise("fault-c", 2 * BLOCK),
        "empty": b"",
        "replaced": noise("fault-r", BLOCK),
    },
    version=2,
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as made:
        yield made


@dataclass
class Run:
    """One fetch in a folder of its own, and what it was told is safe."""

    root: Path
    safe: set[int] = field(default_factory=set)
    finished: bool = False

    @property
    def target(self) -> Path:
        return self.root / "new"

    def prepare(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.target.mkdir(parents=True)
        (self.target / "replaced").write_bytes(noise("fault-before", BLOCK))
        with Store.open(self.root / "home", SMALL_BATCH) as store:
            _OLD.publish(store, self.root / "old")

    def fetch(self) -> None:
        """Fetch in two goes, with everything that a fetch does."""
        for last in (False, True):
            with (
                Store.open(self.root / "home", SMALL_BATCH) as store,
                _NEW.open(store, self.target, overwrite=True) as download,
            ):
                for _ in download.adopt_local():
                    pass
                self.safe.update(download.commit())
                self.safe.update(download.have)
                for index in list(download.missing)[: None if last else 3]:
                    download.write_block(index, [_NEW.block(index)])
                    if index % 2:
                        self.safe.update(download.commit())
                if last:
                    download.finish()
                    self.finished = True

    def check(self, why: str) -> None:
        """Look at what is left, then fetch again and look at the files."""
        claimed = true_claims(self.root / "home")
        shown = {path: self.target / path for path in _NEW.files if (self.target / path).exists()}
        for path, shown_at in shown.items():
            right = _NEW.files[path], noise("fault-before", BLOCK)
            assert shown_at.read_bytes() in right[: 2 if path == "replaced" else 1], why
        with Store.open(self.root / "home", SMALL_BATCH) as store:
            have = store.have_bitmap(_NEW.table)
            assert self.safe <= set(have), why
            assert all(_NEW.table.digest(index) in claimed for index in have), why
            if self.finished:
                version = store.version(_NEW.manifest.cid)
                assert version is not None, why
                assert version.complete, why
            with _NEW.open(store, self.target, overwrite=True) as download:
                assert self.safe <= set(download.have), why
                for _ in download.adopt_local():
                    pass
                _NEW.fetch(download)
                download.finish()
            _NEW.assert_at(self.target)
            assert store.have_bitmap(_NEW.table).all(), why


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  (a Path would open one)


def _calls(run: Run) -> int:
    calls = SystemCalls(run.root)
    run.prepare()
    with calls.watching():
        run.fetch()
    run.check("no fault")
    return calls.count


@pytest.mark.parametrize(
    ("code", "for_good", "step"),
    [
        (errno.EIO, False, 1),
        (errno.EIO, True, 5),
        (errno.ENOSPC, False, 3),
        (errno.EROFS, True, 7),
    ],
)
def test_every_system_call(folder: Path, code: int, for_good: bool, step: int) -> None:
    total = _calls(Run(folder / "run"))
    descriptors = _open_descriptors()
    for number in range(1, total + 1, step):
        run = Run(folder / "run")
        run.prepare()
        calls = Failing(run.root, number, code, for_good=for_good)
        with calls.watching(), contextlib.suppress(StoreError):
            run.fetch()
        why = f"call {number}, {calls.failed}: {os.strerror(code)}"
        run.check(why)
        assert _open_descriptors() == descriptors, why


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL])
def test_every_statement_of_the_index(folder: Path, code: int, done: bool) -> None:
    number = 0
    while True:
        number += 1 if code == sqlite3.SQLITE_IOERR else 4
        run = Run(folder / "run")
        run.prepare()
        with failing_index(number, code, done=done) as failed, contextlib.suppress(StoreError):
            run.fetch()
        if not failed:
            return
        run.check(f"statement {number}: {failed[0]}")


def test_short_writes_are_continued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev

    def half(fd: int, buffers: list[bytes], offset: int) -> int:
        data = b"".join(buffers)
        return whole(fd, [data[: len(data) // 2 + 1]], offset)

    run = Run(folder / "run")
    run.prepare()
    monkeypatch.setattr(os, "pwritev", half)
    run.fetch()
    run.check("short writes")

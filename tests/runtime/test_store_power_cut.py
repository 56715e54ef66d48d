"""The power fails before any call: what the index claims is on the disk, and the fetch goes on."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

import pytest

from sbp2p.store import Store
from tests.runtime.power_cut import Recorder, restore
from tests.runtime.store_samples import (
    BLOCK,
    SMALL_BATCH,
    noise,
    quick_folder,
    sample,
    true_claims,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.runtime.power_cut import Cut

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds paths in /proc")

_SHARED = noise("power-shared", BLOCK)
_VERSION = sample(
    {
        "a/b/c": noise("power-a", 4 * BLOCK + 7) + _SHARED,
        "d": _SHARED + noise("power-d", 2 * BLOCK),
        "e": noise("power-e", 100),
        "empty": b"",
    }
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as made:
        yield made


class _Run:
    """A fetch in two goes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.target = root / "models/new"
        self.safe: set[int] = set()
        self.finished = False
        root.mkdir()
        with Store.open(self.home, SMALL_BATCH):
            pass

    def told(self) -> tuple[set[int], bool]:
        return set(self.safe), self.finished

    def fetch(self) -> None:
        for last in (False, True):
            with (
                Store.open(self.home, SMALL_BATCH) as store,
                _VERSION.open(store, self.target, overwrite=True) as download,
            ):
                for index in list(download.missing)[: None if last else 5]:
                    download.write_block(index, [_VERSION.block(index)])
                    if index % 3 == 2:
                        self.safe.update(download.commit())
                if last:
                    download.finish()
                    self.safe.update(range(len(_VERSION.table)))
                    self.finished = True

    def check(self, cut: Cut) -> None:
        safe, finished = cut.known
        why = f"cut {cut.number}, before {cut.before}"
        claimed = true_claims(self.home)
        for path, data in _VERSION.files.items():
            if (self.target / path).exists():
                assert (self.target / path).read_bytes() == data, why
            else:
                assert not finished, why
        assert {_VERSION.table.digest(index) for index in safe} <= claimed, why
        with Store.open(self.home, SMALL_BATCH) as store:
            with _VERSION.open(store, self.target, overwrite=True) as download:
                for _ in download.adopt_local():
                    pass
                assert safe <= set(download.have), why
                _VERSION.fetch(download)
                download.finish()
            assert store.have_bitmap(_VERSION.table).all(), why
        left = {path.relative_to(self.target).as_posix() for path in self.target.rglob("*")}
        assert left == {"a", "a/b", *_VERSION.files}, why
        _VERSION.assert_at(self.target)


@pytest.mark.parametrize("seed", range(3))
def test_power_fails_before_any_call(folder: Path, seed: int) -> None:
    run = _Run(folder / "run")
    recorder = Recorder(run.root, run.home, run.told)
    with recorder.watching():
        run.fetch()
    recorder.cut("nothing more")
    rng = random.Random(seed)  # noqa: S311  (a seed, not a secret)
    assert len(recorder.cuts) > 100
    for cut in recorder.cuts:
        restore(cut, run.root, run.home, rng)
        run.check(cut)

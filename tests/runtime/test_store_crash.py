"""kill -9 in the middle: nothing wrong is ever claimed, and nothing is fetched again."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sbp2p.store import Store
from tests.runtime.store_samples import SMALL_BATCH, crash_sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.runtime.store_samples import Sample

_REPOSITORY = Path(__file__).resolve().parents[2]
_BATCH_BLOCKS = 4
_MIDDLES = 4


def _start(home: Path, destination: Path) -> subprocess.Popen[str]:
    paths = [_REPOSITORY, _REPOSITORY / "protocol", _REPOSITORY / "keys"]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.store_crash_child", str(home), str(destination)],
        cwd=_REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdout=subprocess.PIPE,
        text=True,
    )


def _lines(child: subprocess.Popen[str]) -> Iterator[list[str]]:
    assert child.stdout is not None
    for line in child.stdout:
        yield line.split()


def _run_and_kill(home: Path, destination: Path, after: int) -> tuple[set[int], set[int], bool]:
    """Kill the child at its `after`th line; returns what it had, what it wrote, and if it ended."""
    had: set[int] = set()
    wrote: set[int] = set()
    finished = False
    with _start(home, destination) as child:
        for number, (word, *numbers) in enumerate(_lines(child)):
            if word == "had":
                had = set(map(int, numbers))
            elif word == "wrote":
                wrote.update(map(int, numbers))
            else:
                finished = True
            if number == after:
                child.kill()
    return had, wrote, finished


def _assert_true_claims(home: Path, version: Sample) -> set[int]:
    """Check that every block the index claims is on disk, byte for byte; returns them."""
    with Store.open(home, SMALL_BATCH) as store:
        claimed = set(store.have_bitmap(version.table))
        for index in claimed:
            assert store.read_block(version.table.digest(index)) == version.block(index)
    return claimed


def test_killed_again_and_again(tmp_path: Path) -> None:
    version, rng = crash_sample(), random.Random(5)  # noqa: S311  # a seed, not a secret
    home, destination = tmp_path / "home", tmp_path / "out"
    known: set[int] = set()
    for _ in range(_MIDDLES):
        had, wrote, finished = _run_and_kill(home, destination, rng.randrange(40))
        assert not finished
        assert had >= known  # what was written and not committed, too
        known = had | wrote  # lines can lag behind the process, never run ahead of it
        claimed = _assert_true_claims(home, version)
        assert len(claimed) > _BATCH_BLOCKS or len(known) <= _BATCH_BLOCKS
        assert not (destination / "b").exists()
    _, _, finished = _run_and_kill(home, destination, 10_000)
    assert finished
    version.assert_at(destination)
    with Store.open(home, SMALL_BATCH) as store:
        assert store.versions()[0].complete
        assert store.have_bitmap(version.table).all()


def test_killed_right_at_the_end(tmp_path: Path) -> None:
    version = crash_sample()
    home, destination = tmp_path / "home", tmp_path / "out"
    for _ in range(3):  # somewhere between the last commit and the end of finish
        _run_and_kill(home, destination, len(version.table))
        _assert_true_claims(home, version)
    with Store.open(home, SMALL_BATCH) as store, version.open(store, destination) as download:
        version.fetch(download)
        download.finish()
    version.assert_at(destination)

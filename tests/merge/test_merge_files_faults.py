"""Every call of the system that a merge's files need fails once, and then for good."""

from __future__ import annotations

import errno
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from sbp2p.errors import StoreError
from sbp2p.merge.files import FileSink
from sbp2p.merge.tensors import TensorSpec
from sbp2p.store import NoSpaceError
from tests.merge.test_merge_files import REQUEST, SPECS, check, write, write_rest
from tests.runtime.system_calls import Failing, SystemCalls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds paths in /proc")

CODES = [errno.EIO, errno.ENOSPC]


def merge(output: Path) -> None:
    """Merge in two goes: the first one is interrupted."""
    first = FileSink(output, request=REQUEST, extras={"config.json": b"{}"})
    with first as sink:
        sink.begin(SPECS)
        if "embed" not in sink.done:
            write(sink, SPECS["embed"])
    with FileSink(output, request=REQUEST, extras={"config.json": b"{}"}) as sink:
        sink.begin(SPECS)
        write_rest(sink, SPECS)


def calls_of_a_merge(folder: Path) -> int:
    calls = SystemCalls(folder)
    with calls.watching():
        merge(folder / "out")
    return calls.count


def steps(total: int) -> Iterator[tuple[int, int, bool]]:
    for number in range(1, total + 1):
        yield number, CODES[number % 2], number % 3 == 0


def test_whatever_call_fails_the_same_merge_goes_on(tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    counted.mkdir()
    total = calls_of_a_merge(counted)
    failed = set()
    for number, code, for_good in steps(total):
        folder = tmp_path / str(number)
        folder.mkdir()
        calls = Failing(folder, number, code, for_good=for_good)
        with calls.watching(), suppress(StoreError):
            merge(folder / "out")
        failed.add(calls.failed)
        if not (folder / "out").exists():
            merge(folder / "out")
        check_output(folder / "out")
    assert {"open", "pwritev", "fdatasync", "fsync", "fallocate", "ftruncate"} <= failed


def check_output(output: Path) -> None:
    if output.with_name("out.merging").exists():  # the last call of all failed: it is only litter
        assert list(output.with_name("out.merging").glob("files/*")) == []
        for path in output.with_name("out.merging").iterdir():
            path.unlink()
        output.with_name("out.merging").rmdir()
    check(output, SPECS)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(folder)],  # noqa: S607
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small filesystem needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)  # noqa: S607


def test_what_does_not_fit_is_refused_before_the_first_byte(small_disk: Path) -> None:
    large = {"t": TensorSpec("t", "F32", (300_000,))}
    with pytest.raises(NoSpaceError), FileSink(small_disk / "out", request=REQUEST) as sink:
        sink.begin(large)
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_gets_full_keeps_what_was_done(small_disk: Path) -> None:
    output = small_disk / "out"
    with FileSink(output, request=REQUEST) as sink:
        sink.begin(SPECS)
        write(sink, SPECS["embed"])
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        # its space was taken before: only the journal needs more, and few bytes
        write(sink, SPECS["mask"])
    filler.unlink()
    with FileSink(output, request=REQUEST) as sink:
        assert "embed" in sink.done
        sink.begin(SPECS)
        write_rest(sink, SPECS)
    check(output, SPECS)

"""Disks that are full, read-only or wrong: a named error, and nothing verified is lost."""

from __future__ import annotations

import os
import resource
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from sbp2p.config import StoreConfig
from sbp2p.errors import StoreError
from sbp2p.store import NoSpaceError, Store
from sbp2p_protocol.limits import KIB, MIB
from tests.runtime.store_samples import BLOCK, SMALL_BATCH, noise, sample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DISK = 1 * MIB


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "home", SMALL_BATCH) as opened:
        yield opened


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MiB; named before `store`, which must close its files first."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder)],  # noqa: S607
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small filesystem needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)  # noqa: S607


@contextmanager
def _file_size_limit(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes, as `ulimit -f` does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_does_not_fit_is_refused_before_the_first_byte(small_disk: Path, store: Store) -> None:
    version = sample({"a": noise("a", MIB // 2), "b": noise("b", MIB)}, block=64 * KIB)
    with pytest.raises(NoSpaceError, match=r"1,572,864 bytes needed, 1,04.,... bytes available"):
        version.open(store, small_disk / "out")
    assert list((small_disk / "out").iterdir()) == []
    assert store.versions() == []
    with version.open(store, small_disk / "out", version.indices_of("a")) as download:
        version.fetch(download)
        download.finish()
    assert (small_disk / "out/a").read_bytes() == version.files["a"]


def test_a_resumed_download_needs_only_what_is_not_reserved(small_disk: Path, store: Store) -> None:
    version = sample({"a": noise("a", 700 * KIB)}, block=64 * KIB)
    for _ in range(2):
        with version.open(store, small_disk) as download:
            download.write_block(0, [version.block(0)])
    with version.open(store, small_disk) as download:
        version.fetch(download)
        download.finish()
    version.assert_at(small_disk)


def test_a_disk_that_someone_else_fills_meanwhile(small_disk: Path, store: Store) -> None:
    version = sample({"a": noise("a", 600 * KIB)}, block=64 * KIB)
    with version.open(store, small_disk) as download:
        with (small_disk / "other").open("wb") as file, pytest.raises(OSError, match="No space"):
            file.write(bytes(_DISK))
        version.fetch(download)  # the room was reserved
        download.finish()
    assert (small_disk / "a").read_bytes() == version.files["a"]


def test_a_read_only_filesystem(small_disk: Path, store: Store) -> None:
    version = sample({"a": noise("a", 2 * BLOCK)})
    with version.open(store, small_disk) as download:
        download.write_block(0, [version.block(0)])
    _remount(small_disk, "ro")
    with pytest.raises(StoreError, match="read-only") as caught:
        version.open(store, small_disk)
    assert "remount" in caught.value.hint
    assert store.read_block(version.table.digest(0)) == version.block(0)
    _remount(small_disk, "rw")
    with version.open(store, small_disk) as download:
        assert list(download.have) == [0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_someone_else(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o555)
    with pytest.raises(StoreError, match="permission denied") as caught:
        sample({"a": b"a"}).open(store, folder)
    assert "permissions" in caught.value.hint


def test_a_limit_reached_while_fetching(tmp_path: Path) -> None:
    version = sample({"a": noise("a", 2 * MIB)}, block=64 * KIB)
    config = StoreConfig(commit_batch_bytes=256 * KIB)
    with Store.open(tmp_path / "home", config) as store:
        with version.open(store, tmp_path / "out") as download:
            with _file_size_limit(1 * MIB):
                for index in range(16):
                    download.write_block(index, [version.block(index)])
                with pytest.raises(
                    NoSpaceError, match=r"cannot write to .*file too large"
                ) as caught:
                    download.write_block(16, [version.block(16)])
                assert "ulimit" in caught.value.hint
                assert list(download.have) == list(range(16))
                for index in range(16):
                    assert store.read_block(version.table.digest(index)) == version.block(index)
            version.fetch(download)
            download.finish()
    version.assert_at(tmp_path / "out")


def test_files_too_big_for_the_filesystem_are_refused_at_once(store: Store, tmp_path: Path) -> None:
    version = sample({"a": noise("a", MIB), "b": noise("b", MIB + 1)}, block=64 * KIB)
    with _file_size_limit(1 * MIB), pytest.raises(NoSpaceError, match="cannot reserve space"):
        version.open(store, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_part_file_that_disappears(store: Store, tmp_path: Path) -> None:
    version = sample({"a": noise("a", 3 * BLOCK)})
    download = version.open(store, tmp_path / "out")
    part = download.file_path(0)
    assert part is not None
    part.unlink()
    with pytest.raises(StoreError, match=r"cannot write to .*no such file"):
        download.write_block(0, [version.block(0)])
    assert not download.have.any()
    with pytest.raises(StoreError):
        download.close()
    with version.open(store, tmp_path / "out") as again:
        version.fetch(again)
        again.finish()
    version.assert_at(tmp_path / "out")


def test_a_batch_that_cannot_be_synced_is_no_longer_had(tmp_path: Path) -> None:
    config = StoreConfig(max_open_files=1, commit_batch_bytes=MIB)
    version = sample({"a": noise("a", 2 * BLOCK), "b": noise("b", BLOCK)})
    with Store.open(tmp_path / "home", config) as store:
        download = version.open(store, tmp_path / "out")
        download.write_block(0, [version.block(0)])
        download.commit()
        download.write_block(1, [version.block(1)])
        download.write_block(2, [version.block(2)])  # closes the descriptor of "a"
        part = download.file_path(0)
        assert part is not None
        moved = part.rename(part.with_suffix(".away"))
        with pytest.raises(StoreError, match="cannot sync"):
            download.commit()
        assert list(download.have) == [0]
        moved.rename(part)
        version.fetch(download)
        download.finish()
        download.close()
    version.assert_at(tmp_path / "out")


@pytest.mark.parametrize(
    ("destination", "reason"),
    [("x" * 300, "file name too long"), ("file/below", "not a directory"), ("file", "file exists")],
)
def test_a_destination_that_cannot_be(
    store: Store, tmp_path: Path, destination: str, reason: str
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=f"cannot create .*: {reason}") as caught:
        sample({"a": b"a"}).open(store, tmp_path / destination)
    assert caught.value.hint


def test_a_name_as_long_as_the_filesystem_allows(store: Store, tmp_path: Path) -> None:
    version = sample({"n" * 255: noise("n", BLOCK)})
    with version.open(store, tmp_path / "out") as download:
        version.fetch(download)
        download.finish()
    version.assert_at(tmp_path / "out")


def test_a_destination_that_is_no_unicode(store: Store, tmp_path: Path) -> None:
    version = sample({"a/b": noise("a", BLOCK)})
    root = tmp_path / os.fsdecode(b"caf\xe9")
    with version.open(store, root) as download:
        version.fetch(download)
        download.finish()
    version.assert_at(root)
    assert store.versions()[0].root_path == root
    assert store.read_block(version.table.digest(0)) == version.block(0)


def _remount(folder: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)  # noqa: S607

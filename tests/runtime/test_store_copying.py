"""Blocks of other local files: copied or cloned, by several threads, and always verified."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from blake3 import blake3

from sbp2p.errors import StoreError
from sbp2p.store import Store
from sbp2p.store.copying import Cloner
from sbp2p_protocol.blocktable import BlockTableBuilder
from sbp2p_protocol.cid import raw_cid
from sbp2p_protocol.limits import KIB, MIB
from tests.runtime.store_samples import BLOCK, SMALL_BATCH, leaves, noise, sample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sbp2p.store import Download
    from tests.runtime.store_samples import Sample

_DISK = 512 * MIB


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "home", SMALL_BATCH) as opened:
        yield opened


@pytest.fixture(params=["xfs", "btrfs"])
def sharing_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A filesystem on which files can share what lies on the disk; named before `store`."""
    kind, image, folder = request.param, tmp_path / "image", tmp_path / "disk"
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    with image.open("wb") as file:
        file.truncate(_DISK)
    folder.mkdir()
    subprocess.run([f"mkfs.{kind}", "-q", str(image)], check=True, capture_output=True)
    mount = ["mount", "-o", "loop", str(image), str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a filesystem from a file needs root and a loop device")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)  # noqa: S607


def _adopt(download: Download) -> list[int]:
    return sorted(index for step in download.adopt_local() for index in step.indices)


def _free(folder: Path) -> int:
    os.sync()
    status = os.statvfs(folder)
    return status.f_bfree * status.f_frsize


def test_many_small_blocks_by_several_threads(store: Store, tmp_path: Path) -> None:
    files = {f"{number:03d}": noise(f"many-{number}", 9 * BLOCK + number) for number in range(80)}
    version = sample(files)
    version.publish(store, tmp_path / "old")
    with version.open(store, tmp_path / "new") as download:
        steps = list(download.adopt_local())
        found = sorted(index for step in steps for index in step.indices)
        assert found == list(range(len(version.table)))  # each once
        assert steps[-1].bytes_adopted == version.table.total_bytes
        assert steps[-1].bytes_checked == steps[-1].bytes_to_check
        download.finish()
    version.assert_at(tmp_path / "new")


def test_stopping_between_two_steps_keeps_what_was_found(store: Store, tmp_path: Path) -> None:
    version = sample({"f": noise("stop", 2000 * BLOCK)})
    version.publish(store, tmp_path / "old")
    with version.open(store, tmp_path / "new") as download:
        steps = download.adopt_local()
        first = next(steps).indices
        del steps
        assert first
        assert set(first) <= set(download.have)
        assert download.missing.any()
    with version.open(store, tmp_path / "new") as download:
        assert set(first) <= set(download.have)
        _adopt(download)
        download.finish()
    version.assert_at(tmp_path / "new")


def test_a_destination_that_cannot_be_written(store: Store, tmp_path: Path) -> None:
    version = sample({"f": noise("gone", 2000 * BLOCK)})
    version.publish(store, tmp_path / "old")
    download = version.open(store, tmp_path / "new")
    part = download.file_path(0)
    assert part is not None
    part.unlink()
    with pytest.raises(StoreError, match="cannot write to"):
        _adopt(download)
    with pytest.raises(StoreError):
        download.close()


def test_a_claimed_block_is_written_by_nobody_else(store: Store, tmp_path: Path) -> None:
    version = sample({"f": noise("claim", 3 * BLOCK)})
    with version.open(store, tmp_path / "new") as download:
        part = download.file_path(0)
        assert part is not None
        writer = threading.Thread(target=download.write_block, args=(1, [version.block(1)]))
        with download.claiming((0, 1)):
            writer.start()
            with part.open("r+b") as file:  # what a clone of a file that has changed leaves
                file.write(b"?" * 2 * BLOCK)
        writer.join()
        assert part.read_bytes()[BLOCK : 2 * BLOCK] == version.block(1)
        assert list(download.have) == [1]


def test_closing_waits_for_who_is_writing(store: Store, tmp_path: Path) -> None:
    version = sample({"f": noise("close", 3 * BLOCK)})
    download = version.open(store, tmp_path / "new")
    closer = threading.Thread(target=download.close)
    with download.claiming((0,)):
        closer.start()
        download.parts.write(0, [version.block(0)])
        download.note_written(0)
    closer.join()
    with version.open(store, tmp_path / "new") as again:
        assert list(again.have) == [0]
    with pytest.raises(StoreError, match="closed"), download.claiming((1,)):
        pass


@pytest.mark.parametrize("shift", [0, 1000])
def test_clones_take_no_room(sharing_disk: Path, store: Store, shift: int) -> None:
    data = noise("clone", 24 * MIB)
    version = sample({"f": data[shift:]}, block=256 * KIB)
    version.publish(store, sharing_disk / "old")
    before = _free(sharing_disk)
    with version.open(store, sharing_disk / "new") as download:
        assert _adopt(download) == list(range(len(version.table)))
        download.finish()
    version.assert_at(sharing_disk / "new")
    assert before - _free(sharing_disk) < 8 * MIB
    with (sharing_disk / "old/f").open("r+b") as file:
        file.write(b"?" * 2 * MIB)
    version.assert_at(sharing_disk / "new")  # a copy all the same


def test_clones_that_start_between_two_blocks_of_the_disk(sharing_disk: Path, store: Store) -> None:
    tensor = noise("tensor", 8 * MIB + 10)
    old = _cut_at_tensor("f", noise("old-head", 4096 + 80), tensor)
    new = _cut_at_tensor("g", noise("new-head", 3 * 4096 + 80), tensor)
    old.publish(store, sharing_disk / "old")
    before = _free(sharing_disk)
    with new.open(store, sharing_disk / "new") as download:
        assert _adopt(download) == list(range(1, len(new.table)))
        new.fetch(download)
        download.finish()
    new.assert_at(sharing_disk / "new")
    assert before - _free(sharing_disk) < 12 * MIB


def _cut_at_tensor(path: str, head: bytes, tensor: bytes) -> Sample:
    cut = [*leaves(head, len(head)), *leaves(tensor, MIB)]
    builder = BlockTableBuilder()
    builder.add_file(path, raw_cid(blake3(path.encode()).digest()), cut)
    return replace(sample({path: head + tensor}), table=builder.build())


def test_a_clone_of_what_has_changed_is_not_shown(sharing_disk: Path, store: Store) -> None:
    version = sample({"f": noise("changed", 8 * MIB)}, block=256 * KIB)
    version.publish(store, sharing_disk / "old")
    with (sharing_disk / "old/f").open("r+b") as file:
        file.seek(3 * MIB + 5)
        file.write(b"?")
    with version.open(store, sharing_disk / "new") as download:
        assert _adopt(download) == [i for i in range(32) if i != 12]
        assert list(download.missing) == [12]
        version.fetch(download)
        download.finish()
    version.assert_at(sharing_disk / "new")


def test_a_filesystem_that_cannot_share_is_not_asked_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(noise("a", MIB))
    (tmp_path / "b").write_bytes(b"")
    cloner = Cloner()
    with (tmp_path / "a").open("rb") as source, (tmp_path / "b").open("r+b") as target:
        for _ in range(8):
            assert cloner.may_work
            if cloner.clone(source.fileno(), 0, target.fileno(), 0, MIB):
                pytest.skip("this filesystem can")
    assert not cloner.may_work

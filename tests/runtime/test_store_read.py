"""Reading blocks from files that their owner changes, moves and deletes."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import chdir
from typing import TYPE_CHECKING

import pytest

from sbp2p.store import BlockUnavailableError, Store
from tests.runtime.store_samples import BLOCK, SMALL_BATCH, leaves, model, noise, sample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.runtime.store_samples import Sample


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "home", SMALL_BATCH) as opened:
        yield opened


@pytest.fixture
def version(store: Store, tmp_path: Path) -> Sample:
    published = sample({"f": noise("f", 4 * BLOCK + 10), "g": noise("g", BLOCK)})
    published.publish(store, tmp_path / "files")
    return published


def test_reads_into_given_memory(store: Store, version: Sample) -> None:
    digest, right = version.table.digest(4), version.block(4)
    memory = bytearray(BLOCK)
    view = store.read_block(digest, memory)
    assert view == right == memory[:10]
    assert store.read_block(digest, memoryview(memory)[5:]) == right
    assert store.read_block(digest) == right
    with pytest.raises(ValueError, match="does not fit"):
        store.read_block(digest, memory[:9])


def test_reads_many_at_once(store: Store, version: Sample) -> None:
    digests = [version.table.digest(i) for i in range(len(version.table))]
    memory = memoryview(bytearray(version.table.total_bytes))
    for into in (None, memory):
        views = store.read_blocks([*digests, bytes(32)], into)
        assert views == [*map(version.block, range(len(digests))), None]
    assert memory.tobytes() == b"".join(map(version.block, range(len(digests))))


def test_an_unknown_block_is_unavailable(store: Store) -> None:
    assert not store.has_block(bytes(32))
    with pytest.raises(BlockUnavailableError, match="not here"):
        store.read_block(bytes(32))


def test_a_changed_block_is_dropped_and_the_rest_is_served(
    store: Store, version: Sample, tmp_path: Path
) -> None:
    with (tmp_path / "files/f").open("r+b") as file:
        file.seek(BLOCK)
        file.write(b"?")
    for index in (0, 2, 3, 4):
        assert store.read_block(version.table.digest(index)) == version.block(index)
    with pytest.raises(BlockUnavailableError, match="files/f has changed"):
        store.read_block(version.table.digest(1))
    with pytest.raises(BlockUnavailableError, match="not here"):
        store.read_block(version.table.digest(1))
    assert not store.has_block(version.table.digest(1))
    assert 1 not in store.have_bitmap(version.table)
    assert not store.versions()[0].complete


def test_a_change_that_hides_its_mtime_is_seen_by_the_inode(
    store: Store, version: Sample, tmp_path: Path
) -> None:
    path = tmp_path / "files/f"
    stat = path.stat()
    other = tmp_path / "files/other"
    other.write_bytes(bytes(stat.st_size))
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert store.read_block(version.table.digest(0)) == version.block(0)  # now it is open
    other.replace(path)
    with pytest.raises(BlockUnavailableError):
        store.read_block(version.table.digest(0))


def test_a_touched_file_is_rehashed_once_and_then_trusted(
    store: Store, version: Sample, tmp_path: Path
) -> None:
    path = tmp_path / "files/f"
    os.utime(path, ns=(1, 1))
    assert store.known_leaves(path, path.stat()) is None
    for index in range(4):
        assert store.read_block(version.table.digest(index)) == version.block(index)
    assert store.known_leaves(path, path.stat()) is None  # one block was not seen yet
    assert store.read_block(version.table.digest(4)) == version.block(4)
    assert store.known_leaves(path, path.stat()) == list(leaves(version.files["f"]))


def test_a_file_that_grew_is_served_and_not_taken_for_the_whole(
    store: Store, version: Sample, tmp_path: Path
) -> None:
    path = tmp_path / "files/f"
    with path.open("ab") as file:
        file.write(b"more")
    for index in range(5):
        assert store.read_block(version.table.digest(index)) == version.block(index)
    assert store.known_leaves(path, path.stat()) is None


def test_a_truncated_file_loses_its_tail(store: Store, version: Sample, tmp_path: Path) -> None:
    os.truncate(tmp_path / "files/f", 2 * BLOCK + 1)
    served = []
    for index in range(5):
        try:
            assert store.read_block(version.table.digest(index)) == version.block(index)
            served.append(index)
        except BlockUnavailableError:
            pass
    assert served == [0, 1]


def test_a_missing_file_is_not_claimed_and_comes_back(
    store: Store, version: Sample, tmp_path: Path
) -> None:
    path, away = tmp_path / "files/f", tmp_path / "away"
    path.rename(away)
    assert list(store.have_bitmap(version.table)) == [5]
    assert list(store.have_bitmap(version.table, store.versions()[0])) == [5]
    assert not store.has_block(version.table.digest(0))
    with pytest.raises(BlockUnavailableError, match="no such file"):
        store.read_block(version.table.digest(0))
    away.rename(path)
    assert store.have_bitmap(version.table).all()
    assert store.read_block(version.table.digest(0)) == version.block(0)


def test_another_copy_is_read_when_one_is_gone(
    store: Store, version: Sample, tmp_path: Path
) -> None:
    version.publish(store, tmp_path / "copy")
    (tmp_path / "files/f").write_bytes(b"")
    (tmp_path / "files/g").unlink()
    for index in range(6):
        assert store.read_block(version.table.digest(index)) == version.block(index)
    assert all(store.read_blocks([version.table.digest(i) for i in range(6)]))
    assert store.have_bitmap(version.table).all()


def test_a_symlink_in_place_of_a_file_is_not_followed(
    store: Store, version: Sample, tmp_path: Path
) -> None:
    path = tmp_path / "files/f"
    path.rename(tmp_path / "target")
    path.symlink_to(tmp_path / "target")
    with pytest.raises(BlockUnavailableError):
        store.read_block(version.table.digest(0))


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket"])
def test_something_else_in_place_of_a_file_is_not_waited_for(
    store: Store, version: Sample, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "files/f"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        # relative: a socket's path must be short
        with socket.socket(socket.AF_UNIX) as listener, chdir(path.parent):
            listener.bind("f")
    with pytest.raises(BlockUnavailableError, match="files/f"):
        store.read_block(version.table.digest(0))
    steps = [step for step in store.verify(store.versions()[0]) if step.problem]
    assert [step.path for step in steps] == [path]


def test_a_changed_file_is_warned_about_once(
    store: Store, version: Sample, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "files/f").write_bytes(b"other" * 5000)
    (tmp_path / "files/g").unlink()
    for index in range(len(version.table)):
        with pytest.raises(BlockUnavailableError):
            store.read_block(version.table.digest(index))
    told = [record.getMessage().split(":")[0] for record in caplog.records]
    assert told == [
        f"{tmp_path}/files/f has changed",
        f"{tmp_path}/files/g cannot be read (no such file or directory)",
    ]


def test_a_part_file_is_hashed_at_every_read(store: Store, tmp_path: Path) -> None:
    version = sample({"part": noise("part", 3 * BLOCK)})
    with version.open(store, tmp_path / "out") as download:
        for index in (0, 1):
            download.write_block(index, [version.block(index)])
        download.commit()
        part = download.file_path(0)
        assert part is not None
        with part.open("r+b") as file:
            file.write(b"?")
        with pytest.raises(BlockUnavailableError, match="has changed"):
            store.read_block(version.table.digest(0))
        assert store.read_block(version.table.digest(1)) == version.block(1)
        download.write_block(2, [version.block(2)])
        with pytest.raises(Exception, match="1 blocks were damaged on disk"):
            download.finish()
        assert list(download.missing) == [0]
        version.fetch(download)
        download.finish()
    version.assert_at(tmp_path / "out")


def test_more_files_than_descriptors_from_many_threads(store: Store, tmp_path: Path) -> None:
    files = {f"{i:03d}": noise(f"many{i}", 100) for i in range(3 * SMALL_BATCH.max_open_files)}
    version = sample(files)
    version.publish(store, tmp_path / "many")
    wrong: list[int] = []

    def read(start: int) -> None:
        for step in range(len(version.table)):
            index = (start + 7 * step) % len(version.table)
            if store.read_block(version.table.digest(index)) != version.block(index):
                wrong.append(index)

    threads = [threading.Thread(target=read, args=(17 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_blocks_follow_a_file_to_its_final_name(store: Store, tmp_path: Path) -> None:
    version = model()
    digest = version.table.digest(2)
    with version.open(store, tmp_path / "out") as download:
        version.fetch(download)
        (before,) = store.locate(digest)
        assert before.path.endswith(b".part")
        download.finish()
    (after,) = store.locate(digest)
    assert not after.path.endswith(b".part")
    assert store.read_block(digest) == version.block(2)

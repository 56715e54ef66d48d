"""A download from open to finish: blocks in, files out, nothing lost on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sbp2p.errors import StoreBusyError
from sbp2p.store import BlockMismatchError, DestinationConflictError, NodeLock, Store
from sbp2p_protocol.bitmap import Bitmap
from tests.runtime.store_samples import BLOCK, SMALL_BATCH, model, noise, sample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.runtime.store_samples import Sample


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "home", SMALL_BATCH) as opened:
        yield opened


def _get(
    version: Sample, store: Store, root: Path, *, adopt: bool = False, overwrite: bool = False
) -> None:
    with version.open(store, root, overwrite=overwrite) as download:
        if adopt:
            for _ in download.adopt_local():
                pass
        version.fetch(download)
        download.finish()


def test_fetches_every_file_and_seeds_from_there(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    with version.open(store, root) as download:
        assert not download.have.any()
        version.fetch(download)
        assert download.have.all()
        assert not (root / "config.json").exists()
        download.finish()
    version.assert_at(root)
    (record,) = store.versions()
    assert record.complete
    assert record.role == "fetch"
    assert record.cid == version.manifest.cid
    assert store.have_bitmap(version.table).all()
    for index in range(len(version.table)):
        assert store.read_block(version.table.digest(index)) == version.block(index)


def test_takes_a_block_in_any_number_of_pieces(store: Store, tmp_path: Path) -> None:
    data = noise("pieces", BLOCK)
    version = sample({"f": data})
    with version.open(store, tmp_path / "out") as download:
        view = memoryview(data)
        download.write_block(0, [view[i : i + 1] for i in range(BLOCK)])  # more than IOV_MAX
        download.finish()
    assert (tmp_path / "out/f").read_bytes() == data


def test_wrong_bytes_are_refused_and_not_written(store: Store, tmp_path: Path) -> None:
    version = sample({"f": noise("right", BLOCK)})
    with version.open(store, tmp_path / "out") as download:
        for wrong in ([bytes(BLOCK)], [], [version.block(0), b"more"], [version.block(0)[:-1]]):
            with pytest.raises(BlockMismatchError, match="not block 0"):
                download.write_block(0, wrong)
        part = download.file_path(0)
        assert part is not None
        assert part.read_bytes() == bytes(BLOCK)
        assert not download.have.any()
        with pytest.raises(ValueError, match="1 wanted blocks are missing"):
            download.finish()


def test_blocks_are_served_before_they_are_committed(store: Store, tmp_path: Path) -> None:
    version = sample({"f": noise("early", 3 * BLOCK)})
    digest = version.table.digest(1)
    with version.open(store, tmp_path / "out") as download:
        download.write_block(1, [version.block(1)])
        assert download.pending_bytes == BLOCK
        assert store.has_block(digest)
        assert store.read_block(digest) == version.block(1)
        assert list(store.have_bitmap(version.table)) == [1]
        assert download.commit() == [1]
        assert download.commit() == []
        assert store.read_block(digest) == version.block(1)


def test_commits_by_itself_when_a_batch_is_full(store: Store, tmp_path: Path) -> None:
    version = sample({"f": noise("batches", 10 * BLOCK)})
    with version.open(store, tmp_path / "out") as download:
        for index in range(9):
            download.write_block(index, [version.block(index)])
        with Store.open(tmp_path / "home", SMALL_BATCH) as other:
            assert list(other.have_bitmap(version.table)) == list(range(8))


def test_closing_keeps_what_was_written_and_opening_resumes(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    with version.open(store, root) as download:
        for index in (0, 3, 5):
            download.write_block(index, [version.block(index)])
    (record,) = store.versions()
    assert not record.complete
    with version.open(store, root) as download:
        assert list(download.have) == [0, 3, 5]
        version.fetch(download)
        download.finish()
    version.assert_at(root)


def test_opening_a_finished_version_again_costs_nothing(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    for _ in range(2):
        with version.open(store, root) as download:
            version.fetch(download)
            download.finish()
        version.assert_at(root)
    with version.open(store, root) as download:
        assert download.have.all()


def test_what_a_file_glob_asks_for_and_nothing_else(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    with version.open(store, root, version.indices_of("model-2.safetensors")) as download:
        version.fetch(download)
        download.finish()
    assert [path.name for path in root.iterdir()] == ["model-2.safetensors"]
    assert not store.versions()[0].complete
    with version.open(store, root) as download:  # the rest, later
        assert download.have == version.indices_of("model-2.safetensors")
        version.fetch(download)
        download.finish()
    version.assert_at(root)
    assert store.versions()[0].complete


def test_a_few_blocks_stay_in_a_sparse_part_file(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    number = version.table.file_number("model-1.safetensors")
    assert number is not None
    wanted = version.table.blocks_for({number: [(2 * BLOCK, BLOCK)]})
    with version.open(store, root, wanted) as download:
        version.fetch(download)
        download.finish()
        path = download.file_path(number)
    assert path is not None
    assert path.suffix == ".part"
    assert path.read_bytes()[2 * BLOCK : 3 * BLOCK] == version.block(next(iter(wanted)))
    assert store.have_bitmap(version.table) == wanted
    with version.open(store, root) as download:
        assert download.have == wanted
        version.fetch(download)
        download.finish()
    version.assert_at(root)


def test_named_files_are_made_and_others_are_not(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    empty = version.table.file_number("empty.txt")
    assert empty is not None
    nothing = Bitmap(len(version.table))
    with store.open_download(
        version.document, version.manifest, version.table, root, nothing, files=[empty]
    ) as download:
        download.finish()
    assert (root / "empty.txt").read_bytes() == b""
    with pytest.raises(ValueError, match="none of the files"):
        store.open_download(
            version.document, version.manifest, version.table, root, version.all, files=[empty]
        )


@pytest.mark.parametrize("harm", ["replaced", "truncated", "missing", "extended"])
def test_a_part_file_that_is_another_file_is_not_believed(
    store: Store, tmp_path: Path, harm: str
) -> None:
    version, root = sample({"f": noise("harm", 6 * BLOCK)}), tmp_path / "out"
    with version.open(store, root) as download:
        for index in range(3):
            download.write_block(index, [version.block(index)])
        part = download.file_path(0)
    assert part is not None
    data = part.read_bytes()
    if harm == "replaced":
        copy = part.with_name("copy")
        copy.write_bytes(data[:BLOCK] + bytes(5 * BLOCK))
        copy.replace(part)
    elif harm == "truncated":
        part.write_bytes(data[:BLOCK])
    elif harm == "extended":
        part.write_bytes(data + b"x")
    else:
        part.unlink()
    with version.open(store, root) as download:
        assert not download.have.any()
        adopted = [index for step in download.adopt_local() for index in step.indices]
        assert adopted == ([0] if harm == "replaced" else [])
        version.fetch(download)
        download.finish()
    version.assert_at(root)


def test_a_part_file_that_someone_wrote_to_is_rehashed(store: Store, tmp_path: Path) -> None:
    version, root = sample({"f": noise("touch", 6 * BLOCK)}), tmp_path / "out"
    with version.open(store, root) as download:
        for index in range(4):
            download.write_block(index, [version.block(index)])
        part = download.file_path(0)
    assert part is not None
    with part.open("r+b") as file:
        file.seek(BLOCK)
        file.write(b"?")
    for _ in range(2):  # closing without having looked must not make it believable
        with version.open(store, root) as download:
            assert not download.have.any()
    with version.open(store, root) as download:
        assert [index for step in download.adopt_local() for index in step.indices] == [0, 2, 3]
    with version.open(store, root) as download:
        assert list(download.have) == [0, 2, 3]
        version.fetch(download)
        download.finish()
    version.assert_at(root)


def test_a_lost_index_costs_rehashing_and_no_fetching(tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    with Store.open(tmp_path / "home", SMALL_BATCH) as store:
        with version.open(store, root) as download:
            version.fetch(download)
    with Store.open(tmp_path / "other-home", SMALL_BATCH) as store:
        with version.open(store, root) as download:
            assert not download.have.any()
            steps = list(download.adopt_local())
            assert download.have.all()
            assert steps[-1].bytes_adopted == version.table.total_bytes
            download.finish()
    version.assert_at(root)


def test_a_new_version_takes_what_it_shares_from_the_old(store: Store, tmp_path: Path) -> None:
    old = model("a")
    new = sample({**old.files, "model-1.safetensors": noise("b", 5 * BLOCK)}, version=2)
    old.publish(store, tmp_path / "old")
    with new.open(store, tmp_path / "new") as download:
        steps = list(download.adopt_local())
        assert list(download.missing) == list(new.indices_of("model-1.safetensors"))
        assert steps[-1].bytes_checked == steps[-1].bytes_to_check == new.table.total_bytes
        assert sorted(i for step in steps for i in step.indices) == list(download.have)
        new.fetch(download)
        download.finish()
    new.assert_at(tmp_path / "new")


def test_local_blocks_that_went_bad_are_not_copied(store: Store, tmp_path: Path) -> None:
    version = sample({"f": noise("bad", 3 * BLOCK)})
    version.publish(store, tmp_path / "old")
    with (tmp_path / "old/f").open("r+b") as file:
        file.write(b"?")
    with version.open(store, tmp_path / "new") as download:
        assert [i for step in download.adopt_local() for i in step.indices] == [1, 2]
        version.fetch(download)
        download.finish()
    version.assert_at(tmp_path / "new")


def test_identical_files_are_adopted_where_they_lie(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    version.write_to(root)
    inode = (root / "model-1.safetensors").stat().st_ino
    with version.open(store, root) as download:
        for _ in download.adopt_local():
            pass
        assert download.have.all()
        download.finish()
    version.assert_at(root)
    assert (root / "model-1.safetensors").stat().st_ino == inode
    assert store.versions()[0].complete
    removed = store.remove_version(version.manifest.cid, delete_files=True)
    assert removed.files_deleted == 0  # they were the user's before


def test_identical_files_are_found_when_nobody_looked_before(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    version.write_to(root)
    with version.open(store, root) as download:
        version.fetch(download)
        download.finish()
    version.assert_at(root)


@pytest.mark.parametrize("size", [2 * BLOCK, 3 * BLOCK + 1])
def test_a_different_file_is_never_overwritten_silently(
    store: Store, tmp_path: Path, size: int
) -> None:
    version, root = sample({"d/f": noise("mine", 2 * BLOCK)}), tmp_path / "out"
    theirs = noise("theirs", size)
    (root / "d").mkdir(parents=True)
    (root / "d/f").write_bytes(theirs)
    with pytest.raises(DestinationConflictError, match=r"d/f exists and is a different file"):
        _get(version, store, root, adopt=True)
    with pytest.raises(DestinationConflictError, match=r"d/f exists and is a different file"):
        _get(version, store, root)
    assert (root / "d/f").read_bytes() == theirs
    _get(version, store, root, adopt=True, overwrite=True)
    version.assert_at(root)


@pytest.mark.parametrize("size", [6 * BLOCK, 7 * BLOCK])
def test_a_refused_download_leaves_nothing_behind(store: Store, tmp_path: Path, size: int) -> None:
    version = sample(
        {"a": noise("a", 9 * BLOCK), "b": noise("b", 6 * BLOCK), "c": b"", "d/e": b"x"}
    )
    root = tmp_path / "out"
    root.mkdir()
    theirs = version.files["b"][: 5 * BLOCK] + noise("theirs", size - 5 * BLOCK)
    (root / "b").write_bytes(theirs)
    for _ in range(2):
        with pytest.raises(DestinationConflictError, match="b exists"):
            _get(version, store, root, adopt=True)
        assert [path.name for path in root.rglob("*")] == ["b"]
        assert store.versions() == []
    _get(version, store, root, adopt=True, overwrite=True)
    version.assert_at(root)


def test_a_refused_download_keeps_what_was_fetched(store: Store, tmp_path: Path) -> None:
    version = sample({"a": noise("a", 9 * BLOCK), "b": noise("b", 6 * BLOCK)})
    root = tmp_path / "out"
    with version.open(store, root) as download:
        for index in range(3):
            download.write_block(index, [version.block(index)])
    (root / "b").write_bytes(noise("theirs", 6 * BLOCK))
    with pytest.raises(DestinationConflictError, match="b exists"):
        _get(version, store, root, adopt=True)
    (root / "b").unlink()
    with version.open(store, root) as download:
        assert download.have.count() == 3
        version.fetch(download)
        download.finish()
    version.assert_at(root)


def test_a_file_that_appears_while_fetching_is_not_overwritten(
    store: Store, tmp_path: Path
) -> None:
    version, root = sample({"a": noise("a", BLOCK), "b": noise("b", BLOCK)}), tmp_path / "out"
    with version.open(store, root) as download:
        version.fetch(download)
        (root / "b").write_bytes(b"theirs")
        with pytest.raises(DestinationConflictError):
            download.finish()
        assert not (root / "a").exists()  # all or nothing
        (root / "b").unlink()
        download.finish()
    version.assert_at(root)


def test_overwriting_reuses_blocks_of_the_file_it_replaces(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "out"
    old = noise("old", 4 * BLOCK)
    version = sample({"f": old[: 3 * BLOCK] + noise("tail", BLOCK)})
    root.mkdir()
    (root / "f").write_bytes(old)
    with version.open(store, root, overwrite=True) as download:
        assert [i for step in download.adopt_local() for i in step.indices] == [0, 1, 2]
        version.fetch(download)
        download.finish()
    version.assert_at(root)


def test_a_version_over_an_older_one_in_the_same_folder(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "out"
    old, new = model("a"), sample(model("b").files, version=2)
    for version in (old, new):
        _get(version, store, root, adopt=True, overwrite=True)
        version.assert_at(root)
    assert [record.complete for record in store.versions()] == [False, True]
    assert store.have_bitmap(new.table).all()
    assert not store.have_bitmap(old.table).all()
    assert [step for step in store.verify(store.versions()[1]) if step.damaged] == []


@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_nothing_is_written_through_what_is_not_a_folder(
    store: Store, tmp_path: Path, kind: str
) -> None:
    version, root = sample({"d/f": noise("f", BLOCK)}), tmp_path / "out"
    root.mkdir()
    (tmp_path / "elsewhere").mkdir()
    if kind == "file":
        (root / "d").write_bytes(b"")
    else:
        (root / "d").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DestinationConflictError, match=f"d is a {kind}") as caught:
        version.open(store, root)
    assert caught.value.hint
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_where_a_file_belongs(store: Store, tmp_path: Path) -> None:
    version, root = sample({"f": noise("f", BLOCK)}), tmp_path / "out"
    (root / "f").mkdir(parents=True)
    for overwrite in (False, True):
        with pytest.raises(DestinationConflictError, match="a folder"):
            version.open(store, root, overwrite=overwrite)


def test_one_process_at_a_time_works_on_a_download(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    with version.open(store, root):
        with pytest.raises(StoreBusyError, match="in use by this process"):
            version.open(store, root)
        with version.open(store, tmp_path / "elsewhere"):
            pass
    with version.open(store, root):
        pass


def test_a_node_lock_names_its_holder(tmp_path: Path) -> None:
    with NodeLock(tmp_path / "home"):
        with pytest.raises(StoreBusyError, match="in use by this process"):
            NodeLock(tmp_path / "home").acquire()
    with NodeLock(tmp_path / "home"):
        pass


def test_a_closed_download_takes_nothing(store: Store, tmp_path: Path) -> None:
    version = model()
    download = version.open(store, tmp_path / "out")
    download.close()
    download.close()
    with pytest.raises(Exception, match="closed"):
        download.write_block(0, [version.block(0)])

"""Listing, hashing, verifying: what the file system can do to a publisher."""

from __future__ import annotations

import os
import socket
import tracemalloc
from pathlib import Path

import pytest
from blake3 import blake3

from sbp2p.checkpoint.hashing import (
    HashingStoppedError,
    HashJob,
    LeafList,
    hash_files,
)
from sbp2p.checkpoint.scan import SourceFile, open_source, scan
from sbp2p.checkpoint.verify import FileState, verify_tree
from sbp2p.errors import CheckpointError
from sbp2p.store.targets import WORK_FOLDER
from sbp2p_protocol.bitmap import Bitmap
from sbp2p_protocol.blocktable import BlockTable, BlockTableBuilder
from sbp2p_protocol.cuts import cut_lengths
from sbp2p_protocol.limits import BLOCK_MAX, MIB
from sbp2p_protocol.paths import is_reserved
from sbp2p_protocol.unixfs import build_file


def fill(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def hash_tree(root: Path, workers: int | None = None) -> list[HashJob]:
    tree = scan(root)
    jobs = (HashJob(f, open_source(f), cut_lengths(f.size, None)) for f in tree.files)
    return list(hash_files(jobs, tree.total_bytes, workers=workers))


def table_of(root: Path) -> BlockTable:
    builder = BlockTableBuilder()
    for job in hash_tree(root):
        builder.add_file(job.file.path, build_file(job.leaves).cid, job.leaves)
    return builder.build()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


# -- scan ---------------------------------------------------------------------------------------


def test_files_come_in_path_order_and_leftovers_are_noted(tmp_path: Path) -> None:
    names = ["a.txt", "a/x", "a/b/c", "\u00e9\u4e2d\U0001f600.bin", ".gitattributes", "Z"]
    fill(tmp_path, dict.fromkeys(names, b"1"))
    fill(
        tmp_path,
        {".git/HEAD": b"", "a/__pycache__/m.pyc": b"", ".sbp2p-part": b"", ".cache/x": b""}
        | {"a/.SBP2P/cid/00000000.part": b""},
    )
    (tmp_path / "void" / "deeper").mkdir(parents=True)
    tree = scan(tmp_path)
    assert [file.path for file in tree.files] == [
        ".gitattributes", "Z", "a/b/c", "a/x", "a.txt", "\u00e9\u4e2d\U0001f600.bin",
    ]  # fmt: skip
    assert len(tree.notes) == 7
    assert any("a/.SBP2P is left out: " in note for note in tree.notes)
    assert any("void/deeper" in note for note in tree.notes)
    assert tree.total_bytes == 6


def test_the_work_folder_of_a_download_is_in_no_version(tmp_path: Path) -> None:
    assert is_reserved(WORK_FOLDER)
    fill(tmp_path, {WORK_FOLDER: b"x"})
    with pytest.raises(CheckpointError, match="own files"):
        scan(tmp_path / WORK_FOLDER)


def test_one_file_is_a_checkpoint_too_also_through_a_link(tmp_path: Path) -> None:
    fill(tmp_path, {"model.bin": b"abc"})
    (tmp_path / "latest.bin").symlink_to("model.bin")
    assert [f.path for f in scan(tmp_path / "model.bin").files] == ["model.bin"]
    linked = scan(tmp_path / "latest.bin")
    assert [f.path for f in linked.files] == ["latest.bin"]
    open_source_and_close(linked.files[0])


def open_source_and_close(file: SourceFile) -> None:
    os.close(open_source(file))


def test_symlinks_inside_are_refused_by_name(tmp_path: Path) -> None:
    fill(tmp_path, {"m/real": b"x"})
    (tmp_path / "m" / "evil").symlink_to("/etc/passwd")
    with pytest.raises(CheckpointError, match="m/evil is a symbolic link"):
        scan(tmp_path)
    (tmp_path / "m" / "evil").unlink()
    (tmp_path / "m" / "loop").symlink_to(".")
    with pytest.raises(CheckpointError, match="m/loop is a symbolic link"):
        scan(tmp_path)


def test_pipes_and_sockets_are_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe is neither"):
        scan(tmp_path)
    with pytest.raises(CheckpointError, match="pipe is neither"):
        scan(tmp_path / "pipe")
    (tmp_path / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(os.fspath(tmp_path / "s"))
        with pytest.raises(CheckpointError, match="s is neither"):
            scan(tmp_path)


@pytest.mark.parametrize("name", ["aux.txt", "a:b", "end.", "bidi\u202e", b"latin\xe9"])
def test_names_that_not_every_system_can_store_are_refused(
    tmp_path: Path, name: str | bytes
) -> None:
    with open(os.path.join(os.fsencode(tmp_path), os.fsencode(name)), "wb"):  # noqa: PTH118, PTH123
        pass
    with pytest.raises(CheckpointError):
        scan(tmp_path)


def test_names_that_some_systems_merge_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, {"Model.bin": b"", "model.bin": b""})
    with pytest.raises(CheckpointError, match="one name"):
        scan(tmp_path)


def test_nothing_to_publish_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no files"):
        scan(tmp_path)
    with pytest.raises(CheckpointError, match="cannot read"):
        scan(tmp_path / "absent")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file_is_named(tmp_path: Path) -> None:
    fill(tmp_path, {"secret": b"x"})
    (tmp_path / "secret").chmod(0)
    with pytest.raises(CheckpointError, match="secret"):
        hash_tree(tmp_path)


# -- hashing ------------------------------------------------------------------------------------


def test_digests_are_those_of_the_blocks_for_any_number_of_threads(tmp_path: Path) -> None:
    contents = {
        "big": os.urandom(20 * MIB + 5),
        "empty": b"",
        "one": os.urandom(BLOCK_MAX),
        **{f"small{i}": os.urandom(i) for i in range(40)},
    }
    fill(tmp_path, contents)
    before = open_descriptors()
    for workers in (1, 2, 5):
        found = {job.file.path: list(job.leaves) for job in hash_tree(tmp_path, workers=workers)}
        for name, data in contents.items():
            blocks = [data[at : at + BLOCK_MAX] for at in range(0, len(data), BLOCK_MAX)]
            assert found[name] == [(blake3(b).digest(), len(b)) for b in blocks]
    assert open_descriptors() == before


def test_leaf_list_is_a_sequence() -> None:
    leaves = LeafList()
    pairs = [(bytes([i]) * 32, i + 1) for i in range(5)]
    for digest, length in pairs:
        leaves.digests += digest
        leaves.lengths.append(length)
    assert list(leaves) == pairs
    assert leaves[-1] == pairs[-1]
    assert leaves[1:3] == pairs[1:3]
    with pytest.raises(IndexError):
        leaves[5]
    with pytest.raises(IndexError):
        LeafList()[0]


def test_progress_reaches_the_total_and_stopping_closes_everything(tmp_path: Path) -> None:
    fill(tmp_path, {"a": bytes(30 * MIB), "b": b"x", "c": bytes(30 * MIB)})
    tree = scan(tmp_path)
    seen: list[tuple[int, int]] = []

    def jobs() -> list[HashJob]:
        return [HashJob(f, open_source(f), cut_lengths(f.size, None)) for f in tree.files]

    list(hash_files(jobs(), tree.total_bytes, progress=lambda *at: seen.append(at)))
    assert seen[-1] == (60 * MIB + 1, 60 * MIB + 1)
    assert seen == sorted(seen)

    before = open_descriptors()
    lazy = (HashJob(f, open_source(f), cut_lengths(f.size, None)) for f in tree.files)
    with pytest.raises(HashingStoppedError):
        list(hash_files(lazy, tree.total_bytes, should_stop=iter([False, False, True]).__next__))
    assert open_descriptors() == before


@pytest.mark.parametrize("change", ["grow", "shrink", "rewrite", "replace", "remove", "link"])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, change: str) -> None:
    fill(tmp_path, {"a": os.urandom(3 * MIB)})
    tree = scan(tmp_path)
    file = tmp_path / "a"

    def jobs() -> object:
        job = HashJob(tree.files[0], open_source(tree.files[0]), cut_lengths(3 * MIB, None))
        match change:
            case "grow":
                file.write_bytes(bytes(4 * MIB))
            case "shrink":
                os.truncate(file, 2 * MIB)
            case "rewrite":
                with file.open("r+b") as out:
                    out.write(b"new")
                os.utime(file, ns=(0, 12345))
            case "replace":
                file.rename(tmp_path / "old")
                file.write_bytes(bytes(3 * MIB))
            case "remove":
                file.unlink()
            case "link":
                file.rename(tmp_path / "old")
                file.symlink_to("old")
        yield job

    before = open_descriptors()
    with pytest.raises(CheckpointError, match="changed while"):
        list(hash_files(jobs(), 3 * MIB))  # type: ignore[arg-type]
    assert open_descriptors() == before
    if change != "rewrite":
        with pytest.raises(CheckpointError):
            open_source(tree.files[0])


def test_a_sparse_gigabyte_takes_no_memory(tmp_path: Path) -> None:
    fill(tmp_path, {"sparse": b"x"})
    hash_tree(tmp_path)  # the first use of everything does not count
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    try:
        (job,) = hash_tree(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(job.leaves) == 1024
    assert len(set(job.leaves)) == 1
    assert peak < 12 * MIB


# -- verify -------------------------------------------------------------------------------------


def test_verify_names_damaged_files_and_blocks(tmp_path: Path) -> None:
    names = ["bad", "dir/gone", "good", "long", "short", "zero"]
    fill(tmp_path, {name: os.urandom(3 * MIB + 1) for name in names} | {"zero": b""})
    table = table_of(tmp_path)
    seen: list[tuple[int, int]] = []
    reports = list(verify_tree(tmp_path, table, progress=lambda *at: seen.append(at)))
    assert [r.path for r in reports] == names
    assert {r.state for r in reports} == {FileState.GOOD}
    assert seen[-1][0] == seen[-1][1] == 5 * (3 * MIB + 1)

    with (tmp_path / "bad").open("r+b") as file:
        file.seek(MIB + 10)
        file.write(b"~~~")
    (tmp_path / "dir" / "gone").unlink()
    with (tmp_path / "long").open("ab") as file:
        file.write(b"more")
    os.truncate(tmp_path / "short", 2 * MIB)
    (tmp_path / "zero").unlink()
    (tmp_path / "zero").symlink_to("good")
    found = {r.path: r for r in verify_tree(tmp_path, table)}
    assert list(found) == names
    assert [found[n].state.value for n in names] == [
        "damaged", "missing", "good", "damaged", "damaged", "unreadable",
    ]  # fmt: skip
    assert found["bad"].damaged == ((1, MIB),)
    assert found["long"].damaged == ()
    assert "instead of" in found["long"].detail
    assert [offset for _, offset in found["short"].damaged] == [2 * MIB, 3 * MIB]


def test_verify_of_a_part_looks_at_the_part_only(tmp_path: Path) -> None:
    fill(tmp_path, {"a": os.urandom(3 * MIB), "b": os.urandom(10)})
    table = table_of(tmp_path)
    only = Bitmap(len(table), [0])
    (tmp_path / "b").unlink()
    with (tmp_path / "a").open("r+b") as file:
        file.seek(MIB)
        file.write(bytes(100))
    (report,) = verify_tree(tmp_path, table, only=only)
    assert report.state is FileState.GOOD
    (report,) = verify_tree(tmp_path, table, only=Bitmap(len(table), [1]))
    assert report.damaged == ((1, MIB),)

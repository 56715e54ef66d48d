"""Versions: registered, found, rebuilt, verified and removed; and their loose blocks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sbp2p.errors import NotFoundError, StoreBusyError, StoreError
from sbp2p.store import Store
from sbp2p_keys.signing import SignedDocument
from sbp2p_protocol import dag_cbor
from sbp2p_protocol.cid import DAG_CBOR, DAG_PB, Cid, raw_cid
from sbp2p_protocol.dag_pb import PbLink, PbNode, encode_node
from sbp2p_protocol.errors import IntegrityError
from sbp2p_protocol.manifest import MANIFEST_DOMAIN, Manifest
from tests.runtime.store_samples import (
    BLOCK,
    PUBLISHER,
    SMALL_BATCH,
    Sample,
    leaves,
    model,
    noise,
    sample,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "home", SMALL_BATCH) as opened:
        yield opened


def test_publishing_in_place(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "files"
    version.publish(store, root)
    (record,) = store.versions()
    assert (record.role, record.complete, record.pinned) == ("publish", True, True)
    assert (record.name, record.version, record.publisher) == ("tiny", 1, PUBLISHER.peer_id)
    assert record.root_path == root
    assert record.document == version.document
    assert record.total_bytes == version.table.file_bytes
    assert store.get_loose(version.manifest.cid) == version.manifest.to_bytes()
    assert store.have_bitmap(version.table).all()
    version.publish(store, root)  # again: rewritten, same bytes
    assert len(store.versions()) == 1
    assert store.versions()[0].complete


def test_a_file_that_is_not_what_the_table_says(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "files"
    version.write_to(root)
    (root / "config.json").write_bytes(b"{}")
    with pytest.raises(StoreError, match=r"config\.json has 2 bytes and should have 13"):
        store.add_version(version.document, version.manifest, version.table, root)
    (root / "config.json").unlink()
    with pytest.raises(StoreError, match=r"cannot look at .*config\.json: no such file"):
        store.add_version(version.document, version.manifest, version.table, root)
    assert store.versions() == []


def test_files_indexed_with_the_stamp_from_before_hashing(store: Store, tmp_path: Path) -> None:
    version, root = sample({"f": noise("f", 3 * BLOCK)}), tmp_path / "files"
    version.write_to(root)
    stat = (root / "f").stat()
    cut = list(leaves(version.files["f"]))
    store.index_file(root / "f", cut, stat)
    assert store.known_leaves(root / "f", stat) == cut
    assert store.read_block(version.table.digest(2)) == version.block(2)
    with pytest.raises(ValueError, match="do not add up"):
        store.index_file(root / "f", cut[1:], stat)
    store.add_version(version.document, version.manifest, version.table, root)
    assert store.versions()[0].complete


def test_a_new_version_published_from_the_same_folder(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "files"
    old, new = model("a"), sample(model("b").files, version=2)
    old.publish(store, root)
    new.publish(store, root)
    assert [record.complete for record in store.versions()] == [False, True]
    assert store.have_bitmap(new.table).all()
    have = store.have_bitmap(old.table)
    assert 0 < have.count() < len(old.table)
    newest = store.newest(PUBLISHER.peer_id, "tiny")
    assert newest is not None
    assert newest.version == 2
    assert store.newest(PUBLISHER.peer_id, "other") is None
    found = store.version(old.manifest.cid)
    assert found is not None
    assert store.have_bitmap(old.table, found) == have
    assert store.table(found).files == old.table.files  # though its files are others now


def test_one_version_in_two_folders(store: Store, tmp_path: Path) -> None:
    version = model()
    version.publish(store, tmp_path / "a")
    with version.open(store, tmp_path / "b") as download:
        for _ in download.adopt_local():
            pass
        download.finish()
    version.assert_at(tmp_path / "b")
    assert len(store.versions()) == 2
    in_b = store.version(version.manifest.cid, tmp_path / "b")
    assert in_b is not None
    assert in_b.role == "fetch"
    store.remove_version(version.manifest.cid, tmp_path / "b", delete_files=True)
    assert not any((tmp_path / "b").iterdir())
    version.assert_at(tmp_path / "a")
    assert store.have_bitmap(version.table).all()


def test_the_table_comes_back_block_for_block(store: Store, tmp_path: Path) -> None:
    files = {f"{i:02d}": noise(f"t{i}", 37 * i) for i in range(60)}
    version = sample({**files, "z": noise("z", 3000)}, block=2)  # more leaves than one page
    version.publish(store, tmp_path / "files")
    table = store.table(store.versions()[0])
    assert table.files == version.table.files
    assert len(table) == len(version.table)
    for number in range(len(table.files)):
        assert list(table.file_blocks(number)) == list(version.table.file_blocks(number))
    assert all(table.digest(i) == version.table.digest(i) for i in range(len(table)))


def test_pins(store: Store, tmp_path: Path) -> None:
    version = model()
    version.publish(store, tmp_path / "files")
    store.unpin(version.manifest.cid)
    assert not store.versions()[0].pinned
    store.pin(version.manifest.cid)
    assert store.versions()[0].pinned
    with pytest.raises(NotFoundError):
        store.pin(raw_cid(bytes(32)))


def test_a_document_must_be_of_its_manifest(store: Store, tmp_path: Path) -> None:
    version, other = model("a"), sample({"f": b"x"})
    version.write_to(tmp_path)
    with pytest.raises(ValueError, match="not the signed form"):
        store.add_version(other.document, version.manifest, version.table, tmp_path)


def test_removing_leaves_the_files_of_the_user(store: Store, tmp_path: Path) -> None:
    version = model()
    version.publish(store, tmp_path / "files")
    removed = store.remove_version(version.manifest.cid, delete_files=True)
    assert (removed.folders, removed.files_deleted) == (1, 0)
    version.assert_at(tmp_path / "files")
    assert store.versions() == []
    assert not store.have_bitmap(version.table).any()
    assert store.get_loose(version.manifest.cid) is None
    with pytest.raises(NotFoundError, match="no version"):
        store.remove_version(version.manifest.cid)


def test_removing_deletes_what_was_fetched_and_is_unchanged(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    with version.open(store, root) as download:
        version.fetch(download)
        download.finish()
    (root / "config.json").write_bytes(b'{"edited": 1}')
    (root / "tokenizer/mine.txt").write_bytes(b"mine")
    removed = store.remove_version(version.manifest.cid, delete_files=True)
    assert removed.files_deleted == 5
    assert removed.kept == (root / "config.json",)
    left = sorted(path.name for path in root.rglob("*"))
    assert left == ["config.json", "mine.txt", "tokenizer"]


def test_removing_keeps_files_that_another_version_has(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "out"
    old = model("a")
    new = sample({**old.files, "config.json": b'{"hidden": 4}'}, version=2)
    for version in (old, new):
        with version.open(store, root, overwrite=True) as download:
            for _ in download.adopt_local():
                pass
            version.fetch(download)
            download.finish()
    removed = store.remove_version(old.manifest.cid, delete_files=True)
    assert removed.files_deleted == 0
    new.assert_at(root)
    assert store.have_bitmap(new.table).all()
    assert store.versions()[0].complete


def test_removing_an_unfinished_download(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    with version.open(store, root) as download:
        download.write_block(0, [version.block(0)])
        with pytest.raises(StoreBusyError, match="the download of tiny"):
            store.remove_version(version.manifest.cid)
    store.remove_version(version.manifest.cid, delete_files=True)
    assert list(root.iterdir()) == []


def test_loose_blocks_are_verified_and_kept(store: Store) -> None:
    data = dag_cbor.encode({"a": 1})
    cid = Cid.for_block(DAG_CBOR, data)
    assert store.get_loose(cid) is None
    store.put_loose(cid, data)
    store.put_loose(cid, data)
    assert store.get_loose(cid) == data
    other = Cid.for_block(DAG_CBOR, b"other")
    with pytest.raises(IntegrityError):
        store.put_loose_many([(other, b"other"), (cid, b"wrong")])
    assert store.get_loose(other) is None  # all or none


def test_loose_blocks_go_with_the_last_version_that_needs_them(
    store: Store, tmp_path: Path
) -> None:
    shared = encode_node(PbNode(links=(PbLink(raw_cid(bytes(32)), "", 1),), data=b"\x08\x02"))
    shared_cid = Cid.for_block(DAG_PB, shared)
    page = dag_cbor.encode([1])
    index = dag_cbor.encode({"pages": [Cid.for_block(DAG_CBOR, page)]})
    store.put_loose_many(
        [
            (shared_cid, shared),
            (Cid.for_block(DAG_CBOR, page), page),
            (Cid.for_block(DAG_CBOR, index), index),
        ]
    )
    versions = []
    for number in (1, 2):
        root = encode_node(PbNode(links=(PbLink(shared_cid, f"f{number}", 1),), data=b"\x08\x01"))
        store.put_loose(Cid.for_block(DAG_PB, root), root)
        manifest = Manifest(
            name="tiny",
            version=number,
            root=Cid.for_block(DAG_PB, root),
            tensors=Cid.for_block(DAG_CBOR, index) if number == 1 else None,
            publisher=PUBLISHER.peer_id,
            created=0,
        )
        document = SignedDocument(MANIFEST_DOMAIN, manifest.to_bytes()).sign(PUBLISHER)
        plain = sample({"f": b"f"})
        version = Sample(document, manifest, plain.table, plain.files)
        version.publish(store, tmp_path / str(number))
        versions.append(version)
    store.remove_version(versions[0].manifest.cid)
    assert store.get_loose(versions[0].manifest.root) is None
    assert store.get_loose(Cid.for_block(DAG_CBOR, page)) is None
    assert store.get_loose(shared_cid) == shared
    assert store.get_loose(versions[1].manifest.root) is not None
    store.remove_version(versions[1].manifest.cid)
    assert store.get_loose(shared_cid) is None


def test_verify_finds_damage_and_mending_it(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "files"
    version.publish(store, root)
    record = store.versions()[0]
    steps = list(store.verify(record))
    assert [step.path.relative_to(root).as_posix() for step in steps] == sorted(version.files)
    assert all(step.done and not step.damaged and not step.problem for step in steps)

    path = root / "model-1.safetensors"
    with path.open("r+b") as file:
        file.seek(2 * BLOCK)
        file.write(b"?")
    (root / "config.json").unlink()
    steps = [step for step in store.verify(record) if step.damaged or step.problem]
    assert [(step.path.name, step.problem) for step in steps] == [
        ("config.json", "missing"),
        ("model-1.safetensors", ""),
    ]
    assert [(block.offset, block.length) for block in steps[1].damaged] == [(2 * BLOCK, BLOCK)]
    assert not store.versions()[0].complete
    assert not store.have_bitmap(version.table).all()

    version.write_to(root)
    assert not any(step.damaged for step in store.verify(record))
    assert store.versions()[0].complete
    assert store.have_bitmap(version.table).all()


def test_verify_of_a_file_of_another_size(store: Store, tmp_path: Path) -> None:
    version = sample({"f": noise("f", BLOCK)})
    version.publish(store, tmp_path / "files")
    with (tmp_path / "files/f").open("ab") as file:
        file.write(b"x")
    (step,) = store.verify(store.versions()[0])
    assert "another size" in step.problem


def test_verify_of_a_part_of_a_version(store: Store, tmp_path: Path) -> None:
    version, root = model(), tmp_path / "out"
    part = version.indices_of("config.json")
    with version.open(store, root, wanted=part) as download:
        for index in part:
            download.write_block(index, [version.block(index)])
        download.finish()
    (root / "model-1.safetensors").write_bytes(b"something of the user's")
    record = store.versions()[0]
    damage = [step for step in store.verify(record) if step.damaged or step.problem]
    assert damage == [], "what was never fetched is no damage, nor is another file in its place"
    assert not store.versions()[0].complete
    (root / "config.json").unlink()
    assert [step.problem for step in store.verify(record) if step.problem] == ["missing"]
    version.write_to(root)
    assert not [step for step in store.verify(record) if step.damaged or step.problem]
    assert store.versions()[0].complete, "files that are right count, whoever put them there"


def test_verify_of_an_unfinished_download(store: Store, tmp_path: Path) -> None:
    version, root = sample({"f": noise("f", 4 * BLOCK)}), tmp_path / "out"
    with version.open(store, root) as download:
        for index in (0, 2):
            download.write_block(index, [version.block(index)])
        part = download.file_path(0)
    assert part is not None
    record = store.versions()[0]
    (step,) = store.verify(record)
    assert step.done
    assert step.damaged == ()
    stat = part.stat()
    with part.open("r+b") as file:
        file.seek(2 * BLOCK)
        file.write(b"?")
    os.utime(part, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (step,) = store.verify(record)
    assert [block.offset for block in step.damaged] == [2 * BLOCK]
    with version.open(store, root) as download:
        assert list(download.have) == [0]

"""How a download starts or resumes: lock, look, make room, register."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbp2p.errors import StoreError
from sbp2p.store.download import Download
from sbp2p.store.errors import os_errors
from sbp2p.store.files import make_folder
from sbp2p.store.finish import LOCK_NAME, release_work_folder
from sbp2p.store.locks import FileLock
from sbp2p.store.loose import hold
from sbp2p.store.parts import PartFiles
from sbp2p.store.targets import TargetOpener, choose_files, make_targets, work_folder
from sbp2p.store.versions import register

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from sbp2p.config import StoreConfig
    from sbp2p.store.extents import Extents
    from sbp2p.store.index import Index
    from sbp2p.store.reader import BlockReader
    from sbp2p_keys.signing import SignedDocument
    from sbp2p_protocol.bitmap import Bitmap
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.manifest import Manifest

_LOCK_TRIES: Final = 10
"""A download that ends removes its work folder, perhaps just when another one opens it."""


def open_download(
    *,
    index: Index,
    extents: Extents,
    reader: BlockReader,
    config: StoreConfig,
    document: SignedDocument,
    manifest: Manifest,
    table: BlockTable,
    destination: Path,
    wanted: Bitmap,
    files: Collection[int] | None,
    overwrite: bool,
    pinned: bool,
    make_room: Callable[[int], None],
) -> Download:
    """Open a download; see `Store.open_download`."""
    make_folder(destination)
    with os_errors("look at", destination):
        root = destination.resolve()
    chosen = choose_files(table, wanted) if files is None else sorted(set(files))
    if wanted.and_not(table.blocks_of_files(chosen)).any():
        raise ValueError("a wanted block is in none of the files to make")
    targets = make_targets(table, chosen, root, manifest.cid)
    folder = work_folder(root, manifest.cid)
    lock = _lock_folder(folder, manifest, root)
    try:
        opener = TargetOpener(table, wanted, root, overwrite=overwrite)
        with index.reading() as db:
            opener.look(db, targets, folder)
        opener.repair(index)
        make_room(opener.needed(targets))
        opener.make_parts(targets, folder)
        with index.writing() as db:
            row = register(db, document, manifest, table, root, role="fetch", pinned=pinned)
            hold(db, row, manifest)
        parts = PartFiles(
            index=index,
            table=table,
            targets=targets,
            opener=opener,
            folder=folder,
            version_row=row,
            max_open_files=config.max_open_files,
        )
        parts.register(targets)
    except BaseException:
        release_work_folder(folder, lock)
        raise
    download = Download(
        manifest=manifest,
        table=table,
        destination=root,
        wanted=wanted,
        have=opener.have,
        overwrite=overwrite,
        parts=parts,
        extents=extents,
        reader=reader,
        config=config,
        lock=lock,
    )
    try:
        download.recover()
    except BaseException:
        download.close()
        raise
    return download


def _lock_folder(folder: Path, manifest: Manifest, root: Path) -> FileLock:
    lock = FileLock(
        folder / LOCK_NAME,
        f"the download of {manifest.name} into {root}",
        hint="Wait for it to end, or get the version into another folder.",
    )
    for _ in range(_LOCK_TRIES):
        make_folder(folder)
        try:
            lock.acquire()
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        else:
            return lock
    raise StoreError(f"the folder {folder} is removed again and again")

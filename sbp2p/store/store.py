"""The store as the rest of a node sees it. Synchronous and thread-safe: call it in worker threads.

Several processes may open the same home: the index is shared (see index.py), and one download is
worked on by one process at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from sbp2p.errors import StoreError
from sbp2p.store.collect import Collector, bytes_used, make_room
from sbp2p.store.errors import os_errors
from sbp2p.store.extents import Extents, IndexedFile
from sbp2p.store.index import Index
from sbp2p.store.loose import LooseBlocks, hold
from sbp2p.store.opening import open_download
from sbp2p.store.reader import BlockReader, read_all
from sbp2p.store.records import FileStamp
from sbp2p.store.removal import remove_versions
from sbp2p.store.targets import leaves_of
from sbp2p.store.verify import Verifier
from sbp2p.store.versions import Versions, link_files, no_version, register

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from sbp2p.config import StoreConfig
    from sbp2p.store.collect import CollectStep
    from sbp2p.store.download import Download
    from sbp2p.store.records import Location, RemovedVersion, Role, VerifyStep, VersionRecord
    from sbp2p_keys.identity import PeerId
    from sbp2p_keys.signing import SignedDocument
    from sbp2p_protocol.bitmap import Bitmap
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.manifest import Manifest


class Store:
    """The index in a node's home, and the files that it points to.

    Every method raises StoreError when the disk or the index fails.
    """

    def __init__(self, index: Index, config: StoreConfig) -> None:
        self._index = index
        self._config = config
        self._extents = Extents(index)
        self._reader = BlockReader(self._extents, config.max_open_files)
        self._loose = LooseBlocks(index)
        self._versions = Versions(index)

    @classmethod
    def open(cls, home: Path, config: StoreConfig) -> Self:
        """Open the store in `home`, making it if it is new; use it as a context manager.

        Raises:
            StoreError: the folder cannot be used, or the index is damaged or from a newer sbp2p.
        """
        return cls(Index(home.absolute(), config), config)

    @property
    def home(self) -> Path:
        """The folder of the index."""
        return self._index.path.parent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and the index; downloads are closed before."""
        self._reader.close()
        self._index.close()

    # -- loose blocks -------------------------------------------------------------------------

    def put_loose(self, cid: Cid, data: bytes) -> None:
        """Keep a manifest, tree node or tensor index page; raises IntegrityError if it is not."""
        self._loose.put([(cid, data)])

    def put_loose_many(self, blocks: Iterable[tuple[Cid, bytes]]) -> None:
        """Keep several loose blocks in one transaction: a thousand cost little more than one."""
        self._loose.put(blocks)

    def get_loose(self, cid: Cid) -> bytes | None:
        """Return a loose block, or None."""
        return self._loose.get(cid)

    # -- versions -----------------------------------------------------------------------------

    def add_version(
        self,
        document: SignedDocument,
        manifest: Manifest,
        table: BlockTable,
        root_path: Path,
        *,
        pinned: bool = True,
        role: Role = "publish",
    ) -> VersionRecord:
        """Register a complete version whose files lie under `root_path`.

        Files that were indexed (`index_file`) with these blocks and have not changed since are
        taken as they are; others are indexed now, with the stamp they have now, so the caller
        must have hashed them just before. Adding a version again is no error.

        Raises:
            StoreError: a file is missing or has another size than the table says.
        """
        root = _resolved(root_path)
        ids = self._index_table(table, root)
        with self._index.writing() as db:
            row = register(db, document, manifest, table, root, role=role, pinned=pinned)
            link_files(db, row, list(enumerate(ids)))
            db.execute("UPDATE version SET complete = 1 WHERE id = ?", (row,))
            hold(db, row, manifest)
        record = self._versions.find(manifest.cid, root)
        if record is None:  # another process removed it in this instant
            raise no_version(manifest.cid)
        return record

    def _index_table(self, table: BlockTable, root: Path) -> list[int]:
        def files() -> Iterator[IndexedFile]:
            for number, file in enumerate(table.files):
                path = root / file.path
                with os_errors("look at", path):
                    stamp = FileStamp.of(path.lstat())
                if stamp.size != file.size:
                    raise StoreError(
                        f"{path} has {stamp.size} bytes and should have {file.size}",
                        hint="It changed while it was published: publish it again.",
                    )
                yield IndexedFile(path, leaves_of(table, number), stamp)

        return self._extents.index_files(files())

    def versions(self) -> list[VersionRecord]:
        """Return every version in every folder, complete or not."""
        return self._versions.all()

    def version(self, cid: Cid, root_path: Path | None = None) -> VersionRecord | None:
        """Return a version by its manifest, a complete one if there is one; None if unknown."""
        return self._versions.find(cid, None if root_path is None else _resolved(root_path))

    def newest(self, publisher: PeerId, name: str) -> VersionRecord | None:
        """Return the version of a model with the highest number that is here, or None."""
        return self._versions.newest(publisher, name)

    def table(self, record: VersionRecord) -> BlockTable:
        """Return the block table of a version; the first time 3 s for a million blocks."""
        return self._versions.table(record)

    def file_cids(self, record: VersionRecord, most: int) -> list[Cid]:
        """Return the CIDs of at most so many of a version's files, in their order."""
        return self._versions.file_cids(record, most)

    def pin(self, cid: Cid) -> None:
        """Keep a version when space is wanted; raises NotFoundError."""
        self._versions.set_pinned(cid, True)

    def unpin(self, cid: Cid) -> None:
        """Let a version go when space is wanted; raises NotFoundError."""
        self._versions.set_pinned(cid, False)

    def note_use(self, cid: Cid) -> None:
        """Note that a version is used just now: what was not used for longest goes first."""
        self._versions.note_use(cid)

    @property
    def bytes_used(self) -> int:
        """Bytes on disk of what this node has fetched: what a quota is of."""
        return bytes_used(self._index)

    def collect(self, limit_bytes: int) -> Iterator[CollectStep]:
        """Remove versions until what was fetched takes at most so many bytes, step by step.

        Only fetched versions that are not pinned go, the one that was not used for longest first,
        and none that a running fetch needs; see collect.py. Ending the iteration early is safe.
        """
        return self._collector().steps(limit_bytes)

    def collectable(self) -> list[VersionRecord]:
        """Return the versions that `collect` may remove now, in its order."""
        return self._collector().candidates()

    def _collector(self, protected: Collection[BlockTable] = ()) -> Collector:
        return Collector(
            self._index, self._versions, forget=self._reader.files.forget, protected=protected
        )

    def remove_version(
        self, cid: Cid, root_path: Path | None = None, *, delete_files: bool = False
    ) -> RemovedVersion:
        """Forget a version, in one folder or in all.

        Args:
            cid: of its manifest.
            root_path: only in this folder.
            delete_files: delete those of its files that this node fetched, that have not changed
                since, and that no other version here has.

        Raises:
            NotFoundError: no such version.
            StoreBusyError: it is being downloaded.
        """
        root = None if root_path is None else _resolved(root_path)
        records = [
            record
            for record in self._versions.all()
            if record.cid == cid and root in (None, record.root_path)
        ]
        if not records:
            raise no_version(cid)
        return remove_versions(self._index, records, delete_files=delete_files)

    def verify(self, record: VersionRecord) -> Iterator[VerifyStep]:
        """Rehash a version's files, step by step; the index is put right at the end of each file.

        Damaged blocks are dropped from the index, so that getting the version again fetches just
        these; files that are right again are served again.
        """
        return Verifier(self._index, self._extents, record, self.table(record)).steps()

    # -- blocks -------------------------------------------------------------------------------

    def index_file(
        self, path: Path, leaves: Iterable[tuple[bytes, int]], stat: os.stat_result
    ) -> None:
        """Record where the blocks of one hashed file lie; for many files use `index_files`.

        Args:
            path: the file.
            leaves: (digest, length) of its blocks in order; they are the whole file.
            stat: what the file had before it was hashed, and still had afterwards.
        """
        self.index_files([(path, leaves, stat)])

    def index_files(
        self, files: Iterable[tuple[Path, Iterable[tuple[bytes, int]], os.stat_result]]
    ) -> None:
        """Record the blocks of many hashed files, in few transactions; see `index_file`."""
        self._extents.index_files(
            IndexedFile(_resolved_file(path), list(leaves), FileStamp.of(stat))
            for path, leaves, stat in files
        )

    def known_leaves(self, path: Path, stat: os.stat_result) -> list[tuple[bytes, int]] | None:
        """Return a file's (digest, length) blocks if it has not changed since it was indexed."""
        return self._extents.known_leaves(_resolved_file(path), stat)

    def has_block(self, digest: bytes) -> bool:
        """Return whether a leaf block can probably be read here."""
        return self._extents.has(digest)

    def have_bitmap(self, table: BlockTable, record: VersionRecord | None = None) -> Bitmap:
        """Return which blocks of a version can probably be read here, wherever they lie.

        Args:
            table: the version's.
            record: the version, if it is here: ten times quicker for a large one.
        """
        return self._extents.have(table, None if record is None else record.row)

    def locate(self, digest: bytes) -> list[Location]:
        """Return every place where a block is said to lie."""
        return self._extents.all(digest)

    def read_block(self, digest: bytes, into: bytearray | memoryview | None = None) -> memoryview:
        """Return the bytes of a leaf block, from a file that is what it was when verified.

        Args:
            digest: 32 bytes.
            into: memory to read into, at least as long as the block; new memory if None.

        Raises:
            BlockUnavailableError: not here, or the file that had it is gone or has other bytes
                now (which the index then no longer claims).
        """
        return self._reader.read(digest, into)

    def read_blocks(
        self, digests: Sequence[bytes], into: memoryview | None = None
    ) -> list[memoryview | None]:
        """Return the bytes of several blocks, None for each that is not available.

        Args:
            digests: 32 bytes each.
            into: memory for all of them, filled from the start; new memory if None.
        """
        return read_all(self._reader, self._extents, digests, into)

    # -- downloads ----------------------------------------------------------------------------

    def open_download(
        self,
        document: SignedDocument,
        manifest: Manifest,
        table: BlockTable,
        destination: Path,
        wanted: Bitmap,
        *,
        files: Collection[int] | None = None,
        overwrite: bool = False,
        pinned: bool = True,
    ) -> Download:
        """Start or resume getting a version into a folder.

        Args:
            document: the signed manifest.
            manifest: what it says.
            table: all blocks and files of the version.
            destination: the folder that its paths are relative to; made if new.
            wanted: blocks to get.
            files: numbers of the files to make, empty ones too. None: those that are wanted whole,
                and the first file of each wanted block that is in none of these; every file when
                everything is wanted.
            overwrite: a different file under a final name is replaced when the download finishes.
            pinned: keep the version when space is wanted.

        Raises:
            StoreBusyError: this version is being downloaded into this folder, by the process that
                the message names.
            NoSpaceError: the wanted blocks do not fit, on the disk or in the quota.
            DestinationConflictError: something else lies where a file belongs.
            StoreError: the folder cannot be written.
            ValueError: a wanted block is in none of `files`.
        """
        return open_download(
            index=self._index,
            extents=self._extents,
            reader=self._reader,
            config=self._config,
            document=document,
            manifest=manifest,
            table=table,
            destination=destination,
            wanted=wanted,
            files=files,
            overwrite=overwrite,
            pinned=pinned,
            make_room=lambda needed: self._make_room(table, needed),
        )

    def _make_room(self, table: BlockTable, needed_bytes: int) -> None:
        quota = self._config.quota_bytes
        if quota is not None:
            make_room(self._collector([table]), self._index, quota, needed_bytes)


def _resolved(path: Path) -> Path:
    with os_errors("look at", path):
        return path.resolve()


def _resolved_file(path: Path) -> Path:
    """Resolve a file's folder, not the file: a symlink in its place is not the file."""
    return _resolved(path.parent) / path.name

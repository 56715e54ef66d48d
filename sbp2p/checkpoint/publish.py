"""From files to a root: everything of a version but its manifest.

Theory of operation: the files are listed, looked into for tensors, cut, hashed in threads and, one
after the other as each is complete, added to the tree, the block table and the store's index. What
stays in memory is the block table (60 bytes a block), and the rows of the tensor index; the content
of the files never does.

The same bytes under the same paths give the same root and the same tensor index, whoever publishes
them, whatever the threads do, and whether or not the store knew them.

Files are always read, because a size and a time do not prove content. `trust_mtime` is for trees so
large that reading them again costs more than that doubt: a file that the store has indexed, and
that has the same inode, size and modification time, then keeps the hashes it had.

Error cases: CheckpointError for files that cannot be published or that change meanwhile (nothing
was published; blocks of files that were complete may stay in the index, where they do no harm), and
StoreError from the store.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sbp2p.checkpoint.formats import ByteSource, inspect
from sbp2p.checkpoint.hashing import HashJob, hash_files
from sbp2p.checkpoint.scan import SourceFile, SourceTree, open_source, scan
from sbp2p.errors import CheckpointError
from sbp2p_protocol.blocktable import BlockTable, BlockTableBuilder
from sbp2p_protocol.cuts import cut_lengths
from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.tensor_index import TensorEntry, build_tensor_index
from sbp2p_protocol.tree import TreeFile, build_tree
from sbp2p_protocol.unixfs import build_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sbp2p.checkpoint.hashing import LeafList
    from sbp2p.store import Store
    from sbp2p_protocol.cid import Cid

INDEX_BATCH_ROWS: Final = 16_384
"""Blocks gathered before they go to the store's index in one transaction."""


@dataclass(frozen=True, slots=True)
class PublishedTree:
    """A hashed checkpoint: what a manifest names."""

    root: Cid
    tensors: Cid | None
    """Root of the tensor index; None when no file has tensors that can be named."""
    table: BlockTable
    nodes: tuple[tuple[Cid, bytes], ...]
    """Tree nodes and tensor index pages, children first; already in the store if there was one."""
    tensor_count: int
    base: Path
    """The directory that the paths in the table are relative to."""
    notes: tuple[str, ...]
    """What the user should know: what was left out, what is not the format it claims to be."""


def publish_tree(
    path: str | os.PathLike[str],
    *,
    store: Store | None = None,
    trust_mtime: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> PublishedTree:
    """Hash the checkpoint at `path`, one file or a directory, and build its tree and indexes.

    Args:
        path: what to publish.
        store: where the nodes and the places of the blocks are recorded; None records nothing.
        trust_mtime: see the module's text; needs `store`.
        workers: hashing threads; one per core if None.
        progress: called with (bytes done, total bytes) from this thread.
        should_stop: asked every few milliseconds; true raises HashingStoppedError.
    """
    if trust_mtime and store is None:
        raise ValueError("trust_mtime needs the store that knows the files")
    publication = _Publication(scan(path), store, trust_mtime)
    hashed = hash_files(
        publication.jobs(),
        publication.source.total_bytes,
        workers=workers,
        progress=progress,
        should_stop=should_stop,
    )
    try:
        for job in hashed:
            publication.add(job)
        return publication.finish()
    except LocalProtocolError as error:  # a bound of limits.py that only the whole tree can pass
        raise CheckpointError(str(error)) from error


class _Publication:
    """One checkpoint on its way to a root."""

    def __init__(self, source: SourceTree, store: Store | None, trust_mtime: bool) -> None:
        self.source = source
        self._store = store
        self._trust_mtime = trust_mtime
        self._builder = BlockTableBuilder()
        self._files: list[TreeFile] = []
        self._nodes: list[tuple[Cid, bytes]] = []
        self._tensors: list[list[TensorEntry]] = []
        self._notes = list(source.notes)
        self._hashed: list[tuple[Path, LeafList, os.stat_result]] = []
        self._rows = 0

    def jobs(self) -> Iterator[HashJob]:
        """Open and look into one file after the other, as hashing gets to them."""
        for file in self.source.files:
            descriptor = open_source(file)
            try:
                yield self._job(file, descriptor)
            except OSError as error:
                raise CheckpointError(f"cannot read {file.location}: {error.strerror}") from error

    def _job(self, file: SourceFile, descriptor: int) -> HashJob:
        found = inspect(ByteSource(file.size, lambda size, at: os.pread(descriptor, size, at)))
        if found.note:
            self._notes.append(f"{file.path} {found.note}")
        if found.layout is not None and found.layout.tensors is not None:
            self._tensors.append(
                [
                    TensorEntry(t.name, t.dtype, t.shape, file.path, t.offset, t.length)
                    for t in found.layout.tensors
                ]
            )
        job = HashJob(file, descriptor, cut_lengths(file.size, found.spans))
        if self._store is not None and self._trust_mtime:
            known = self._store.known_leaves(file.location, os.fstat(descriptor))
            if known is not None:
                job.skip(known)
        return job

    def add(self, job: HashJob) -> None:
        """Take a hashed file, in path order."""
        leaves = job.leaves
        built = build_file(leaves, sink=lambda cid, data: self._nodes.append((cid, data)))
        self._builder.add_file(job.file.path, built.cid, leaves)
        self._files.append(TreeFile(job.file.path, built.cid, built.tsize))
        if self._store is not None:
            self._hashed.append((job.file.location, leaves, job.status))
            self._rows += len(leaves)
            if self._rows >= INDEX_BATCH_ROWS:
                self._flush(self._store)

    def _flush(self, store: Store) -> None:
        store.index_files(self._hashed)
        self._hashed = []
        self._rows = 0

    def finish(self) -> PublishedTree:
        """Build what stands over the files."""
        top = build_tree(self._files)
        self._nodes += top.nodes
        tensors, count = self._tensor_index()
        if self._store is not None:
            self._flush(self._store)
            self._store.put_loose_many(self._nodes)
        return PublishedTree(
            top.root,
            tensors,
            self._builder.build(),
            tuple(self._nodes),
            count,
            self.source.base,
            tuple(self._notes),
        )

    def _tensor_index(self) -> tuple[Cid | None, int]:
        """Build the tensor index; returns its root and how many tensors it has."""
        files = [entries for entries in self._tensors if entries]
        try:
            return self._build_index(files)
        except LocalProtocolError:
            # some file describes a tensor that an index cannot hold: the others keep theirs
            files = [entries for entries in files if self._can_index(entries)]
        try:
            return self._build_index(files)
        except LocalProtocolError as error:
            self._notes.append(f"no tensor index: {error}")
            return None, 0

    def _build_index(self, files: list[list[TensorEntry]]) -> tuple[Cid | None, int]:
        entries = [entry for file in files for entry in file]
        if not entries:
            return None, 0
        root, pages = build_tensor_index(entries)
        self._nodes += pages
        return root, len(entries)

    def _can_index(self, entries: list[TensorEntry]) -> bool:
        try:
            build_tensor_index(entries)
        except LocalProtocolError as error:
            self._notes.append(f"{entries[0].file} is not in the tensor index: {error}")
            return False
        return True

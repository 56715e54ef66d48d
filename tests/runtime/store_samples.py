"""Small signed versions for the store's tests, and what their blocks are."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from sbp2p.config import StoreConfig
from sbp2p_keys.identity import PrivateKey
from sbp2p_keys.signing import SignedDocument
from sbp2p_protocol.bitmap import Bitmap
from sbp2p_protocol.blocktable import BlockTable, BlockTableBuilder
from sbp2p_protocol.cid import DAG_PB, Cid, raw_cid
from sbp2p_protocol.manifest import MANIFEST_DOMAIN, Manifest
from sbp2p_protocol.paths import path_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sbp2p.store import Download, Store

PUBLISHER = PrivateKey.from_seed(bytes(range(32)))
BLOCK = 4096
SMALL_BATCH = StoreConfig(commit_batch_bytes=4 * BLOCK)


def noise(seed: str, size: int) -> bytes:
    """Return `size` bytes that no other seed gives."""
    return hashlib.shake_128(seed.encode()).digest(size)


@dataclass(frozen=True)
class Sample:
    """A version that nobody has fetched yet."""

    document: SignedDocument
    manifest: Manifest
    table: BlockTable
    files: Mapping[str, bytes]

    @property
    def all(self) -> Bitmap:
        return Bitmap.full(len(self.table))

    def block(self, index: int) -> bytes:
        number, offset = self.table.locations(index)[0]
        data = self.files[self.table.files[number].path]
        return data[offset : offset + self.table.length(index)]

    def indices_of(self, path: str) -> Bitmap:
        number = self.table.file_number(path)
        assert number is not None
        return self.table.blocks_of_files([number])

    def write_to(self, root: Path) -> None:
        for path, data in self.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)

    def open(
        self,
        store: Store,
        destination: Path,
        wanted: Bitmap | None = None,
        *,
        overwrite: bool = False,
    ) -> Download:
        return store.open_download(
            self.document,
            self.manifest,
            self.table,
            destination,
            self.all if wanted is None else wanted,
            overwrite=overwrite,
        )

    def fetch(self, download: Download) -> None:
        for index in list(download.missing):
            download.write_block(index, [self.block(index)])

    def publish(self, store: Store, root: Path) -> None:
        self.write_to(root)
        store.add_version(self.document, self.manifest, self.table, root)

    def assert_at(self, root: Path) -> None:
        found = {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }
        assert found == dict(self.files)

    def assert_finals(self, root: Path) -> None:
        for path, data in self.files.items():
            assert (root / path).read_bytes() == data


def leaves(data: bytes, block: int = BLOCK) -> Iterator[tuple[bytes, int]]:
    """Cut at every `block` bytes."""
    for start in range(0, len(data), block):
        piece = data[start : start + block]
        yield blake3(piece).digest(), len(piece)


def sample(
    files: Mapping[str, bytes], *, version: int = 1, name: str = "tiny", block: int = BLOCK
) -> Sample:
    """Sign a version of these files."""
    builder = BlockTableBuilder()
    for path in sorted(files, key=path_order):
        cut = list(leaves(files[path], block))
        builder.add_file(path, raw_cid(blake3(files[path]).digest()), cut)
    listing = "".join(f"{path}{blake3(data).hexdigest()}" for path, data in files.items())
    manifest = Manifest(
        name=name,
        version=version,
        root=Cid.for_block(DAG_PB, listing.encode()),
        publisher=PUBLISHER.peer_id,
        created=1_700_000_000,
    )
    document = SignedDocument(MANIFEST_DOMAIN, manifest.to_bytes()).sign(PUBLISHER)
    return Sample(document, manifest, builder.build(), dict(files))


def model(seed: str = "a") -> Sample:
    """Return a version with what is odd about files: empty, nested, shared and repeated blocks."""
    shared = noise("shared", 2 * BLOCK)
    return sample(
        {
            "config.json": b'{"hidden": 3}',
            "empty.txt": b"",
            "model-1.safetensors": noise(f"{seed}1", 5 * BLOCK + 100),
            "model-2.safetensors": shared + noise(f"{seed}2", BLOCK) + shared,
            "tokenizer/vocab.txt": noise("vocab", BLOCK) + bytes(3 * BLOCK),
            "tokenizer/zeros.bin": bytes(2 * BLOCK),
        }
    )


def crash_sample() -> Sample:
    """Return a version of 160 blocks in files that share some, for killing its fetch."""
    shared = noise("crash-shared", 16 * BLOCK)
    return sample(
        {
            "a/one": noise("crash-1", 80 * BLOCK),
            "b": shared + noise("crash-2", 32 * BLOCK) + shared,
            "c/d/three": noise("crash-3", 31 * BLOCK + 1) + shared[:BLOCK],
        }
    )


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Make a folder where syncing costs nothing, if there is such a place."""
    where = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
    folder = Path(tempfile.mkdtemp(dir=where))
    yield folder
    shutil.rmtree(folder)


def true_claims(home: Path) -> set[bytes]:
    """Check every row of the index against the file that it speaks of; return the digests."""
    database = sqlite3.connect(home / "index.sqlite")
    rows = database.execute(
        "SELECT f.path, f.size, e.offset, e.length, e.digest FROM extent e"
        " JOIN file f ON f.id = e.file_id"
    ).fetchall()
    database.close()
    found: set[bytes] = set()
    for path, size, offset, length, digest in rows:
        file = Path(os.fsdecode(path))
        if file.exists() and file.stat().st_size == size:
            with file.open("rb") as opened:
                opened.seek(offset)
                assert blake3(opened.read(length)).digest() == digest
            found.add(digest)
    return found

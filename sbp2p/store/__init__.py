"""The store: an index of blocks, and users' files that hold them.

Files live where the user wants them and are seeded from there; nothing is stored twice.
docs/store.md tells a block's life on disk; decision 0004 tells why.

    store.py      the API                      index.py     the database
    extents.py    block -> places              reader.py    reading blocks, noticing changes
    versions.py   versions and their tables    loose.py     blocks that lie in no file
    opening.py    a download starts            targets.py   what each file starts as
    download.py   blocks come in               parts.py     writing, syncing, recording
    adopt.py      what is here already         copying.py   blocks of other local files
    finish.py     final names                  verify.py    rehashing
    removal.py    forgetting                   hashing.py   files against tables
    collect.py    making room
    files.py      descriptors and bytes        locks.py     one process at a time
    libc.py       what Python lacks            records.py   values
    errors.py     words
"""

from __future__ import annotations

from sbp2p.store.collect import CollectStep
from sbp2p.store.download import Download
from sbp2p.store.errors import (
    BlockMismatchError,
    BlockUnavailableError,
    DestinationConflictError,
    NoSpaceError,
)
from sbp2p.store.locks import FileLock, NodeLock
from sbp2p.store.records import (
    AdoptStep,
    DamagedBlock,
    FileStamp,
    Location,
    RemovedVersion,
    Role,
    VerifyStep,
    VersionRecord,
)
from sbp2p.store.store import Store

__all__ = [
    "AdoptStep",
    "BlockMismatchError",
    "BlockUnavailableError",
    "CollectStep",
    "DamagedBlock",
    "DestinationConflictError",
    "Download",
    "FileLock",
    "FileStamp",
    "Location",
    "NoSpaceError",
    "NodeLock",
    "RemovedVersion",
    "Role",
    "Store",
    "VerifyStep",
    "VersionRecord",
]

"""`sbp2p inspect REF`: a version that is here, described from the store alone, without a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p.errors import NotFoundError, StoreError
from sbp2p.node import Description, FileInfo
from sbp2p.node.local import find_version
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.tensor_index import parse_index_root, read_tensor_index

if TYPE_CHECKING:
    from sbp2p.store import Store
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.tensor_index import TensorEntry


def describe_stored(store: Store, reference: str) -> Description:
    """Return what the version is that a reference means.

    Raises:
        NotFoundError, ConfigError: as `node.local.find_version`.
        StoreError: its tensor index is damaged.
    """
    version = find_version(store, reference)
    record = store.version(version.cid, version.path)
    if record is None:
        raise NotFoundError(f"{reference} is not here any more")
    table = store.table(record)
    files = tuple(FileInfo(file.path, file.size, file.cid, file.count) for file in table.files)
    return Description(
        manifest=record.manifest,
        signers=record.document.signers(),
        files=files,
        tensors=_tensors(store, record.manifest.tensors, table),
        size=sum(file.size for file in files),
        unique_bytes=table.total_bytes,
        blocks=len(table),
    )


def _tensors(store: Store, cid: Cid | None, table: BlockTable) -> tuple[TensorEntry, ...]:
    """Return the tensor index; empty if the version has none, or if not all of it is here."""
    root = None if cid is None else store.get_loose(cid)
    if root is None:
        return ()
    try:
        pages = [store.get_loose(page) for page in parse_index_root(root)]
        here = [page for page in pages if page is not None]
        return tuple(read_tensor_index(root, here, table)) if len(here) == len(pages) else ()
    except RemoteProtocolError as error:
        raise StoreError(
            f"the tensor index of a version here is damaged: {error}",
            hint="`sbp2p rm` the version and get it again",
        ) from error

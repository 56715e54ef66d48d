"""What a store knows of a round: its signed record, and the models that the record names.

Theory of operation: `sbp2p.namespace.record.replay` does a merge again; this finds what it needs
among the versions of a store, without a node. Updates are decoded as they were when the round was
merged. Blocking.

Error cases: NotFoundError for a version that is no record of a round, CheckpointError for a record
or an update that is damaged. A model that is not here is left out; `replay` says which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p.checkpoint.reader import TensorReader
from sbp2p.errors import CheckpointError, NotFoundError
from sbp2p.merge.compress.codec import decode_update
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.limits import ROUND_RECORD_MAX
from sbp2p_protocol.round_record import RoundRecord

from .files import RECORD_FILE, UPDATE_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sbp2p.checkpoint.reader import RawTensor
    from sbp2p.store import Store
    from sbp2p_protocol.cid import Cid


def read_record(folder: Path) -> RoundRecord:
    """Return the record in the folder of a version `<namespace>/rounds`."""
    path = folder / RECORD_FILE
    try:
        with path.open("rb") as file:
            data = file.read(ROUND_RECORD_MAX + 1)
    except FileNotFoundError:
        raise NotFoundError(
            f"{folder} holds no {RECORD_FILE}: it is no round's record",
            hint="records are versions of NAMESPACE/rounds; `sbp2p ls` lists what is here",
        ) from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    try:
        return RoundRecord.from_bytes(data)
    except RemoteProtocolError as error:
        raise CheckpointError(
            f"{path} is damaged: {error}", hint="`sbp2p verify` the version, and get it again"
        ) from error


def stored_models(store: Store, record: RoundRecord) -> dict[Cid, Mapping[str, RawTensor]]:
    """Return the models of a record that are here, decoded, by their manifests."""
    found: dict[Cid, Mapping[str, RawTensor]] = {}
    for each in record.contributions:
        version = store.version(each.cid)
        if version is not None and version.complete:
            with TensorReader(version.root_path / UPDATE_FILE) as reader:
                stored = {name: reader.read(name) for name in reader.names()}
            found[each.cid] = decode_update(stored)
    return found

"""Where the files of a namespace lie, and the one file that an update is.

    <home>/namespaces/<name>/own/<round>/update.safetensors
    <home>/namespaces/<name>/<peer id>/<round>/update.safetensors
    <home>/namespaces/<name>/rounds/<round>/round.cbor

Blocking: for worker threads. Errors: StoreError when the disk fails.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Final

from sbp2p.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sbp2p.checkpoint.reader import RawTensor

FOLDER: Final = "namespaces"
UPDATE_FILE: Final = "update.safetensors"
RECORD_FILE: Final = "round.cbor"
OWN: Final = "own"
RECORDS: Final = "rounds"
_ALIGNMENT: Final = 8


def write_update(
    folder: Path, tensors: Mapping[str, RawTensor], metadata: Mapping[str, str]
) -> Path:
    """Write tensors as one safetensors file, in the order given; return where it is."""
    path = folder / UPDATE_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(_header(tensors, metadata))
            for tensor in tensors.values():
                file.write(tensor.data.cast("B") if tensor.data.nbytes else b"")
    except OSError as error:
        raise _failed(path, error) from error
    return path


def write_record(folder: Path, data: bytes) -> Path:
    """Write the record of a round; return where it is."""
    path = folder / RECORD_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise _failed(path, error) from error
    return path


def remove_folder(folder: Path) -> None:
    """Delete a folder of a round with what is in it, and its parent if nothing else is there."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.rmdir()
    except OSError:
        return  # other rounds are there


def _header(tensors: Mapping[str, RawTensor], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.data.nbytes
        entries[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _failed(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot write {path}: {error.strerror}", hint="free some space, or use another home"
    )

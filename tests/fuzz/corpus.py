"""Seeds: the project's vectors, and keys and blocks that are the same in every run."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.cid import DAG_CBOR, DAG_PB, Cid

from .engine import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS: Final = tuple(PrivateKey.from_seed(bytes([number]) * 32) for number in range(1, 4))
DIGESTS: Final = tuple(blake3(bytes([number])).digest() for number in range(8))
TREE_ROOT: Final = Cid(1, DAG_PB, 0x1E, DIGESTS[6])
MANIFEST_CID: Final = Cid(1, DAG_CBOR, 0x1E, DIGESTS[7])


@cache
def vectors(layer: str, name: str) -> Any:
    """Return the parsed `name`.json of `keys` or `protocol`."""
    return json.loads((ROOT / layer / "vectors" / f"{name}.json").read_text(encoding="utf-8"))


def strings(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value, keys excepted, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def hex_bytes(value: Any) -> list[bytes]:
    """Return the bytes of every text in a JSON value that is hexadecimal."""
    found = []
    for text in strings(value):
        try:
            found.append(bytes.fromhex(text))
        except ValueError:
            continue
    return found


def texts(value: Any) -> list[bytes]:
    """Return every text in a JSON value as UTF-8."""
    return [text.encode("utf-8", "surrogatepass") for text in strings(value)]


def field_strings(value: Any, key: str) -> Iterator[str]:
    """Yield the texts that stand under `key`, at any depth."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name == key and isinstance(item, str):
                yield item
            else:
                yield from field_strings(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from field_strings(item, key)


def field_bytes(value: Any, *keys: str) -> list[bytes]:
    """Return the bytes of every hexadecimal text that stands under one of `keys`."""
    return [bytes.fromhex(text) for key in keys for text in field_strings(value, key)]


def field_texts(value: Any, key: str) -> list[bytes]:
    """Return every text that stands under `key`, as UTF-8."""
    return [text.encode("utf-8", "surrogatepass") for text in field_strings(value, key)]


# -- files -----------------------------------------------------------------------------------------


@cache
def scratch_folder() -> Path:
    """Return a folder for inputs that have to be files; it goes when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="sbp2p-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def write_scratch(name: str, data: bytes) -> Path:
    """Write a file that only its owner can read, and return its path."""
    path = scratch_folder() / name
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
    return path

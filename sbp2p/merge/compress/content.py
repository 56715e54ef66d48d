"""What named tensors are called by their content: one digest, whatever file they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blake3 import blake3

from sbp2p_protocol.dag_cbor import encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbp2p.checkpoint.reader import RawTensor

_DOMAIN: Final = b"sbp2p-tensors"


def content_digest(tensors: Mapping[str, RawTensor]) -> bytes:
    """Return 32 bytes of BLAKE3 over names, dtypes, shapes and bytes, in the order of the names."""
    hasher = blake3(_DOMAIN, max_threads=blake3.AUTO)
    for name in sorted(tensors):
        tensor = tensors[name]
        hasher.update(encode([name, tensor.dtype, list(tensor.shape), tensor.data.nbytes]))
        hasher.update(tensor.data)
    return hasher.digest()

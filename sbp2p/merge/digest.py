"""One digest for a model: of its names, dtypes, shapes and bytes, in whatever files it lies.

    model digest  = BLAKE3 of, for each tensor by name: header length (8 bytes), header, digest
    header        = dtype, a space, the shape's numbers with commas, a space, the name, as UTF-8
    tensor digest = BLAKE3 of the digests of its leaves
    leaf digest   = BLAKE3 of 32 KiB of the tensor's bytes, the last leaf shorter

Integers are little-endian. Leaves let several threads hash one tensor in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sbp2p.merge.tensors import Source, TensorSpec

LEAF: Final = 32 * 1024
"""Bytes of a leaf."""
_READ: Final = 32 * LEAF


def leaves(data: memoryview) -> bytes:
    """Return the leaf digests of consecutive bytes that begin at a multiple of LEAF."""
    return b"".join(blake3(data[at : at + LEAF]).digest() for at in range(0, len(data), LEAF))


def tensor_digest(pieces: Iterable[bytes]) -> bytes:
    """Return the digest of a tensor from the leaf digests of its pieces, in order."""
    hasher = blake3()
    for piece in pieces:
        hasher.update(piece)
    return hasher.digest()


def model_digest(specs: Mapping[str, TensorSpec], digests: Mapping[str, bytes]) -> bytes:
    """Return the digest of a model from those of its tensors."""
    hasher = blake3()
    for name in sorted(specs):
        spec = specs[name]
        header = f"{spec.dtype} {','.join(map(str, spec.shape))} {name}".encode()
        hasher.update(len(header).to_bytes(8, "little") + header + digests[name])
    return hasher.digest()


def digest_of(source: Source) -> bytes:
    """Read a whole model and return its digest; raises CheckpointError."""
    specs = source.specs()
    buffer = memoryview(bytearray(_READ))
    digests = {}
    for name, spec in specs.items():
        hasher = blake3()
        for offset in range(0, spec.nbytes, _READ):
            piece = buffer[: min(_READ, spec.nbytes - offset)]
            source.read_into(name, offset, piece)
            hasher.update(leaves(piece))
        digests[name] = hasher.digest()
    return model_digest(specs, digests)

"""The description of an update: what its tensors stand for. Read from peers, so strict.

Theory of operation: one U8 tensor named `sbp2p.update` that holds dag-cbor:

    {format, codec, parent, digest, tensors: {name: [dtype, [dimension...], packing]}}

`parent` is null or the content digest of the version that the update was made from, `digest` that
of the model it stands for. `packing` says in which form a tensor is there; its parts are the
tensors named PART:NAME.

Error cases: CheckpointError whatever the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import CheckpointError, MergeError
from sbp2p.merge.tensors import TensorSpec
from sbp2p_protocol.dag_cbor import decode, encode
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.fields import FORMAT, Fields
from sbp2p_protocol.limits import (
    CODEC_NAME_MAX,
    TENSOR_DIMENSIONS_MAX,
    TENSOR_NAME_MAX,
    TENSORS_MAX,
    UPDATE_DESCRIPTION_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbp2p_protocol.dag_cbor import CborValue

DESCRIPTION: Final = "sbp2p.update"
"""The name of the tensor."""

_KEYS: Final = frozenset(("format", "codec", "parent", "digest", "tensors"))
_DIMENSION_MAX: Final = 2**62
_PACKING_MAX: Final = 32
_DIGEST_SIZE: Final = 32


@dataclass(frozen=True, slots=True)
class Description:
    """What an update stands for.

    Attributes:
        codec: the text form of what made it.
        digest: the content digest of the model.
        parent: the content digest of what it was made from, or None.
        tensors: the model's tensors, and how each is packed.
    """

    codec: str
    digest: bytes
    parent: bytes | None
    tensors: Mapping[str, tuple[TensorSpec, str]] = field(hash=False)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the model; known to be computable."""
        return sum(spec.nbytes for spec, _ in self.tensors.values())

    def to_tensor(self) -> RawTensor:
        """Return the description as a tensor of the update."""
        data = encode(
            {
                "format": FORMAT,
                "codec": self.codec,
                "parent": self.parent,
                "digest": self.digest,
                "tensors": {
                    name: [spec.dtype, list(spec.shape), packing]
                    for name, (spec, packing) in self.tensors.items()
                },
            }
        )
        return RawTensor(DESCRIPTION, "U8", (len(data),), memoryview(data))

    @classmethod
    def read(cls, tensors: Mapping[str, RawTensor]) -> Description:
        """Read the description of an update; raises CheckpointError."""
        try:
            return cls._read(tensors[DESCRIPTION])
        except (RemoteProtocolError, MergeError, KeyError) as error:
            raise CheckpointError(f"a malformed update: {error}") from error

    @classmethod
    def _read(cls, tensor: RawTensor) -> Description:
        if tensor.dtype != "U8" or len(tensor.shape) != 1:
            raise RemoteProtocolError("its description is not bytes")
        if tensor.data.nbytes > UPDATE_DESCRIPTION_MAX:
            raise RemoteProtocolError(f"a description of {tensor.data.nbytes} bytes")
        value = decode(bytes(tensor.data), max_size=UPDATE_DESCRIPTION_MAX)
        fields = Fields(value, _KEYS, "description")
        fields.check_format()
        codec = fields.text("codec")
        if not codec.isprintable() or len(codec.encode()) > CODEC_NAME_MAX:
            raise fields.fault("codec", "is not the name of one")
        value = fields.mapping("tensors")
        if len(value) > TENSORS_MAX:
            raise fields.fault("tensors", f"are over {TENSORS_MAX}")
        found = {name: _read_row(fields, name, row) for name, row in value.items()}
        parent = fields.blob_or_none("parent")
        digest = fields.blob("digest")
        if len(digest) != _DIGEST_SIZE or (parent is not None and len(parent) != _DIGEST_SIZE):
            raise fields.fault("digest", f"does not have {_DIGEST_SIZE} bytes")
        return cls(codec, digest, parent, found)


def _read_row(fields: Fields, name: str, row: CborValue) -> tuple[TensorSpec, str]:
    if len(name.encode()) > TENSOR_NAME_MAX:
        raise fields.fault("tensors", "have a name that is too long")
    if not isinstance(row, list) or len(row) != 3:
        raise fields.fault("tensors", "are described by something else than three values")
    dtype, shape, packing = row
    if not isinstance(dtype, str) or not isinstance(packing, str) or not isinstance(shape, list):
        raise fields.fault("tensors", "are described by values of other types")
    if len(dtype) > _PACKING_MAX or len(packing) > _PACKING_MAX:
        raise fields.fault("tensors", "have a dtype or packing that nobody knows")
    if len(shape) > TENSOR_DIMENSIONS_MAX:
        raise fields.fault("tensors", f"have over {TENSOR_DIMENSIONS_MAX} dimensions")
    dimensions = []
    for each in shape:
        if type(each) is not int or not 0 <= each <= _DIMENSION_MAX:
            raise fields.fault("tensors", "have a dimension that is none")
        dimensions.append(each)
    spec = TensorSpec(name, dtype, tuple(dimensions))
    spec.nbytes  # noqa: B018  (raises for a dtype that nobody knows)
    return spec, packing

"""What a lossy codec left out so far, to be added next time; can be saved.

Theory of operation: see `codec.py`. One F32 tensor for each tensor that lost something, and the
content digest of the last result. As tensors the state can be saved like any model: a peer that
starts again goes on as if it had not stopped. A state that is lost costs what the last update left
out, once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME: Final = "sbp2p.feedback"
_DIGEST_SIZE: Final = 32


@dataclass(frozen=True, slots=True)
class Feedback:
    """A codec's state between two updates of one model.

    Attributes:
        residuals: by tensor name, F32 (F64 for itself), what was to be said and was not.
        digest: the content digest of what the last update decodes to.
    """

    residuals: Mapping[str, RawTensor] = field(hash=False)
    digest: bytes

    def to_tensors(self) -> dict[str, RawTensor]:
        """Return the state as tensors to be saved."""
        digest = RawTensor(_NAME, "U8", (_DIGEST_SIZE,), memoryview(self.digest))
        return {**self.residuals, _NAME: digest}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, RawTensor]) -> Feedback:
        """Return the state that was saved as these tensors; raises CheckpointError."""
        digest = tensors.get(_NAME)
        if digest is None or digest.dtype != "U8" or digest.data.nbytes != _DIGEST_SIZE:
            raise CheckpointError(
                "these tensors are no state of a codec", hint="go on without one: a little is lost"
            )
        rest = {name: tensor for name, tensor in tensors.items() if name != _NAME}
        for name, tensor in rest.items():
            if tensor.dtype not in ("F32", "F64"):
                raise CheckpointError(f"{name!a} is {tensor.dtype}, which no state of a codec has")
        return cls(rest, bytes(digest.data))

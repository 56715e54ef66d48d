"""`lossless`: the model as it is. `delta`: without loss, the bits that differ from the parent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p.merge.compress.codec import Codec, Encoded, decode_update, is_encoded, register
from sbp2p.merge.compress.packed import Packed, PackedCodec, Subject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbp2p.checkpoint.reader import RawTensor
    from sbp2p.merge.compress.feedback import Feedback


class Lossless(Codec):
    """The model itself: an update that any reader of safetensors can use.

    Where tensors did not change, their blocks did not either, and the exchange does not send them.
    """

    lossy = False

    @property
    def text(self) -> str:
        """`lossless`."""
        return "lossless"

    def encode(
        self,
        tensors: Mapping[str, RawTensor],
        parent: Mapping[str, RawTensor] | None = None,
        state: Feedback | None = None,
    ) -> Encoded:
        """Return the tensors as they are."""
        return Encoded(dict(tensors), dict(tensors))

    def decode(
        self,
        tensors: Mapping[str, RawTensor],
        parent: Mapping[str, RawTensor] | None = None,
        *,
        bytes_max: int | None = None,
    ) -> dict[str, RawTensor]:
        """Return the tensors as they are; an update of another codec is decoded by that one."""
        if is_encoded(tensors):
            return Delta().decode(tensors, parent, bytes_max=bytes_max)
        return decode_update(tensors, parent, bytes_max=bytes_max)


class Delta(PackedCodec):
    """Bit for bit, in the bytes that the changes since the parent take."""

    lossy = False
    uses_parent = True

    @property
    def text(self) -> str:
        """`delta`."""
        return "delta"

    def pack(self, subject: Subject) -> Packed | None:
        """Return None: nothing may be lost."""
        return None


def _without_options(make: type[Codec], options: list[str]) -> Codec:
    if options:
        raise ValueError("it has no options")
    return make()


register("lossless", lambda options: _without_options(Lossless, options))
register("delta", lambda options: _without_options(Delta, options))

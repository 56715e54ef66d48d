"""Which format a file is, decided by its bytes alone, and where its tensors lie.

The name of a file plays no part: the same bytes under another name must be cut into the same
blocks. A file that claims a format and breaks its rules is opaque, and `Inspection.note` says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from sbp2p.checkpoint.formats import gguf, pytorch_zip, safetensors
from sbp2p.checkpoint.formats.layout import ByteSource, Layout, MalformedError, TensorSpan

__all__ = ["ByteSource", "Inspection", "Layout", "TensorSpan", "inspect"]

_PARSERS = (
    (gguf.FORMAT, gguf.parse),
    (pytorch_zip.FORMAT, pytorch_zip.parse),
    (safetensors.FORMAT, safetensors.parse),
)
"""Each looks for its own magic. Those of GGUF and zip could also be the length of a safetensors
header, so a file that fails as one is still tried as the others."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a file turned out to be: a layout, or None for opaque bytes, and a note for the user."""

    layout: Layout | None
    note: str = ""

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The extents that get block boundaries; empty for opaque bytes."""
        return self.layout.spans if self.layout else ()


def inspect(source: ByteSource) -> Inspection:
    """Look at a file's structure. Raises nothing but what the source's own reads raise."""
    note = ""
    for name, parse in _PARSERS:
        try:
            layout = parse(source)
        except MalformedError as error:
            note = note or f"looks like {name} but is not well formed: {error}"
            continue
        if layout is not None:
            return Inspection(layout, layout.note)
    return Inspection(None, note)

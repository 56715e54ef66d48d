"""What a format parser takes and gives: a bounded reader in, the place of every tensor out.

Theory of operation
-------------------
A parser sees a file only through `ByteSource`: a size and a positional read. It returns a `Layout`,
returns None when the bytes do not claim to be its format, or raises `MalformedError` when they
claim it and are not well formed. It never executes, unpickles or decompresses anything.

Two things are kept apart on purpose:

* `spans` decide where blocks are cut, so they are part of the meaning of a root CID. They depend on
  the *structure* of the file alone (offsets, order, bounds), never on a table of dtypes: a later
  release that learns a dtype must not give old files new roots.
* `tensors` describe what the spans hold, for the tensor index. When a description contradicts its
  span (a dtype whose width does not fit), `tensors` is None and `note` says why; the cuts stay.

Limits in this package are therefore normative too: docs/decisions/0006 lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class MalformedError(ValueError):
    """The bytes claim a format and break its rules; the file is then treated as opaque bytes."""


@dataclass(frozen=True, slots=True)
class ByteSource:
    """A file as a parser sees it: `size` bytes, read by position."""

    size: int
    pread: Callable[[int, int], bytes]
    """(length, offset) -> at most `length` bytes, fewer only at the end of the file."""

    @classmethod
    def from_bytes(cls, data: bytes) -> ByteSource:
        """Wrap bytes that are already in memory."""
        return cls(len(data), lambda length, offset: data[offset : offset + length])

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes at `offset`, or raise MalformedError."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise MalformedError(f"{length} bytes at {offset} lie outside the file")
        parts: list[bytes] = []
        while length:
            part = self.pread(length, offset)
            if not part:
                raise MalformedError("the file ended while it was being read")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """One tensor of one file; `shape` is outermost first, `offset` counts from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tensors of a well-formed file are."""

    format: str
    """`safetensors`, `pytorch_zip` or `gguf`."""
    spans: tuple[tuple[int, int], ...]
    """(offset, length) of what deserves a block boundary: sorted, disjoint, none empty."""
    tensors: tuple[TensorSpan, ...] | None
    """Every tensor in order of offset, empty ones too; None when they contradict the spans."""
    note: str = ""


def shown(name: str | bytes) -> str:
    """Return a name as a message may show it: quoted, escaped, and short whatever the file says."""
    return repr(name) if len(name) <= 80 else f"{name[:80]!r}..."


def require_disjoint(spans: Iterable[tuple[int, int]], end: int) -> None:
    """Raise MalformedError unless the sorted (offset, length) spans are disjoint, up to `end`."""
    position = 0
    for offset, length in spans:
        if offset < position:
            raise MalformedError(f"two tensors overlap at byte {offset}")
        position = offset + length
    if position > end:
        raise MalformedError(f"a tensor ends at byte {position}, after the data ends at {end}")

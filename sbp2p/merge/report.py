"""What a merge did: who took part with which weight, who was left out and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Rejection:
    """An input that was left out of the merge, as if it had never been given."""

    label: str
    key: bytes
    tensor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """What a merge did."""

    used: tuple[tuple[str, Fraction], ...]
    """Label and weight of each input that took part, in canonical order; the weights' sum is 1."""
    counted: tuple[Fraction, ...] | None
    """What each of `used` was multiplied by, if that is the same for the whole model: Krum takes 0
    for all but one. None when it differs from tensor to tensor, or element to element."""
    rejected: tuple[Rejection, ...]
    """In canonical order."""
    tensors: int
    """Names in the result, those of tied tensors and those done before counted, too."""
    dropped: tuple[str, ...]
    """Tensors of inputs that the result has not (intersection, keep-local)."""
    kept: tuple[str, ...]
    """Tensors that are the local model's own because the inputs differ (keep-local)."""
    tied: tuple[tuple[str, ...], ...]
    """Names that are one tensor in every input, and so in the result."""
    bytes_read: int
    bytes_written: int
    digest: bytes
    """The result's digest (see `digest`); b"" when some tensors were done before."""

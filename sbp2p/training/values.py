"""What a step of a training loop returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbp2p.namespace import RoundResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one `step` did."""

    finished: tuple[RoundResult, ...]
    """Rounds whose results the model has now, oldest first: none, one, or two."""
    is_waiting: bool
    """Whether a round goes on beside the training; a later step takes its result."""
    seconds: float
    """How long the call took."""

    def __str__(self) -> str:
        """Say in one line what happened, for a training loop's log."""
        told = "; ".join(map(str, self.finished)) or "no round finished"
        return f"{told}; a round goes on" if self.is_waiting else told

    @property
    def round(self) -> RoundResult | None:
        """The last one that finished, if any did."""
        return self.finished[-1] if self.finished else None

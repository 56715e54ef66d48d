"""Which thread does what next.

A tensor is opened once: that is when it is surveyed. Then its pieces are handed out, in order. A
thread opens the next tensor when no piece is left, so while one tensor is surveyed by one thread,
others go on with the pieces of the one before, or open the one after it.

| state | what `take` gives |
|---|---|
| pieces of an opened tensor are left | the next piece |
| none, but tensors are | a tensor to open |
| neither, but a tensor is being opened | nothing yet: it waits |
| neither, or closed | None: the end |
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Opening:
    """Take: open tensor `number`, then call `opened`."""

    number: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Take: merge the elements from `start` up to `stop` of tensor `number`."""

    number: int
    start: int
    stop: int


class Tasks:
    """Hands out the work of one merge; for several threads."""

    def __init__(self, numbers: Iterable[int]) -> None:
        """Hand out tensors by their numbers, in this order."""
        self._tensors = deque(numbers)
        self._pieces: deque[Iterator[Piece]] = deque()
        self._opening = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self) -> Opening | Piece | None:
        """Return what to do next, or None when there is nothing left; waits for who opens."""
        with self._changed:
            while not self._closed:
                while self._pieces:
                    if (piece := next(self._pieces[0], None)) is not None:
                        return piece
                    self._pieces.popleft()
                if self._tensors:
                    self._opening += 1
                    return Opening(self._tensors.popleft())
                if not self._opening:
                    break
                self._changed.wait()
            return None

    def opened(self, pieces: Iterable[Piece]) -> None:
        """Have the pieces of a tensor that was opened handed out."""
        with self._changed:
            self._opening -= 1
            self._pieces.append(iter(pieces))
            self._changed.notify_all()

    def close(self) -> None:
        """Hand out nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

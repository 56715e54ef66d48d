"""What a peer owes on one exchange stream, and whether it makes progress.

Theory of operation: a debt begins with a request and ends with its one answer. A peer that owes
blocks must make progress, which is PROGRESS_BYTES or a whole payload within `timeout_s`; single
bytes do not count. One that does not is `stalled` until it makes progress again. Time in which the
driver did not read does not count (`resume`).

    debt       becomes    by
    wanted     unwanted   `withdraw`: its answer is dropped
    unwanted   wanted     being asked for again
    any        gone       `settle`: it was answered
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .cid import Cid

PROGRESS_BYTES: Final = 16 * 1024
"""Payload that counts as progress: 16 KiB in 10 s is 13 kbit/s, below any link worth having."""


class Debt:
    """One block that the peer owes; `length` is an estimate when there is a CID."""

    __slots__ = ("asked_at", "cid", "length", "recalled", "wanted")

    def __init__(self, length: int, asked_at: float, cid: Cid | None) -> None:
        self.length = length
        self.asked_at = asked_at
        self.cid = cid
        self.wanted = True
        self.recalled = False


class Debts:
    """Everything that one peer owes; times are seconds of one monotonic clock."""

    def __init__(self, *, pipeline_bytes: int, timeout_s: float, now: float) -> None:
        self.pipeline = Pipeline(pipeline_bytes)
        self.stalled = False
        self.owed_bytes = 0
        self._timeout = timeout_s
        self._debts: dict[bytes, Debt] = {}
        self._progress_at = now
        self._progress_bytes = 0
        self._progress_in_block = 0
        """Bytes that have come of the block that is coming."""

    def __len__(self) -> int:
        return len(self._debts)

    def get(self, digest: bytes) -> Debt | None:
        """Return what is owed under this digest."""
        return self._debts.get(digest)

    def add(self, digest: bytes, length: int, cid: Cid | None, now: float) -> bool:
        """Note a request; returns False when the block is owed already."""
        debt = self._debts.get(digest)
        if debt is not None:
            if (debt.cid is None) == (cid is None):
                debt.wanted = True
            return False
        if not self._debts:
            self.pipeline.started(now)
            self._progress_at = now
            self._progress_bytes = 0
        self._debts[digest] = Debt(length, now, cid)
        self.owed_bytes += length
        return True

    def withdraw(self, digests: Iterable[bytes]) -> list[bytes]:
        """Want these no longer; returns those of which the peer must be told."""
        withdrawn: list[bytes] = []
        for digest in digests:
            debt = self._debts.get(digest)
            if debt is not None and debt.wanted:
                debt.wanted = False
                if not debt.recalled:
                    withdrawn.append(digest)
        return withdrawn

    def recall(self, digests: Iterable[bytes]) -> list[bytes]:
        """Want these, but rather not of this peer; returns those of which it must be told."""
        recalled: list[bytes] = []
        for digest in digests:
            debt = self._debts.get(digest)
            if debt is not None and debt.wanted and not debt.recalled:
                debt.recalled = True
                recalled.append(digest)
        return recalled

    def settle(self, digest: bytes) -> Debt:
        """Take an answer; KeyError if nothing was owed."""
        debt = self._debts.pop(digest)
        self.owed_bytes -= debt.length
        return debt

    def wanted(self) -> tuple[tuple[bytes, ...], tuple[Cid, ...]]:
        """Return the leaves and the nodes that are owed and wanted."""
        wanted = [(digest, debt) for digest, debt in self._debts.items() if debt.wanted]
        return (
            tuple(digest for digest, debt in wanted if debt.cid is None),
            tuple(debt.cid for _, debt in wanted if debt.cid is not None),
        )

    # -- time -----------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """When the peer is stalled unless it makes progress; None while it owes nothing."""
        return None if not self._debts or self.stalled else self._progress_at + self._timeout

    def progress(self, now: float) -> None:
        """The peer has sent a whole payload, or rejected something."""
        self._progress_at = now
        self._progress_bytes = 0
        self._progress_in_block = 0
        self.stalled = False

    def partial_progress(self, count: int, now: float) -> None:
        """The peer has sent `count` bytes of a payload."""
        self._progress_bytes += count
        self._progress_in_block += count
        if self._progress_bytes >= PROGRESS_BYTES:
            self._progress_at = now
            self._progress_bytes = 0
            self.stalled = False

    def resume(self, now: float) -> None:
        """Say that this side did not read until now, so the peer is not to blame."""
        self._progress_at = max(self._progress_at, now)

    def expected_wait(self, digest: bytes, now: float) -> float:
        """Guess the seconds until a block has come, from how it went lately; 0 if not owed.

        Debts are paid about in the order in which they were made.
        """
        debt = self._debts.get(digest)
        if debt is None:
            return 0.0
        rate = self.pipeline.rate
        if not rate:  # nothing measured: as long again as it has waited
            return now - debt.asked_at
        ahead = -self._progress_in_block
        for other, entry in self._debts.items():
            ahead += entry.length
            if other == digest:
                break
        return max(ahead / rate, now - self._progress_at)

    def is_next(self, digest: bytes) -> bool:
        """Whether a debt is likely to be the one that is being paid."""
        return next(iter(self._debts), None) == digest

    def silent_for(self, now: float) -> float:
        """Return the seconds since the peer has made progress."""
        return now - self._progress_at

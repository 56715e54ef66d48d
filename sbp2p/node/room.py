"""Pins, and making room: what a node keeps when space is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbp2p.errors import ConfigError

from .threads import StoppedError, run_stoppable
from .values import Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbp2p.calls import Calls
    from sbp2p.store import CollectStep, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What making room has removed."""

    versions: tuple[Version, ...]
    files_deleted: int
    bytes_freed: int
    bytes_used: int
    """By what was fetched and is still here."""


def collectable(store: Store) -> list[Version]:
    """Return the versions that may go now, the one that would go first in front."""
    return [Version.of(record) for record in store.collectable()]


async def collect(
    store: Store,
    limit_bytes: int,
    progress: Callable[[CollectStep], None] | None = None,
    *,
    calls: Calls | None = None,
) -> Collected:
    """Remove versions until what was fetched takes at most so many bytes; see Node.collect."""
    if limit_bytes < 0:
        raise ConfigError(f"{limit_bytes} bytes: nothing takes less than none")

    def work(should_stop: Callable[[], bool]) -> Collected:
        gone: list[Version] = []
        files = freed = 0
        for step in store.collect(limit_bytes):
            files += step.files_deleted
            freed += step.bytes_freed
            if step.done:
                gone.append(Version.of(step.version))
            if progress is not None:
                progress(step)
            if should_stop():
                raise StoppedError
        return Collected(
            versions=tuple(gone),
            files_deleted=files,
            bytes_freed=freed,
            bytes_used=store.bytes_used,
        )

    return await run_stoppable(work, calls=calls)

"""What a node can say about the versions in its store: list, find, verify, remove."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from sbp2p.calls import ThreadCalls
from sbp2p.errors import ConfigError, NotFoundError
from sbp2p_protocol.manifest import COUNTER_MAX

from .threads import StoppedError, run_stoppable, throttled
from .values import Damage, Progress, Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbp2p.calls import Calls
    from sbp2p.store import RemovedVersion, Store, VersionRecord

_CID_START_MIN: Final = 11
"""Characters that can mean a CID: every manifest's begins with the same seven, and what is shorter,
or empty as an unset variable, would mean whichever version is the only one here."""
_CIDS_NAMED: Final = 4
"""CIDs that a message about an ambiguous reference holds at most."""


def list_versions(store: Store) -> list[Version]:
    """Return every version in every folder."""
    return [Version.of(record) for record in store.versions()]


def find_version(store: Store, reference: str) -> Version:
    """Return the one version that a reference means.

    Args:
        store: where to look.
        reference: a manifest's CID or the beginning of one (11 characters at least), NAME for its
            newest version here, or NAME@NUMBER.

    Raises:
        NotFoundError: nothing here matches.
        ConfigError: it could mean several versions.
    """
    versions = list_versions(store)
    found = _by_name(versions, reference)
    if not found:
        found = [v for v in versions if str(v.cid).startswith(reference)]
        if len(reference) < _CID_START_MIN and len({v.cid for v in found}) == 1:
            found = []
    if not found:
        raise NotFoundError(
            f"no version here is called {reference!r}", hint="`sbp2p ls` lists what is here"
        )
    cids = sorted({str(v.cid) for v in found})  # one version may lie in several folders
    if len(cids) > 1:
        more = ", ..." if len(cids) > _CIDS_NAMED else ""
        raise ConfigError(
            f"{reference!r} means {len(cids)} versions",
            hint=f"give more of the CID: {', '.join(cids[:_CIDS_NAMED])}{more}",
        )
    return max(found, key=lambda v: v.complete)


def _by_name(versions: list[Version], reference: str) -> list[Version]:
    """Return what NAME@NUMBER means, or the newest version of NAME, which may hold an @ too."""
    name, mark, number = reference.rpartition("@")
    if mark and number.isascii() and number.isdigit() and int(number) <= COUNTER_MAX:
        found = [v for v in versions if v.name == name and v.version == int(number)]
        if found:
            return found
    found = [v for v in versions if v.name == reference]
    newest = max((v.version for v in found), default=0)
    return [v for v in found if v.version == newest]


def record_of(store: Store, version: Version) -> VersionRecord:
    """Return the store's record of a version that it listed a moment ago."""
    record = store.version(version.cid, version.path)
    if record is None:
        raise NotFoundError(f"{version.name}@{version.version} is not here any more")
    return record


async def verify(
    store: Store,
    version: Version,
    progress: Callable[[Progress], None] | None = None,
    *,
    calls: Calls | None = None,
) -> list[Damage]:
    """Rehash a version's files; return what is damaged, one entry a file."""
    started = trio.current_time()

    def report(done: int, total: int) -> None:
        if progress is not None:
            elapsed = trio.current_time() - started
            progress(
                Progress(phase="verifying", done_bytes=done, total_bytes=total, elapsed_s=elapsed)
            )

    def work(should_stop: Callable[[], bool]) -> list[Damage]:
        call = throttled(report, calls)
        found: list[Damage] = []
        blocks = before = 0
        for step in store.verify(record_of(store, version)):
            if should_stop():
                raise StoppedError
            blocks += len(step.damaged)
            call(min(before + step.bytes_done, version.size), version.size)
            if step.done:
                before += step.bytes_total
                if step.problem or blocks:
                    detail = step.problem or f"{blocks} damaged blocks"
                    found.append(Damage(step.path, detail))
                blocks = 0
        return found

    return await run_stoppable(work, calls=calls)


async def remove(
    store: Store, version: Version, *, delete_files: bool, calls: Calls | None = None
) -> RemovedVersion:
    """Forget a version in its folder, with the files that were fetched if asked."""
    call = partial(store.remove_version, version.cid, version.path, delete_files=delete_files)
    return await (calls or ThreadCalls()).run_to_end(call)

"""From a folder to a signed version in the store."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from sbp2p.calls import ThreadCalls
from sbp2p.checkpoint.hashing import HashingStoppedError
from sbp2p.checkpoint.publish import PublishedTree, publish_tree
from sbp2p.errors import ConfigError
from sbp2p.store.locks import FileLock
from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.manifest import Manifest, check_model_name, sign_manifest

from .threads import run_stoppable, throttled
from .values import Progress, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sbp2p.calls import Calls
    from sbp2p.store import Store, VersionRecord
    from sbp2p_keys.identity import PrivateKey
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.manifest import MetaValue


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    """A published version and what was noticed on the way."""

    version: Version
    notes: tuple[str, ...]
    tensors: int
    blocks: int
    """Unique leaf blocks."""
    unchanged: bool
    """The newest version has the same content: it was taken instead of a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to publish and what to say about it."""

    path: Path
    name: str
    version: int | None
    meta: Mapping[str, MetaValue]
    parents: tuple[Cid, ...]
    created: int
    """Unix seconds."""


def make_request(
    path: Path | str,
    *,
    name: str | None = None,
    version: int | None = None,
    meta: Mapping[str, MetaValue] | None = None,
    parents: Sequence[Cid] = (),
    now: float | None = None,
) -> Request:
    """Check what the user gave before anything is hashed; raises ConfigError.

    `now` is the version's date in Unix seconds; today's if None.
    """
    if path == "":
        raise ConfigError(
            "the path to publish is an empty text", hint="say . for the working directory"
        )
    path = Path(path)
    if name is None:
        name = path.resolve().name
    if (reason := check_model_name(name)) is not None:
        raise ConfigError(f"{name!r} cannot name a model: {reason}", hint="give another --name")
    if version is not None and version < 1:
        raise ConfigError(f"version {version}: versions are numbered from 1")
    return Request(
        path=path,
        name=name,
        version=version,
        meta=meta or {},
        parents=tuple(parents),
        created=int(time.time() if now is None else now),  # noqa: TID251  (a date for people)
    )


async def publish(
    store: Store,
    identity: PrivateKey,
    request: Request,
    progress: Callable[[Progress], None] | None = None,
    *,
    calls: Calls | None = None,
) -> PublishResult:
    """Hash, sign and register; see Node.publish."""
    calls = calls or ThreadCalls()
    started = trio.current_time()

    def report(done: int, total: int) -> None:
        if progress is not None:
            elapsed = trio.current_time() - started
            progress(
                Progress(phase="hashing", done_bytes=done, total_bytes=total, elapsed_s=elapsed)
            )

    def work(should_stop: Callable[[], bool]) -> PublishedTree:
        return publish_tree(
            request.path, store=store, progress=throttled(report, calls), should_stop=should_stop
        )

    tree = await run_stoppable(work, calls=calls, stopped=HashingStoppedError)
    register = partial(_register, store, identity, request, tree)
    record, unchanged = await calls.run_to_end(register)
    return PublishResult(
        version=Version.of(record),
        notes=tree.notes,
        tensors=tree.tensor_count,
        blocks=len(tree.table),
        unchanged=unchanged,
    )


def _register(
    store: Store, identity: PrivateKey, request: Request, tree: PublishedTree
) -> tuple[VersionRecord, bool]:
    # two at once would sign two versions with the same number
    lock = FileLock(store.home / "publish.lock", "publishing")
    lock.acquire(wait=True)
    try:
        return _number_and_sign(store, identity, request, tree)
    finally:
        lock.release()


def _number_and_sign(
    store: Store, identity: PrivateKey, request: Request, tree: PublishedTree
) -> tuple[VersionRecord, bool]:
    newest = store.newest(identity.peer_id, request.name)
    if newest is not None and _is_same(newest, request, tree):
        document, manifest = newest.document, newest.manifest
        return store.add_version(document, manifest, tree.table, tree.base), True
    manifest = _make_manifest(newest, identity, request, tree)
    document = sign_manifest(manifest, identity)
    store.put_loose(manifest.cid, document.payload)
    return store.add_version(document, manifest, tree.table, tree.base), False


def _is_same(newest: VersionRecord, request: Request, tree: PublishedTree) -> bool:
    """Whether the newest version says already all that a new one would."""
    manifest = newest.manifest
    return (
        (manifest.root, manifest.tensors) == (tree.root, tree.tensors)
        and request.version in (None, manifest.version)
        and dict(manifest.meta) == dict(request.meta)
        and set(request.parents) <= set(manifest.parents)
    )


def _make_manifest(
    newest: VersionRecord | None, identity: PrivateKey, request: Request, tree: PublishedTree
) -> Manifest:
    number = request.version or (1 if newest is None else newest.version + 1)
    if newest is not None and number <= newest.version:
        raise ConfigError(
            f"{request.name} has version {newest.version} already, and numbers only grow",
            hint=f"leave --version out, or give {newest.version + 1} or more",
        )
    previous = () if newest is None else (newest.cid,)
    try:
        return Manifest(
            name=request.name,
            version=number,
            root=tree.root,
            tensors=tree.tensors,
            parents=tuple(dict.fromkeys((*previous, *request.parents))),
            publisher=identity.peer_id,
            created=request.created,
            meta=request.meta,
        )
    except LocalProtocolError as error:
        raise ConfigError(str(error)) from error

"""What this node can serve: documents, who follows which version, and what is gained meanwhile.

Theory of operation: the store knows what is on disk; this adds what happens while peers are
connected. A peer that follows a root is told what is here now (`holdings`), and hears of every
block gained later, also when the root was unknown at first: two nodes that fetch the same version
follow each other before either has anything.

A version that is being fetched is *live*: its bitmap is the download's, which changes as blocks are
written. Blocks are told to followers when they are verified and readable, not when committed: a
peer may have them even if this node's power fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.store import Store, VersionRecord
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.bitmap import Bitmap
    from sbp2p_protocol.cid import Cid

    from .threads import Calls


class Follower(Protocol):
    """Who wants to hear about one root. Called in the event loop; may not wait."""

    def told_bits(self, bits: bytes) -> None:
        """These blocks are here, as a bitmap."""

    def told_blocks(self, indices: Sequence[int]) -> None:
        """These blocks are here, too."""

    def told_everything(self) -> None:
        """Every block is here."""


class Holdings(NamedTuple):
    """What is here of one version; `bits` is None when everything is."""

    bits: bytes | None


class Library:
    """Answers questions about versions from the store, in threads."""

    def __init__(self, store: Store, threads: Calls) -> None:
        self._store = store
        self._threads = threads
        self._live: dict[Cid, Bitmap] = {}
        self._followers: dict[Cid, list[Follower]] = {}

    async def version(self, manifest: Cid) -> VersionRecord | None:
        """Return a version by its manifest, or None."""
        return await self._threads.run(self._store.version, manifest)

    async def named(
        self, publisher: PeerId, name: str, version: int | None
    ) -> VersionRecord | None:
        """Return the newest, or exactly that, version of a name; or None."""

        def find() -> VersionRecord | None:
            if version is None:
                return self._store.newest(publisher, name)
            for record in self._store.versions():
                if (record.publisher, record.name, record.version) == (publisher, name, version):
                    return record
            return None

        return await self._threads.run(find)

    async def holdings(self, root: Cid) -> Holdings | None:
        """Return what is here of the version with this root, or None if it is unknown."""

        def look() -> Holdings | None:
            records = [each for each in self._store.versions() if each.manifest.root == root]
            if not records:
                return None
            if any(record.complete for record in records):
                return Holdings(None)
            bitmap = self._store.have_bitmap(self._store.table(records[0]), records[0])
            return Holdings(bitmap.to_bytes())

        live = self._live.get(root)
        if live is not None:
            await trio.lowlevel.checkpoint()
            return Holdings(live.to_bytes())
        return await self._threads.run(look)

    # -- following ------------------------------------------------------------------------------

    def follow(self, root: Cid, follower: Follower) -> None:
        """Tell `follower` about blocks of `root` that are gained from now on."""
        self._followers.setdefault(root, []).append(follower)

    def unfollow(self, root: Cid, follower: Follower) -> None:
        """Stop telling `follower`."""
        followers = self._followers[root]
        followers.remove(follower)
        if not followers:
            del self._followers[root]

    def opened(self, root: Cid, have: Bitmap) -> None:
        """A download began; `have` changes as it goes on."""
        self._live[root] = have
        if have.any():
            bits = have.to_bytes()
            for follower in self._followers.get(root, ()):
                follower.told_bits(bits)

    def gained(self, root: Cid, indices: Sequence[int]) -> None:
        """Blocks of a live version were verified and can be read."""
        for follower in self._followers.get(root, ()):
            follower.told_blocks(indices)

    def closed(self, root: Cid, have: Bitmap) -> None:
        """The download with this bitmap ended; the store tells what is here from now on."""
        if self._live.get(root) is have:
            del self._live[root]

    def completed(self, root: Cid) -> None:
        """Every block of a version is here."""
        for follower in self._followers.get(root, ()):
            follower.told_everything()

"""What this node can serve: documents, who follows which version, and what is gained meanwhile.

Theory of operation: the store knows what is on disk; this adds what happens while peers are
connected. A peer that follows a root is told what is here now (`holdings`), and hears of every
block gained later, also when the root was unknown at first: two nodes that fetch the same version
follow each other before either has anything.

A version that is being fetched is *live*: its bitmap is the download's, which changes as blocks are
written. Blocks are told to followers when they are verified and readable, not when committed: a
peer may have them even if this node's power fails.

Here the two sides of the exchange meet: a peer that follows what is being fetched here is likely to
have some of it, and to gain more. So the fetch hears of it (`Transfer`), and the peer is told of
gains by whichever stream is faster: by GOT on the one that this node asks on, if there is one,
since the other one is full of blocks.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from sbp2p.errors import StoreError
from sbp2p_protocol.super_seed import SuperSeed

from .ledger import Ledger

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from sbp2p.calls import Calls
    from sbp2p.config import ExchangeConfig
    from sbp2p.store import Store, VersionRecord
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.bitmap import Bitmap
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.cid import Cid

    from .source import Source


class Follower(Protocol):
    """A peer that wants to hear about one root. Called in the event loop; may not wait."""

    @property
    def peer_id(self) -> PeerId:
        """Who it is."""

    def told_bits(self, bits: bytes) -> None:
        """These blocks are here, as a bitmap."""

    def told_blocks(self, indices: Sequence[int]) -> None:
        """These blocks are here, too."""

    def told_everything(self) -> None:
        """Every block is here."""

    def shown_more(self) -> None:
        """More may be shown by super-seeding than before."""

    def peers_changed(self) -> None:
        """Other peers follow or serve the root than before."""


class Transfer(Protocol):
    """A version on its way here, as the serving side sees it. Called in the event loop."""

    def follower_came(self, peer_id: PeerId) -> None:
        """A peer follows the same root: it may have some of it."""

    def peer_found(self, source: Source) -> None:
        """Somebody says that a peer has to do with the root."""

    def peer_gained(self, peer_id: PeerId, indices: Sequence[int]) -> None:
        """A follower says that it has these blocks now."""

    def tells(self, peer_id: PeerId) -> bool:
        """Whether a follower is told of gains by the transfer itself."""

    def peers(self) -> Iterable[PeerId]:
        """Return the peers that are asked."""


class Holdings(NamedTuple):
    """What is here of one version; `bits` is None when everything is."""

    bits: bytes | None


class Show(NamedTuple):
    """A version that is here whole, and which of its blocks are shown to whom."""

    table: BlockTable
    seed: SuperSeed[Follower]


class Library:
    """Answers questions about versions from the store, in threads."""

    def __init__(
        self, store: Store, threads: Calls, config: ExchangeConfig, rng: random.Random
    ) -> None:
        self._store = store
        self._threads = threads
        self._config = config
        self._rng = rng
        self._live: dict[Cid, Bitmap] = {}
        self._followers: dict[Cid, list[Follower]] = {}
        self._transfers: dict[Cid, list[Transfer]] = {}
        self._shows: dict[Cid, Show] = {}
        self.ledger = Ledger()
        """What went to and came from each peer."""

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
            with suppress(StoreError):  # a busy index: an hour is not that important
                self._store.note_use(records[0].cid)
            if any(record.complete for record in records):
                return Holdings(None)
            bitmap = self._store.have_bitmap(self._store.table(records[0]), records[0])
            return Holdings(bitmap.to_bytes())

        live = self._live.get(root)
        if live is not None:
            await trio.lowlevel.checkpoint()
            return Holdings(live.to_bytes())
        return await self._threads.run(look)

    def live(self, root: Cid) -> Bitmap | None:
        """Return the bitmap of a version that is being fetched."""
        return self._live.get(root)

    # -- following ------------------------------------------------------------------------------

    def follow(self, root: Cid, follower: Follower) -> None:
        """Tell `follower` about blocks of `root` that are gained from now on."""
        others = self._followers.setdefault(root, [])
        for other in others:
            other.peers_changed()
        others.append(follower)
        for transfer in self._transfers.get(root, ()):
            transfer.follower_came(follower.peer_id)

    def unfollow(self, root: Cid, follower: Follower) -> None:
        """Stop telling `follower`."""
        followers = self._followers[root]
        followers.remove(follower)
        show = self._shows.get(root)
        if show is not None and show.seed.knows(follower):
            show.seed.left(follower)
            self.show_more(root)
        if not followers:
            del self._followers[root]
            self._shows.pop(root, None)

    def followers(self, root: Cid) -> tuple[Follower, ...]:
        """Return who follows a root."""
        return tuple(self._followers.get(root, ()))

    def follows(self, root: Cid, peer_id: PeerId) -> bool:
        """Whether a peer follows a root."""
        return any(each.peer_id == peer_id for each in self._followers.get(root, ()))

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

    # -- transfers ------------------------------------------------------------------------------

    def began(self, root: Cid, transfer: Transfer) -> None:
        """A version is being asked for: tell the transfer who follows its root, now and later."""
        self._transfers.setdefault(root, []).append(transfer)
        for follower in self.followers(root):
            transfer.follower_came(follower.peer_id)

    def ended(self, root: Cid, transfer: Transfer) -> None:
        """It is no longer asked for."""
        self._transfers[root].remove(transfer)
        if not self._transfers[root]:
            del self._transfers[root]

    def is_told(self, root: Cid, peer_id: PeerId) -> bool:
        """Whether a transfer tells a follower of gains, so that nobody else needs to."""
        return any(each.tells(peer_id) for each in self._transfers.get(root, ()))

    def peer_gained(self, root: Cid, peer_id: PeerId, indices: Sequence[int]) -> None:
        """A follower says that it has these blocks now."""
        for transfer in self._transfers.get(root, ()):
            transfer.peer_gained(peer_id, indices)

    def peer_found(self, root: Cid, source: Source) -> None:
        """Somebody says that a peer has to do with a root."""
        for transfer in self._transfers.get(root, ()):
            transfer.peer_found(source)

    def peers_of(self, root: Cid) -> set[PeerId]:
        """Return the peers that follow a root or are asked for it."""
        peers = {each.peer_id for each in self._followers.get(root, ())}
        for transfer in self._transfers.get(root, ()):
            peers.update(transfer.peers())
        return peers

    # -- super-seeding --------------------------------------------------------------------------

    async def show(self, root: Cid) -> Show | None:
        """Return what decides who is shown which block of a version that is here whole.

        None if everybody may know that everything is here.
        """
        if not self._config.super_seed:
            return None
        found = self._shows.get(root)
        if found is not None:
            return found

        def look() -> BlockTable | None:
            records = (each for each in self._store.versions() if each.manifest.root == root)
            record = next(records, None)
            return None if record is None else self._store.table(record)

        table = await self._threads.run(look)
        if table is None or root not in self._followers:
            return None
        if len(table) < self._config.super_seed_blocks_min:
            return None
        return self._shows.setdefault(root, Show(table, SuperSeed(len(table), self._rng)))

    def show_more(self, root: Cid) -> None:
        """Something can be shown to somebody again."""
        for follower in self._followers.get(root, ()):
            follower.shown_more()

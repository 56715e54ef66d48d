"""Telling the DHT what this node has, so that others find it by content.

Theory of operation. For each version that is here in whole or in part, a constant number of keys is
announced: its manifest, its root, its tensor index, and its files up to FILES_MAX. Blocks inside of
files only are if the configuration says so: 14,000 records for one model cost the servers around
more than they help those who look for the model, who find it by its root. What this node's role
keeps it from sending is not announced.

Changes (a version published, fetched, removed; other addresses) are announced at once after a quiet
time, and otherwise collected for `announce_wait_s`. Nothing is announced while the DHT knows no
server, or while there is no address that others could dial. That keys are announced again in time
is the DHT's own business.

Error cases: none leaves; what no server took is tried again with the next change, or by the DHT.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from sbp2p import observe
from sbp2p.errors import Sbp2pError
from sbp2p.exchange.unwrap import unwrapped_errors
from sbp2p.roles import Subject
from sbp2p_keys.multi import BLAKE3, multihash_encode

from .finding_peers import provider_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sbp2p.calls import Calls
    from sbp2p.config import DiscoveryConfig
    from sbp2p.dht import AnnounceReport, Dht
    from sbp2p.naming.quiet import QuietVersions
    from sbp2p.store import Store, VersionRecord
    from sbp2p.swarm import Swarm
    from sbp2p_protocol.multiaddr import Address

FILES_MAX: Final = 64
"""Files of one version that are announced: the shards of a large model, not its thousand notes."""


class Announcing:
    """What one node announces."""

    def __init__(
        self,
        swarm: Swarm,
        store: Store,
        dht: Dht,
        config: DiscoveryConfig,
        calls: Calls,
        quiet: QuietVersions,
    ) -> None:
        self.report: AnnounceReport | None = None
        """How the last announcement went."""
        self._swarm = swarm
        self._store = store
        self._dht = dht
        self._config = config
        self._calls = calls
        self._quiet = quiet
        self._announced: set[bytes] = set()
        self._announced_at = -math.inf
        self._addresses: frozenset[Address] = frozenset()
        """Those that were announced last: with others, everything is announced anew."""
        self._changes = trio.Event()
        self._done = trio.Condition()

    def changed(self) -> None:
        """Note that there is something new to announce, or less."""
        self._changes.set()

    async def wait_announced(self, key: bytes) -> None:
        """Wait until a key was announced to at least one server."""
        async with self._done:
            while key not in self._announced:
                await self._done.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Announce while the block runs."""
        with unwrapped_errors():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run)
                yield
                nursery.cancel_scope.cancel()

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_addresses)
            nursery.start_soon(self._watch_roles)
            while True:
                self._changes = trio.Event()
                await self._dht.wait_settled()
                if self._swarm.announced_addresses():
                    await self._announce()
                await self._changes.wait()
                # at once after a quiet time; what follows closely goes together
                await trio.sleep_until(self._announced_at + self._config.announce_wait_s)

    async def _watch_addresses(self) -> None:
        while True:
            await self._swarm.own_addresses.wait_changed()
            self._changes.set()

    async def _watch_roles(self) -> None:
        rules = self._swarm.roles.rules
        while True:
            rules = await self._swarm.roles.wait_changed(rules)
            self._changes.set()

    async def _announce(self) -> None:
        wanted = await self._calls.run(self._keys)
        gone = self._announced - wanted
        self._dht.stop_providing(gone)
        self._announced -= gone
        addresses = frozenset(self._swarm.announced_addresses())
        missing = wanted - self._announced if addresses == self._addresses else wanted
        if not missing:
            return
        self._announced_at = trio.current_time()
        try:
            self.report = await self._dht.provide_many(sorted(missing))
        except Sbp2pError as error:
            observe.report_not_found("announcing what is here", error)
            return
        if self.report.announced:
            self._announced |= missing
            self._addresses = addresses
            async with self._done:
                self._done.notify_all()

    def _keys(self) -> set[bytes]:
        """Return what is to be announced; reads the store."""
        keys: set[bytes] = set()
        for record in self._store.versions():
            manifest = record.manifest
            if self._quiet.hides(manifest):
                continue
            if not self._swarm.roles.rules.announces(Subject.of(manifest)):
                continue
            keys.add(provider_key(manifest.cid))
            keys.add(provider_key(manifest.root))
            if manifest.tensors is not None:
                keys.add(provider_key(manifest.tensors))
            keys.update(map(provider_key, self._store.file_cids(record, FILES_MAX)))
            if self._config.announce == "blocks":
                keys.update(self._block_keys(record))
        return keys

    def _block_keys(self, record: VersionRecord) -> Iterator[bytes]:
        """Yield what the DHT calls each block that is here of a version."""
        table = self._store.table(record)
        have = self._store.have_bitmap(table, record)
        return (multihash_encode(BLAKE3, table.digest(number)) for number in have)

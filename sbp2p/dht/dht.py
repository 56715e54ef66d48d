"""The DHT of one network, as the rest of a node uses it.

Theory of operation. A `Dht` finds things (`find_peer`, `find_providers`, `get_value`), leaves
things (`provide`, `provide_many`, `put_value`), and, as a server, answers those who do the same. It
works over a `KadNetwork`; everything that decides is in `sbp2p_protocol`.

| part | what |
|---|---|
| `Contacts` | the routing table: who comes in, who is asked now and then |
| `Lookups` | requests and lookups |
| `Announcer` | keys that this node provides, announced in time |
| `Values` | signed values |
| `Serving`, `DhtRecords` | answers to peers, and the records behind them |

Modes. A client asks and is not asked: it does not serve the protocol, so it enters no routing
table. `auto` is a server as long as others seem able to come here: `set_reachable` decides once
somebody has found out, before that the addresses that this node listens on do.

Times. Intervals are of trio's clock; records are dated by `wall_clock`, since they outlive the
process and mean something to others.
"""

from __future__ import annotations

import random
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from sbp2p.calls import InlineCalls
from sbp2p.config import DhtConfig
from sbp2p.swarm import Swarm
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.kad_messages import DEFAULT_NETWORK, KadMessage, KadPeer, KadType
from sbp2p_protocol.kad_table import BUCKET_SIZE, RoutingTable
from sbp2p_protocol.limits import (
    KAD_PEER_ADDRESSES_MAX,
)
from sbp2p_protocol.multiaddr import address_from_bytes
from sbp2p_protocol.value_records import NAMESPACES

from .announce import Announcer, AnnounceReport
from .contacts import Contacts
from .lookups import Lookups, is_public
from .providers import ProviderSearch
from .records import Contact, DhtRecords
from .serving import Serving
from .swarm_network import SwarmNetwork
from .values import ValueFound, Values

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from sbp2p.calls import Calls
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.kad_lookup import Lookup
    from sbp2p_protocol.multiaddr import Address
    from sbp2p_protocol.value_records import Namespace

    from .announce import Progress
    from .network import KadNetwork

PROVIDERS_WANTED = 20
"""Providers that are enough if nobody says how many are."""

_TELLERS = 3
"""Servers that must have told where a peer is before the search for it ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DhtStatistics:
    """The DHT at one moment, and what it has done since it was opened."""

    mode: str
    """server or client."""
    contacts: int
    buckets: tuple[int, ...]
    """Contacts in each bucket, the farthest first."""
    lookups: int
    requests: int
    requests_failed: int
    served: int
    refused: int
    providing: int
    """Keys that are announced again in time."""
    provider_records: int
    """Records kept for others."""
    value_records: int


@dataclass(frozen=True, slots=True)
class ClosestServers:
    """Where a record of some key belongs.

    Attributes:
        servers: Up to 20 that answered, the nearest first.
        hops: Requests in a row that led to the nearest.
        requests: How many it took in all.
    """

    servers: tuple[KadPeer, ...]
    hops: int
    requests: int


@asynccontextmanager
async def open_dht(
    network: Swarm | KadNetwork,
    records: DhtRecords | None = None,
    config: DhtConfig | None = None,
    *,
    name: str = DEFAULT_NETWORK,
    rng: random.Random | None = None,
    wall_clock: Callable[[], float] = time.time,  # noqa: TID251  (records have dates)
    calls: Calls | None = None,
    namespaces: Mapping[bytes, Namespace] = NAMESPACES,
) -> AsyncIterator[Dht]:
    """Take part in a DHT as long as the `async with` block lasts.

    Args:
        network: a swarm, or something else that carries requests.
        records: what was kept for others and who was known; in memory only if None.
        config: knobs.
        name: of the network to take part in, `/sbp2p` by default; `/ipfs` is the public one.
        rng: every choice made at random.
        wall_clock: Unix time in seconds.
        calls: where records are written to the disk; in the event loop if None.
        namespaces: which values there are.
    """
    config = config or DhtConfig()
    if isinstance(network, Swarm):
        network = SwarmNetwork(network, config, name)
    try:
        async with trio.open_nursery() as nursery:
            dht = Dht(
                network,
                records or DhtRecords(None),
                config,
                name=name,
                rng=rng or random.Random(),  # noqa: S311  # spreads load, guards nothing
                wall_clock=wall_clock,
                calls=calls or InlineCalls(),
                namespaces=namespaces,
                nursery=nursery,
            )
            dht._choose_mode()
            nursery.start_soon(dht._run)
            try:
                yield dht
            finally:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await dht._save()
    except BaseExceptionGroup as group:
        # the tasks of a DHT raise nothing, so what the block raised is alone in here
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


class Dht:
    """One node's part in a DHT. Made by `open_dht`."""

    def __init__(
        self,
        network: KadNetwork,
        records: DhtRecords,
        config: DhtConfig,
        *,
        name: str,
        rng: random.Random,
        wall_clock: Callable[[], float],
        calls: Calls,
        namespaces: Mapping[bytes, Namespace],
        nursery: trio.Nursery,
    ) -> None:
        self.name = name
        self.table = RoutingTable(network.peer_id)
        self._network = network
        self._records = records
        self._config = config
        self._rng = rng
        self._wall_clock = wall_clock
        self._calls = calls
        self._nursery = nursery
        self._lookups = Lookups(network, self.table, config, name)
        self._lookups.remembered = tuple(
            KadPeer(each.peer_id, each.addresses) for each in records.contacts
        )
        self._contacts = Contacts(network, self.table, self._lookups, config, rng)
        self._announcer = Announcer(network, self._lookups, config, rng)
        self._values = Values(self._lookups, config, namespaces, wall_clock, nursery)
        self._serving = Serving(
            network,
            self.table,
            self._contacts,
            self._announcer,
            records,
            rng=rng,
            wall_clock=wall_clock,
            public=is_public(config, name),
        )
        network.attach(self._serving)
        self._reachable: bool | None = None
        self._is_server = False

    # -- finding ------------------------------------------------------------------------------

    async def find_peer(self, peer_id: PeerId) -> tuple[Address, ...]:
        """Return where a peer may be found, what most servers say first; empty if none knows."""
        connected = self._network.find(peer_id)
        if connected is not None:
            await trio.lowlevel.checkpoint()
            return connected.addresses
        told: list[tuple[Address, ...]] = []

        def on_reply(lookup: Lookup, peer: KadPeer, reply: KadMessage) -> None:
            usable = self._lookups.usable(peer.peer_id, reply.closer)
            told.extend(each.addresses for each in usable if each.peer_id == peer_id)
            if len(told) >= _TELLERS:
                lookup.stop()

        contact = self.table.get(peer_id)
        if contact is not None:
            told.append(contact.addresses)
        message = KadMessage(KadType.FIND_NODE, peer_id.to_bytes())
        await self._lookups.run(message, on_reply=on_reply)
        counts: dict[Address, int] = {}
        for addresses in told:
            for address in addresses:
                counts[address] = counts.get(address, 0) + 1
        ordered = sorted(counts, key=lambda address: -counts[address])
        return tuple(ordered[:KAD_PEER_ADDRESSES_MAX])

    async def find_closest(self, key: bytes) -> ClosestServers:
        """Look for the servers nearest to a key, along as many paths as for a record."""
        lookup = await self._lookups.find_closest(key, paths=self._config.disjoint_paths)
        return ClosestServers(tuple(lookup.closest()), lookup.hops, lookup.asked)

    def find_providers(self, key: bytes, *, count: int = PROVIDERS_WANTED) -> ProviderSearch:
        """Return the providers of a multihash as they are found, to be iterated over.

        Without addresses, and last, come those whose addresses nobody told: try `find_peer`.
        """
        search = ProviderSearch(key, self._network.peer_id, count)
        self._nursery.start_soon(
            search.run, self._lookups, self._providers_here(key, count), self._config.disjoint_paths
        )
        return search

    def _providers_here(self, key: bytes, count: int) -> list[KadPeer]:
        now = self._wall_clock()
        found = self._records.providers.find(key, now, count=count, rng=self._rng)
        return [
            KadPeer(each.provider, tuple(map(address_from_bytes, each.addresses)))
            for each in found
            if each.addresses
        ]

    async def get_value(self, key: bytes, *, quorum: int | None = None) -> ValueFound | None:
        """Return the best valid value under a key, or None if no server tells one.

        Args:
            key: begins with its namespace.
            quorum: servers that must have told a valid value; as configured if None.
        """
        kept = self._records.values.get(key, self._wall_clock())
        return await self._values.get(key, quorum, None if kept is None else kept.value)

    # -- leaving ------------------------------------------------------------------------------

    async def provide(self, key: bytes) -> int:
        """Announce that this node has what a multihash names, now and every `republish_s`.

        Returns:
            How many servers took the record; 0 without an address that others could use.
        """
        return await self._announcer.provide(key)

    async def provide_many(
        self, keys: Iterable[bytes], *, progress: Progress | None = None
    ) -> AnnounceReport:
        """Announce many multihashes, region by region, now and every `republish_s`.

        Args:
            keys: what this node has.
            progress: told how many of how many keys servers have taken.
        """
        return await self._announcer.provide_many(keys, progress)

    def stop_providing(self, keys: Iterable[bytes]) -> None:
        """Announce these keys no more; servers forget them 48 h after the last time."""
        self._announcer.stop_providing(keys)

    async def put_value(self, key: bytes, value: bytes) -> int:
        """Store a value on the servers nearest to its key; return how many took it.

        Raises:
            ValueError: it may not stand under this key.
        """
        taken = await self._values.put(key, value)
        if self._is_server:  # as for providers: it is not among its own servers
            now, own = self._wall_clock(), str(self._network.peer_id)
            with suppress(RemoteProtocolError):
                self._records.values.put(key, value, now, account=own)
        return taken

    # -- taking part --------------------------------------------------------------------------

    async def bootstrap(self, peers: Sequence[Address]) -> int:
        """Begin with the peers at these addresses; return how many of them are servers."""
        return await self._contacts.bootstrap(peers)

    async def wait_settled(self) -> None:
        """Wait until some server is known and the table was filled from it."""
        await self._contacts.wait_settled()

    def set_reachable(self, reachable: bool | None) -> None:
        """Note whether others can dial this node; None if that is not known any more."""
        self._reachable = reachable
        self._choose_mode()

    @property
    def mode(self) -> str:
        """What this node is at the moment: server or client."""
        return "server" if self._is_server else "client"

    def peers(self) -> list[KadPeer]:
        """Return the contacts of the routing table, the nearest to this node first."""
        return [each.as_peer for each in self.table.closest(self.table.own_place, len(self.table))]

    def statistics(self) -> DhtStatistics:
        """Return the counters at this moment."""
        return DhtStatistics(
            mode=self.mode,
            contacts=len(self.table),
            buckets=self.table.bucket_sizes(),
            lookups=self._lookups.count,
            requests=self._lookups.requests,
            requests_failed=self._lookups.requests_failed,
            served=self._serving.served,
            refused=self._serving.refused,
            providing=self._announcer.keys,
            provider_records=len(self._records.providers),
            value_records=len(self._records.values),
        )

    # -- inside -------------------------------------------------------------------------------

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._network.run)
            nursery.start_soon(self._contacts.run)
            nursery.start_soon(self._announcer.run)
            if self._config.mode == "auto":
                nursery.start_soon(self._choose_mode_forever)
            nursery.start_soon(self._keep_records)

    def _choose_mode(self) -> None:
        wanted = self._config.mode == "server"
        if self._config.mode == "auto":
            known = self._reachable
            wanted = self._network.looks_reachable() if known is None else known
        if wanted != self._is_server:
            self._is_server = wanted
            self._network.serve(on=wanted)

    async def _choose_mode_forever(self) -> None:
        while True:
            await trio.sleep(self._config.mode_s)
            self._choose_mode()

    async def _keep_records(self) -> None:
        while True:
            await trio.sleep(self._config.upkeep_s)
            now = self._wall_clock()
            self._records.providers.expire(now)
            self._records.values.expire(now)
            await self._save()

    async def _save(self) -> None:
        """Write down what changed, and the contacts that answer."""
        known = self.table.closest(self.table.own_place, len(self.table))
        if known:
            self._lookups.remembered = tuple(each.as_peer for each in known[:BUCKET_SIZE])
            self._records.set_contacts(Contact(each.peer_id, each.addresses) for each in known)
        await self._records.flush(self._calls)

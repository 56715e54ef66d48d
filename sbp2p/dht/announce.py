"""Announcing what this node provides, one key by a lookup or many by a sweep, and again in time.

A server is told of all its keys of a region over one stream. Keys are remembered and announced
again `republish_s` after the last time, well before servers forget them, or after `retry_s`, which
doubles each time, if no server took them; what is announced is this node's addresses of that
moment. Keys are not kept across restarts: what a node provides is known to whoever asked for it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import trio

from sbp2p.errors import Sbp2pError
from sbp2p_protocol.kad_keys import kad_id, kad_id_of
from sbp2p_protocol.kad_messages import KadMessage, KadPeer, KadType
from sbp2p_protocol.kad_sweep import Assignment, Sweep, split_keys
from sbp2p_protocol.kad_table import BUCKET_SIZE
from sbp2p_protocol.limits import PROVIDER_KEY_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable
    from random import Random

    from sbp2p.config import DhtConfig
    from sbp2p_keys.identity import PeerId

    from .lookups import Lookups
    from .network import KadNetwork

    Progress = Callable[[int, int], object]

_STREAM_RECORDS = 4096
"""Records on one stream: a server that refuses one of them may have taken all before it."""

_NEIGHBOURS = 512
"""Servers that were found lately, from which the next lookup of a sweep begins."""


@dataclass(slots=True)
class AnnounceReport:
    """What an announcement did and cost.

    Attributes:
        keys: What was to be announced.
        announced: Keys that at least one server took.
        records: Records that servers took, over all keys.
        refused: Records that they did not.
        lookups: Lookups.
        requests: Requests of these lookups.
        streams: Streams over which records were sent, each to one server.
    """

    keys: int = 0
    announced: int = 0
    records: int = 0
    refused: int = 0
    lookups: int = 0
    requests: int = 0
    streams: int = 0

    @property
    def rpcs(self) -> int:
        """Messages sent: requests and records."""
        return self.requests + self.records + self.refused


class _Due(NamedTuple):
    """When a key is announced again, and how long that is after the last time."""

    at: float
    wait_s: float


class Announcer:
    """Announces keys and remembers them.

    Args:
        network: to whom records go.
        lookups: how servers are found.
        config: knobs.
        rng: for places where no key is.
    """

    def __init__(
        self, network: KadNetwork, lookups: Lookups, config: DhtConfig, rng: Random
    ) -> None:
        self._network = network
        self._lookups = lookups
        self._config = config
        self._rng = rng
        self._due: dict[bytes, _Due] = {}
        self._neighbours: OrderedDict[PeerId, KadPeer] = OrderedDict()

    @property
    def keys(self) -> int:
        """How many keys are announced again and again."""
        return len(self._due)

    def provides(self, key: bytes) -> bool:
        """Return whether this node has said that it has what a multihash names."""
        return key in self._due

    async def provide(self, key: bytes) -> int:
        """Announce one key; return how many servers took the record.

        Raises:
            ValueError: no server takes this as a key.
        """
        _check([key])
        report = AnnounceReport(keys=1)
        if self._network.addresses():
            lookup = await self._lookups.find_closest(key, paths=self._config.disjoint_paths)
            assignments = [Assignment(server, (key,)) for server in lookup.closest()]
            await self._send(assignments, report, set())
        self._remember([key], {key} if report.records else set())
        return report.records

    async def provide_many(
        self, keys: Iterable[bytes], progress: Progress | None = None
    ) -> AnnounceReport:
        """Announce many keys, a region of the keyspace after the other.

        Args:
            keys: what this node provides.
            progress: told how many of how many keys have been announced.

        Raises:
            ValueError: no server takes one of these as a key.
        """
        wanted = dict.fromkeys(keys)
        _check(wanted)
        report = AnnounceReport(keys=len(wanted))
        announced: set[bytes] = set()

        async def sweep(lot: list[bytes]) -> None:
            await self._sweep(Sweep(lot, self._rng), report, announced, progress)

        if self._network.addresses():
            bits = self._config.parallel_sweeps.bit_length() - 1
            async with trio.open_nursery() as nursery:
                for lot in split_keys(wanted, bits):
                    nursery.start_soon(sweep, lot)
        report.announced = len(announced)
        self._remember(wanted, announced)
        return report

    def stop_providing(self, keys: Iterable[bytes]) -> None:
        """Announce these keys no more; servers forget them after 48 h."""
        for key in keys:
            self._due.pop(key, None)

    async def run(self) -> None:
        """Announce again what is due, for ever."""
        while True:
            await trio.sleep(self._config.upkeep_s)
            now = trio.current_time()
            due = [key for key, each in self._due.items() if each.at <= now]
            if due:
                await self.provide_many(due)

    # -- inside -------------------------------------------------------------------------------

    def _remember(self, keys: Iterable[bytes], announced: Container[bytes]) -> None:
        now = trio.current_time()
        for key in keys:
            wait_s = self._config.republish_s
            if key not in announced:
                before = self._due.get(key)
                again_s = self._config.retry_s if before is None else 2 * before.wait_s
                wait_s = min(again_s, wait_s)
            self._due[key] = _Due(now + wait_s, wait_s)

    async def _sweep(
        self,
        sweep: Sweep,
        report: AnnounceReport,
        announced: set[bytes],
        progress: Progress | None,
    ) -> None:
        while (target := sweep.next_target()) is not None:
            lookup = await self._lookups.find_closest(target, extra=self._near(target))
            report.lookups += 1
            report.requests += lookup.asked
            closest = lookup.closest()
            for server in closest:
                self._neighbours[server.peer_id] = server
                self._neighbours.move_to_end(server.peer_id)
            while len(self._neighbours) > _NEIGHBOURS:
                self._neighbours.popitem(last=False)
            await self._send(sweep.on_closest(closest), report, announced)
            if progress is not None:
                progress(len(announced), report.keys)

    def _near(self, target: bytes) -> list[KadPeer]:
        place = kad_id(target)
        return heapq.nsmallest(
            BUCKET_SIZE,
            self._neighbours.values(),
            key=lambda server: kad_id_of(server.peer_id) ^ place,
        )

    async def _send(
        self, assignments: Iterable[Assignment], report: AnnounceReport, announced: set[bytes]
    ) -> None:
        """Tell every server its keys, some servers at a time."""
        own = (KadPeer(self._network.peer_id, self._network.addresses()),)
        limiter = trio.CapacityLimiter(self._config.parallel_sends)

        async def tell(assignment: Assignment) -> None:
            server, left = assignment.server, assignment.keys
            async with limiter:
                while left:
                    keys, left = left[:_STREAM_RECORDS], left[_STREAM_RECORDS:]
                    report.streams += 1
                    try:
                        await self._network.send(
                            server.peer_id,
                            server.addresses,
                            [KadMessage(KadType.ADD_PROVIDER, key, providers=own) for key in keys],
                        )
                    except Sbp2pError:
                        report.refused += len(keys) + len(left)
                        return
                    report.records += len(keys)
                    announced.update(keys)

        async with trio.open_nursery() as nursery:
            for assignment in assignments:
                nursery.start_soon(tell, assignment)


def _check(keys: Iterable[bytes]) -> None:
    for key in keys:
        if not 1 <= len(key) <= PROVIDER_KEY_MAX:
            raise ValueError(f"no multihash, with {len(key)} bytes: {key[:32].hex()}")

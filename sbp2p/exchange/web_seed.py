"""Blocks from web servers, for what no peer has: see docs/web-seeds.md.

Theory of operation. A fixed number of workers; each asks one web seed for one range at a time, cuts
the blocks out of the answer and gives them to the writer, which hashes them like any peer's. To the
picker a worker at work is a peer that has everything, so no block is asked of peers and of the web
at once. As a fallback the workers rest as long as some peer owes blocks or can be asked for some.

    a web seed       what happens to it
    answers well     its failures are forgotten
    fails            it rests, twice as long each time; after some times in a row it is dropped
    is wrong         dropped: it ignores ranges, lacks the file, sends other lengths or bytes
    dropped          not asked any more in this fetch; who runs the node is told which and why

Error cases: none come out. What could not be had is asked of others, and `dropped` says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import trio

from sbp2p import observe
from sbp2p_keys.identity import PeerId
from sbp2p_keys.multi import SHA2_256, multihash_encode
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.web_seeds import RangeCutter, plan_ranges

from .session import Tally
from .web_client import WebClient, WebError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.config import WebConfig
    from sbp2p.limits import Limits
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.web_seeds import WebRange, WebUrl

    from .scheduler import BlockScheduler
    from .writer import BlockWriter

_LOOK_S: Final = 0.1
"""How often a worker that has nothing to do looks again."""


@dataclass(frozen=True, slots=True)
class WebSeedStatistics:
    """What one web seed was good for in one fetch."""

    url: str
    bytes_received: int
    """Of bodies, what lies between the wanted blocks included."""
    blocks_verified: int
    dropped: str
    """Why it is not asked any more; empty if it still would be."""


class WebSeed:
    """One web seed of one fetch."""

    def __init__(self, url: WebUrl, *, private: bool) -> None:
        self.url = url
        self.private = private
        """Whether the user named it, so that its host may be in a private network."""
        self.dropped = ""
        self.bytes_received = 0
        self.tally = Tally()
        self.ready_at = 0.0
        self._failures = 0

    def failed(self, error: WebError, config: WebConfig, now: float) -> None:
        """Note a request that came to nothing."""
        self._failures += 1
        if not error.later:
            self.drop(str(error))
        elif self._failures >= config.max_failures:
            self.drop(f"{error}, {self._failures} times in a row")
        else:
            wait = min(config.retry_s * 2 ** (self._failures - 1), config.retry_max_s)
            self.ready_at = now + max(wait, error.wait_s)

    def worked(self) -> None:
        """Note a request that was answered well."""
        self._failures = 0

    def drop(self, reason: str) -> None:
        """Do not ask it any more."""
        if not self.dropped:
            self.dropped = reason
            observe.report_web_seed_dropped(self.url.text, reason)


def _name_of_worker(number: int) -> PeerId:
    """Return a name for the picker that no key has: the hash of something that is no key."""
    name = sha256(b"sbp2p web seed worker %d" % number).digest()
    return PeerId.from_bytes(multihash_encode(SHA2_256, name))


@dataclass(frozen=True, slots=True)
class _Sending:
    """Who sent a block: a worker, from a web seed. Is a `BlockSender`."""

    peer_id: PeerId
    seed: WebSeed

    @property
    def tally(self) -> Tally:
        return self.seed.tally

    def blame(self, points: int, reason: str) -> None:
        """Have no more to do with the web seed."""
        self.seed.drop(reason)


class WebSeeds:
    """The web seeds of one fetch, and those who ask them."""

    def __init__(
        self,
        seeds: Sequence[WebSeed],
        *,
        table: BlockTable,
        config: WebConfig,
        limits: Limits,
    ) -> None:
        self.seeds = tuple(seeds)
        self._table = table
        self._config = config
        self._limits = limits
        self._client = WebClient(config)
        self._turn = 0
        self._quiet_since = trio.current_time()

    @property
    def hope(self) -> bool:
        """Whether something may still come."""
        return self._config.use != "never" and any(not seed.dropped for seed in self.seeds)

    @property
    def bytes_received(self) -> int:
        """Of bodies, from all web seeds together."""
        return sum(seed.bytes_received for seed in self.seeds)

    def statistics(self) -> tuple[WebSeedStatistics, ...]:
        """Return the counters of every web seed."""
        return tuple(
            WebSeedStatistics(
                seed.url.text, seed.bytes_received, seed.tally.blocks_verified, seed.dropped
            )
            for seed in self.seeds
        )

    async def run(self, scheduler: BlockScheduler, writer: BlockWriter) -> None:
        """Ask as long as there are web seeds left to ask; ends then."""
        if not self.hope:
            return
        self._quiet_since = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                for number in range(self._config.parallel_requests):
                    nursery.start_soon(self._work, number, scheduler, writer)
        finally:
            with trio.CancelScope(shield=True):
                await self._client.aclose()

    async def _work(self, number: int, scheduler: BlockScheduler, writer: BlockWriter) -> None:
        key = _name_of_worker(number)
        working = False  # and then a peer to the picker
        while self.hope or working:
            seed = self._choose(scheduler)
            if seed is not None:
                if not working:
                    scheduler.web_joined(key)
                    working = True
                if await self._ask(seed, _Sending(key, seed), scheduler, writer):
                    continue
            elif working and not scheduler.picker.in_flight_of(key):  # all is verified
                scheduler.web_left(key)
                working = False
            await trio.sleep(_LOOK_S)

    def _choose(self, scheduler: BlockScheduler) -> WebSeed | None:
        """Return the next web seed to ask, if it is time to."""
        now = trio.current_time()
        if self._config.use == "fallback":
            if scheduler.peers_can:
                self._quiet_since = now
            if now - self._quiet_since < self._config.after_s:
                return None
        able = [seed for seed in self.seeds if not seed.dropped and seed.ready_at <= now]
        if not able:
            return None
        self._turn += 1
        return able[self._turn % len(able)]

    async def _ask(
        self, seed: WebSeed, sender: _Sending, scheduler: BlockScheduler, writer: BlockWriter
    ) -> bool:
        """Ask for a run of blocks; returns whether there was one and all of it came."""
        picked = scheduler.pick_run(sender.peer_id, self._config.request_bytes)
        waiting = set(picked)
        try:
            for asked in plan_ranges(
                self._table,
                picked,
                most_bytes=self._config.request_bytes,
                most_gap=self._config.gap_bytes,
            ):
                await self._fetch(seed, sender, asked, waiting, scheduler, writer)
                seed.worked()
        except WebError as error:
            seed.failed(error, self._config, trio.current_time())
            return False
        finally:
            scheduler.give_back(sender.peer_id, waiting)
        return bool(picked)

    async def _fetch(
        self,
        seed: WebSeed,
        sender: _Sending,
        asked: WebRange,
        waiting: set[int],
        scheduler: BlockScheduler,
        writer: BlockWriter,
    ) -> None:
        file = self._table.files[asked.file]
        cutter = RangeCutter(asked)
        url = seed.url.file(file.path)
        async with self._client.open_range(url, asked, file.size, private=seed.private) as body:
            while data := await body.receive():
                if seed.dropped:
                    return
                seed.bytes_received += len(data)
                began = trio.current_time()
                await self._limits.download(sender.peer_id, len(data))
                try:
                    blocks = cutter.feed(data)
                except RemoteProtocolError as error:
                    raise WebError(str(error), later=False) from error
                for index, block in blocks:
                    waiting.discard(index)
                    received = scheduler.received(sender, index, [block], len(block))
                    if received is not None:
                        await writer.put(received)
                body.excuse(trio.current_time() - began)
            if cutter.missing:
                raise WebError(f"its answer ended {cutter.missing} bytes too early", later=True)

"""What one fetch says to its peers and hears from them.

Theory of operation: sessions come and go in `Sources`; what they tell goes, by its kind, to those
who wait for it: documents to `Questions`, loose blocks to `NodeFetcher`, everything about leaf
blocks to the `BlockScheduler` and on to the `BlockWriter`, once there is a transfer (`attach`).
A tick looks at the time: a session that has stalled loses its debts to others. Time in which this
process itself stood still (Ctrl-Z, a paused machine) is held against nobody.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from sbp2p.swarm import VIOLATION_POINTS
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.exchange_events import (
    NodeArrived,
    NodeRejected,
    PeersTold,
    VersionArrived,
    VersionMissing,
)

from .nodes import NodeFetcher
from .questions import Questions
from .sources import Sources
from .unwrap import unwrapped_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from sbp2p.calls import Calls
    from sbp2p.config import NodeConfig
    from sbp2p.store import Store
    from sbp2p.swarm import Swarm
    from sbp2p_protocol.exchange_events import ClientEvent

    from .scheduler import BlockScheduler
    from .session import PeerSession
    from .source import Source
    from .writer import BlockWriter

_TICK_S: Final = 0.1
"""How often time is looked at: stalls, pauses, the endgame, progress."""
ABSENT_S: Final = 1.0
"""A tick that is so late says that nothing ran meanwhile, so nothing could have been received."""


class Peers:
    """The peers of one fetch; made by `open_peers`. Is a `SessionOwner`."""

    def __init__(
        self,
        *,
        swarm: Swarm,
        store: Store,
        threads: Calls,
        config: NodeConfig,
        on_tick: Callable[[float], None],
        ordered: bool,
        learns: bool,
        nursery: trio.Nursery,
    ) -> None:
        self.sources = Sources(
            swarm=swarm,
            config=config.exchange,
            owner=self,
            left=self._left,
            tried=self._tried,
            ordered=ordered,
            learns=learns,
            nursery=nursery,
        )
        self.questions = Questions(self.sources, config.exchange)
        self.nodes = NodeFetcher(
            self.sources, store, config.exchange, threads, config.swarm.ban_score
        )
        self.more_may_come = False
        """Whether sources may be added that are not known yet."""
        self._on_tick = on_tick
        self._scheduler: BlockScheduler | None = None
        self._writer: BlockWriter | None = None

    def attach(self, scheduler: BlockScheduler, writer: BlockWriter) -> None:
        """Begin a transfer: every peer that can be asked joins it."""
        self._scheduler, self._writer = scheduler, writer
        for session in self.sources.sessions.values():
            if session.greeted:
                scheduler.joined(session)

    async def take_arrivals(self, arrivals: trio.MemoryReceiveChannel[Source]) -> None:
        """Add sources as they come, to the end of the channel."""
        async for source in arrivals:
            self.sources.add(source)
        self.more_may_come = False
        self.questions.tried()

    async def tick(self) -> None:
        """Look at the time, for ever."""
        now = trio.current_time()
        while True:
            before = now
            await trio.sleep(_TICK_S)
            now = trio.current_time()
            for session in list(self.sources.sessions.values()):
                if now - before > ABSENT_S:
                    session.client.resume(now)
                stall = session.check_time(now)
                if stall is not None:
                    self.nodes.stalled(session, stall.nodes)
                    if self._scheduler is not None:
                        self._scheduler.stalled(session, stall.digests)
            if self._scheduler is not None:
                self._scheduler.tick(now)
            self._on_tick(now)

    # -- what sessions tell ---------------------------------------------------------------------

    def joined(self, session: PeerSession) -> None:
        """A peer can be asked."""
        self.sources.greeted(session)
        self.questions.joined(session)
        self.nodes.joined(session)
        if self._scheduler is not None:
            self._scheduler.joined(session)

    async def handle(self, session: PeerSession, event: ClientEvent) -> None:
        """Take what a peer sent; waits while the disk is behind."""
        match event:
            case NodeArrived() | NodeRejected():
                self.nodes.take(session, event)
            case VersionArrived() | VersionMissing():
                self.questions.take(session, event)
            case PeersTold():
                self._meet(session, event)
            case _:
                if self._scheduler is not None and self._writer is not None:
                    block = self._scheduler.take(session, event)
                    if block is not None:
                        await self._writer.put(block)

    def _meet(self, session: PeerSession, event: PeersTold) -> None:
        """Ask peers that a peer has told of, if they have to do with what is fetched."""
        if self._scheduler is None or self._scheduler.root != event.root:
            return
        try:
            for source in session.records.read(event.records):
                self.sources.add(source)
        except RemoteProtocolError as error:
            session.blame(VIOLATION_POINTS, str(error))

    def drained(self, session: PeerSession) -> None:
        """A peer's events are handled: ask for more."""
        self.nodes.assign()
        if self._scheduler is not None:
            self._scheduler.refill(session)

    def _left(self, session: PeerSession) -> None:
        self.questions.left(session)
        self.nodes.left(session)
        if self._scheduler is not None:
            self._scheduler.left(session)

    def _tried(self) -> None:
        self.questions.tried()


@asynccontextmanager
async def open_peers(
    sources: Iterable[Source],
    arrivals: trio.MemoryReceiveChannel[Source] | None,
    *,
    swarm: Swarm,
    store: Store,
    threads: Calls,
    config: NodeConfig,
    on_tick: Callable[[float], None],
    ordered: bool = False,
    learns: bool = True,
) -> AsyncIterator[Peers]:
    """Ask `sources`, and those that come over `arrivals`, as long as the block lasts.

    Args:
        sources: peers to ask.
        arrivals: more of them, while the block lasts.
        swarm, store, threads, config: the exchange's.
        on_tick: called ten times a second with the time; what it raises ends the block.
        ordered: whether blocks will be asked for in an order of this node's own.
        learns: whether peers are asked that others tell of.
    """
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            peers = Peers(
                swarm=swarm,
                store=store,
                threads=threads,
                config=config,
                on_tick=on_tick,
                ordered=ordered,
                learns=learns,
                nursery=nursery,
            )
            for source in sources:
                peers.sources.add(source)
            if arrivals is not None:
                peers.more_may_come = True
                nursery.start_soon(peers.take_arrivals, arrivals)
            nursery.start_soon(peers.tick)
            nursery.start_soon(peers.sources.keep_to_roles)
            yield peers
            for session in peers.sources.sessions.values():
                session.leave()
            await trio.lowlevel.checkpoint()  # so that the goodbyes go out
            nursery.cancel_scope.cancel()

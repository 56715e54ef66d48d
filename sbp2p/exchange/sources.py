"""The peers of one fetch: connected to, kept, and tried again when they are lost.

Theory of operation: every source has a task that connects (when addresses are known), opens a
stream, runs a session on it, and after its end waits and starts over, with a wait that doubles up
to a minute. Sources may be added at any time; more than `max_sources` wait for a free place. A
source that was blamed is not tried again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from sbp2p.errors import PeerUnreachableError, Sbp2pError
from sbp2p_protocol.exchange_messages import PROTOCOL_ID

from .session import PeerSession, Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbp2p.config import ExchangeConfig
    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.multiaddr import Address

    from .session import SessionOwner, SourceStatistics

_RETRY_MAX_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Source:
    """A peer that may have what is wanted; without addresses it must be connected already."""

    peer_id: PeerId
    addresses: tuple[Address, ...] = ()


class Sources:
    """The sessions with all sources of one fetch."""

    def __init__(
        self,
        *,
        swarm: Swarm,
        config: ExchangeConfig,
        owner: SessionOwner,
        left: Callable[[PeerSession], None],
        tried: Callable[[], None],
        nursery: trio.Nursery,
    ) -> None:
        self.sessions: dict[PeerId, PeerSession] = {}
        """Peers that have answered HELLO or still may."""
        self.failures: dict[PeerId, str] = {}
        """Why a source is not in `sessions` just now."""
        self.trying: set[PeerId] = set()
        """Sources whose first attempt has not ended either way."""
        self._swarm = swarm
        self._config = config
        self._owner = owner
        self._left = left
        self._tried = tried
        self._nursery = nursery
        self._known: set[PeerId] = set()
        self._blamed: set[PeerId] = set()
        self._latest: dict[PeerId, PeerSession] = {}
        """The last session with each peer, ended or not."""
        self._places = trio.Semaphore(config.max_sources)

    def add(self, source: Source) -> None:
        """Start asking a peer; nothing happens if it is asked already."""
        if source.peer_id not in self._known:
            self._known.add(source.peer_id)
            self.trying.add(source.peer_id)
            self._nursery.start_soon(self._keep, source)

    @property
    def known(self) -> int:
        """How many sources were ever added."""
        return len(self._known)

    @property
    def exhausted(self) -> bool:
        """Whether every source was blamed, or there was none: nobody is left to try again."""
        return self._known == self._blamed

    def usable(self) -> list[PeerSession]:
        """Return the sessions that can be expected to answer now."""
        return [session for session in self.sessions.values() if session.usable]

    def greeted(self, session: PeerSession) -> None:
        """Note that a session has come about."""
        self.trying.discard(session.peer_id)

    def statistics(self) -> tuple[SourceStatistics, ...]:
        """Return the counters of every source that was ever connected, best first."""
        latest = [session.statistics() for session in self._latest.values()]
        return tuple(sorted(latest, key=lambda each: -each.bytes_received))

    @property
    def bytes_received(self) -> int:
        """Payload from all sources together."""
        return sum(
            session.tally.bytes_before + session.client.pipeline.total_bytes
            for session in self._latest.values()
        )

    def _open_session(self, stream: Stream) -> PeerSession:
        tally = Tally()
        past = self._latest.get(stream.peer_id)
        if past is not None:
            tally = past.tally
            tally.bytes_before += past.client.pipeline.total_bytes
        session = PeerSession(
            stream, swarm=self._swarm, config=self._config, owner=self._owner, tally=tally
        )
        self._latest[stream.peer_id] = self.sessions[stream.peer_id] = session
        return session

    async def _keep(self, source: Source) -> None:
        wait = self._config.retry_s
        while True:
            async with self._places:
                blamed, worked = await self._attempt(source)
            self.trying.discard(source.peer_id)
            if blamed:
                self._blamed.add(source.peer_id)
            self._tried()
            if blamed:
                return
            wait = self._config.retry_s if worked else min(2 * wait, _RETRY_MAX_S)
            await trio.sleep(wait)

    async def _open_stream(self, source: Source) -> Stream:
        if source.addresses:
            await self._swarm.connect(source.addresses, source.peer_id)
            # what was found open may have been ending: then a new connection is made
            with suppress(PeerUnreachableError):
                return await self._swarm.open_stream(source.peer_id, [PROTOCOL_ID])
            await self._swarm.connect(source.addresses, source.peer_id)
            try:
                return await self._swarm.open_stream(source.peer_id, [PROTOCOL_ID])
            except PeerUnreachableError as error:
                # its gate is asked once it knows who calls, and gives no reason
                raise PeerUnreachableError(
                    "it ends new connections at once: it may be full, or serve only peers it knows",
                    hint="ask whoever runs it; `sbp2p id` shows who this node is",
                ) from error
        return await self._swarm.open_stream(source.peer_id, [PROTOCOL_ID])

    async def _attempt(self, source: Source) -> tuple[bool, bool]:
        """Run one session; returns whether the peer is to blame, and whether it was of use."""
        peer_id = source.peer_id
        try:
            stream = await self._open_stream(source)
        except Sbp2pError as error:
            self.failures[peer_id] = str(error)
            return False, False
        session = self._open_session(stream)
        verified_before = session.tally.blocks_verified
        self.failures.pop(peer_id, None)
        try:
            self.failures[peer_id] = await session.run()
        finally:
            del self.sessions[peer_id]
            self._left(session)
            if session.client.owed_blocks:
                stream.reset()  # what it still sends is of no use
            else:
                await stream.aclose()
        return session.blamed, session.tally.blocks_verified > verified_before

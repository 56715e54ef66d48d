"""The peers of one fetch: connected to, kept, and tried again when they are lost.

Theory of operation: every source has a task that connects (when addresses are known), opens a
stream, runs a session on it, and after its end waits and starts over, with a wait that doubles up
to a minute. Sources may be added at any time; more than `max_sources` wait for a free place. A
source that was blamed is not tried again. A peer that this node's role keeps it from asking is
left alone, and one that it may ask again, after a change of the rules, is tried at once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from sbp2p.errors import ConfigError, PeerUnreachableError, Sbp2pError
from sbp2p.roles import ANYTHING
from sbp2p_protocol.exchange_messages import PROTOCOL_ID

from .session import PeerSession, Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbp2p.config import ExchangeConfig
    from sbp2p.roles import Rules, Subject
    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId

    from .session import SessionOwner, SourceStatistics
    from .source import Source

_RETRY_MAX_S: Final = 60.0
_LEARNED_MAX: Final = 256
"""Sources above which no more are learned from peers."""
_LEARNED_TRIES: Final = 3
_DIAL_WAIT_S: Final = 1.0
"""Two peers that learn of each other would both dial: the one with the greater id waits so long."""
_NOT_ASKED: Final = "this node's role keeps it from asking"


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
        ordered: bool,
        learns: bool,
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
        self._ordered = ordered
        self._learns = learns
        self._nursery = nursery
        self._arrived: dict[PeerId, trio.Event] = {}
        """Set when a peer that was to be dialled has connected by itself."""
        self._known: set[PeerId] = set()
        self._blamed: set[PeerId] = set()
        self._latest: dict[PeerId, PeerSession] = {}
        """The last session with each peer, ended or not."""
        self._places = trio.Semaphore(config.max_sources)
        self._subject = ANYTHING

    def add(self, source: Source) -> None:
        """Start asking a peer; nothing happens if it is asked already."""
        peer_id = source.peer_id
        if peer_id in self._arrived and not source.addresses:
            self._arrived[peer_id].set()
        if peer_id in self._known or peer_id == self._swarm.peer_id:
            return
        if source.learned and (not self._learns or len(self._known) >= _LEARNED_MAX):
            return
        self._known.add(peer_id)
        if not source.learned:
            self.trying.add(peer_id)
        self._nursery.start_soon(self._keep, source)

    def concern(self, subject: Subject) -> None:
        """Ask only peers that this node's role lets be asked for `subject`.

        Raises:
            ConfigError: nobody may be.
        """
        rules = self._swarm.roles.rules
        if not rules.receives(subject):
            raise ConfigError(
                f"this node's role for this is {rules.role(None, subject).value}: "
                "it does not receive",
                hint="give it another role, such as peer or leech",
            )
        self._subject = subject
        self._part_by_role(rules)

    async def keep_to_roles(self) -> None:
        """Leave peers as soon as other rules say so, for ever."""
        rules = self._swarm.roles.rules
        while True:
            self._part_by_role(rules)
            rules = await self._swarm.roles.wait_changed(rules)

    def _part_by_role(self, rules: Rules) -> None:
        for session in self.sessions.values():
            if not rules.role(session.peer_id, self._subject).receives:
                session.leave(_NOT_ASKED)

    @property
    def known(self) -> int:
        """How many sources were ever added."""
        return len(self._known)

    @property
    def exhausted(self) -> bool:
        """Whether every source was blamed, or there was none: nobody is left to try again."""
        return self._known == self._blamed

    @property
    def all_here(self) -> bool:
        """Whether every source that was not blamed is connected just now."""
        return len(self.sessions) == len(self._known - self._blamed)

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
            stream,
            swarm=self._swarm,
            config=self._config,
            owner=self._owner,
            tally=tally,
            ordered=self._ordered,
        )
        self._latest[stream.peer_id] = self.sessions[stream.peer_id] = session
        return session

    async def _keep(self, source: Source) -> None:
        wait = self._config.retry_s
        failed = 0
        if source.learned and source.addresses:
            await self._let_dial(source.peer_id)
        while True:
            rules = self._swarm.roles.rules
            async with self._places:
                blamed, worked = await self._attempt(source)
            self.trying.discard(source.peer_id)
            if blamed:
                self._blamed.add(source.peer_id)
            self._tried()
            if blamed:
                return
            failed = 0 if worked else failed + 1
            if source.learned and failed >= _LEARNED_TRIES:
                self._known.discard(source.peer_id)
                self.failures.pop(source.peer_id, None)
                return
            wait = self._config.retry_s if worked else min(2 * wait, _RETRY_MAX_S)
            with trio.move_on_after(wait):
                await self._swarm.roles.wait_changed(rules)

    async def _let_dial(self, peer_id: PeerId) -> None:
        """Wait for a peer that may be dialling us just now."""
        if self._swarm.peer_id < peer_id or self._swarm.connections(peer_id):
            return
        self._arrived[peer_id] = trio.Event()
        with trio.move_on_after(_DIAL_WAIT_S):
            await self._arrived[peer_id].wait()
        del self._arrived[peer_id]

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
        if not self._swarm.roles.rules.role(peer_id, self._subject).receives:
            self.failures[peer_id] = _NOT_ASKED
            return False, False
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

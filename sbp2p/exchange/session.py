"""One peer that a fetch asks: its stream, the machine on it, and what it has been good for.

Theory of operation. Two tasks: one reads the stream, feeds the machine and hands every event to the
fetch; the other writes what the machine has to say. Handing over a block waits while the disk is
behind, and then nothing is read: the stream's window fills and the peer stops. Time spent waiting
for our own disk is not held against the peer.

Error cases: a peer that breaks the protocol is penalized and its stream reset; a lost stream ends
the session. Both are told by what `run` returns, not by an exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import trio

from sbp2p.swarm import VIOLATION_POINTS
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.exchange_client import ExchangeClient
from sbp2p_protocol.exchange_events import BlockArrived, Greeted, PeerLeft, Stalled

from .records import RecordReader
from .signal import Signal

if TYPE_CHECKING:
    from sbp2p.config import ExchangeConfig
    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.exchange_events import ClientEvent

STALL_POINTS: Final = 5
"""Penalty for a stall. Honest peers stall too: they lose their network or are put to sleep."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceStatistics:
    """What one peer was good for in one fetch."""

    peer_id: PeerId
    connected: bool
    bytes_received: int
    """Payload of blocks that it sent, tree nodes included, duplicates too."""
    blocks_verified: int
    blocks_rejected: int
    blocks_bad: int
    stalls: int
    rate: float
    """Bytes a second, lately."""


@dataclass(slots=True)
class Tally:
    """What one peer was good for over all its sessions in one fetch.

    Outlives each of them, because a block may be verified when its session has ended.
    """

    blocks_verified: int = 0
    blocks_rejected: int = 0
    blocks_bad: int = 0
    stalls: int = 0
    bytes_before: int = 0
    """Payload received in earlier sessions."""


class SessionOwner(Protocol):
    """What a session tells; called in its tasks."""

    def joined(self, session: PeerSession) -> None:
        """The peer has answered our HELLO; blocks can be asked for."""

    async def handle(self, session: PeerSession, event: ClientEvent) -> None:
        """Take an event; may wait, and nothing is read from the peer meanwhile."""

    def drained(self, session: PeerSession) -> None:
        """All events of what was read are handled: time to ask for more."""


class PeerSession:
    """One stream on which this side asks one peer."""

    def __init__(
        self,
        stream: Stream,
        *,
        swarm: Swarm,
        config: ExchangeConfig,
        owner: SessionOwner,
        tally: Tally,
        ordered: bool = False,
    ) -> None:
        self.peer_id = stream.peer_id
        self.client = ExchangeClient(
            pipeline_bytes=config.pipeline_bytes,
            progress_timeout_s=config.progress_timeout_s,
            now=trio.current_time(),
            ordered=ordered,
        )
        self.records = RecordReader(swarm, stream.peer_id)
        self.subscription: int | None = None
        """Once the peer was asked what it has of the version."""
        self.gained: list[int] = []
        """Blocks that the peer is to be told of, some time."""
        self.greeted = False
        self.paused_until = 0.0
        """The peer was busy: not to be asked for blocks before this time."""
        self.pauses = 0
        """How often in a row it was busy."""
        self.lies = 0
        """Blocks that it said it had, and then did not."""
        self.blamed = False
        """Sent a wrong block or broke the protocol: not to be asked again."""
        self._parting = ""
        """Why this side ended the session, if it did."""
        self.tally = tally
        self._stream = stream
        self._swarm = swarm
        self._config = config
        self._owner = owner
        self._output = Signal()
        self._handing_over = False

    @property
    def usable(self) -> bool:
        """Whether the peer can be expected to answer now."""
        return self.greeted and not self.client.closed and not self.client.stalled

    def statistics(self) -> SourceStatistics:
        """Return the counters at this moment, those of earlier sessions with the peer included."""
        return SourceStatistics(
            peer_id=self.peer_id,
            connected=not self.client.closed,
            bytes_received=self.tally.bytes_before + self.client.pipeline.total_bytes,
            blocks_verified=self.tally.blocks_verified,
            blocks_rejected=self.tally.blocks_rejected,
            blocks_bad=self.tally.blocks_bad,
            stalls=self.tally.stalls,
            rate=self.client.pipeline.rate,
        )

    def wake(self) -> None:
        """Have what the machine has to say sent."""
        if self.client.has_output:
            self._output.fire()

    def leave(self, reason: str = "") -> None:
        """Say goodbye; `run` returns soon after, and says why."""
        self._parting = self._parting or reason
        self.client.goodbye()
        self._output.fire()

    def blame(self, points: int, reason: str) -> None:
        """Hold something against the peer and have no more to do with it."""
        self.blamed = True
        self._parting = self._parting or reason
        self._swarm.penalize(self.peer_id, points, f"exchange: {reason}")
        self._stream.reset()

    def check_time(self, now: float) -> Stalled | None:
        """Return the stall that the peer's deadline has just brought about, if any."""
        if self._handing_over:
            return None
        self.client.handle_timer(now)
        if not self.client.stalled:
            return None
        event = self.client.next_event()
        if not isinstance(event, Stalled):
            return None
        self.tally.stalls += 1
        self._swarm.penalize(self.peer_id, STALL_POINTS, "exchange: owes blocks and sends nothing")
        return event

    async def run(self) -> str:
        """Run until the session is over; returns why, in words."""
        reason = "cancelled"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, nursery.cancel_scope)
                reason = await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self.client.goodbye()
        return self._parting or reason

    async def _read(self) -> str:
        try:
            reason = ""
            with trio.move_on_after(self._config.request_timeout_s):
                while not (self.greeted or reason):
                    reason = await self._read_once()
            if not self.greeted:
                return reason or "it did not answer"
            while not reason:
                reason = await self._read_once()
        except RemoteProtocolError as error:
            self._parting = f"it broke the protocol: {error}"
            self.blame(VIOLATION_POINTS, str(error))
            return self._parting
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            return str(error) or "the stream was lost"
        return reason

    async def _read_once(self) -> str:
        """Take one chunk of the stream; returns why the session is over, if it is."""
        limits = self._swarm.limits
        if self.client.unread:  # the last one was many short messages: others have had a turn
            await trio.lowlevel.checkpoint()
            self.client.receive_more(trio.current_time())
        elif data := await self._stream.receive_some(limits.download_piece):
            if limits.download_piece is not None:
                await self._wait_for_limit(len(data))
            self.client.receive_data(data, trio.current_time())
        else:
            self.client.receive_eof()
        reason = await self._hand_over()
        return reason or ("done" if self.client.closed else "")

    async def _wait_for_limit(self, count: int) -> None:
        """Wait until `count` bytes may have come; the peer is not to blame for that."""
        self._handing_over = True
        try:
            await self._swarm.limits.download(self.peer_id, count)
        finally:
            self._handing_over = False
        self.client.resume(trio.current_time())

    async def _hand_over(self) -> str:
        """Give events to the owner; returns why the peer left, if it did."""
        event = self.client.next_event()
        if event is None:
            return ""
        self._handing_over = True
        try:
            while event is not None:
                if isinstance(event, PeerLeft):
                    return event.reason or event.code.name.lower()
                if isinstance(event, Greeted):
                    self.greeted = True
                    if not self.client.closed:  # its goodbye may have come along
                        self._owner.joined(self)
                else:
                    await self._owner.handle(self, event)
                    if isinstance(event, BlockArrived):
                        self.client.resume(trio.current_time())
                event = self.client.next_event()
        finally:
            self._handing_over = False
        self._owner.drained(self)
        self.wake()
        return ""

    async def _write(self, scope: trio.CancelScope) -> None:
        try:
            while True:
                data = self.client.data_to_send()
                if data:
                    await self._stream.send_all(data)
                elif self.client.closed:
                    break
                else:
                    await self._output.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the reading task finds out as well, and says why
        else:
            scope.cancel()

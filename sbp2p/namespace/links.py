"""The stream of one namespace with one member: the driver of `sbp2p_protocol.namespace_peer`.

Theory of operation. Two tasks: one reads the stream, feeds the machine and hands every event to the
owner at once; the other writes what the machine has to say. An event never waits: what is kept of
it is bounded by the machine's window and by the owner. What a peer does not read is bounded, too:
QUEUE_MAX bytes, then its stream is reset.

A link ends once, by `leave`, by the peer's GOODBYE, or by an error, and `reason` says how. A peer
that breaks the protocol is penalized. `run` raises nothing but what cancels it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import trio

from sbp2p import observe
from sbp2p.errors import PeerUnreachableError
from sbp2p.swarm import VIOLATION_POINTS
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.limits import KIB, MIB
from sbp2p_protocol.namespace_messages import Goodbye, GoodbyeCode, Hello
from sbp2p_protocol.namespace_peer import Acknowledged, LinkState, NamespaceLink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sbp2p.config import NamespaceConfig
    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_protocol.namespace_messages import Peers, Stance, UpdateMessage
    from sbp2p_protocol.namespace_peer import LinkEvent

QUEUE_MAX: Final = 4 * MIB
"""Bytes that wait for a peer to read, at most; messages of the application wait for its window."""
_PIECE: Final = 64 * KIB


class Link:
    """One stream of one namespace; its owner takes every event, in the event loop (`adopt`)."""

    def __init__(self, stream: Stream, swarm: Swarm, config: NamespaceConfig) -> None:
        self.peer_id = stream.peer_id
        self.stream = stream
        self.initiator = stream.initiator
        self.opened_at = trio.current_time()
        self.goodbye: GoodbyeCode | None = None
        """What the peer ended it with, if it did so in good order."""
        self.reason = ""
        """Why it ended; empty while it has not."""
        self.ended = trio.Event()
        self._swarm = swarm
        self._config = config
        self._take: Callable[[Link, LinkEvent], None] | None = None
        self._ended: Callable[[Link], None] | None = None
        self._machine = NamespaceLink(config.window_bytes)
        self._scope = trio.CancelScope()
        self._wake = trio.Event()
        self._leaving = False
        self._turn = trio.StrictFIFOLock()
        self._acknowledged = 0
        self._news = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<namespace link with {self.peer_id.short()}>"

    @property
    def hello(self) -> Hello | None:
        """What the peer said first."""
        return self._machine.peer

    @property
    def is_open(self) -> bool:
        """Whether the peer has greeted, and neither side has ended it."""
        return self._machine.state is LinkState.OPEN and not self._leaving and not self.reason

    def adopt(
        self,
        take: Callable[[Link, LinkEvent], None],
        ended: Callable[[Link], None] | None = None,
    ) -> None:
        """Hand what follows to an owner, and tell it of the end."""
        self._take, self._ended = take, ended

    # -- saying -----------------------------------------------------------------------------------

    def greet(self, hello: Hello) -> None:
        """Say HELLO."""
        self._machine.greet(hello)
        self._wake.set()

    def say(self, message: UpdateMessage | Stance | Peers) -> None:
        """Say something, if the link has not ended."""
        if self.is_open:
            self._machine.say(message)
            self._wake.set()
            if self._machine.queued > QUEUE_MAX:
                self._end("it does not read what it is sent")
                self._scope.cancel()

    def leave(self, code: GoodbyeCode, reason: str) -> None:
        """End the link in good order."""
        if self._leaving or self.reason:
            return
        self._leaving = True
        self._machine.say(Goodbye(code, reason))
        self._wake.set()

    async def send(self, data: bytes) -> None:
        """Send a message; returns when it waits for the peer's application.

        Raises:
            PeerUnreachableError: the link ended before that was known.
        """
        async with self._turn:
            while not self._machine.room_for(len(data)):
                await self._wait_news()
            number = self._machine.send_data(data)
            self._wake.set()
        while self._acknowledged < number:
            await self._wait_news()
        await trio.lowlevel.checkpoint()

    async def _wait_news(self) -> None:
        if not self.is_open:
            raise self.lost()
        await self._news.park()

    def lost(self) -> PeerUnreachableError:
        """Return the error of whoever wanted something of the peer."""
        return PeerUnreachableError(
            f"peer {self.peer_id} has left the namespace: {self.reason or 'it is leaving'}",
            hint="what was sent and not confirmed may not have arrived",
        )

    def taken(self, size: int) -> None:
        """Note that the application took a message of so many bytes."""
        self._machine.taken(size)
        self._wake.set()

    # -- running ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry the link until it ends."""
        reason = "its connection ended"
        try:
            with self._scope:
                self._scope.deadline = trio.current_time() + self._config.greet_timeout_s
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._guard, self._write)
                    nursery.start_soon(self._guard, self._read)
            reason = self.reason or "it did not answer in time"
        finally:
            self.reason = self.reason or reason
            if self._leaving or self.goodbye is not None:
                with trio.CancelScope(shield=True):
                    await self.stream.aclose()
            else:
                self.stream.reset()
            self.ended.set()
            self._news.unpark_all()
            if self._ended is not None:
                self._ended(self)

    async def _guard(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run one of the two tasks; its end is the link's."""
        try:
            await task()
        except RemoteProtocolError as error:
            self._end(str(error))
            self._swarm.penalize(self.peer_id, VIOLATION_POINTS, f"namespace: {error}")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._end(str(error) or "the stream ended")
        except trio.TooSlowError:
            self._end("it does not read what it is sent")
        self._scope.cancel()

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason
        observe.report_stream_failed(self.stream, reason)

    async def _read(self) -> None:
        while data := await self.stream.receive_some():
            for event in self._machine.receive_data(data, trio.current_time()):
                self._on_event(event)
                if self.goodbye is not None:
                    return
            self._wake.set()
        self._machine.receive_eof()
        self.reason = self.reason or "the stream ended"

    def _on_event(self, event: LinkEvent) -> None:
        match event:
            case Hello():
                self._scope.deadline = math.inf
            case Acknowledged(received):
                self._acknowledged = received
            case Goodbye(code, reason):
                self.goodbye = code
                self.reason = self.reason or reason or code.name.lower()
            case _:
                pass
        if self._take is not None:
            self._take(self, event)
        self._news.unpark_all()

    async def _write(self) -> None:
        while True:
            self._wake = trio.Event()
            data = self._machine.data_to_send()
            for start in range(0, len(data), _PIECE):
                with trio.fail_after(self._config.write_timeout_s):
                    await self.stream.send_all(data[start : start + _PIECE])
            if data:
                continue
            if self._leaving:
                self.reason = self.reason or "this node left"
                return
            await self._wake.wait()

"""A connection to one peer: the trio driver of the sans-IO machine.

With `wire`, which moves the bytes, the only module that knows both trio and the machine. Events go
to the streams and to whoever waits; each inbound stream is served in a task of the connection's
nursery.

Life: upgrade (multistream, Noise, yamux) within the machine's deadline; then `on_established`
decides, before any stream is served, whether the peer may stay; then open; then ending: go-away
and output are written and the peer's own end is awaited, within `close_timeout_s`; then closed.

Errors: `UpgradeError` out of `run` when the connection never came to be established. After that
`run` returns quietly, whatever the peer does, and `lost` tells why the connection ended.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import trio

from sbp2p_protocol.errors import CloseCode, LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.events import (
    ConnectionLost,
    Established,
    GoAwayReceived,
    PongReceived,
    StreamData,
    StreamEof,
    StreamOpened,
    StreamReset,
    WindowOpened,
)

from . import observe
from .errors import PeerUnreachableError
from .negotiate import propose
from .serve import serve_stream
from .stream import SEND_SLICE, SEND_SLICE_IDLE, Stream
from .turns import SendTurns
from .wire import Wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sbp2p_keys.identity import PeerId, PublicKey
    from sbp2p_protocol.connection import Connection as ConnectionMachine
    from sbp2p_protocol.events import Event
    from sbp2p_protocol.multiaddr import Address

    from .config import ConnectionConfig
    from .handlers import HandlerTable
    from .transport import RawStream


EARLY_STREAMS_MAX = 8
"""Streams that a peer may have opened before it is let in; those beyond are reset."""


class UpgradeError(Exception):
    """A raw stream did not become a connection; says why, and whose fault it was."""

    def __init__(self, reason: Exception | str) -> None:
        super().__init__(str(reason))
        self.reason = reason


class TaskStatus(Protocol):
    """What `nursery.start` gives: trio's own type, hidden from mypy by stubs of multiaddr's."""

    def started(self, value: Connection) -> None:
        """Report that the connection is established."""


class Connection:
    """An authenticated, encrypted, multiplexed connection.

    Made by a swarm, or by `upgrade.open_connection`; of use once `run` has reported its start.

    Args:
        raw: owned and closed by the connection from now on.
        machine: a fresh one.
        handlers: what the peer may open streams to.
        config: knobs.
        on_established: called once, when the peer has proved its id and before anything else of
            it is looked at; returns why it may not stay, or None.
        admission: run before that, to find it out by a stream of its own (`open_first_stream` or
            `accept_first_stream`); returns the same. The peer's other streams wait meanwhile.
    """

    peer_id: PeerId
    public_key: PublicKey
    security: str
    established_at: float
    """When the peer had proved its id, on trio's clock."""

    def __init__(
        self,
        raw: RawStream,
        machine: ConnectionMachine,
        *,
        initiator: bool,
        handlers: HandlerTable,
        config: ConnectionConfig,
        on_established: Callable[[Connection], str | None],
        admission: Callable[[Connection], Awaitable[str | None]] | None = None,
    ) -> None:
        self.initiator = initiator
        """Whether this side dialled."""
        self.idle_since = math.inf
        """When the last stream ended; infinity while streams are open."""
        self.lost: Exception | str | None = None
        """Why the connection ended; None while it lives, and after an orderly end."""
        self._machine = machine
        self._handlers = handlers
        self._config = config
        self._on_established = on_established
        self._admission = admission
        self._early: deque[Stream] = deque()
        """Streams that the peer has opened and nobody serves yet."""
        self._early_arrived = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery
        self._streams: dict[int, Stream] = {}
        self._wire = Wire(raw, machine, config, self)
        self._turns = SendTurns(self._has_room)
        self._round_trip_s = math.inf  # of the last ping
        self._pongs = trio.lowlevel.ParkingLot()
        self._idle = trio.lowlevel.ParkingLot()
        self._settled = trio.Event()  # the upgrade came to an end, good or bad
        self._ending = trio.Event()
        self._closed = trio.Event()
        self._admitted = False
        self._peer_going_away = False

    def __repr__(self) -> str:
        who = self.peer_id.short() if self._admitted else "?"
        side = "to" if self.initiator else "from"
        return f"<Connection {side} {who} at {self.remote_address.text}>"

    # -- what it is -------------------------------------------------------------------------

    @property
    def remote_address(self) -> Address:
        """Where the peer is, as the socket sees it."""
        return self._wire.raw.remote_address

    @property
    def local_address(self) -> Address:
        """This side of the socket."""
        return self._wire.raw.local_address

    @property
    def is_open(self) -> bool:
        """Whether streams can be opened: established, and nobody has begun to close."""
        return self._admitted and not self._ending.is_set() and not self._peer_going_away

    @property
    def is_admitted(self) -> bool:
        """Whether it has ever been open; stays true when the connection ends."""
        return self._admitted

    @property
    def rtt_s(self) -> float | None:
        """The round trip time in seconds, once one was measured."""
        return self._machine.rtt_s

    @property
    def bytes_sent(self) -> int:
        """Bytes that the raw stream has taken."""
        return self._wire.bytes_sent

    def statistics(self) -> observe.ConnectionStatistics:
        """Return the counters at this moment."""
        return observe.ConnectionStatistics(
            peer_id=self.peer_id,
            remote_address=self.remote_address.text,
            initiator=self.initiator,
            security=self.security,
            bytes_sent=self._wire.bytes_sent,
            bytes_received=self._wire.bytes_received,
            bytes_queued=self._machine.output_size,
            open_streams=len(self._streams),
            rtt_s=self.rtt_s,
        )

    # -- what one can do with it ------------------------------------------------------------

    async def open_stream(self, protocols: Sequence[str]) -> Stream:
        """Open a stream and agree on one of `protocols`, the most wanted first.

        Cancelled: the stream is reset.

        Raises:
            ProtocolUnsupportedError: the peer speaks none of them.
            PeerUnreachableError: it did not answer within `negotiate_timeout_s`.
            trio.BrokenResourceError: the connection ended, is going away, or has too many streams.
            trio.ClosedResourceError: this side closed the connection.
        """
        await trio.lowlevel.checkpoint()
        self._check_open()
        return await self.open_first_stream(protocols)

    async def open_first_stream(self, protocols: Sequence[str]) -> Stream:
        """Open a stream before the peer is let in: for `admission`; else like `open_stream`."""
        try:
            stream_id = self._machine.open_stream()
        except LocalProtocolError as error:
            raise trio.BrokenResourceError(str(error)) from error
        stream = self._add_stream(stream_id, initiator=True)
        self._wire.wake()  # runs after the proposal is queued too, so one write carries both
        try:
            with trio.fail_after(self._config.negotiate_timeout_s):
                stream.protocol = await propose(stream, protocols)
        except trio.TooSlowError:
            stream.reset()
            raise PeerUnreachableError(
                f"peer {self.peer_id} did not answer to {' or '.join(protocols)} "
                f"within {self._config.negotiate_timeout_s:g} s"
            ) from None
        except RemoteProtocolError as error:
            stream.reset()
            raise trio.BrokenResourceError(str(error)) from error
        except BaseException:
            stream.reset()
            raise
        return stream

    async def accept_first_stream(self) -> Stream:
        """Wait for the first stream that the peer opens before it is let in: for `admission`."""
        while not self._early:
            await self._early_arrived.park()
        return self._early.popleft()

    async def ping(self) -> float:
        """Return the round trip time in seconds, measured with the multiplexer's own ping.

        Raises:
            PeerUnreachableError: no answer within `ping_timeout_s`.
            trio.BrokenResourceError: the connection ended.
            trio.ClosedResourceError: this side closed the connection.
        """
        await trio.lowlevel.checkpoint()
        self._check_open()
        self._machine.ping(trio.current_time())
        self._on_progress()
        with trio.move_on_after(self._config.ping_timeout_s) as scope:
            await self._pongs.park()
        if scope.cancelled_caught:
            raise PeerUnreachableError(f"peer {self.peer_id} did not answer a ping")
        if self._ending.is_set():
            raise trio.BrokenResourceError("the connection ended")
        return self._round_trip_s

    async def aclose(self) -> None:
        """Tell the peer, deliver what was sent, and close; takes `close_timeout_s` at most.

        Handlers of the peer's streams are cancelled, and other streams fail with
        `trio.ClosedResourceError`. Cancelled: the connection goes on closing by itself.
        """
        self.close()
        await self._closed.wait()

    def close(self, code: CloseCode = CloseCode.NORMAL) -> None:
        """Begin to close, as `aclose` does, without waiting for it."""
        if not self._ending.is_set():
            self._machine.close(code)
            self._fail_streams(trio.ClosedResourceError("this side closed the connection"))
            self._end()

    async def wait_closed(self) -> None:
        """Wait until nothing of the connection is left."""
        await self._closed.wait()

    async def wait_idle(self) -> None:
        """Wait until no stream is open."""
        await trio.lowlevel.checkpoint()
        while self._streams:
            await self._idle.park()

    def start_soon(self, task: Callable[[Connection], Awaitable[object]]) -> None:
        """Run a task that ends with the connection, if not before; it must not raise.

        Where the last task of the connection has just ended, it does not run at all.
        """
        with suppress(RuntimeError):  # trio: the nursery is closed to new arrivals
            self._nursery.start_soon(task, self)

    def _check_open(self) -> None:
        if self.is_open:
            return
        if self._ending.is_set() and self.lost is None:
            raise trio.ClosedResourceError("the connection is closed")
        raise trio.BrokenResourceError(f"the connection is gone: {self.lost or 'going away'}")

    # -- its tasks --------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Drive the connection from its first byte to its last; reports once established.

        Raises:
            UpgradeError: it was never established: bad peer, wrong peer, refused, too slow, lost.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._wire.start(nursery)
                await self._settled.wait()
                if self._admitted:
                    task_status.started(self)
                    await self._ending.wait()
                await self._wire.wait_finished()
                nursery.cancel_scope.cancel()
        finally:
            self._lose("the connection was cancelled")
            self._wire.raw.abort()
            self._closed.set()
        if not self._admitted:
            raise UpgradeError(self.lost or "the connection was closed")

    # -- events -----------------------------------------------------------------------------

    def _on_progress(self) -> None:
        """Act on the events of a machine that was moved."""
        next_event = self._machine.next_event
        while (event := next_event()) is not None:
            self._on_event(event)
        self._wire.wake()

    def _on_output_taken(self) -> None:
        self._turns.pass_on()
        self._on_progress()  # the last message that a key may seal is an event too

    def _on_broken(self, reason: Exception | str) -> None:
        self._lose(reason)

    def _on_reminder(self, stream_id: int) -> None:
        if stream := self._streams.get(stream_id):
            self._machine.reset(stream_id)
            self._forget(stream)

    def _on_event(self, event: Event) -> None:
        match event:
            case StreamData(stream_id, data):
                if stream := self._streams.get(stream_id):
                    stream._on_data(data)
            case WindowOpened(stream_id):
                if stream := self._streams.get(stream_id):
                    stream._on_window()
            case StreamEof(stream_id):
                if stream := self._streams.get(stream_id):
                    stream._on_eof()
            case StreamReset(stream_id, code):
                if stream := self._streams.get(stream_id):
                    stream._fail(trio.BrokenResourceError(f"the peer reset the stream ({code})"))
            case StreamOpened(stream_id):
                self._on_stream_opened(stream_id)
            case PongReceived(rtt_s):
                self._round_trip_s = rtt_s
                self._pongs.unpark_all()
            case Established():
                self._on_handshake_done(event)
            case GoAwayReceived():
                self._peer_going_away = True
                self._end_if_abandoned()
            case ConnectionLost(error):
                self._lose(error or "the peer closed the connection")

    def _on_handshake_done(self, event: Established) -> None:
        self.peer_id = event.peer_id
        self.public_key = event.public_key
        self.security = event.security
        self.established_at = self.idle_since = trio.current_time()
        if self._admission is None:
            self._decide(self._on_established(self))
        else:
            self._nursery.start_soon(self._ask, self._admission)

    async def _ask(self, admission: Callable[[Connection], Awaitable[str | None]]) -> None:
        refusal = await admission(self)
        if not self._ending.is_set():
            self._decide(refusal or self._on_established(self))
            self._on_progress()

    def _decide(self, refusal: str | None) -> None:
        if refusal is not None:
            self._machine.close(CloseCode.NORMAL)
            self._lose(refusal)
            return
        self._admitted = True
        self._settled.set()
        for stream in self._early:
            self._serve(stream)
        self._early.clear()

    def _on_stream_opened(self, stream_id: int) -> None:
        if self._ending.is_set():
            self._machine.reset(stream_id)
        elif self._admitted:
            self._serve(self._add_stream(stream_id, initiator=False))
        elif len(self._early) < EARLY_STREAMS_MAX:
            self._early.append(self._add_stream(stream_id, initiator=False))
            self._early_arrived.unpark()
        else:
            self._machine.reset(stream_id)

    def _serve(self, stream: Stream) -> None:
        self._nursery.start_soon(
            serve_stream, stream, self._handlers, self._config.negotiate_timeout_s
        )

    # -- ending -----------------------------------------------------------------------------

    def _lose(self, reason: Exception | str) -> None:
        """End because of the peer or the network; the first reason is kept."""
        if self.lost is None and not self._ending.is_set():
            self.lost = reason
        self._fail_streams(trio.BrokenResourceError(f"the connection ended: {reason}"))
        self._end()

    def _fail_streams(self, error: Exception) -> None:
        keep_data = not isinstance(error, trio.ClosedResourceError)
        for stream in list(self._streams.values()):
            stream._fail(error, keep_data=keep_data)

    def _end(self) -> None:
        self._ending.set()
        self._settled.set()
        self._turns.wake_all()
        self._wire.finish()
        self._pongs.unpark_all()

    def _end_if_abandoned(self) -> None:
        if self._peer_going_away and not self._streams:
            self._lose("the peer closed the connection")

    # -- for its streams --------------------------------------------------------------------

    def _add_stream(self, stream_id: int, *, initiator: bool) -> Stream:
        stream = self._streams[stream_id] = Stream(self, stream_id, initiator=initiator)
        self.idle_since = math.inf
        return stream

    def _forget(self, stream: Stream) -> None:
        if self._streams.pop(stream.stream_id, None) and not self._streams:
            self.idle_since = trio.current_time()
            self._idle.unpark_all()
            self._end_if_abandoned()

    def _has_room(self) -> bool:
        most = self._config.send_high_water_bytes
        unsent = self._machine.output_size
        return unsent < most and unsent + self._wire.writing < self._wire.queue_bytes

    def _slice_bytes(self) -> int:
        """Most bytes that a stream may queue in one turn."""
        if self._machine.output_size + self._wire.writing:
            return SEND_SLICE
        return max(SEND_SLICE // 4, min(SEND_SLICE_IDLE, int(self._wire.queue_bytes)))

    def _send(self, stream_id: int, data: memoryview) -> int:
        try:
            accepted = self._machine.send(stream_id, data)
        except LocalProtocolError as error:
            self._on_progress()  # the machine was lost a moment ago
            raise trio.BrokenResourceError(str(error)) from error
        self._wire.wake_writer()
        return accepted

    def _send_eof(self, stream_id: int) -> None:
        with suppress(LocalProtocolError):  # as in `_send`, but there is nobody to tell
            self._machine.send_eof(stream_id)
        self._on_progress()

    def _reset(self, stream_id: int, code: int) -> None:
        self._machine.reset(stream_id, code)
        self._wire.wake()

    def _consumed(self, stream_id: int, count: int) -> None:
        self._machine.consumed(stream_id, count, trio.current_time())
        if self._machine.output_size:
            self._wire.wake_writer()

    def _linger(self, stream: Stream) -> None:
        """Let the peer end a stream that is closed here, but not for ever."""
        self._wire.remind(self._config.negotiate_timeout_s, stream.stream_id)

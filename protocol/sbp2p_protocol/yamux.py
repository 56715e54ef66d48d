"""The yamux session: many streams with credit over one ordered byte stream.

Theory of operation. `receive_data` takes the plaintext of the secure channel in pieces of any
size and turns frames into events. A payload is handed out as it arrives, in slices of the pieces:
a frame is never put together in memory. Outgoing frames come in two kinds. *Control frames*
(everything without a payload) collect in one queue. *Data frames* are cut by `send`, which puts
the control queue in front of them, so that the order on the wire is the order of the calls.

Rules:
1. Any violation by the peer raises RemoteProtocolError and ends the session, not one stream.
2. A frame for a stream that is not open is drained and ignored: it was on its way when we closed.
3. A stream beyond the limits is reset; the session goes on.
4. What a peer can make us queue is bounded (limits.py): answers to pings are dropped beyond 32,
   and a peer that makes us answer faster than it reads is cut off.
5. Time only enters as `now`; a round trip is measured with our own pings.

`yamux.md` is the normative description.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from . import limits
from .errors import LocalProtocolError, RemoteProtocolError
from .events import (
    GoAwayReceived,
    PongReceived,
    StreamData,
    StreamEof,
    StreamOpened,
    StreamReset,
    WindowOpened,
)
from .yamux_frames import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    HEADER_SIZE,
    PING,
    RST,
    SYN,
    WINDOW_LIMIT,
    WINDOW_UPDATE,
    pack_header,
    unpack_header,
)
from .yamux_liveness import Liveness
from .yamux_stream import StreamInput, StreamState, YamuxStream
from .yamux_streams import StreamTable, YamuxConfig

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .events import Event

_COPY_BELOW: Final = 1 * limits.KIB
"""Payload pieces shorter than this are copied: a copy is smaller and quicker than a view."""

_PINNED_SHARE: Final = 4
"""A view keeps the whole batch of plaintext that it lies in alive, so a peer could pin a megabyte
with every kilobyte that is not read. Views are handed out only when one stream has at least one
part in this many of the batch; otherwise its payloads are copied."""


class YamuxSession:
    """Both directions of one session.

    Args:
        initiator: this side dialled.
        config: knobs of this side; the peer's are none of our business.
        now: seconds on the caller's monotonic clock.
        events: where events go; the session makes its own queue when there is none.
    """

    def __init__(
        self,
        *,
        initiator: bool,
        config: YamuxConfig,
        now: float,
        events: deque[Event] | None = None,
    ) -> None:
        self._config = config
        self._events: deque[Event] = deque() if events is None else events
        self._streams = StreamTable(initiator=initiator, config=config)
        self._liveness = Liveness(
            keepalive_s=config.keepalive_s, ping_timeout_s=config.ping_timeout_s, now=now
        )
        self._control = bytearray()
        self._pongs_queued = 0
        self._going_away = False
        self._peer_going_away = False
        # the frame that is arriving
        self._partial_header = bytearray()
        self._payload_left = 0
        self._payload_stream: YamuxStream | None = None
        self._fin_after_payload = False
        # the batch that is being taken
        self._view_stream: YamuxStream | None = None
        self._view_bytes = 0
        self._views_are_mixed = False

    # -- bytes in ---------------------------------------------------------------------------

    def receive_data(self, data: Buffer, now: float) -> None:
        """Take the next plaintext of the peer, whose memory must not be reused afterwards.

        Raises:
            RemoteProtocolError: the peer broke the protocol; the session is over.
        """
        self._liveness.heard(now)
        view = memoryview(data)
        size = len(view)
        position = 0
        queued = len(self._events)
        self._view_stream = None
        self._view_bytes = 0
        self._views_are_mixed = False
        while position < size:
            if self._payload_left:
                end = min(size, position + self._payload_left)
                self._on_payload(view[position:end])
                position = end
            elif not self._partial_header and size - position >= HEADER_SIZE:
                header = unpack_header(view, position)
                position += HEADER_SIZE
                self._on_frame(*header, now)
            else:
                end = min(size, position + HEADER_SIZE - len(self._partial_header))
                self._partial_header += view[position:end]
                position = end
                if len(self._partial_header) == HEADER_SIZE:
                    header = unpack_header(self._partial_header, 0)
                    self._partial_header.clear()
                    self._on_frame(*header, now)
        if self._view_bytes and (self._views_are_mixed or self._view_bytes * _PINNED_SHARE < size):
            self._copy_views(queued)

    def _copy_views(self, first: int) -> None:
        """Replace the views among the events from index `first` on by copies."""
        for index in range(first, len(self._events)):
            event = self._events[index]
            if isinstance(event, StreamData) and isinstance(event.data, memoryview):
                self._events[index] = StreamData(event.stream_id, bytes(event.data))

    def next_event(self) -> Event | None:
        """Return the oldest event not taken yet."""
        return self._events.popleft() if self._events else None

    @property
    def in_frame(self) -> bool:
        """The peer has sent a part of a frame and owes the rest."""
        return bool(self._partial_header) or self._payload_left > 0

    def _on_frame(
        self, version: int, kind: int, flags: int, stream_id: int, length: int, now: float
    ) -> None:
        if version != 0:
            raise RemoteProtocolError(f"yamux version {version}")
        if kind == DATA:
            self._on_data(flags, stream_id, length)
        elif kind == WINDOW_UPDATE:
            self._on_window_update(flags, stream_id, length)
        elif stream_id != 0:
            raise RemoteProtocolError(f"yamux session frame {kind} for stream {stream_id}")
        elif kind == PING:
            self._on_ping(flags, length, now)
        elif kind == GO_AWAY:
            self._peer_going_away = True
            self._events.append(GoAwayReceived(length))
        else:
            raise RemoteProtocolError(f"yamux frame of unknown type {kind}")

    def _on_data(self, flags: int, stream_id: int, length: int) -> None:
        if length > limits.YAMUX_MAX_DATA_FRAME:
            raise RemoteProtocolError(f"yamux data frame of {length} bytes")
        stream = self._streams.get(stream_id)
        if flags or stream is None:
            stream = self._stream_of(flags, stream_id)
            if stream is not None and flags & RST:
                self._on_reset(stream, 0)
                stream = None
        if stream is not None and length:
            if not stream.can_receive:
                raise RemoteProtocolError(f"data after FIN on stream {stream_id}")
            if length > stream.receive.credit:
                raise RemoteProtocolError(
                    f"stream {stream_id} overran its window: {length} > {stream.receive.credit}"
                )
            stream.receive.credit -= length
        self._payload_left = length
        self._payload_stream = stream
        self._fin_after_payload = bool(flags & FIN)
        if not length and flags & FIN and stream is not None:
            self._on_fin(stream)

    def _on_payload(self, piece: memoryview) -> None:
        size = len(piece)
        self._payload_left -= size
        stream = self._payload_stream
        if stream is None:
            return
        stream.receive.unread += size
        if size < _COPY_BELOW:
            self._events.append(StreamData(stream.stream_id, bytes(piece)))
        else:
            self._events.append(StreamData(stream.stream_id, piece))
            self._view_bytes += size
            if self._view_stream is not stream:
                self._views_are_mixed |= self._view_stream is not None
                self._view_stream = stream
        if not self._payload_left and self._fin_after_payload:
            self._on_fin(stream)

    def _on_window_update(self, flags: int, stream_id: int, length: int) -> None:
        stream = self._stream_of(flags, stream_id)
        if stream is None:
            return
        if flags & RST:
            self._on_reset(stream, length)
            return
        if length and stream.can_send:
            stream.send_window += length
            if stream.send_window > WINDOW_LIMIT:
                raise RemoteProtocolError(f"window of stream {stream_id} overflows")
            if stream.wants_window:
                stream.wants_window = False
                self._events.append(WindowOpened(stream_id))
        if flags & FIN:
            self._on_fin(stream)

    def _on_ping(self, flags: int, value: int, now: float) -> None:
        if not flags & SYN:
            rtt_s = self._liveness.pong(value, now)
            if rtt_s is not None:
                self._events.append(PongReceived(rtt_s))
        elif self._pongs_queued < limits.YAMUX_PENDING_PONGS:
            self._pongs_queued += 1
            self._answer(PING, ACK, 0, value)

    def _stream_of(self, flags: int, stream_id: int) -> YamuxStream | None:
        stream = self._streams.get(stream_id)
        if flags & SYN:
            if stream is not None:
                raise RemoteProtocolError(f"the peer opened stream {stream_id} twice")
            return self._accept(stream_id)
        if stream is not None:
            if flags & ACK:
                self._streams.acknowledge(stream)
        elif stream_id == 0:
            raise RemoteProtocolError("yamux stream frame for the session")
        return stream

    def _accept(self, stream_id: int) -> YamuxStream | None:
        if stream_id == 0:
            raise RemoteProtocolError("yamux stream frame for the session")
        self._streams.admit(stream_id)
        stream = None if self._going_away else self._streams.accept(stream_id)
        if stream is None:
            self._answer(WINDOW_UPDATE, RST, stream_id, 0)
            return None
        extra = stream.receive.size - limits.YAMUX_BASE_WINDOW
        self._answer(WINDOW_UPDATE, ACK, stream_id, extra)
        self._events.append(StreamOpened(stream_id))
        return stream

    def _on_fin(self, stream: YamuxStream) -> None:
        if not stream.can_receive:
            return
        self._events.append(StreamEof(stream.stream_id))
        if stream.advance(StreamInput.RECEIVE_FIN) is StreamState.DONE:
            self._forget(stream)

    def _on_reset(self, stream: YamuxStream, code: int) -> None:
        stream.advance(StreamInput.RECEIVE_RST)
        self._events.append(StreamReset(stream.stream_id, code))
        self._forget(stream)

    def _forget(self, stream: YamuxStream) -> None:
        if self._payload_stream is stream:
            self._payload_stream = None
        self._streams.remove(stream)

    # -- bytes out --------------------------------------------------------------------------

    @property
    def control_size(self) -> int:
        """Bytes of control frames that wait in the queue."""
        return len(self._control)

    def take_control(self) -> bytes:
        """Return the queued control frames; they must go out before later data."""
        control = bytes(self._control)
        self._control.clear()
        self._pongs_queued = 0
        return control

    def _answer(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """Queue a frame that the peer made us send."""
        if len(self._control) >= limits.YAMUX_CONTROL_QUEUE:
            raise RemoteProtocolError("the peer makes us answer more than it reads")
        self._control += pack_header(kind, flags, stream_id, length)

    # -- streams ----------------------------------------------------------------------------

    def open_stream(self) -> int:
        """Open a stream; data may be sent on it at once.

        Raises:
            LocalProtocolError: the session is going away or has too many streams.
        """
        if self._going_away or self._peer_going_away:
            raise LocalProtocolError("the connection is going away")
        stream = self._streams.open()
        extra = stream.receive.size - limits.YAMUX_BASE_WINDOW
        self._control += pack_header(WINDOW_UPDATE, SYN, stream.stream_id, extra)
        return stream.stream_id

    def send(self, stream_id: int, data: Buffer, parts: list[Buffer]) -> int:
        """Append to `parts` what must be written to send `data`, as far as the credit goes.

        The parts are queued control frames, headers, and views of `data`; nothing is copied.

        Returns:
            The number of bytes of `data` that are in `parts`. When that is not all of them, a
            `WindowOpened` event follows once there is credit again.

        Raises:
            LocalProtocolError: the stream is not open for writing.
        """
        stream = self._writable(stream_id)
        view = memoryview(data)
        if view.format != "B" or view.ndim != 1:
            view = view.cast("B")
        accepted = len(view)
        if accepted > stream.send_window:
            accepted = stream.send_window
            stream.wants_window = True
        if not accepted:
            return 0
        stream.send_window -= accepted
        if self._control:
            parts.append(self.take_control())
        step = self._config.max_data_frame
        for start in range(0, accepted, step):
            end = min(start + step, accepted)
            parts.append(pack_header(DATA, 0, stream_id, end - start))
            parts.append(view[start:end])
        return accepted

    def send_eof(self, stream_id: int) -> None:
        """End our direction of a stream.

        Raises:
            LocalProtocolError: it has ended already.
        """
        stream = self._writable(stream_id)
        self._control += pack_header(WINDOW_UPDATE, FIN, stream_id, 0)
        if stream.advance(StreamInput.SEND_FIN) is StreamState.DONE:
            self._forget(stream)

    def reset(self, stream_id: int, code: int = 0) -> None:
        """Give a stream up in both directions; nothing happens when it is done already."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        self._control += pack_header(WINDOW_UPDATE, RST, stream_id, code)
        stream.advance(StreamInput.SEND_RST)
        self._forget(stream)

    def consumed(self, stream_id: int, count: int, now: float) -> None:
        """Give credit back for `count` bytes that the application took from `StreamData`.

        Nothing happens on a stream that is done: there is nobody left to give credit to.

        Raises:
            LocalProtocolError: more is given back than was delivered.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        delta = stream.receive.consume(count, now, self._liveness.path, self._streams.budget)
        # after the peer's FIN credit is of no use, and js-libp2p resets over it
        if delta and stream.can_receive:
            self._control += pack_header(WINDOW_UPDATE, 0, stream_id, delta)

    def _writable(self, stream_id: int) -> YamuxStream:
        stream = self._streams.get(stream_id)
        if stream is None or not stream.can_send:
            raise LocalProtocolError(f"stream {stream_id} is not open for writing")
        return stream

    # -- the session ------------------------------------------------------------------------

    @property
    def open_streams(self) -> int:
        """Streams of both sides that are not done."""
        return len(self._streams)

    @property
    def receive_window_bytes(self) -> int:
        """Sum of the receive windows: unread bytes that the peer can make us hold."""
        return self._streams.budget.used

    @property
    def rtt_s(self) -> float | None:
        """Round trip time in seconds; None before the first pong."""
        return self._liveness.path.seconds

    def ping(self, now: float) -> None:
        """Measure the round trip; nothing happens while a ping is on its way."""
        self._queue_ping(self._liveness.ping(now))

    def go_away(self, code: int) -> None:
        """Tell the peer that we accept no new streams; a second call says nothing new."""
        if not self._going_away:
            self._going_away = True
            self._control += pack_header(GO_AWAY, 0, 0, code)

    def next_deadline(self) -> float:
        """When `handle_timer` has something to do."""
        return self._liveness.next_deadline()

    def handle_timer(self, now: float) -> None:
        """Send a keep-alive ping when it is time.

        Raises:
            RemoteProtocolError: the peer is silent (close code NORMAL).
        """
        self._queue_ping(self._liveness.handle_timer(now))

    def output_taken(self, size: int) -> None:
        """Note that the driver took `size` bytes to write; it does so when the last is written."""
        self._liveness.output_taken(size)

    def _queue_ping(self, value: int | None) -> None:
        if value is not None:
            self._control += pack_header(PING, SYN, 0, value)

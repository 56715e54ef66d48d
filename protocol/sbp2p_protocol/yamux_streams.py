"""The streams of a session: who may open which id, and how many.

Rules on ids. The side that dialled opens odd ids from 1, the other even ids from 2; an id is used
once. Peers may number streams before they send the first frame, so their SYNs arrive almost in
order: an id below the highest seen may still open if it was skipped. Only the last
`YAMUX_SKIPPED_IDS` skipped ids are remembered, so what is kept of dead streams is bounded by one
number and one small set, however long the session lives.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from . import limits
from .errors import LocalProtocolError, RemoteProtocolError
from .yamux_frames import STREAM_ID_MAX
from .yamux_stream import YamuxStream
from .yamux_window import ReceiveWindow, WindowBudget


@dataclass(frozen=True, kw_only=True, slots=True)
class YamuxConfig:
    """Knobs of a session; the defaults are the limits themselves."""

    initial_window: int = limits.YAMUX_BASE_WINDOW
    """Bytes of credit of a new stream; what is above 256 KiB comes out of the session window."""
    max_window: int = limits.YAMUX_MAX_WINDOW
    session_window: int = limits.YAMUX_SESSION_WINDOW
    max_inbound_streams: int = limits.YAMUX_MAX_INBOUND_STREAMS
    max_outbound_streams: int = limits.YAMUX_MAX_OUTBOUND_STREAMS
    ack_backlog: int = limits.YAMUX_ACK_BACKLOG
    max_data_frame: int = 65519
    """Payload bytes of a frame we send: one Noise message, and below the 64 KiB - 12 of go."""
    keepalive_s: float = 30.0
    ping_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if not limits.YAMUX_BASE_WINDOW <= self.initial_window <= self.max_window:
            raise ValueError("initial_window must lie between 256 KiB and max_window")
        if self.max_window > limits.YAMUX_MAX_WINDOW:
            raise ValueError(f"max_window is more than {limits.YAMUX_MAX_WINDOW}")
        if not 1 <= self.max_data_frame <= limits.YAMUX_MAX_DATA_FRAME:
            raise ValueError(f"max_data_frame must lie in 1..{limits.YAMUX_MAX_DATA_FRAME}")


class StreamTable:
    """All streams that are not done, the id rules, and the window budget."""

    def __init__(self, *, initiator: bool, config: YamuxConfig) -> None:
        self._config = config
        self._streams: dict[int, YamuxStream] = {}
        self.get = self._streams.get
        self.budget = WindowBudget(config.session_window)
        self._next_id = 1 if initiator else 2
        self._peer_parity = 0 if initiator else 1
        self._highest_peer_id = self._peer_parity - 2 if self._peer_parity else 0
        self._skipped: dict[int, None] = {}
        self._inbound = 0
        self._outbound = 0
        self._unacknowledged = 0

    def __len__(self) -> int:
        return len(self._streams)

    def open(self) -> YamuxStream:
        """Make a stream of our own.

        Raises:
            LocalProtocolError: too many streams are open or unacknowledged, or ids ran out.
        """
        if self._outbound >= self._config.max_outbound_streams:
            raise LocalProtocolError(f"{self._outbound} streams are open already")
        if self._unacknowledged >= self._config.ack_backlog:
            raise LocalProtocolError(
                f"the peer has not acknowledged {self._unacknowledged} streams yet"
            )
        if self._next_id > STREAM_ID_MAX:
            raise LocalProtocolError("this connection has used up its stream ids")
        stream = self._add(self._next_id, acknowledged=False)
        self._next_id += 2
        self._outbound += 1
        self._unacknowledged += 1
        return stream

    def admit(self, stream_id: int) -> None:
        """Check and use up an id that the peer opens with SYN.

        Raises:
            RemoteProtocolError: the id is not the peer's to use, or was used before.
        """
        if stream_id % 2 != self._peer_parity:
            raise RemoteProtocolError(f"the peer opened stream {stream_id}, an id of our side")
        if stream_id > self._highest_peer_id:
            oldest = stream_id - 2 * limits.YAMUX_SKIPPED_IDS
            fresh = range(max(self._highest_peer_id + 2, oldest), stream_id, 2)
            self._skipped.update(dict.fromkeys(fresh))
            excess = len(self._skipped) - limits.YAMUX_SKIPPED_IDS
            # one pass: the first key of a dict takes longer to find the more were deleted there
            for forgotten in list(islice(self._skipped, max(0, excess))):
                del self._skipped[forgotten]
            self._highest_peer_id = stream_id
        elif stream_id in self._skipped:
            del self._skipped[stream_id]
        else:
            raise RemoteProtocolError(f"the peer opened stream {stream_id} twice")

    def accept(self, stream_id: int) -> YamuxStream | None:
        """Make the stream for an admitted id; None when the peer has too many open."""
        if self._inbound >= self._config.max_inbound_streams:
            return None
        self._inbound += 1
        return self._add(stream_id, acknowledged=True)

    def acknowledge(self, stream: YamuxStream) -> None:
        """Note that the peer has accepted a stream of ours."""
        if not stream.acknowledged:
            stream.acknowledged = True
            self._unacknowledged -= 1

    def remove(self, stream: YamuxStream) -> None:
        """Forget a stream that is done."""
        del self._streams[stream.stream_id]
        self.budget.release(stream.receive.size)
        self.acknowledge(stream)
        if stream.stream_id % 2 == self._peer_parity:
            self._inbound -= 1
        else:
            self._outbound -= 1

    def _add(self, stream_id: int, *, acknowledged: bool) -> YamuxStream:
        base = limits.YAMUX_BASE_WINDOW
        self.budget.take_base(base)
        size = base + self.budget.grow(self._config.initial_window - base)
        window = ReceiveWindow(size, self._config.max_window)
        stream = YamuxStream(stream_id, window, base, acknowledged=acknowledged)
        self._streams[stream_id] = stream
        return stream

"""One yamux stream: its life as a table, and the record the session keeps of it.

Theory of operation. A stream has two directions that end separately. `FIN` from a side ends what
that side sends; the stream is done when both have sent theirs, or at once when either side sends
`RST`. The table does not know which side opened the stream. A done stream is forgotten: the id is
never used again, and frames that were still on their way to it are drained by the session.

Whether the peer has acknowledged the stream is not part of the state: data may flow before.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .yamux_window import ReceiveWindow


class StreamState(Enum):
    """Which directions of a stream are open."""

    OPEN = "open"
    SEND_CLOSED = "send-closed"
    RECEIVE_CLOSED = "receive-closed"
    DONE = "done"


class StreamInput(Enum):
    """What changes the state of a stream."""

    SEND_FIN = "send FIN"
    RECEIVE_FIN = "receive FIN"
    SEND_RST = "send RST"
    RECEIVE_RST = "receive RST"


TRANSITIONS: Final[dict[tuple[StreamState, StreamInput], StreamState]] = {
    (StreamState.OPEN, StreamInput.SEND_FIN): StreamState.SEND_CLOSED,
    (StreamState.OPEN, StreamInput.RECEIVE_FIN): StreamState.RECEIVE_CLOSED,
    (StreamState.OPEN, StreamInput.SEND_RST): StreamState.DONE,
    (StreamState.OPEN, StreamInput.RECEIVE_RST): StreamState.DONE,
    (StreamState.SEND_CLOSED, StreamInput.RECEIVE_FIN): StreamState.DONE,
    (StreamState.SEND_CLOSED, StreamInput.SEND_RST): StreamState.DONE,
    (StreamState.SEND_CLOSED, StreamInput.RECEIVE_RST): StreamState.DONE,
    (StreamState.RECEIVE_CLOSED, StreamInput.SEND_FIN): StreamState.DONE,
    # a second FIN says nothing new, and some peers send one on data and one on its own
    (StreamState.RECEIVE_CLOSED, StreamInput.RECEIVE_FIN): StreamState.RECEIVE_CLOSED,
    (StreamState.RECEIVE_CLOSED, StreamInput.SEND_RST): StreamState.DONE,
    (StreamState.RECEIVE_CLOSED, StreamInput.RECEIVE_RST): StreamState.DONE,
}
"""A pair that is missing is the caller's mistake; nothing a peer sends can reach one."""


class YamuxStream:
    """What a session knows of one stream that is not done."""

    __slots__ = (
        "acknowledged",
        "can_receive",
        "can_send",
        "receive",
        "send_window",
        "state",
        "stream_id",
        "wants_window",
    )

    def __init__(
        self, stream_id: int, receive: ReceiveWindow, send_window: int, *, acknowledged: bool
    ) -> None:
        self.stream_id = stream_id
        self.state = StreamState.OPEN
        self.receive = receive
        self.send_window = send_window
        self.acknowledged = acknowledged
        self.wants_window = False
        """The last send was cut short: tell the driver when there is credit again."""
        # what the state says, as attributes: both are asked for on every frame
        self.can_send = True
        self.can_receive = True

    def advance(self, change: StreamInput) -> StreamState:
        """Move along the table; return the new state."""
        self.state = TRANSITIONS[self.state, change]
        self.can_send = self.state in (StreamState.OPEN, StreamState.RECEIVE_CLOSED)
        self.can_receive = self.state in (StreamState.OPEN, StreamState.SEND_CLOSED)
        return self.state

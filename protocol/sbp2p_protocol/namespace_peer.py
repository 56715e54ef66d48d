"""One stream of a namespace between two peers, as a machine: greeting, order, flow control.

Theory of operation. Both sides say HELLO first: the dialling side at once, the other when it has
read that HELLO. Then each says what it likes, in order. DATA is bounded by the window that the
receiving side named in its HELLO: a message takes its length and MESSAGE_OVERHEAD of it from the
moment it is sent until the receiver's ACK says that its application has taken it. An ACK also says
how many messages have arrived, so that a sender knows which are lost when the stream ends.

| state | what may come |
|---|---|
| GREETING | HELLO, or GOODBYE instead |
| OPEN | everything but HELLO |
| OVER | after GOODBYE anything, which is ignored; after an error nothing |

Error cases: RemoteProtocolError for whatever breaks this; the machine then stays OVER.
LocalProtocolError for a call that this side may not make now.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from .errors import LocalProtocolError, RemoteProtocolError
from .framing import LengthPrefixedReader, encode_length_prefixed
from .limits import (
    NAMESPACE_DATA_MAX,
    NAMESPACE_FRAME_MAX,
    NAMESPACE_UPDATES_RATE,
    NAMESPACE_UPDATES_WINDOW_S,
)
from .namespace_messages import (
    MESSAGE_OVERHEAD,
    Ack,
    Data,
    Goodbye,
    Hello,
    Message,
    Peers,
    Stance,
    UpdateMessage,
    decode_message,
    encode_message,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


class LinkState(Enum):
    """Where the peer is in the protocol."""

    GREETING = "greeting"
    OPEN = "open"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Messages up to the `received`th have arrived, and there may be room for more."""

    received: int


LinkEvent: TypeAlias = Hello | Goodbye | UpdateMessage | Stance | Peers | Data | Acknowledged


class NamespaceLink:
    """The machine of one side.

    Args:
        window: bytes of DATA kept here before the application takes them; WINDOW_MIN at least.
    """

    def __init__(self, window: int) -> None:
        self.state = LinkState.GREETING
        self.peer: Hello | None = None
        """What the peer said first."""
        self._window = window
        self._reader = LengthPrefixedReader(NAMESPACE_FRAME_MAX)
        self._error: str | None = None
        self._output: deque[bytes] = deque()
        self._queued = 0
        self._greeted = False
        self._sent = 0
        self._sent_bytes = 0
        self._acknowledged = 0
        self._taken_there = 0
        self._received = 0
        self._received_bytes = 0
        self._taken_here = 0
        self._said = Ack(0, 0)
        self._window_began = -math.inf
        self._updates = 0

    # -- what this side says ----------------------------------------------------------------------

    def greet(self, hello: Hello) -> None:
        """Say who this side is; the first thing that it says."""
        if self._greeted:
            raise LocalProtocolError("HELLO was said already")
        self._greeted = True
        self._put(hello)

    def say(self, message: UpdateMessage | Stance | Peers | Goodbye) -> None:
        """Say anything but DATA."""
        if not self._greeted and not isinstance(message, Goodbye):
            raise LocalProtocolError("HELLO comes first")
        self._put(message)

    def room_for(self, size: int) -> bool:
        """Whether the peer has room for a message of `size` bytes now."""
        if self.peer is None or self.state is not LinkState.OPEN:
            return False
        in_flight = self._sent_bytes - self._taken_there
        # what this side would keep itself is enough, whatever the peer offers
        return in_flight + size + MESSAGE_OVERHEAD <= min(self.peer.window, self._window)

    def send_data(self, payload: bytes) -> int:
        """Send a message of the application; return its number, which an ACK will reach.

        Raises:
            LocalProtocolError: too long, or there is no room for it now.
        """
        if len(payload) > NAMESPACE_DATA_MAX or not self.room_for(len(payload)):
            raise LocalProtocolError(f"no room for a message of {len(payload)} bytes")
        self._sent += 1
        self._sent_bytes += len(payload) + MESSAGE_OVERHEAD
        self._put(Data(payload))
        return self._sent

    def taken(self, size: int) -> None:
        """Note that the application took a message of `size` bytes."""
        self._taken_here += size + MESSAGE_OVERHEAD

    @property
    def queued(self) -> int:
        """Bytes that wait to be written."""
        return self._queued

    def data_to_send(self) -> bytes:
        """Return, once, the bytes that are to be written now."""
        ack = Ack(self._received, self._taken_here)
        if ack != self._said and self._greeted:
            self._said = ack
            self._put(ack)
        data = b"".join(self._output)
        self._output.clear()
        self._queued = 0
        return data

    def _put(self, message: Message) -> None:
        frame = encode_length_prefixed(encode_message(message))
        self._output.append(frame)
        self._queued += len(frame)

    # -- what the peer says -----------------------------------------------------------------------

    def receive_data(self, data: Buffer, now: float) -> list[LinkEvent]:
        """Take bytes of the stream, cut anywhere, and return what they tell.

        Raises:
            RemoteProtocolError: they break the protocol.
        """
        if self.state is LinkState.OVER:
            return self._ignore()
        events: list[LinkEvent] = []
        try:
            self._reader.feed(data)
            while (frame := self._reader.next()) is not None:
                message = decode_message(frame)
                if message is not None:
                    events.append(self._take(message, now))
                if isinstance(message, Goodbye):
                    break
        except RemoteProtocolError as error:
            self.state = LinkState.OVER
            self._error = str(error)
            raise
        return events

    def _ignore(self) -> list[LinkEvent]:
        if self._error is not None:
            raise RemoteProtocolError(self._error)
        return []  # GOODBYE was the last that the peer says

    def receive_eof(self) -> None:
        """Note that the peer ended its direction."""
        over = self.state is LinkState.OVER
        self.state = LinkState.OVER
        if not over:
            self._reader.finish()

    def _take(self, message: Message, now: float) -> LinkEvent:
        if isinstance(message, Goodbye):
            self.state = LinkState.OVER
            return message
        if isinstance(message, Hello) != (self.state is LinkState.GREETING):
            raise RemoteProtocolError("HELLO comes first, and once")
        match message:
            case Hello():
                self.state = LinkState.OPEN
                self.peer = message
            case UpdateMessage():
                self._count_update(now)
            case Data(payload):
                self._received += 1
                self._received_bytes += len(payload) + MESSAGE_OVERHEAD
                if self._received_bytes - self._taken_here > self._window:
                    raise RemoteProtocolError("more DATA than there is room for")
            case Ack():
                return self._on_ack(message)
            case _:
                pass
        return message

    def _count_update(self, now: float) -> None:
        if now - self._window_began >= NAMESPACE_UPDATES_WINDOW_S:
            self._window_began, self._updates = now, 0
        self._updates += 1
        if self._updates > NAMESPACE_UPDATES_RATE:
            raise RemoteProtocolError("more updates than anybody can train")

    def _on_ack(self, ack: Ack) -> Acknowledged:
        if not self._acknowledged <= ack.received <= self._sent:
            raise RemoteProtocolError("ACK of messages that were not sent")
        if not self._taken_there <= ack.taken <= self._sent_bytes:
            raise RemoteProtocolError("ACK of bytes that were not sent")
        self._acknowledged, self._taken_there = ack.received, ack.taken
        return Acknowledged(ack.received)

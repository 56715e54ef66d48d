"""What a connection tells its driver: one frozen value per thing that happened.

The yamux session queues the stream and session events, the connection machine the rest. Payloads
in `StreamData` are never views of the receive buffer, so a driver may keep them as long as it
likes; how many bytes that can be is bounded by the windows it gave back with `consumed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId, PublicKey

    from .errors import RemoteProtocolError


@dataclass(frozen=True, slots=True)
class Established:
    """The peer is authenticated and streams may be opened."""

    peer_id: PeerId
    public_key: PublicKey
    security: str
    """Protocol id of the secure channel, such as `/noise`."""
    muxer: str


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The peer opened a stream; it has been acknowledged."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamData:
    """Bytes of a stream, in order. Give them back with `consumed` once they are used."""

    stream_id: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class StreamEof:
    """The peer sends no more on this stream; it may still be written to."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer gave the stream up in both directions; the id is dead."""

    stream_id: int
    code: int
    """The peer's application error code; 0 when it sent none."""


@dataclass(frozen=True, slots=True)
class WindowOpened:
    """A stream whose last `send` was cut short may be written to again."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class PongReceived:
    """The peer answered our ping."""

    rtt_s: float


@dataclass(frozen=True, slots=True)
class GoAwayReceived:
    """The peer accepts no new streams; those that are open go on."""

    code: int


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The last event of a connection; every stream that was open is broken.

    `error` is None when the peer closed between two frames. An error with close code `NORMAL` is
    a connection that broke (closed in mid-frame or in mid-handshake, silent, too slow): no proof
    of misbehaviour. Any other close code says that the peer broke the protocol.
    """

    error: RemoteProtocolError | None


StreamEvent: TypeAlias = StreamOpened | StreamData | StreamEof | StreamReset | WindowOpened
MuxEvent: TypeAlias = StreamEvent | PongReceived | GoAwayReceived
Event: TypeAlias = Established | MuxEvent | ConnectionLost

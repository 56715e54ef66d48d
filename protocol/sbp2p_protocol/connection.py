"""The connection machine: bytes of a raw stream in, events and bytes out.

Theory of operation. A connection is first an `Upgrade` (who are you, how do we encrypt, how do we
multiplex) and from then on a Noise channel with a yamux session in it:

    UPGRADING -> ESTABLISHED -> LOST

The driver reads into `receive_buffer()`, reports with `bytes_received`, drains `next_event`, and
writes what `take_output` returns; it wakes the machine at `next_deadline`. Data to send is
encrypted from the caller's memory inside `send`, so the caller may reuse it at once and nothing
is copied on the way; control frames are encrypted together when the output is taken.

Rules:
1. Nothing a peer sends makes a method raise. Its faults end in one `ConnectionLost`, after a yamux
   GoAway has been queued if the session is up. `LocalProtocolError` is the driver's own mistake.
2. `Established` comes first, after the peer has proved who it is; before it, there is no event
   but `ConnectionLost`. `ConnectionLost` is the last event, and comes once.
3. After the loss `take_output` still returns what is queued; methods on streams that cannot be
   served any more raise, and those that only give something back (`consumed`, `reset`) do nothing.

`upgrade.md` is the normative description, `connection.md` that of its steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from .buffers import BufferPool
from .connection_upgrade import Upgrade, UpgradePhase, UpgradeResult
from .errors import CloseCode, LocalProtocolError, RemoteProtocolError
from .events import ConnectionLost, Established
from .limits import MIB, UPGRADE_READ_BYTES
from .noise import NoiseSuite, sealed_size_max
from .noise_transport import OVERHEAD, PLAINTEXT_MAX
from .yamux import YamuxSession
from .yamux_frames import PROTOCOL_ID as YAMUX
from .yamux_streams import YamuxConfig

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from sbp2p_keys.identity import PeerId, PrivateKey

    from .events import Event

_LAST_MESSAGES: Final = 1024
"""Noise messages kept back of a key's life, so that the connection can say that it ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionMachineConfig:
    """Knobs of one connection."""

    security: tuple[str, ...] = tuple(suite.protocol_id for suite in NoiseSuite)
    """Secure channels, most wanted first: proposed in this order, or accepted."""
    early_muxers: tuple[str, ...] = (YAMUX,)
    """Offered inside the handshake; empty costs a round trip."""
    prologue: bytes = field(default=b"", repr=False)
    """Of the Noise handshake: empty, or what only members of a private swarm know."""
    yamux: YamuxConfig = field(default_factory=YamuxConfig)
    wide_data_frame: int = 17 * PLAINTEXT_MAX
    """Payload bytes of a frame to a peer that speaks our AES-GCM suite and so is one of ours: a
    block of 1 MiB and its header. rust-libp2p takes 1 MiB at most, but never speaks this suite."""
    receive_buffer_bytes: int = 1 * MIB
    """Most bytes taken from one read."""
    upgrade_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.security:
            raise ValueError("a connection needs a secure channel")
        for protocol in self.security:
            if NoiseSuite.from_protocol_id(protocol) is None:
                raise ValueError(f"no such secure channel: {protocol!r}")


class ConnectionState(Enum):
    """How far a connection has come."""

    UPGRADING = "upgrading"
    ESTABLISHED = "established"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class _Live:
    """What there is once the upgrade is done."""

    secure: UpgradeResult
    mux: YamuxSession


class Connection:
    """One side of a connection.

    Args:
        identity: our key; its peer id is what the other side learns.
        initiator: this side dialled.
        expected_peer: who must be at the other end; None accepts anyone.
        config: knobs.
        now: seconds on the caller's monotonic clock, as in every method that takes it.
        pool: where large buffers come from; may be shared by connections of one event loop.
    """

    def __init__(
        self,
        *,
        identity: PrivateKey,
        initiator: bool,
        expected_peer: PeerId | None,
        config: ConnectionMachineConfig,
        now: float,
        pool: BufferPool | None = None,
    ) -> None:
        self.state = ConnectionState.UPGRADING
        self._pool = pool or BufferPool()
        self._config = config
        self._initiator = initiator
        self._events: deque[Event] = deque()
        self._output: list[bytes | bytearray | memoryview] = []
        self._output_bytes = 0
        self._closing = False
        self._upgrade = Upgrade(
            identity=identity,
            initiator=initiator,
            expected_peer=expected_peer,
            security=config.security,
            early_muxers=config.early_muxers,
            prologue=config.prologue,
            receive_buffer_bytes=config.receive_buffer_bytes,
            pool=self._pool,
        )
        self._upgrade_deadline = now + config.upgrade_timeout_s
        self._upgrade_buffer = memoryview(bytearray(UPGRADE_READ_BYTES))
        self._live: _Live | None = None
        self._queue(self._upgrade.data_to_send())

    # -- bytes in ---------------------------------------------------------------------------

    def receive_buffer(self) -> memoryview:
        """Return where to read into; never empty, valid until the next call of the machine."""
        if self._live is None:
            return self._upgrade_buffer
        return self._live.secure.receiver.receive_buffer()

    @property
    def bytes_missing(self) -> int:
        """Bytes before which nothing will come of a read; 0 if that is not known."""
        return 0 if self._live is None else self._live.secure.receiver.missing

    def bytes_received(self, count: int, now: float) -> None:
        """Take `count` bytes that were read into `receive_buffer()`; 0 is the end of the stream."""
        if self.state is ConnectionState.LOST:
            return
        live = self._live
        try:
            if count == 0:
                self._on_eof()
            elif live is None:
                self._on_upgrade_bytes(bytes(self._upgrade_buffer[:count]), now)
            else:
                plaintext = live.secure.receiver.bytes_received(count)
                if plaintext is not None:
                    live.mux.receive_data(plaintext, now)
        except RemoteProtocolError as error:
            self._fail(error)

    def receive_data(self, data: Buffer, now: float) -> None:
        """Take bytes from elsewhere than `receive_buffer()`, by copying them there."""
        view = memoryview(data).cast("B")
        while view and self.state is not ConnectionState.LOST:
            buffer = self.receive_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            self.bytes_received(count, now)

    def _on_upgrade_bytes(self, data: bytes, now: float) -> None:
        try:
            self._upgrade.receive_data(data)
        finally:
            # a refusal is an answer too: the peer should learn why this ends
            self._queue(self._upgrade.data_to_send())
        secure = self._upgrade.result
        if secure is None:
            return
        yamux = self._config.yamux
        if secure.suite is NoiseSuite.AESGCM:
            yamux = replace(yamux, max_data_frame=self._config.wide_data_frame)
        mux = YamuxSession(initiator=self._initiator, config=yamux, now=now, events=self._events)
        self._live = _Live(secure, mux)
        self.state = ConnectionState.ESTABLISHED
        self._events.append(
            Established(
                peer_id=secure.handshake.remote_peer,
                public_key=secure.handshake.remote_key,
                security=secure.suite.protocol_id,
                muxer=secure.muxer,
            )
        )
        mux.ping(now)
        for plaintext in secure.plaintext:
            mux.receive_data(plaintext, now)

    def _on_eof(self) -> None:
        live = self._live
        if live is None:
            raise RemoteProtocolError(
                f"the peer closed the connection during the {self._upgrade.phase.value} phase",
                close_code=CloseCode.NORMAL,
            )
        if not self._closing and (live.secure.receiver.pending or live.mux.in_frame):
            raise RemoteProtocolError(
                "the connection broke in the middle of a message", close_code=CloseCode.NORMAL
            )
        self._lose(None)

    # -- events out -------------------------------------------------------------------------

    def next_event(self) -> Event | None:
        """Return the oldest event not taken yet, or None."""
        return self._events.popleft() if self._events else None

    def _fail(self, error: RemoteProtocolError) -> None:
        if self._live is not None:
            self._live.mux.go_away(error.close_code)
        self._lose(error)

    def _lose(self, error: RemoteProtocolError | None) -> None:
        if self.state is not ConnectionState.LOST:
            self.state = ConnectionState.LOST
            self._events.append(ConnectionLost(error))

    # -- bytes out --------------------------------------------------------------------------

    @property
    def output_size(self) -> int:
        """Bytes that `take_output` would return."""
        control = 0 if self._live is None else self._live.mux.control_size
        return self._output_bytes + (control + OVERHEAD if control else 0)

    def take_output(self) -> list[bytes | bytearray | memoryview]:
        """Return what to write, in order, and forget it.

        To be called when what it returned before has been written: that says that bytes move.
        """
        live = self._live
        if live is not None:
            if live.mux.control_size:
                self._encrypt(live, [live.mux.take_control()])
            if self._output:
                live.mux.output_taken(self._output_bytes)
        output, self._output = self._output, []
        self._output_bytes = 0
        return output

    def _queue(self, data: bytes) -> None:
        if data:
            self._output.append(data)
            self._output_bytes += len(data)

    def _encrypt(self, live: _Live, parts: list[Buffer]) -> None:
        buffer = self._pool.take(sealed_size_max(parts))
        size = live.secure.sender.encrypt_into(parts, buffer)
        self._output.append(buffer[:size])
        self._output_bytes += size
        cipher = live.secure.handshake.send_cipher
        if cipher.messages > cipher.messages_max - _LAST_MESSAGES:
            self._fail(
                RemoteProtocolError(
                    "the keys of this connection are used up", close_code=CloseCode.NORMAL
                )
            )

    # -- streams ----------------------------------------------------------------------------

    def open_stream(self) -> int:
        """Open a stream and return its id; data may be sent on it at once.

        Raises:
            LocalProtocolError: not established, going away, or too many streams are open.
        """
        return self._established().mux.open_stream()

    def send(self, stream_id: int, data: Buffer) -> int:
        """Encrypt as much of `data` as the peer's window allows; its memory is free afterwards.

        Returns:
            The number of bytes that were accepted. When that is not all, a `WindowOpened` event
            follows once there is room.

        Raises:
            LocalProtocolError: not established, or the stream is not open for writing.
        """
        live = self._established()
        parts: list[Buffer] = []
        accepted = live.mux.send(stream_id, data, parts)
        if accepted:
            self._encrypt(live, parts)
        return accepted

    def send_eof(self, stream_id: int) -> None:
        """End our direction of a stream.

        Raises:
            LocalProtocolError: not established, or it has ended already.
        """
        self._established().mux.send_eof(stream_id)

    def reset(self, stream_id: int, code: int = 0) -> None:
        """Give a stream up in both directions; nothing happens when it is done already."""
        if self.state is ConnectionState.ESTABLISHED:
            self._established().mux.reset(stream_id, code)

    def consumed(self, stream_id: int, count: int, now: float) -> None:
        """Say that the application took `count` bytes of the stream's data: credit goes back."""
        if self.state is ConnectionState.ESTABLISHED:
            self._established().mux.consumed(stream_id, count, now)

    def _established(self) -> _Live:
        if self._live is None or self.state is not ConnectionState.ESTABLISHED:
            raise LocalProtocolError(f"the connection is {self.state.value}")
        return self._live

    # -- the session ------------------------------------------------------------------------

    @property
    def established(self) -> bool:
        """The peer is authenticated and the connection is not lost."""
        return self.state is ConnectionState.ESTABLISHED

    @property
    def remote_peer(self) -> PeerId | None:
        """Who is at the other end; None before that is proved."""
        return None if self._live is None else self._live.secure.handshake.remote_peer

    @property
    def security(self) -> str:
        """Protocol id of the secure channel; empty before it is agreed on."""
        return "" if self._live is None else self._live.secure.suite.protocol_id

    @property
    def rtt_s(self) -> float | None:
        """Round trip time in seconds; None before the first pong."""
        return None if self._live is None else self._live.mux.rtt_s

    @property
    def upgrade_phase(self) -> UpgradePhase:
        """How far the upgrade has come, for messages and logs."""
        return self._upgrade.phase

    def ping(self, now: float) -> None:
        """Measure the round trip: a `PongReceived` follows. One ping is on its way at a time.

        Raises:
            LocalProtocolError: not established.
        """
        self._established().mux.ping(now)

    def close(self, code: int = CloseCode.NORMAL) -> None:
        """Open and accept no more streams, and tell the peer so; those that are open go on.

        A connection that is not established yet is lost at once.
        """
        self._closing = True
        if self.state is ConnectionState.ESTABLISHED:
            self._established().mux.go_away(code)
        else:
            self._lose(None)

    def next_deadline(self) -> float | None:
        """When `handle_timer` has something to do; None when never again."""
        if self.state is ConnectionState.UPGRADING:
            return self._upgrade_deadline
        if self.state is ConnectionState.ESTABLISHED:
            return self._established().mux.next_deadline()
        return None

    def handle_timer(self, now: float) -> None:
        """Do what is due: end a slow upgrade, send a keep-alive ping, give up a silent peer."""
        try:
            if self.state is ConnectionState.ESTABLISHED:
                self._established().mux.handle_timer(now)
            elif self.state is ConnectionState.UPGRADING and now >= self._upgrade_deadline:
                raise RemoteProtocolError(
                    f"no secure connection within {self._config.upgrade_timeout_s:g} s:"
                    f" stuck in the {self._upgrade.phase.value} phase",
                    close_code=CloseCode.NORMAL,
                )
        except RemoteProtocolError as error:
            self._fail(error)

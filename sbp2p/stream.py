"""One multiplexed stream as the application sees it: bytes both ways, each way ended alone.

Theory of operation. The connection's reader task puts what arrives into a queue here and never
waits for the application; the peer's credit bounds the queue, and credit goes back when the
application takes a chunk. Chunks are handed over as they came, without copying.

Sending is the other way about: the machine encrypts straight from the caller's memory, a slice at
a time, when it is this stream's turn and the peer has given credit. Whatever was accepted is out of
the caller's hands: it will be sent.

| call | cancelled means |
|---|---|
| `send_all` | an unknown prefix was accepted and will be sent; the caller should `reset` |
| `receive_*` | nothing was taken |
| `aclose` | the stream is closed all the same |

Errors: `trio.ClosedResourceError` after this side closed or reset the stream or closed the
connection; `trio.BrokenResourceError` after the peer reset it or the connection was lost;
`trio.BusyResourceError` for two tasks in one direction at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Self

import trio

from sbp2p_protocol.limits import KIB
from sbp2p_protocol.noise_transport import PLAINTEXT_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from sbp2p_keys.identity import PeerId

    from .connection import Connection
    from .transport import Bytes

SEND_SLICE = 4 * PLAINTEXT_MAX
"""Most bytes one stream puts into the output queue before the next stream's turn: whole Noise
messages, because short ones cost as much (docs/decisions/0003-hot-path.md)."""

SEND_SLICE_IDLE = 17 * PLAINTEXT_MAX
"""The same when nothing is queued, as on a link that takes all it is given: a block of 1 MiB with
its header in one frame. A slow link takes shorter ones (`Connection._slice_bytes`)."""

_JOIN_BELOW = 1 * KIB
_JOINED_MAX = 64 * KIB
"""Short chunks are joined up to this size: a peer that spends its credit a byte at a time would
otherwise make us hold an object for each byte."""


class Stream:
    """A stream of a connection. Made by `Connection.open_stream`, or given to a handler."""

    def __init__(self, connection: Connection, stream_id: int, *, initiator: bool) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.initiator = initiator
        """Whether this side opened the stream."""
        self.protocol = ""
        """The protocol the two sides agreed on; empty until they have."""
        self._returned: deque[Bytes] = deque()  # taken, credited, and given back unread
        self._chunks: deque[Bytes] = deque()
        self._arrived = trio.lowlevel.ParkingLot()
        self._window = trio.lowlevel.ParkingLot()
        self._sending = False
        self._receiving = False
        self._received_eof = False
        self._sent_eof = False
        self._error: Exception | None = None

    def __repr__(self) -> str:
        side = "to" if self.initiator else "from"
        return f"<Stream {self.stream_id} {side} {self.peer_id.short()} {self.protocol or '?'}>"

    @property
    def peer_id(self) -> PeerId:
        """Who is at the other end."""
        return self.connection.peer_id

    @property
    def is_done(self) -> bool:
        """Whether neither direction will carry anything any more."""
        return self._error is not None or (self._received_eof and self._sent_eof)

    @property
    def has_data(self) -> bool:
        """Whether `receive_some` would return at once with data."""
        return bool(self._returned or self._chunks)

    # -- receiving --------------------------------------------------------------------------

    async def receive_some(self, max_bytes: int | None = None) -> Bytes:
        """Wait for bytes and return one chunk of them; `b""` at the peer's end of stream.

        Args:
            max_bytes: cut the chunk there; the rest comes first next time. None: as it arrived.
        """
        if max_bytes is not None and max_bytes < 1:
            raise ValueError("max_bytes must be at least 1")
        await self._wait_readable()
        return self._take(max_bytes)

    async def receive_chunks(self, count: int) -> list[Bytes]:
        """Return chunks of exactly `count` bytes together, none of them copied.

        Raises:
            trio.BrokenResourceError: the peer ended the stream before; what came is still there.
        """
        chunks: list[Bytes] = []
        missing = count
        try:
            while missing:
                await self._wait_readable()
                chunk = self._take(missing)
                if not chunk:
                    raise trio.BrokenResourceError(
                        f"the stream ended after {count - missing} of {count} bytes"
                    )
                chunks.append(chunk)
                missing -= len(chunk)
        except BaseException:
            if self._error is None:
                self.give_back(chunks)
            raise
        return chunks

    async def receive_exactly(self, count: int) -> bytes:
        """Return exactly `count` bytes; errors as for `receive_chunks`."""
        return b"".join(await self.receive_chunks(count))

    def give_back(self, chunks: Iterable[Bytes]) -> None:
        """Put chunks back in front: the next receive returns them again."""
        self._returned.extendleft(reversed([chunk for chunk in chunks if len(chunk)]))

    async def _wait_readable(self) -> None:
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving from this stream")
        self._receiving = True
        try:
            # no schedule point when data is there: how much that can be is bounded by the window
            await trio.lowlevel.checkpoint_if_cancelled()
            while True:
                if self.has_data:
                    return
                closed_here = isinstance(self._error, trio.ClosedResourceError)
                if self._received_eof and not closed_here:
                    return
                if self._error is not None:
                    raise _copy(self._error)
                await self._arrived.park()
        finally:
            self._receiving = False

    def _take(self, max_bytes: int | None) -> Bytes:
        queue = self._returned or self._chunks
        if not queue:
            return b""
        chunk = queue.popleft()
        if max_bytes is not None and len(chunk) > max_bytes:
            view = memoryview(chunk)
            queue.appendleft(view[max_bytes:])
            chunk = view[:max_bytes]
        if queue is self._chunks:
            self.connection._consumed(self.stream_id, len(chunk))
        return chunk

    # -- sending ----------------------------------------------------------------------------

    async def send_all(self, data: Bytes) -> None:
        """Send every byte of `data`; its memory may be reused once this returns."""
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        view = memoryview(data)
        if view.format != "B" or view.ndim != 1:
            view = view.cast("B")
        turns = self.connection._turns
        self._sending = True
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._check_can_send()
            while view:
                await turns.wait()
                try:
                    self._check_can_send()
                    piece = view[: self.connection._slice_bytes()]
                    accepted = self.connection._send(self.stream_id, piece)
                finally:
                    turns.pass_on()
                view = view[accepted:]
                if accepted < len(piece):
                    await self._window.park()
        finally:
            self._sending = False

    async def send_eof(self) -> None:
        """End this side's direction; what was sent arrives before it. Again does nothing."""
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        await trio.lowlevel.checkpoint()
        if not self._sent_eof:
            self._check_can_send()
            self._end_sending()

    def _check_can_send(self) -> None:
        if self._error is not None:
            raise _copy(self._error)
        if self._sent_eof:
            raise trio.ClosedResourceError("this side has ended the stream")

    def _end_sending(self) -> None:
        self._sent_eof = True
        self.connection._send_eof(self.stream_id)
        self._forget_if_done()

    # -- ending -----------------------------------------------------------------------------

    async def aclose(self) -> None:
        """End this side's direction and stop receiving.

        A peer that goes on sending is given no more credit, and is reset when it has not ended its
        own direction within the connection's `negotiate_timeout_s`.
        """
        self._close()
        await trio.lowlevel.checkpoint()

    def reset(self, code: int = 0) -> None:
        """Give both directions up at once; bytes on their way are lost."""
        if not self.is_done:
            self.connection._reset(self.stream_id, code)
        self._fail(trio.ClosedResourceError("this side reset the stream"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.aclose()
        else:
            self.reset()

    def _close(self) -> None:
        if self._error is not None:
            return
        if not self._sent_eof:
            self._end_sending()
        if not self._received_eof:
            self.connection._linger(self)
        lost = trio.ClosedResourceError("this side closed the stream")
        self._fail(lost, forget=self._received_eof)

    # -- for the connection -----------------------------------------------------------------

    def _on_data(self, data: bytes | memoryview) -> None:
        if self._error is not None:
            return  # closed here, and the bytes are nobody's
        if len(data) >= _JOIN_BELOW:
            self._chunks.append(data)
        else:
            last = self._chunks[-1] if self._chunks else None
            if isinstance(last, bytearray) and len(last) < _JOINED_MAX:
                last += data
            else:
                self._chunks.append(bytearray(data))
        self._arrived.unpark_all()

    def _on_eof(self) -> None:
        self._received_eof = True
        self._arrived.unpark_all()
        self._forget_if_done()

    def _on_window(self) -> None:
        self._window.unpark_all()

    def _fail(self, error: Exception, *, keep_data: bool = False, forget: bool = True) -> None:
        """End the stream; `keep_data` leaves what has arrived to be read first."""
        if self._error is None:
            self._error = error
        if not keep_data:
            self._chunks.clear()
            self._returned.clear()
        self._arrived.unpark_all()
        self._window.unpark_all()
        if forget:
            self.connection._forget(self)

    def _forget_if_done(self) -> None:
        if self._received_eof and self._sent_eof:
            self.connection._forget(self)


def _copy(error: Exception) -> Exception:
    """Return a fresh error like `error`: raising one object twice would grow its traceback."""
    return type(error)(*error.args)

"""Noise transport messages: the hot path, with as few copies as Python allows.

A message is a two-byte big-endian length and that many bytes of ciphertext, at most 65535: up to
65519 bytes of plaintext and a 16-byte tag. The associated data is empty; the nonce counts up from
zero in each direction.

Sending. `NoiseSender` encrypts from the caller's memory straight into the output buffer. Pieces of
at most `COALESCE_MAX` bytes (yamux headers, control frames, the short tail of a long part) are
gathered first, so that they share a message; a longer piece is never copied. Measured
(docs/decisions/0002-noise-suites.md): a 12-byte header as a message of its own costs less than
copying the 64 KiB behind it to join them.

Receiving. `NoiseReceiver` owns the memory the socket is read into. After each read it decrypts all
whole messages into one new buffer and hands that over, so a consumer sees one long run of bytes,
which halves the calls of everything above and hashes faster than many short ones; only the bytes of
a message cut short by the read are moved. A slice of a batch keeps the whole batch alive, so
whoever holds on to small slices must copy them.

Errors: a frame that does not decrypt or is shorter than a tag raises `IntegrityError`: the peer or
anybody on the way may have made it. One after the last nonce raises `RemoteProtocolError`. Sending
beyond the last nonce is a `LocalProtocolError`. All are final.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidTag

from .buffers import BufferPool
from .errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from .limits import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

    from .noise_suite import CipherState

LENGTH_SIZE: Final = 2
TAG_SIZE: Final = 16
MESSAGE_MAX: Final = 65535
PLAINTEXT_MAX: Final = MESSAGE_MAX - TAG_SIZE
OVERHEAD: Final = LENGTH_SIZE + TAG_SIZE

COALESCE_MAX: Final = 2048
"""Bytes up to which a piece is copied to share a message: there a copy is cheaper than a call."""

RECEIVE_BUFFER_MIN: Final = 2 * (LENGTH_SIZE + MESSAGE_MAX)
"""Bytes: room for one message that was cut short and one whole one."""


def sealed_size_max(parts: Iterable[Buffer]) -> int:
    """Most bytes that `parts` can become when encrypted, in one call."""
    size = count = 0
    for part in parts:
        length = memoryview(part).nbytes
        size += length
        # each part: its full messages, its tail, and a flush of what was gathered before it
        count += length // PLAINTEXT_MAX + 2
    return size + (count + 1) * OVERHEAD


class NoiseSender:
    """Encrypts one direction of a connection."""

    __slots__ = ("_cipher", "_gathered", "_gathered_size")

    def __init__(self, cipher: CipherState) -> None:
        self._cipher = cipher
        self._gathered = memoryview(bytearray(PLAINTEXT_MAX))
        self._gathered_size = 0

    def encrypt_parts(self, parts: Sequence[Buffer], out: bytearray) -> None:
        """Append `parts`, encrypted and framed, to `out`.

        The parts are one run of bytes, cut into messages anywhere. Their memory may be reused
        when this returns.

        Raises:
            LocalProtocolError: The key may encrypt no more messages.
        """
        start = len(out)
        out += bytes(sealed_size_max(parts))
        with memoryview(out) as view, view[start:] as free:
            end = start + self.encrypt_into(parts, free)
        del out[end:]

    def encrypt_into(self, parts: Iterable[Buffer], out: memoryview) -> int:
        """Write `parts`, encrypted and framed, at the start of `out`; return the bytes written.

        `out` holds at least `sealed_size_max(parts)` bytes and overlaps no part. The memory of the
        parts may be reused when this returns.

        Raises:
            LocalProtocolError: The key may encrypt no more messages, or `out` is too small.
        """
        offset = 0
        for part in parts:
            view = memoryview(part)
            if view.format != "B" or view.ndim != 1:
                view = view.cast("B")
            size = view.nbytes
            position = 0
            while size - position > COALESCE_MAX:
                if self._gathered_size:
                    offset = self._flush(out, offset)
                end = min(position + PLAINTEXT_MAX, size)
                offset = self._seal(view[position:end], out, offset)
                position = end
            if position < size:
                if self._gathered_size + size - position > PLAINTEXT_MAX:
                    offset = self._flush(out, offset)
                gathered = self._gathered_size + size - position
                self._gathered[self._gathered_size : gathered] = view[position:]
                self._gathered_size = gathered
        if self._gathered_size:
            offset = self._flush(out, offset)
        return offset

    def _flush(self, out: memoryview, offset: int) -> int:
        size, self._gathered_size = self._gathered_size, 0
        return self._seal(self._gathered[:size], out, offset)

    def _seal(self, plaintext: memoryview, out: memoryview, offset: int) -> int:
        """Write one message at `offset` of `out`; return where the next one goes."""
        cipher = self._cipher
        nonce = cipher.messages
        if nonce >= cipher.messages_max:
            raise LocalProtocolError("Noise key is used up: the connection must be renewed")
        start = offset + LENGTH_SIZE
        length = plaintext.nbytes + TAG_SIZE
        end = start + length
        if end > len(out):
            raise LocalProtocolError("Noise output buffer is too small")
        out[offset] = length >> 8
        out[offset + 1] = length & 0xFF
        # counted before use: whatever goes wrong, a nonce is never used twice
        cipher.messages = nonce + 1
        cipher.aead.encrypt_into(cipher.pack_nonce(nonce), plaintext, None, out[start:end])
        return end


class NoiseReceiver:
    """Decrypts one direction of a connection.

    Read into `receive_buffer()`, tell `bytes_received` how much, and take the plaintext. Bytes
    that came with the handshake go through `receive_data` first.

    Args:
        cipher: The receiving cipher of the handshake.
        buffer_bytes: Most ciphertext taken from one read, and about the size of a batch.
        pool: Where the memory of batches comes from; a new buffer each without one.
    """

    __slots__ = ("_broken", "_buffer", "_cipher", "_end", "_pool")

    def __init__(
        self, cipher: CipherState, *, buffer_bytes: int = MIB, pool: BufferPool | None = None
    ) -> None:
        self._cipher = cipher
        self._pool = pool or BufferPool(buffers_max=0)
        self._buffer = memoryview(bytearray(max(buffer_bytes, RECEIVE_BUFFER_MIN)))
        self._end = 0
        self._broken: str | None = None

    @property
    def pending(self) -> int:
        """Bytes of an incomplete message: when the connection ends here, it was cut."""
        return self._end

    @property
    def missing(self) -> int:
        """Bytes that the incomplete message lacks; 0 if there is none, or its length is unknown."""
        if self._end < LENGTH_SIZE:
            return 0
        length = self._buffer[0] << 8 | self._buffer[1]
        return LENGTH_SIZE + length - self._end

    def receive_buffer(self) -> memoryview:
        """Return the writable memory for the next read; never empty, valid until the next call."""
        return self._buffer[self._end :]

    def bytes_received(self, count: int) -> memoryview | None:
        """Take `count` bytes written at the start of `receive_buffer()`.

        Returns:
            The plaintext of every message that is now whole, in memory of its own; None if there
            is none. Messages without content add nothing.

        Raises:
            RemoteProtocolError: The bytes are not what the peer's cipher made. Final.
        """
        if self._broken is not None:
            raise RemoteProtocolError(self._broken)
        if not 0 <= count <= len(self._buffer) - self._end:
            raise LocalProtocolError(f"{count} bytes were not read into the receive buffer")
        self._end += count
        try:
            return self._decrypt_whole()
        except RemoteProtocolError as error:
            self._broken = str(error)
            raise

    def receive_data(self, data: Buffer) -> list[memoryview]:
        """Take ciphertext from elsewhere, by copying it in; return the plaintext batches."""
        view = memoryview(data).cast("B")
        batches = []
        while view:
            free = self.receive_buffer()
            count = min(len(free), len(view))
            free[:count] = view[:count]
            view = view[count:]
            batch = self.bytes_received(count)
            if batch is not None:
                batches.append(batch)
        return batches

    def _decrypt_whole(self) -> memoryview | None:
        buffer = self._buffer
        end = self._end
        spans, start = _whole_messages(buffer, end)
        if not spans:
            return None
        batch = self._pool.take(start - len(spans) * OVERHEAD)
        written = self._decrypt_spans(spans, batch)
        if start < end:
            buffer[: end - start] = buffer[start:end]
        self._end = end - start
        return batch if written else None

    def _decrypt_spans(self, spans: list[tuple[int, int]], batch: memoryview) -> int:
        cipher = self._cipher
        decrypt_into = cipher.aead.decrypt_into
        pack_nonce = cipher.pack_nonce
        buffer = self._buffer
        nonce = cipher.messages
        if nonce + len(spans) > cipher.messages_max:
            raise RemoteProtocolError("peer went on after the last message of its Noise key")
        position = 0
        try:
            for start, end in spans:
                after = position + end - start - TAG_SIZE
                decrypt_into(pack_nonce(nonce), buffer[start:end], None, batch[position:after])
                nonce += 1
                position = after
        except InvalidTag:
            raise IntegrityError("Noise message does not decrypt") from None
        cipher.messages = nonce
        return position


def _whole_messages(buffer: memoryview, end: int) -> tuple[list[tuple[int, int]], int]:
    """Where the ciphertext of each whole message lies, and where the cut one begins."""
    spans = []
    start = 0
    while start + LENGTH_SIZE <= end:
        length = buffer[start] << 8 | buffer[start + 1]
        if length < TAG_SIZE:
            raise IntegrityError(f"Noise message of {length} bytes, shorter than its tag")
        after = start + LENGTH_SIZE + length
        if after > end:
            break
        spans.append((start + LENGTH_SIZE, after))
        start = after
    return spans, start

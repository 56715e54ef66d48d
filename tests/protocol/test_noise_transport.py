"""Noise transport messages: round trips, cuts, coalescing, exhaustion, tampering."""

from __future__ import annotations

import contextlib
from array import array
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p_protocol.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import KIB, MIB
from sbp2p_protocol.noise_suite import NONCE_RESERVED, CipherState, NoiseSuite
from sbp2p_protocol.noise_transport import (
    COALESCE_MAX,
    OVERHEAD,
    PLAINTEXT_MAX,
    RECEIVE_BUFFER_MIN,
    NoiseReceiver,
    NoiseSender,
    sealed_size_max,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

KEY = bytes(range(32))


def ends(
    suite: NoiseSuite = NoiseSuite.AESGCM, *, buffer_bytes: int = MIB
) -> tuple[NoiseSender, NoiseReceiver]:
    sender = NoiseSender(CipherState(suite, KEY))
    return sender, NoiseReceiver(CipherState(suite, KEY), buffer_bytes=buffer_bytes)


def seal(sender: NoiseSender, *parts: bytes) -> bytearray:
    wire = bytearray()
    sender.encrypt_parts(parts, wire)
    return wire


def message_sizes(wire: bytes | bytearray) -> list[int]:
    """Plaintext sizes of the messages in `wire`."""
    sizes, offset = [], 0
    while offset < len(wire):
        length = int.from_bytes(wire[offset : offset + 2], "big")
        sizes.append(length - 16)
        offset += 2 + length
    return sizes


sizes = st.one_of(
    st.integers(0, 64),
    st.sampled_from([COALESCE_MAX, COALESCE_MAX + 1, PLAINTEXT_MAX - 1, PLAINTEXT_MAX]),
    st.integers(0, 3 * PLAINTEXT_MAX),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(sizes, max_size=8), st.integers(1, 300 * KIB), st.sampled_from(NoiseSuite))
def test_parts_come_back_however_the_stream_is_cut(
    lengths: list[int], cut: int, suite: NoiseSuite
) -> None:
    parts = [bytes([i + 1]) * length for i, length in enumerate(lengths)]
    sender, receiver = ends(suite)
    wire = seal(sender, *parts)
    assert len(wire) <= sealed_size_max(parts)
    assert all(0 < size <= PLAINTEXT_MAX for size in message_sizes(wire))
    batches = []
    for start in range(0, len(wire), cut):
        batches += receiver.receive_data(wire[start : start + cut])
    assert b"".join(batches) == b"".join(parts)
    assert receiver.pending == 0


def test_a_read_becomes_one_batch() -> None:
    sender, receiver = ends()
    data = bytes(MIB - 4 * KIB)
    wire = seal(sender, data)
    assert len(receiver.receive_data(wire)) == 1


def test_a_batch_outlives_the_next_read() -> None:
    sender, receiver = ends()
    (first,) = receiver.receive_data(seal(sender, b"first"))
    (second,) = receiver.receive_data(seal(sender, b"other"))
    assert (bytes(first), bytes(second)) == (b"first", b"other")


def test_small_parts_share_a_message_and_large_ones_are_cut() -> None:
    sender, _ = ends()
    header = bytes(12)
    assert message_sizes(seal(sender, header, b"ping", header)) == [28]
    assert message_sizes(seal(sender, header, bytes(MIB))) == [12, *[PLAINTEXT_MAX] * 16, 272]
    # the tail of a long part waits for the header that follows it
    assert message_sizes(seal(sender, bytes(PLAINTEXT_MAX + 9), header)) == [PLAINTEXT_MAX, 21]
    assert message_sizes(seal(sender, *[bytes(COALESCE_MAX)] * 32)) == [31 * COALESCE_MAX, 2048]


def test_the_order_of_parts_is_kept_around_a_large_one() -> None:
    sender, receiver = ends()
    parts = [b"a" * 12, b"b" * 70_000, b"c" * 12, b"d" * 3_000, b"e"]
    assert b"".join(receiver.receive_data(seal(sender, *parts))) == b"".join(parts)


@pytest.mark.parametrize("parts", [[], [b""], [b"", b""]])
def test_nothing_makes_no_message(parts: list[bytes]) -> None:
    assert seal(ends()[0], *parts) == b""


def test_output_is_appended() -> None:
    sender, receiver = ends()
    out = bytearray(b"before")
    sender.encrypt_parts([b"x"], out)
    assert out[:6] == b"before"
    assert receiver.receive_data(out[6:]) == [b"x"]


def test_parts_may_be_any_memory() -> None:
    sender, receiver = ends()
    floats = array("d", [1.5] * 1000)
    square = memoryview(bytearray(range(16))).cast("B", (4, 4))
    parts: list[Buffer] = [floats, memoryview(b"slice")[1:3], bytearray(b"x"), square]
    wire = bytearray(sealed_size_max(parts))
    count = sender.encrypt_into(parts, memoryview(wire))
    got = b"".join(receiver.receive_data(wire[:count]))
    assert got == floats.tobytes() + b"lix" + bytes(range(16))


def test_an_output_buffer_that_is_too_small() -> None:
    sender, _ = ends()
    with pytest.raises(LocalProtocolError, match="too small"):
        sender.encrypt_into([bytes(100)], memoryview(bytearray(100 + OVERHEAD - 1)))


def test_empty_messages_are_skipped() -> None:
    receiver = ends()[1]
    cipher = CipherState(NoiseSuite.AESGCM, KEY)
    wire = b""
    for nonce, text in enumerate([b"", b"a", b"", b"b", b""]):
        sealed = cipher.aead.encrypt(cipher.pack_nonce(nonce), text, None)
        wire += len(sealed).to_bytes(2, "big") + sealed
    assert b"".join(receiver.receive_data(wire)) == b"ab"
    assert receiver.receive_data(wire[:0]) == []


def test_only_empty_messages_give_no_batch() -> None:
    cipher = CipherState(NoiseSuite.AESGCM, KEY)
    sealed = cipher.aead.encrypt(cipher.pack_nonce(0), b"", None)
    assert ends()[1].receive_data(b"\x00\x10" + sealed) == []


@pytest.mark.parametrize("length", [0, 1, 15])
def test_a_message_shorter_than_its_tag(length: int) -> None:
    receiver = ends()[1]
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="shorter than its tag"):
            receiver.receive_data(length.to_bytes(2, "big"))


@pytest.mark.parametrize("position", [2, 50, 117])
def test_a_changed_byte_ends_the_connection(position: int) -> None:
    sender, receiver = ends()
    wire = seal(sender, bytes(100))
    wire[position] ^= 0x80
    with pytest.raises(IntegrityError):
        receiver.receive_data(wire)
    with pytest.raises(RemoteProtocolError):
        receiver.receive_data(seal(sender, b"good"))


def test_replayed_dropped_and_reordered_messages() -> None:
    for pick in ([0, 0], [1], [1, 0]):
        sender, receiver = ends()
        messages = [seal(sender, b"0"), seal(sender, b"1")]
        with pytest.raises(IntegrityError):
            receiver.receive_data(b"".join(messages[i] for i in pick))


def test_the_last_nonces_of_each_suite() -> None:
    limits = {NoiseSuite.CHACHA: NONCE_RESERVED, NoiseSuite.AESGCM: 2**32}
    for suite, limit in limits.items():
        sender_cipher, receiver_cipher = CipherState(suite, KEY), CipherState(suite, KEY)
        sender_cipher.messages = receiver_cipher.messages = limit - 1
        sender, receiver = NoiseSender(sender_cipher), NoiseReceiver(receiver_cipher)
        assert receiver.receive_data(seal(sender, b"last")) == [b"last"]
        with pytest.raises(LocalProtocolError, match="used up"):
            seal(sender, b"one more")
        with pytest.raises(RemoteProtocolError, match="after the last message"):
            receiver.receive_data(b"\x00\x10" + bytes(16))


def test_what_a_message_lacks_is_known_from_its_length_on() -> None:
    sender, receiver = ends()
    wire = seal(sender, b"x" * 5000)
    assert receiver.missing == 0
    for count, missing in ((1, 0), (1, len(wire) - 2), (1000, len(wire) - 1002)):
        position = receiver.pending
        receiver.receive_buffer()[:count] = wire[position : position + count]
        assert receiver.bytes_received(count) is None
        assert receiver.missing == missing
    rest = wire[receiver.pending :]
    receiver.receive_buffer()[: len(rest)] = rest
    batch = receiver.bytes_received(len(rest))
    assert batch is not None
    assert bytes(batch) == b"x" * 5000
    assert receiver.missing == 0


def test_the_receive_buffer_is_never_empty() -> None:
    sender, receiver = ends(buffer_bytes=1)
    assert len(receiver.receive_buffer()) == RECEIVE_BUFFER_MIN
    wire = seal(sender, bytes(PLAINTEXT_MAX))
    receiver.receive_data(wire[:-1])
    assert receiver.pending == len(wire) - 1
    assert len(receiver.receive_buffer()) == RECEIVE_BUFFER_MIN - receiver.pending
    assert receiver.receive_data(wire[-1:]) == [bytes(PLAINTEXT_MAX)]


@pytest.mark.parametrize("count", [-1, RECEIVE_BUFFER_MIN + 1])
def test_bytes_that_were_not_read(count: int) -> None:
    with pytest.raises(LocalProtocolError):
        ends(buffer_bytes=1)[1].bytes_received(count)


@given(st.lists(st.binary(max_size=100), max_size=10), st.booleans())
def test_garbage_raises_only_the_remote_error(chunks: list[bytes], frame: bool) -> None:
    receiver = ends(buffer_bytes=1)[1]
    with contextlib.suppress(RemoteProtocolError):
        for chunk in chunks:
            assert not receiver.receive_data(
                len(chunk).to_bytes(2, "big") + chunk if frame else chunk
            )

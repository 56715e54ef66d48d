"""Length-prefixed frames: whole, byte by byte, too long, malformed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader, encode_length_prefixed


def frames_of(reader: LengthPrefixedReader) -> list[bytes]:
    return list(iter(reader.next, None))


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 64))
def test_frames_come_back_however_the_stream_is_cut(frames: list[bytes], cut: int) -> None:
    stream = b"".join(encode_length_prefixed(frame) for frame in frames)
    reader = LengthPrefixedReader(300)
    got: list[bytes] = []
    for start in range(0, len(stream), cut):
        reader.feed(stream[start : start + cut])
        got += frames_of(reader)
    reader.finish()
    assert got == frames
    assert reader.buffered == 0


@given(st.binary(max_size=200), st.integers(0, 200))
def test_garbage_raises_only_the_remote_error(data: bytes, max_size: int) -> None:
    reader = LengthPrefixedReader(max_size)
    with contextlib.suppress(RemoteProtocolError):
        for i in range(len(data)):
            reader.feed(data[i : i + 1])
            for frame in frames_of(reader):
                assert len(frame) <= max_size
        reader.finish()


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (b"\x65", "101 bytes, above 100"),
        (b"\x80\x00", "above 100"),
        (b"\xff\xff", "above 100"),
    ],
)
def test_bad_lengths_are_refused_before_the_payload(stream: bytes, why: str) -> None:
    reader = LengthPrefixedReader(100)
    reader.feed(stream)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match=why):
            reader.next()
    with pytest.raises(RemoteProtocolError, match=why):
        reader.finish()


def test_a_length_that_is_not_minimal_is_refused() -> None:
    reader = LengthPrefixedReader(1000)
    reader.feed(b"\x80\x00")
    with pytest.raises(RemoteProtocolError, match="bad frame length"):
        reader.next()


def test_the_end_inside_a_frame_is_an_error() -> None:
    reader = LengthPrefixedReader(100)
    reader.feed(b"\x03ab")
    assert reader.next() is None
    with pytest.raises(RemoteProtocolError, match="ended inside"):
        reader.finish()


def test_the_rest_after_a_frame_can_be_taken() -> None:
    reader = LengthPrefixedReader(100)
    reader.feed(b"\x01a" + b"later")
    assert reader.next() == b"a"
    assert reader.take_rest() == b"later"
    assert reader.take_rest() == b""

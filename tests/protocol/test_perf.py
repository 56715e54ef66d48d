"""perf: the number, the counts, and who asks for or sends too much."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import PERF_DOWNLOAD_MAX
from sbp2p_protocol.perf import PerfClient, PerfServer, encode_perf_request


@given(st.integers(0, PERF_DOWNLOAD_MAX), st.binary(max_size=30), st.integers(1, 40))
def test_a_run_counts_both_ways(wanted: int, upload: bytes, cut: int) -> None:
    server = PerfServer()
    stream = encode_perf_request(wanted) + upload
    for start in range(0, len(stream), cut):
        server.receive_data(stream[start : start + cut])
    assert server.finish() == wanted
    assert server.uploaded_bytes == len(upload)


def test_the_number_is_big_endian() -> None:
    assert encode_perf_request(258).hex() == "0000000000000102"


def test_the_client_checks_the_size() -> None:
    client = PerfClient(10)
    client.receive_data(bytes(6))
    with pytest.raises(RemoteProtocolError, match="6 bytes came back of 10"):
        client.finish()
    client.receive_data(memoryview(bytes(4)))
    client.finish()
    with pytest.raises(RemoteProtocolError, match="more than"):
        client.receive_data(b"x")


def test_a_stream_without_a_number() -> None:
    server = PerfServer()
    server.receive_data(bytes(7))
    with pytest.raises(RemoteProtocolError):
        server.finish()


def test_asking_for_too_much() -> None:
    server = PerfServer()
    with pytest.raises(RemoteProtocolError):
        server.receive_data(b"\xff" * 8)
    with pytest.raises(RemoteProtocolError):
        server.finish()
    for wanted in (-1, PERF_DOWNLOAD_MAX + 1):
        with pytest.raises(LocalProtocolError):
            encode_perf_request(wanted)


@given(st.lists(st.binary(max_size=20)))
def test_garbage_raises_only_the_remote_error(chunks: list[bytes]) -> None:
    server = PerfServer()
    with contextlib.suppress(RemoteProtocolError):
        for chunk in chunks:
            server.receive_data(chunk)
        assert server.finish() <= PERF_DOWNLOAD_MAX

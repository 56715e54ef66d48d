"""perf: the number, the counts, and who asks for or sends too much."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import (
    PERF_BUDGET,
    PERF_BUDGET_S,
    PERF_DOWNLOAD_MAX,
    PERF_UPLOAD_MAX,
)
from sbp2p_protocol.perf import PerfBudget, PerfClient, PerfServer, encode_perf_request


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


def test_an_upload_has_an_end() -> None:
    server = PerfServer()
    server.receive_data(encode_perf_request(0))
    chunk = memoryview(bytes(2**20))
    for _ in range(PERF_UPLOAD_MAX // len(chunk)):
        server.receive_data(chunk)
    with pytest.raises(RemoteProtocolError, match="over"):
        server.receive_data(b"x")


def test_a_budget_is_spent_and_comes_back() -> None:
    budget = PerfBudget(now=0.0)
    assert budget.take(PERF_BUDGET, now=0.0)
    assert not budget.take(1, now=0.0)
    half = PERF_BUDGET // 2
    assert not budget.take(half, now=PERF_BUDGET_S / 2 - 1)
    assert budget.take(half, now=PERF_BUDGET_S / 2)
    assert not budget.take(PERF_BUDGET + 1, now=10 * PERF_BUDGET_S), "more than full it never is"


@given(
    st.lists(st.tuples(st.floats(0, PERF_BUDGET_S), st.integers(0, PERF_DOWNLOAD_MAX)), max_size=60)
)
def test_no_peer_moves_more_than_the_budget(attempts: list[tuple[float, int]]) -> None:
    budget, now, moved = PerfBudget(now=0.0), 0.0, 0
    for pause, count in attempts:
        now += pause
        moved += count if budget.take(count, now) else 0
    assert moved <= PERF_BUDGET * (1 + now / PERF_BUDGET_S) + 1  # one byte of rounding


@given(st.lists(st.binary(max_size=20)))
def test_garbage_raises_only_the_remote_error(chunks: list[bytes]) -> None:
    server = PerfServer()
    with contextlib.suppress(RemoteProtocolError):
        for chunk in chunks:
            server.receive_data(chunk)
        assert server.finish() <= PERF_DOWNLOAD_MAX

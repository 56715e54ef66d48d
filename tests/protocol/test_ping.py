"""ping: round trips, cuts, wrong echoes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.ping import PING_SIZE, PingClient, PingServer

PAYLOAD = bytes(range(PING_SIZE))


@pytest.mark.parametrize("cut", [1, 5, PING_SIZE])
def test_a_round_trip_is_measured_to_its_last_byte(cut: int) -> None:
    client, server = PingClient(), PingServer()
    for start in (10.0, 20.0):
        sent = client.start(PAYLOAD, start)
        echo = b"".join(server.receive_data(sent[i : i + cut]) for i in range(0, PING_SIZE, cut))
        times = [
            client.receive_data(echo[i : i + cut], start + 0.5) for i in range(0, PING_SIZE, cut)
        ]
        assert times == [None] * (len(times) - 1) + [0.5]


def test_only_whole_payloads_are_echoed() -> None:
    server = PingServer()
    assert server.receive_data(PAYLOAD[:31]) == b""
    assert server.receive_data(PAYLOAD[31:] + PAYLOAD + b"x") == PAYLOAD * 2


@pytest.mark.parametrize("echo", [b"\x01", PAYLOAD + b"x", bytes(PING_SIZE)])
def test_a_wrong_echo(echo: bytes) -> None:
    client = PingClient()
    client.start(PAYLOAD, 0.0)
    with pytest.raises(RemoteProtocolError):
        client.receive_data(echo, 1.0)


def test_an_echo_that_nobody_asked_for() -> None:
    with pytest.raises(RemoteProtocolError):
        PingClient().receive_data(b"x", 0.0)


def test_pings_are_32_bytes_and_one_at_a_time() -> None:
    client = PingClient()
    with pytest.raises(LocalProtocolError):
        client.start(b"short", 0.0)
    client.start(PAYLOAD, 0.0)
    with pytest.raises(LocalProtocolError):
        client.start(PAYLOAD, 0.0)


@given(st.lists(st.binary(max_size=70)))
def test_the_server_keeps_less_than_a_payload(chunks: list[bytes]) -> None:
    server = PingServer()
    echoed = b"".join(server.receive_data(chunk) for chunk in chunks)
    whole = b"".join(chunks)
    assert echoed == whole[: len(whole) // PING_SIZE * PING_SIZE]

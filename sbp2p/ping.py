"""ping: the round trip to a peer, by the libp2p protocol that every implementation answers."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import trio

from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.ping import PING_PROTOCOL, PING_SIZE, PingClient, PingServer

from .errors import PeerMisbehavedError, PeerUnreachableError

if TYPE_CHECKING:
    from .connection import Connection
    from .handlers import ServesProtocols
    from .stream import Stream


def serve_ping(swarm: ServesProtocols) -> None:
    """Answer pings from now on."""
    swarm.handle(PING_PROTOCOL, _answer)


async def ping(
    connection: Connection, count: int = 1, interval_s: float = 1.0, *, timeout_s: float = 10.0
) -> list[float]:
    """Measure `count` round trips on one stream; return each in seconds.

    Args:
        connection: to whom.
        count: round trips, one at a time.
        interval_s: from the start of one to the start of the next, unless it took longer.
        timeout_s: for each answer.

    Raises:
        PeerUnreachableError: an answer did not come in time, or the connection ended.
        PeerMisbehavedError: other bytes came back.
        ProtocolUnsupportedError: the peer does not answer pings.
    """
    round_trips: list[float] = []
    try:
        async with await connection.open_stream([PING_PROTOCOL]) as stream:
            for number in range(count):
                if number:
                    await trio.sleep(max(0.0, interval_s - round_trips[-1]))
                with trio.fail_after(timeout_s):
                    round_trips.append(await _measure(stream))
    except trio.TooSlowError:
        raise PeerUnreachableError(
            f"peer {connection.peer_id} did not answer ping {len(round_trips) + 1} "
            f"within {timeout_s:g} s"
        ) from None
    except RemoteProtocolError as error:
        raise PeerMisbehavedError(f"peer {connection.peer_id}: {error}") from error
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise PeerUnreachableError(
            f"peer {connection.peer_id} went away while it was pinged: {error}"
        ) from error
    return round_trips


async def _measure(stream: Stream) -> float:
    client = PingClient()
    await stream.send_all(client.start(secrets.token_bytes(PING_SIZE), trio.current_time()))
    while True:
        data = await stream.receive_some()
        if not data:
            raise trio.BrokenResourceError("the peer ended the stream")
        round_trip = client.receive_data(data, trio.current_time())
        if round_trip is not None:
            return round_trip


async def _answer(stream: Stream) -> None:
    server = PingServer()
    while data := await stream.receive_some():
        echo = server.receive_data(data)
        if echo:
            await stream.send_all(echo)

"""perf: how fast bytes go to a peer and come back (`/perf/1.0.0`).

Serving costs bandwidth, so it is only done where `serve_perf` was called, for one run of a peer and
`PERF_RUNS_MAX` runs in all at a time. The bytes are zeros from one buffer: what is measured is the
connection, with encryption, and nothing of the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.limits import MIB, PERF_RUNS_MAX
from sbp2p_protocol.perf import PERF_PROTOCOL, PerfClient, PerfServer, encode_perf_request

from .errors import PeerMisbehavedError, PeerUnreachableError

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId

    from .connection import Connection
    from .handlers import ServesProtocols
    from .stream import Stream

_ZEROS = memoryview(bytes(1 * MIB))


@dataclass(frozen=True, kw_only=True, slots=True)
class PerfResult:
    """What one run took. A direction without bytes took only its round trip."""

    upload_bytes: int
    upload_s: float
    """From the first byte sent until the peer, having read them all, began to answer."""
    download_bytes: int
    download_s: float
    """From the peer's first byte (or its end of stream) to the last."""

    @property
    def upload_bytes_per_s(self) -> float:
        """Upload rate, the round trip included."""
        return self.upload_bytes / self.upload_s if self.upload_s else 0.0

    @property
    def download_bytes_per_s(self) -> float:
        """Download rate."""
        return self.download_bytes / self.download_s if self.download_s else 0.0


def serve_perf(swarm: ServesProtocols) -> None:
    """Serve measurements from now on; at most one at a time for each peer."""
    running: set[PeerId] = set()

    async def serve(stream: Stream) -> None:
        if stream.peer_id in running or len(running) >= PERF_RUNS_MAX:
            stream.reset()
            return
        running.add(stream.peer_id)
        try:
            await _serve_run(stream)
        finally:
            running.discard(stream.peer_id)

    swarm.handle(PERF_PROTOCOL, serve)


async def measure_bandwidth(
    connection: Connection, upload_bytes: int, download_bytes: int
) -> PerfResult:
    """Send `upload_bytes` to the peer and have it send `download_bytes` back.

    Raises:
        PeerUnreachableError: the peer ended the run: it went away, or is busy with another.
        PeerMisbehavedError: it sent more or less than it was asked for.
        ProtocolUnsupportedError: it does not serve measurements.
    """
    client = PerfClient(download_bytes)
    try:
        async with await connection.open_stream([PERF_PROTOCOL]) as stream:
            started = trio.current_time()
            await stream.send_all(encode_perf_request(download_bytes))
            await _send_zeros(stream, upload_bytes)
            await stream.send_eof()
            data = await stream.receive_some()
            answered = trio.current_time()
            while data:
                client.receive_data(data)
                data = await stream.receive_some()
            client.finish()
            ended = trio.current_time()
    except RemoteProtocolError as error:
        raise PeerMisbehavedError(f"peer {connection.peer_id}: {error}") from error
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise PeerUnreachableError(
            f"peer {connection.peer_id} ended the measurement: {error}",
            hint="it may be busy with another one",
        ) from error
    return PerfResult(
        upload_bytes=upload_bytes,
        upload_s=answered - started,
        download_bytes=download_bytes,
        download_s=ended - answered,
    )


async def _serve_run(stream: Stream) -> None:
    server = PerfServer()
    while data := await stream.receive_some():
        server.receive_data(data)
    await _send_zeros(stream, server.finish())


async def _send_zeros(stream: Stream, count: int) -> None:
    while count:
        piece = _ZEROS[:count]
        await stream.send_all(piece)
        count -= len(piece)

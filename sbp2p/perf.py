"""perf: how fast bytes go to a peer and come back (`/perf/1.0.0`).

Serving costs bandwidth, so it is only done where `serve_perf` was called (every node does, unless
`NodeConfig.serve_perf` is off), for one run of a peer and `PERF_RUNS_MAX` runs in all at a time,
each with an end (`PERF_RUN_S`), and all within a `PerfBudget`. A run beyond that is reset.

The bytes are zeros from one buffer: what is measured is the connection, with encryption, and
nothing of the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.limits import (
    MIB,
    PERF_DOWNLOAD_MAX,
    PERF_RUN_S,
    PERF_RUNS_MAX,
    PERF_UPLOAD_MAX,
)
from sbp2p_protocol.perf import (
    PERF_PROTOCOL,
    PerfBudget,
    PerfClient,
    PerfServer,
    encode_perf_request,
)

from . import observe
from .errors import ConfigError, PeerMisbehavedError, PeerUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    budget = PerfBudget(trio.current_time())

    async def serve(stream: Stream) -> None:
        if stream.peer_id in running or len(running) >= PERF_RUNS_MAX:
            observe.report_refused(stream, "enough measurements are running")
            stream.reset()
            return
        running.add(stream.peer_id)
        try:
            with trio.fail_after(PERF_RUN_S):
                await _serve_run(stream, budget)
        finally:
            running.discard(stream.peer_id)

    swarm.handle(PERF_PROTOCOL, serve)


async def measure_bandwidth(
    connection: Connection, upload_bytes: int, download_bytes: int
) -> PerfResult:
    """Send `upload_bytes` to the peer and have it send `download_bytes` back.

    Raises:
        ConfigError: that is more than any peer of ours serves, or less than nothing.
        PeerUnreachableError: the peer ended the run: it went away, is busy, or has done enough.
        PeerMisbehavedError: it sent more or less than it was asked for.
        ProtocolUnsupportedError: it does not serve measurements.
    """
    if not (0 <= upload_bytes <= PERF_UPLOAD_MAX and 0 <= download_bytes <= PERF_DOWNLOAD_MAX):
        raise ConfigError(
            f"cannot measure with {upload_bytes} bytes up and {download_bytes} bytes down",
            hint=f"measure with at most {PERF_UPLOAD_MAX // MIB} MiB each way",
        )
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
            hint="it may be busy with others, or have done enough of them for now",
        ) from error
    return PerfResult(
        upload_bytes=upload_bytes,
        upload_s=answered - started,
        download_bytes=download_bytes,
        download_s=ended - answered,
    )


async def _serve_run(stream: Stream, budget: PerfBudget) -> None:
    """Serve one run; its stream is reset when the budget does not last."""
    server = PerfServer()
    while data := await stream.receive_some():
        server.receive_data(data)
        if not _afford(stream, budget, len(data)):
            return
    for piece in _zeros(server.finish()):
        if not _afford(stream, budget, len(piece)):
            return
        await stream.send_all(piece)


def _afford(stream: Stream, budget: PerfBudget, count: int) -> bool:
    if budget.take(count, trio.current_time()):
        return True
    observe.report_refused(stream, "measurements have moved enough bytes for now")
    stream.reset()
    return False


async def _send_zeros(stream: Stream, count: int) -> None:
    for piece in _zeros(count):
        await stream.send_all(piece)


def _zeros(count: int) -> Iterator[memoryview]:
    while count:
        piece = _ZEROS[:count]
        yield piece
        count -= len(piece)

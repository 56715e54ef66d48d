"""`sbp2p bench`: how fast a peer is, by the ping and perf protocols of libp2p."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument, Option

from sbp2p_protocol.limits import MIB, PERF_DOWNLOAD_MAX

from .console import Settings
from .invocation import Invocation
from .options import Home, Json, Quiet, Verbose  # noqa: TC001  (typer evaluates annotations)
from .text import columns, format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.node import Node
    from sbp2p.perf import PerfResult
    from sbp2p_keys.identity import PeerId

    from .console import Console

PING_INTERVAL_S: Final = 0.02
PERCENTILES: Final = (50, 90, 99)


def command(
    address: Annotated[
        str, Argument(metavar="ADDRESS", help="A peer's multiaddr, best ending in /p2p/ID.")
    ],
    size: Annotated[
        int,
        Option(
            "--size",
            metavar="MIB",
            min=1,
            max=PERF_DOWNLOAD_MAX // MIB,
            help="MiB to send, and to receive.",
        ),
    ] = 256,
    pings: Annotated[int, Option("--pings", metavar="N", min=1, help="Round trips.")] = 100,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Measure round trips and bandwidth, both ways, to a peer."""
    work = partial(_run, address=address, size=size * MIB, pings=pings)
    return Invocation(Settings(home, json, quiet, verbose), work)


def _run(console: Console, *, address: str, size: int, pings: int) -> int:
    from .session import with_node

    async def body(node: Node) -> int:
        peer = await node.connect(address)
        console.note(f"connected to {peer}")
        # the first round trip pays for opening the stream and warms both ends up
        round_trips = (await node.ping(peer, pings + 1, PING_INTERVAL_S))[1:]
        console.note(f"sending {format_bytes(size)}, and receiving as much")
        result = await _measure(console, node, peer, size)
        console.event("bench", peer=str(peer), **_fields(round_trips, result))
        for line in _table(round_trips, result):
            console.result(line)
        return 0

    return with_node(console, body)


async def _measure(console: Console, node: Node, peer: PeerId, size: int) -> PerfResult:
    """Send and receive `size` bytes, with progress taken from the node's counters."""
    import trio

    from sbp2p.node import Progress

    from .progress import REDRAW_INTERVAL_S, Reporter

    def moved() -> int:
        statistics = node.statistics()
        return statistics.bytes_sent + statistics.bytes_received

    async def watch(reporter: Reporter, start: int) -> None:
        while True:
            await trio.sleep(REDRAW_INTERVAL_S)
            done = min(moved() - start, 2 * size)
            reporter(
                Progress(phase="network", done_bytes=done, total_bytes=2 * size, network_bytes=done)
            )

    async with trio.open_nursery() as nursery:
        with Reporter(console, events=False) as reporter:
            nursery.start_soon(watch, reporter, moved())
            result = await node.measure_bandwidth(peer, upload_bytes=size, download_bytes=size)
            nursery.cancel_scope.cancel()
    return result


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of the sorted values do not exceed."""
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]


def _spread(round_trips: Sequence[float]) -> dict[str, float]:
    """Return minimum, percentiles and maximum in milliseconds."""
    ordered = sorted(round_trips)
    spread = {"min": ordered[0]}
    spread |= {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    spread["max"] = ordered[-1]
    return {name: round(seconds * 1000, 3) for name, seconds in spread.items()}


def _fields(round_trips: Sequence[float], result: PerfResult) -> dict[str, Any]:
    return {
        "pings": len(round_trips),
        "rtt_ms": _spread(round_trips),
        "upload_bytes": result.upload_bytes,
        "upload_seconds": round(result.upload_s, 6),
        "upload_bytes_per_s": round(result.upload_bytes_per_s),
        "download_bytes": result.download_bytes,
        "download_seconds": round(result.download_s, 6),
        "download_bytes_per_s": round(result.download_bytes_per_s),
    }


def _table(round_trips: Sequence[float], result: PerfResult) -> list[str]:
    spread = ", ".join(f"{name} {value:.2f}" for name, value in _spread(round_trips).items())
    return columns(
        [
            ("round trip", f"{spread} ms ({len(round_trips)} pings)"),
            ("upload", format_rate(result.upload_bytes_per_s)),
            ("download", format_rate(result.download_bytes_per_s)),
        ]
    )

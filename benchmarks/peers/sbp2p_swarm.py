"""One node of the `swarm` benchmark: what `sbp2p seed` and `sbp2p get --seed` do, on a signal.

A leecher opens its node, says that it is ready, and waits for a line that begins the race, so that
the starting of sixteen interpreters on two cores is not taken for the swarm's own time. When it has
everything it says so, and goes on serving until its standard input closes.

    out  {"event": "ready", "address": ...}
    in   {"link": ..., "peers": [...]}          what to fetch; addresses beside the link's
    out  {"event": "finished", "at": ..., ...}  monotonic seconds, the same clock in every process
    out  {"event": "end", ...}
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import trio

import sbp2p


def say(event: str, **fields: Any) -> None:
    """Write one event."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


async def read_line() -> str:
    """Read a line from standard input; empty at its end."""
    return await trio.to_thread.run_sync(sys.stdin.readline)


async def fetch(node: sbp2p.Node, wish: dict[str, Any], to: Path) -> None:
    """Fetch the version, and say at once that it is here."""
    result = await node.fetch(wish["link"], to=to, peers=wish["peers"])
    say(
        "finished",
        at=time.monotonic(),
        file_bytes=result.total_bytes,
        payload_bytes=result.network_bytes,
        sources={str(peer): count for peer, count in result.peers},
    )


async def run(args: argparse.Namespace) -> None:
    """Serve until standard input closes; fetch first if there is a place for it."""
    async with sbp2p.Node(home=args.home, listen=[args.listen]) as node:
        gc.freeze()  # as the command line does
        gc.enable()
        say("ready", address=str(node.addresses[0]), peer=str(node.peer_id))
        line = await read_line()
        if line and args.to:
            await fetch(node, json.loads(line), args.to)
        while line:
            line = await read_line()
        say("end", payload_sent=node.exchange.statistics().bytes_sent)


def main() -> None:
    """Read the command line and run the node."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--to", type=Path)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the benchmark, which ends us
    trio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()

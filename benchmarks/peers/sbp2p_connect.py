"""sbp2p as py-libp2p's counterpart in `connect`: serve a byte, or dial and ask for one.

The same work as `py_libp2p_peer.py` does: a fresh identity and a fresh swarm for every dial, opened
before the clock starts, and the clock runs from dialling an address with a peer id to the byte.
"""

from __future__ import annotations

import argparse
import json
import sys
from time import perf_counter
from typing import TYPE_CHECKING

import trio

from sbp2p.swarm import open_swarm
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.multiaddr import parse_address

if TYPE_CHECKING:
    from sbp2p.stream import Stream

BYTE = "/bench/byte/1.0.0"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


async def serve() -> None:
    """Serve single bytes until SIGTERM."""

    async def send_byte(stream: Stream) -> None:
        await stream.send_all(b"x")
        await stream.send_eof()

    async with open_swarm(PrivateKey.generate()) as swarm:
        swarm.handle(BYTE, send_byte)
        addresses = await swarm.listen(parse_address(LOOPBACK))
        sys.stdout.write(f"ready {addresses[0].text}\n")
        sys.stdout.flush()
        await trio.sleep_forever()


async def connect(address: str, count: int) -> list[float]:
    """Dial `count` times with a fresh swarm; return the seconds from dial to first served byte."""
    seconds = []
    for _ in range(count):
        async with open_swarm(PrivateKey.generate()) as swarm:
            started = perf_counter()
            connection = await swarm.connect([parse_address(address)])
            async with await connection.open_stream([BYTE]) as stream:
                assert await stream.receive_exactly(1) == b"x"
                seconds.append(perf_counter() - started)
    return seconds


def main() -> None:
    """Read the command line and do one of the two things."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["serve", "connect"])
    parser.add_argument("--peer")
    parser.add_argument("--count", type=int, default=1)
    args = parser.parse_args()
    if args.action == "serve":
        trio.run(serve)
    else:
        seconds = trio.run(connect, args.peer, args.count)
        sys.stdout.write(json.dumps({"seconds": seconds}) + "\n")


if __name__ == "__main__":
    main()

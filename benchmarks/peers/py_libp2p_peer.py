"""py-libp2p as a benchmark peer: serve a file on a stream, fetch it, or dial and ask for a byte.

Runs in py-libp2p's own environment and imports nothing of sbp2p. Noise and yamux are its defaults;
the receiver writes what it gets straight to disk and verifies nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import multiaddr
import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.network.config import ConnectionConfig
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.peerinfo import info_from_p2p_addr

FILE = "/bench/file/1.0.0"
BYTE = "/bench/byte/1.0.0"
CHUNK = 256 * 1024
LOOPBACK = multiaddr.Multiaddr("/ip4/127.0.0.1/tcp/0")


async def serve(path: Path | None) -> None:
    """Serve `path` and single bytes until standard input closes."""
    host = new_host(key_pair=create_new_key_pair())

    async def send_file(stream: Any) -> None:
        assert path is not None
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                await stream.write(chunk)
        await stream.close_write()

    async def send_byte(stream: Any) -> None:
        await stream.write(b"x")
        await stream.close_write()

    host.set_stream_handler(FILE, send_file)
    host.set_stream_handler(BYTE, send_byte)
    async with host.run(listen_addrs=[LOOPBACK]):
        sys.stdout.write(f"ready {host.get_addrs()[0]}\n")
        sys.stdout.flush()
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


async def fetch(address: str, path: Path) -> float:
    """Fetch the file into `path`; return the seconds from dialling to the last byte written."""
    host = new_host(key_pair=create_new_key_pair())
    async with host.run(listen_addrs=[]):
        started = time.perf_counter()
        info = info_from_p2p_addr(multiaddr.Multiaddr(address))
        await host.connect(info)
        stream = await host.new_stream(info.peer_id, [FILE])
        with path.open("wb") as file:
            while True:
                try:
                    data = await stream.read(CHUNK)
                except StreamEOF:
                    break
                if not data:
                    break
                file.write(data)
        return time.perf_counter() - started


async def connect(address: str, count: int, *, eager: bool) -> list[float]:
    """Dial `count` times with a fresh host; return the seconds from dial to first served byte.

    By default a dial of a single address waits out the 250 ms after which another address would be
    tried, connected or not. With `eager` one connection a peer is enough, and it goes on at once.
    """
    config = ConnectionConfig(max_connections_per_peer=1) if eager else None
    seconds = []
    for _ in range(count):
        host = new_host(key_pair=create_new_key_pair(), connection_config=config)
        async with host.run(listen_addrs=[]):
            started = time.perf_counter()
            info = info_from_p2p_addr(multiaddr.Multiaddr(address))
            await host.connect(info)
            stream = await host.new_stream(info.peer_id, [BYTE])
            assert await stream.read(1) == b"x"
            seconds.append(time.perf_counter() - started)
    return seconds


def main() -> None:
    """Read the command line and do one of the three things."""
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["serve", "fetch", "connect"])
    parser.add_argument("--path", type=Path)
    parser.add_argument("--peer")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    if args.action == "serve":
        trio.run(serve, args.path)
    elif args.action == "fetch":
        sys.stdout.write(json.dumps({"seconds": trio.run(fetch, args.peer, args.path)}) + "\n")
    else:
        seconds = trio.run(partial(connect, args.peer, args.count, eager=args.eager))
        sys.stdout.write(json.dumps({"seconds": seconds}) + "\n")


if __name__ == "__main__":
    main()

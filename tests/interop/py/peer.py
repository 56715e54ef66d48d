"""A py-libp2p host that the interop tests drive: one JSON command a line in, one JSON answer out.

Runs in py-libp2p's own environment and imports nothing of sbp2p. The commands are those of the
js-libp2p peer beside it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import sys
from typing import Any

import multiaddr
import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.host.ping import PingService, handle_ping
from libp2p.identity.identify.identify import ID as IDENTIFY
from libp2p.identity.identify.identify import parse_identify_response
from libp2p.network.stream.exceptions import StreamEOF, StreamError, StreamReset
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.perf.perf_service import PerfService

ECHO = "/echo/1.0.0"
PERF = "/perf/1.0.0"
PING = "/ipfs/ping/1.0.0"
CHUNK = 64 * 1024


async def chunks(stream: Any) -> Any:
    """Yield what arrives until the other side ends its half."""
    while True:
        try:
            data = await stream.read(CHUNK)
        except StreamEOF:
            return
        if not data:
            return
        yield data


async def serve_echo(stream: Any) -> None:
    """Send back what comes in; a reset by the other side ends it quietly."""
    try:
        async for data in chunks(stream):
            await stream.write(data)
        await stream.close_write()
    except (StreamReset, StreamError):
        pass


class Peer:
    """The commands, each a method that returns the fields of its answer."""

    def __init__(self, host: Any) -> None:
        self.host = host

    async def _open(self, address: str, protocol: str) -> Any:
        info = info_from_p2p_addr(multiaddr.Multiaddr(address))
        await self.host.connect(info)
        return await self.host.new_stream(info.peer_id, [protocol])

    async def ping(self, address: str) -> dict[str, Any]:
        """One round trip, in milliseconds."""
        info = info_from_p2p_addr(multiaddr.Multiaddr(address))
        await self.host.connect(info)
        rtts = await PingService(self.host).ping(info.peer_id)
        return {"ms": rtts[0]}

    async def identify(self, address: str) -> dict[str, Any]:
        """Ask the peer who it is."""
        stream = await self._open(address, IDENTIFY)
        answer = b"".join([data async for data in chunks(stream)])
        message = parse_identify_response(answer)
        return {
            "agent": message.agent_version,
            "protocols": list(message.protocols),
            "addresses": [str(multiaddr.Multiaddr(a)) for a in message.listen_addrs],
            "signed": bool(message.signedPeerRecord),
        }

    async def echo(self, address: str, bytes: int) -> dict[str, Any]:  # noqa: A002
        """Push a pattern through an echo stream and compare what comes back."""
        stream = await self._open(address, ECHO)
        sent, received, count = hashlib.sha256(), hashlib.sha256(), 0

        async def send() -> None:
            for offset in range(0, bytes, CHUNK):
                data = struct.pack(">Q", offset) * (min(CHUNK, bytes - offset) // 8)
                sent.update(data)
                await stream.write(data)
            await stream.close_write()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            async for data in chunks(stream):
                received.update(data)
                count += len(data)
        return {"bytes": count, "equal": sent.digest() == received.digest()}

    async def perf(self, address: str, upload: int, download: int) -> dict[str, Any]:
        """Upload and download zeros by the perf protocol."""
        stream = await self._open(address, PERF)
        received = 0

        async def send() -> None:
            await stream.write(struct.pack(">Q", download))
            for offset in range(0, upload, CHUNK):
                await stream.write(bytearray(min(CHUNK, upload - offset)))
            await stream.close_write()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            async for data in chunks(stream):
                received += len(data)
        return {"received": received}

    async def abort(self, address: str) -> dict[str, Any]:
        """Use an echo stream, then drop the connection below it."""
        stream = await self._open(address, ECHO)
        await stream.write(b"x" * CHUNK)
        await stream.read(1)
        return await self.dropall()

    async def dropall(self) -> dict[str, Any]:
        """Close the TCP connection to every peer without a word."""
        for peer in list(self.host.get_connected_peers()):
            for connection in self.host.get_network().get_connections(peer):
                await connection.muxed_conn.secured_conn.close()
            # py-libp2p would go on to use the dead connection for its next stream
            await self.host.disconnect(peer)
        return {}

    async def hangup(self) -> dict[str, Any]:
        """Disconnect from every peer by the rules."""
        for peer in list(self.host.get_connected_peers()):
            await self.host.disconnect(peer)
        return {}

    async def connections(self) -> dict[str, Any]:
        """Who is connected."""
        return {"peers": [str(peer) for peer in self.host.get_connected_peers()]}


def say(answer: dict[str, Any]) -> None:
    """Write one line to the test."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def read_commands(peer: Peer) -> None:
    """Obey one line after the other until the test closes our input."""
    async for line in trio.wrap_file(sys.stdin):
        command = json.loads(line)
        name = command.pop("do")
        try:
            with trio.fail_after(120):
                say({"ok": True, **await getattr(peer, name)(**command)})
        except Exception as error:  # the test reads the fault; the peer must go on
            say({"ok": False, "error": repr(error)})


async def main() -> None:
    """Listen on a free loopback port, say where, and take commands."""
    logging.disable(logging.CRITICAL)
    host = new_host(key_pair=create_new_key_pair())
    host.set_stream_handler(ECHO, serve_echo)
    host.set_stream_handler(PING, handle_ping)
    perf = PerfService(host)
    async with host.run(listen_addrs=[multiaddr.Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        await perf.start()
        addresses = [str(a) for a in host.get_addrs()]
        say({"peer": str(host.get_id()), "addresses": addresses})
        await read_commands(Peer(host))


if __name__ == "__main__":
    trio.run(main)

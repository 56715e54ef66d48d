"""A py-libp2p host that is a server of the DHT, driven like peer.py beside it. Keys are in hex."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import multiaddr
import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.tools.anyio_service import background_trio_service


class Peer:
    """The commands, each a method that returns the fields of its answer."""

    def __init__(self, host: Any, dht: KadDHT) -> None:
        self.host = host
        self.dht = dht

    async def connect(self, address: str) -> dict[str, Any]:
        """Connect, and put the peer into the routing table."""
        info = info_from_p2p_addr(multiaddr.Multiaddr(address))
        await self.host.connect(info)
        return {"added": await self.dht.add_peer(info.peer_id)}

    async def wait(self, peer: str) -> dict[str, Any]:
        """Wait until a peer is in the routing table."""
        while not self.dht.routing_table.peer_in_table(ID.from_base58(peer)):  # noqa: ASYNC110
            await trio.sleep(0.05)
        return {}

    async def provide(self, key: str) -> dict[str, Any]:
        """Announce a key."""
        return {"provided": await self.dht.provide(key)}

    async def providers(self, key: str) -> dict[str, Any]:
        """Look up who has a key."""
        return {"providers": [_described(each) for each in await self.dht.find_providers(key)]}

    async def kept(self, key: str) -> dict[str, Any]:
        """Who has a key as far as this server was told."""
        found = self.dht.provider_store.get_providers(bytes.fromhex(key))
        return {"peers": [str(each.peer_id) for each in found]}

    async def find(self, peer: str) -> dict[str, Any]:
        """Look up where a peer is."""
        found = await self.dht.find_peer(ID.from_base58(peer))
        return {"addresses": [] if found is None else [str(each) for each in found.addrs]}


def _described(info: Any) -> dict[str, Any]:
    return {"peer": str(info.peer_id), "addresses": [str(each) for each in info.addrs]}


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
            with trio.fail_after(60):
                say({"ok": True, **await getattr(peer, name)(**command)})
        except Exception as error:  # the test reads the fault; the peer must go on
            say({"ok": False, "error": repr(error)})


async def main() -> None:
    """Listen on a free loopback port, say where, and take commands."""
    logging.disable(logging.CRITICAL)
    host = new_host(key_pair=create_new_key_pair())
    async with host.run(listen_addrs=[multiaddr.Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        dht = KadDHT(host, DHTMode.SERVER, max_peers_per_subnet=0)
        async with background_trio_service(dht):
            addresses = [str(each) for each in host.get_addrs()]
            say({"peer": str(host.get_id()), "addresses": addresses})
            await read_commands(Peer(host, dht))


if __name__ == "__main__":
    trio.run(main)

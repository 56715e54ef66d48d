"""A node on a LAN, as a process of its own: prints the peers that it finds by multicast.

Run in a network namespace. Arguments: seed of the key, address to listen on, name of the private
network (empty for none), interface (empty for all). One JSON line for each thing that happens.
"""

from __future__ import annotations

import json
import sys

import trio

from sbp2p.config import DiscoveryConfig
from sbp2p.discovery import open_discovery
from sbp2p.swarm import open_swarm
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.multiaddr import parse_address


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def main(seed: str, listen: str, network: str, interface: str) -> None:
    config = DiscoveryConfig(
        lan=True,
        autonat=False,
        wanted_connections=8,
        lan_network=network,
        lan_interfaces=(interface,) if interface else (),
    )
    async with open_swarm(PrivateKey.from_seed(seed.encode()[:1] * 32)) as swarm:
        for each in await swarm.listen(parse_address(listen)):
            say(listening=each.text)
        async with open_discovery(swarm, config) as discovery:
            channel = discovery.subscribe()
            say(peer=str(swarm.peer_id))
            async for candidate in channel:
                say(
                    found=str(candidate.peer_id),
                    addresses=[each.text for each in candidate.addresses],
                    origin=candidate.origin.value,
                )


trio.run(main, *sys.argv[1:])

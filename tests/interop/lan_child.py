"""Our node on a LAN with a foreign one: finds it by multicast, and has itself dialled back by it.

Arguments: seed of the key, a host of this machine that counts as public. One JSON line for each
thing that happens.
"""

from __future__ import annotations

import json
import sys

import trio

from sbp2p.config import DiscoveryConfig
from sbp2p.discovery import Candidate, open_discovery
from sbp2p.discovery.autonat import ask_to_dial_back
from sbp2p.errors import Sbp2pError
from sbp2p.swarm import open_swarm
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.address_scope import Scope, scope_of
from sbp2p_protocol.multiaddr import parse_address


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def main(seed: str, host: str) -> None:
    config = DiscoveryConfig(lan=True, autonat_settle_s=600.0)
    async with open_swarm(PrivateKey.from_seed(seed.encode()[:1] * 32)) as swarm:
        await swarm.listen(parse_address("/ip4/0.0.0.0/tcp/0"))
        own = next(each for each in swarm.addresses if each.host == host)
        say(peer=str(swarm.peer_id), address=own.text)
        async with open_discovery(swarm, config) as discovery:
            channel = discovery.subscribe()
            candidate = await channel.receive()
            say(
                found=str(candidate.peer_id),
                addresses=[each.text for each in candidate.addresses],
                origin=candidate.origin.value,
            )
            # js tells of private addresses only; the test says at which public one it is
            line = await trio.to_thread.run_sync(sys.stdin.readline)
            there = parse_address(line.strip()).with_peer(candidate.peer_id)
            assert scope_of(there) is Scope.PUBLIC
            discovery.offer(Candidate(candidate.peer_id, (there,), candidate.origin))
            await swarm.connect([there])
            asker = discovery._reach._asker  # who takes the dial-backs of this node
            answer = await asker.ask(candidate.peer_id, [own], 10.0)
            reached = answer.address.text if answer.address is not None else ""
            say(second=answer.status.name, text=answer.text, address=reached)
            try:
                answer = await ask_to_dial_back(swarm, candidate.peer_id, [own], 10.0)
            except Sbp2pError as error:
                say(failed=type(error).__name__)
            else:
                say(failed="", status=answer.status.name)
            await trio.sleep_forever()


trio.run(main, *sys.argv[1:])

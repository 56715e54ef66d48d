"""Members that nobody named to each other, and what of their rounds the DHT is told."""

from __future__ import annotations

import trio

from sbp2p.config import DhtConfig, DiscoveryConfig, NamespaceConfig, NodeConfig
from sbp2p.discovery import Candidate, Origin
from sbp2p.node.finding_peers import provider_key
from sbp2p.testing import VirtualNetwork, VirtualNode, run_virtual
from sbp2p_protocol.multiaddr import parse_address
from tests.swarm.namespace_lab import ALONE, model, open_swarm, step


async def join(network: VirtualNetwork, name: str) -> VirtualNode:
    begin = network.nodes.get("begin")
    config = NodeConfig(
        discovery=DiscoveryConfig(bootstrap=() if begin is None else (begin.address,)),
        dht=DhtConfig(mode="server"),
        namespace=NamespaceConfig(search_s=10.0, announce_s=30.0),
    )
    return await network.add_node(name, config=config)


def test_the_dht_leads_members_to_each_other_and_hears_of_few_rounds() -> None:
    async def main(network: VirtualNetwork) -> None:
        begin = await join(network, "begin")
        one, other = await join(network, "one"), await join(network, "other")
        assert one.peer_id not in other.swarm.peers()
        async with one.namespace("digits") as here, other.namespace("digits") as there:
            await here.wait_for_peers([there.peer_id], timeout_s=120)
            published = [await here.publish(model(0.0))]
            await there.publish(model(2.0))
            await here.merge(model(0.0))
            await there.merge(model(2.0))
            await trio.sleep(60)
            for _ in range(3):
                await step([here, there], [model(0.0), model(2.0)])
            published.append(await here.publish(model(0.0)))
            await there.publish(model(1.0))
            await here.merge(model(0.0))
            await trio.sleep(60)
            told = []
            assert begin.dht is not None
            for version in one.store.versions():
                key = provider_key(version.cid)
                async with begin.dht.find_providers(key, count=1) as found:
                    if [provider async for provider in found]:
                        told.append(version.manifest.meta["round"])
            assert len(told) == 1  # the newest when the last announcement was due
            catalog = await one.naming.publish()
            assert catalog is not None
            assert catalog.models == 1

    run_virtual(main)


def test_who_is_heard_of_on_the_lan_is_asked() -> None:
    async def main(network: VirtualNetwork) -> None:
        one = await network.add_node("one", config=ALONE)
        other = await network.add_node("other", config=ALONE)
        stranger = await network.add_node("stranger", config=ALONE)
        async with one.namespace("digits") as here, other.namespace("digits") as there:
            for node in (other, stranger):
                address = parse_address(node.address)
                one.discovery.offer(Candidate(node.peer_id, (address,), Origin.LAN))
            await here.wait_for_peers([there.peer_id], timeout_s=30)
            assert len(here.members) == 1

    run_virtual(main)


def test_what_a_peer_is_not_to_have_it_is_not_told_of() -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 3) as (one, other, third):
            one.change_role("leech", peer=third.peer_id)
            await one.publish(model(1.0))
            await trio.sleep(1)
            rounds = {each.peer_id: each.round for each in other.members}
            assert rounds == {one.peer_id: 1, third.peer_id: 0}
            assert {each.round for each in third.members} == {0}
            one.change_role("peer", peer=third.peer_id)
            await trio.sleep(1)
            assert {each.round for each in third.members} == {0, 1}

    run_virtual(main)

"""Members that nobody named to each other, and what of their rounds the DHT is told."""

from __future__ import annotations

import trio

from sbp2p.config import DhtConfig, DiscoveryConfig, NamespaceConfig, NodeConfig
from sbp2p.node.finding_peers import provider_key
from sbp2p.testing import VirtualNetwork, VirtualNode, run_virtual
from tests.swarm.namespace_lab import model, step


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

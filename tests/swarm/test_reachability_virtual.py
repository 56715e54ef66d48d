"""Who can be reached, on the virtual network: nodes with public addresses, and one behind NAT."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.config import DhtConfig, DiscoveryConfig, NodeConfig
from sbp2p.discovery import Reachability
from sbp2p.testing import VirtualNetwork, run_virtual
from sbp2p_protocol.address_scope import Scope, scope_of

if TYPE_CHECKING:
    from pathlib import Path

    from sbp2p.testing import VirtualNode

OTHERS = 6


async def _town(network: VirtualNetwork) -> tuple[VirtualNode, VirtualNode, list[VirtualNode]]:
    """One behind a router and one that is not; both have dialled all the others."""
    first = await network.add_node("other0")
    known = NodeConfig(
        discovery=DiscoveryConfig(
            bootstrap=(first.address,),
            wanted_connections=OTHERS,
            autonat_recheck_s=30.0,
            autonat_again_s=60.0,
        ),
        dht=DhtConfig(enabled=False),
    )
    names = [f"other{number}" for number in range(1, OTHERS)]
    others = [first, *[await network.add_node(name, config=known) for name in names]]
    hidden = await network.add_node("hidden", reachable=False, config=known)
    public = await network.add_node("public", config=known)
    for node in (hidden, public):
        for other in others:
            await node.connect(other.address)
    return hidden, public, others


@pytest.mark.parametrize("seed", [1, 2])
def test_peers_find_out_who_can_be_dialled(seed: int, tmp_path: Path) -> None:
    async def main(network: VirtualNetwork) -> None:
        hidden, public, others = await _town(network)
        await trio.sleep(120)
        assert public.discovery.reachability is Reachability.REACHABLE
        assert public.discovery.reachability_counts[0] >= 4
        assert hidden.discovery.reachability is Reachability.UNREACHABLE
        assert hidden.discovery.reachability_counts[1] >= 4
        # whoever was dialled by many has found out without asking
        assert others[0].discovery.reachability is Reachability.REACHABLE

        # all see the router's address, and it is believed to be this node's, but is not told on
        seen = {each.host for each in hidden.swarm.own_addresses.confirmed}
        assert seen == {hidden.host.public_ip}
        announced = hidden.swarm.announced_addresses()
        assert all(scope_of(each) is Scope.PRIVATE for each in announced)
        told = public.swarm.announced_addresses()
        assert [each.host for each in told] == [public.host.public_ip]

    run_virtual(main, seed=seed, folder=tmp_path, limit_s=600)


def test_a_node_behind_a_new_firewall_finds_out(tmp_path: Path) -> None:
    async def main(network: VirtualNetwork) -> None:
        _, public, _ = await _town(network)
        states: list[str] = []
        public.discovery.on_reachability(lambda state: states.append(state.value))
        await trio.sleep(120)
        assert states[-1] == "reachable"
        for listener in public.swarm._listeners:
            listener.close()  # it believes that it listens
        await trio.sleep(300)
        assert states[-1] == "unreachable"
        assert states.count("reachable") == 1
        assert len(public.swarm.peers()) == OTHERS  # whom it has dialled itself stay connected

    run_virtual(main, seed=4, folder=tmp_path, limit_s=2000)

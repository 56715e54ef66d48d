"""Names in a swarm that changes: followers see every version, and newcomers find the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.config import DiscoveryConfig, NodeConfig
from sbp2p.node import accept_new
from sbp2p.testing import VirtualNetwork, chosen_seeds, run_virtual

if TYPE_CHECKING:
    from pathlib import Path

    from sbp2p.testing import VirtualNode

RATE = 5e6
FOLLOWERS = 4
NOTICED_S = 60.0
"""Virtual seconds in which every follower has a new version, on disk."""


class Swarm:
    """A publisher, followers of its model, and one node that everybody begins with."""

    def __init__(self, network: VirtualNetwork) -> None:
        self.network = network
        self.seen: dict[str, list[int]] = {}
        self._changed = trio.Event()

    async def add(self, name: str) -> VirtualNode:
        begin = self.network.nodes.get("begin")
        config = NodeConfig(
            discovery=DiscoveryConfig(
                bootstrap=() if begin is None else (begin.address,), wanted_connections=4
            )
        )
        return await self.network.add_node(name, up=RATE, down=RATE, config=config)

    async def follow(self, name: str, link: str) -> VirtualNode:
        """Start a node that fetches every version."""
        node = await self.add(name)
        node.start_soon(self._fetch_each, node, link)
        return node

    async def _fetch_each(self, node: VirtualNode, link: str) -> None:
        async for found in node.follow(link):
            to = node.home / str(found.version)
            await node.fetch(f"{link}@{found.version}", to=to, trust=accept_new)
            assert (to / "weights.bin").read_bytes() == content(found.version)
            self.seen.setdefault(node.name, []).append(found.version)
            self._changed.set()
            self._changed = trio.Event()

    async def wait_seen(self, version: int, names: list[str]) -> None:
        """Wait until all these have a version."""
        with trio.fail_after(NOTICED_S):
            while any(version not in self.seen.get(name, ()) for name in names):
                await self._changed.wait()


def content(version: int) -> bytes:
    return bytes([version]) * 300_000


def write(folder: Path, version: int) -> Path:
    folder.mkdir()
    (folder / "weights.bin").write_bytes(content(version))
    return folder


async def publish(node: VirtualNode, version: int) -> None:
    await node.publish(write(node.home / f"made-{version}", version), name="model")


@pytest.mark.parametrize("seed", chosen_seeds(1))
def test_every_follower_sees_every_version_and_newcomers_the_last_one(seed: int) -> None:
    async def main(network: VirtualNetwork) -> None:
        swarm = Swarm(network)
        await swarm.add("begin")
        publisher = await swarm.add("publisher")
        link = f"sbp2p://{publisher.publisher}/model"
        names = [f"follower{number}" for number in range(FOLLOWERS)]
        followers = [await swarm.follow(name, link) for name in names]
        for version in (1, 2):
            await publish(publisher, version)
            await swarm.wait_seen(version, names)
        # its publisher is gone, and a third of those who have it: the name goes on
        await publisher.kill()
        await followers[0].kill()
        await followers[1].leave()
        await swarm.follow("newcomer", link)
        await swarm.wait_seen(2, ["newcomer"])
        assert swarm.seen["newcomer"] == [2]
        publisher = await swarm.add("publisher")
        await publish(publisher, 3)
        await swarm.wait_seen(3, [*names[2:], "newcomer"])
        assert all(seen == sorted(set(seen)) for seen in swarm.seen.values())

    run_virtual(main, seed=seed, limit_s=900.0, resolution_s=0.005)

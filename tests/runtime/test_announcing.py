"""What a node tells the DHT: a constant number of records for a version, or every block of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sbp2p.config import DiscoveryConfig, NodeConfig
from sbp2p.node import Node
from sbp2p_keys.multi import BLAKE3, multihash_encode

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal

    from sbp2p.node import Version

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
BLOCKS = 5


def _config(announce: Literal["versions", "blocks"], bootstrap: str) -> NodeConfig:
    found = DiscoveryConfig(
        announce=announce, bootstrap=(bootstrap,), announce_wait_s=0.0, autonat=False
    )
    return NodeConfig(discovery=found)


def _block_keys(node: Node, version: Version) -> list[bytes]:
    record = node.store.version(version.cid)
    assert record is not None
    table = node.store.table(record)
    return [multihash_encode(BLAKE3, table.digest(number)) for number in range(len(table))]


@pytest.mark.parametrize("announce", ["versions", "blocks"])
async def test_blocks_are_announced_when_asked_for(
    tmp_path: Path, announce: Literal["versions", "blocks"]
) -> None:
    (tmp_path / "model.bin").write_bytes(os.urandom(BLOCKS * 1024 * 1024))
    async with Node(home=tmp_path / "server", listen=LOOPBACK) as server:
        config = _config(announce, str(server.addresses[0]))
        async with Node(home=tmp_path / "seed", listen=LOOPBACK, config=config) as seed:
            version = await seed.publish(tmp_path / "model.bin", name="model")
            assert server.dht is not None
            await seed.wait_announced(version)
            blocks = _block_keys(seed, version)
            assert len(blocks) == BLOCKS
            for key in blocks:
                async with server.dht.find_providers(key, count=1) as search:
                    found = [provider.peer_id async for provider in search]
                assert found == ([seed.peer_id] if announce == "blocks" else [])

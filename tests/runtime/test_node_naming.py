"""Names through the node: published by itself, fetched by peer id alone, followed, and no lies."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.config import DiscoveryConfig, NamingConfig, NodeConfig
from sbp2p.errors import ConfigError, PeerMisbehavedError
from sbp2p.node import Node, accept_new
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.catalog import Catalog, CatalogEntry, catalog_cid, sign_catalog
from sbp2p_protocol.ipns import SECOND_NS, ipfs_path, ipns_key, make_ipns_record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LOCAL = "/ip4/127.0.0.1/tcp/0"


@asynccontextmanager
async def node(folder: Path, *begin: Node, key: PrivateKey | None = None) -> AsyncIterator[Node]:
    """Open a node that knows where these are."""
    bootstrap = tuple(str(each.addresses[0]) for each in begin)
    config = NodeConfig(
        discovery=DiscoveryConfig(bootstrap=bootstrap, wanted_connections=len(begin)),
        naming=NamingConfig(look_s=0.5, follow_ask_s=0.2, retry_s=0.5),
    )
    with trio.fail_after(60):
        async with Node(home=folder, listen=[LOCAL], identity=key, config=config) as opened:
            yield opened


def write(path: Path, text: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "weights.bin").write_bytes(text.encode() * 10_000)
    return path


async def wait_told(publisher: Node) -> None:
    """Wait until a server has the publisher's pointer."""
    assert publisher.dht is not None
    await publisher.dht.wait_settled()
    while True:
        told = await publisher.naming.publish()
        if told is not None and told.servers:
            return
        await trio.sleep(0.1)


async def test_a_version_is_fetched_by_its_publishers_peer_id_alone(tmp_path: Path) -> None:
    async with (
        node(tmp_path / "middle") as middle,
        node(tmp_path / "publisher", middle) as publisher,
        node(tmp_path / "reader", middle) as reader,
    ):
        await publisher.publish(write(tmp_path / "m", "one"), name="org/model")
        await wait_told(publisher)
        link = f"sbp2p://{publisher.publisher}/org/model"
        resolved = await reader.resolve(link)
        assert (resolved.version, resolved.origin) == (1, "pointer")
        result = await reader.fetch(link, to=tmp_path / "out", trust=accept_new)
        assert result.version.cid == resolved.manifest
        assert (tmp_path / "out" / "weights.bin").read_bytes() == b"one" * 10_000
        following = reader.follow(link, after=1)
        await publisher.publish(write(tmp_path / "m", "two"), name="org/model")
        assert (await anext(following)).version == 2


async def test_a_node_without_a_dht_follows_its_peers(tmp_path: Path) -> None:
    async with (
        node(tmp_path / "publisher") as publisher,
        Node(home=tmp_path / "reader", config=NodeConfig()) as reader,
    ):
        await publisher.publish(write(tmp_path / "m", "one"), name="model")
        link = f"sbp2p://{publisher.publisher}/model"
        with trio.fail_after(30):
            following = reader.follow(link, peers=[str(publisher.addresses[0])])
            assert (await anext(following)).version == 1


async def test_a_catalog_cannot_offer_what_others_signed(tmp_path: Path) -> None:
    thief = PrivateKey.from_seed(b"t" * 32)
    async with (
        node(tmp_path / "victim") as victim,
        node(tmp_path / "thief", victim, key=thief) as other,
        node(tmp_path / "reader", victim) as reader,
    ):
        version = await victim.publish(write(tmp_path / "m", "mine"), name="model")
        models = {"model": (CatalogEntry(7, version.cid),)}
        block = sign_catalog(Catalog(publisher=thief.peer_id, sequence=1, models=models), thief)
        other.store.put_loose(catalog_cid(block), block)
        record = make_ipns_record(
            thief,
            ipfs_path(catalog_cid(block)),
            sequence=1,
            valid_until_ns=4_000_000_000 * SECOND_NS,
            ttl_ns=0,
        )
        assert other.dht is not None
        await other.dht.wait_settled()
        assert await other.dht.put_value(ipns_key(thief.peer_id), record)
        await other.connect(str(reader.addresses[0]))
        with pytest.raises(PeerMisbehavedError, match="does not stand for"):
            await reader.fetch(
                f"sbp2p://{thief.peer_id}/model", to=tmp_path / "out", trust=accept_new
            )
        assert reader.versions() == []


async def test_links_that_name_nothing_are_refused(tmp_path: Path) -> None:
    async with node(tmp_path / "home") as alone:
        exact = "sbp2p:bafyr4idsivfwphyqgeykafapwerxokcwof3matullc4qn5fnejo3jsfw5i"
        with pytest.raises(ConfigError, match="no publisher"):
            await alone.resolve(exact)
        with pytest.raises(ConfigError, match="no publisher"):
            alone.follow(exact)
        with pytest.raises(ConfigError, match="which peer"):
            alone.follow(f"sbp2p://{alone.publisher}/model", peers=["/ip4/127.0.0.1/tcp/1"])

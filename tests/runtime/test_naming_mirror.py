"""Names of others, kept alive: served by who has their versions, and let go with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.errors import NotFoundError
from sbp2p.naming.resolve import provider_key
from sbp2p_protocol.ipns import ipns_key
from tests.runtime.exchange_lab import small_version
from tests.runtime.naming_lab import CONFIG, PUBLISHER, Host, NamingLab, open_naming_lab

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from sbp2p_protocol.cid import Cid

NAME = PUBLISHER.peer_id
SOON = 90.0
"""Seconds in which a mirror has looked at its store."""


async def publish_and_leave(lab: NamingLab, *readers: Host) -> Cid:
    """Have a version published and fetched by readers, and everything gone that it came from."""
    publisher = await lab.host(signer=PUBLISHER)
    version = small_version(5)
    await publisher.node.publish(version)
    told = await publisher.naming.publish()
    assert told is not None
    for reader in readers:
        await reader.node.get(version, publisher.node)
        reader.naming.changed()
    await trio.sleep(SOON)
    await publisher.stop()
    store = publisher.node.store
    store.remove_version(version.manifest.cid)
    with store._index.writing() as db:
        db.execute("DELETE FROM loose")
    for host in lab.hosts:
        host.records.providers.remove(provider_key(told.cid), publisher.node.key.peer_id)
    return told.cid


async def test_who_has_a_version_keeps_its_publishers_name_alive(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(2)
        keeper = await lab.host()
        cid = await publish_and_leave(lab, keeper)
        assert keeper.node.store.get_loose(cid) is not None
        newcomer = await lab.host(ask_peers_max=0)
        resolved = await newcomer.naming.resolve(NAME, "model")
        assert (resolved.version, resolved.origin) == (1, "pointer")
        assert [each.peer_id for each in resolved.sources] == [keeper.node.key.peer_id]


async def test_without_a_keeper_the_name_ends_with_its_publisher(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(2)
        await publish_and_leave(lab)
        newcomer = await lab.host(ask_peers_max=0)
        with pytest.raises(NotFoundError):
            await newcomer.naming.resolve(NAME, "model")


async def test_the_pointer_is_put_again_while_it_is_valid(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(2)
        keeper = await lab.host(republish_s=120.0)
        await publish_and_leave(lab, keeper)
        for host in lab.hosts:
            host.records.values.expire(lab.now() + 1e9)
        assert await keeper.dht.get_value(ipns_key(NAME)) is None
        await trio.sleep(300)
        assert await lab.hosts[0].dht.get_value(ipns_key(NAME)) is not None
        lab.clock_offset += CONFIG.lifetime_s
        await trio.sleep(SOON)
        assert await lab.hosts[0].dht.get_value(ipns_key(NAME)) is None, "it has ended"


async def test_what_is_removed_is_mirrored_no_more(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(2)
        keeper = await lab.host()
        await publish_and_leave(lab, keeper)
        assert keeper.dht.statistics().providing == 1
        keeper.node.store.remove_version(small_version(5).manifest.cid)
        keeper.naming.changed()
        await trio.sleep(1)
        assert keeper.dht.statistics().providing == 0

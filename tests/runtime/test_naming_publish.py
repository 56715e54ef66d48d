"""What a key publishes: soon, again in time, under numbers that are never used twice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.errors import ConfigError, NotFoundError
from sbp2p.naming import Pointers
from sbp2p_protocol.catalog import CatalogEntry
from sbp2p_protocol.ipns import IpnsRecord, ipns_key, open_ipns_record
from tests.runtime.exchange_lab import make_version, small_version
from tests.runtime.naming_lab import CONFIG, PUBLISHER, Host, NamingLab, open_naming_lab

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from sbp2p.naming.pointers import OwnPointer

NAME = PUBLISHER.peer_id
TIMELY = 3 * CONFIG.look_s


async def said(lab: NamingLab, host: Host) -> IpnsRecord | None:
    """Return what the DHT has under the name."""
    found = await host.dht.get_value(ipns_key(NAME))
    return None if found is None else open_ipns_record(found.value, NAME, lab.now())


def own(host: Host) -> OwnPointer:
    pointer = host.pointers.own(NAME)
    assert pointer is not None
    return pointer


async def test_what_is_new_in_the_store_is_published_by_itself(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(3)
        publisher = await lab.host(signer=PUBLISHER)
        assert await publisher.naming.publish() is None, "nothing to publish"
        await publisher.node.publish(small_version(5))
        await trio.sleep(TIMELY)
        first = await said(lab, lab.hosts[0])
        assert first is not None
        assert first.cid is not None
        assert publisher.node.store.get_loose(first.cid) == own(publisher).block
        await publisher.node.publish(small_version(5, number=2))
        publisher.naming.changed()
        await trio.sleep(CONFIG.look_s / 5)
        second = await said(lab, lab.hosts[0])
        assert second is not None
        assert second.sequence > first.sequence
        entries = own(publisher).catalog.models["model"]
        assert [each.version for each in entries] == [2, 1]


async def test_others_versions_are_not_published(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(2)
        other = await lab.host(signer=lab.hosts[0].node.key)
        await other.node.publish(small_version(5))
        assert await other.naming.publish() is None
        reader = await lab.host()
        with pytest.raises(ConfigError, match="does not publish"):
            await reader.naming.publish()
        silent = await lab.host(signer=PUBLISHER, publish=False)
        with pytest.raises(ConfigError, match="does not publish"):
            await silent.naming.publish()


async def test_the_same_is_said_again_before_it_ends(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(3)
        publisher = await lab.host(signer=PUBLISHER)
        await publisher.node.publish(small_version(5))
        await trio.sleep(TIMELY)
        first = await said(lab, lab.hosts[0])
        lab.clock_offset += CONFIG.republish_s
        await trio.sleep(TIMELY)
        second = await said(lab, lab.hosts[0])
        assert first is not None
        assert second is not None
        assert (second.sequence, second.value) == (first.sequence, first.value)
        assert second.valid_until >= first.valid_until + CONFIG.republish_s
        assert publisher.pointers.evidence() == []


async def test_a_number_is_written_down_before_it_is_told(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "names.sqlite"
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(3)
        publisher = await lab.host(signer=PUBLISHER, pointers=memory)
        await publisher.node.publish(small_version(5))
        written: list[IpnsRecord] = []

        async def put_nothing(key: bytes, value: bytes) -> int:
            with Pointers(memory) as after_a_kill:
                pointer = after_a_kill.own(NAME)
                assert pointer is not None
                assert pointer.record.encoded == value
                written.append(pointer.record)
            await publisher.stop()
            await trio.sleep_forever()
            return 0

        monkeypatch.setattr(publisher.dht, "put_value", put_nothing)
        publisher.naming.changed()
        await publisher.wait_stopped()
        assert await said(lab, lab.hosts[0]) is None
        again = await lab.host(signer=PUBLISHER, pointers=memory, node=publisher.node)
        await trio.sleep(TIMELY)
        record = await said(lab, lab.hosts[0])
        assert record is not None
        assert (record.sequence, record.value) == (written[0].sequence, written[0].value)
        assert again.pointers.evidence() == []


async def test_a_home_that_lost_its_memory_uses_no_number_twice(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        publisher = await lab.host(signer=PUBLISHER)
        await publisher.node.publish(small_version(5))
        await publisher.naming.publish()
        used = own(publisher).record.sequence
        await publisher.stop()
        await trio.sleep(1.5)
        await publisher.node.publish(small_version(5, number=2))
        fresh = await lab.host(signer=PUBLISHER, node=publisher.node, join=False)
        await fresh.naming.publish()
        assert own(fresh).record.sequence > used


async def test_what_no_server_took_is_told_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_naming_lab(tmp_path) as lab:
        publisher = await lab.host(signer=PUBLISHER)
        await publisher.node.publish(small_version(5))
        result = await publisher.naming.publish()
        assert result is not None
        assert (result.servers, result.models) == (0, 1)
        await trio.sleep(60)
        server = await lab.host()
        await trio.sleep(CONFIG.retry_s * 2**5)
        record = await said(lab, server)
        assert record is not None
        assert record.sequence == result.sequence


async def test_two_machines_with_one_key_come_to_say_the_same(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(3)
        one = await lab.host(signer=PUBLISHER)
        two = await lab.host(signer=PUBLISHER)
        await one.node.publish(make_version({"f": b"1" * 9000}, name="from-one"))
        await one.naming.publish()
        await trio.sleep(2)
        await two.node.publish(make_version({"f": b"2" * 9000}, name="from-two"))
        await two.naming.publish()
        assert set(own(two).catalog.models) == {"from-one", "from-two"}
        await trio.sleep(2)
        await one.naming.publish()
        settled = own(one)
        assert set(settled.catalog.models) == {"from-one", "from-two"}
        await trio.sleep(60)
        lab.clock_offset += CONFIG.republish_s
        await trio.sleep(60)
        assert own(one).record.sequence == own(two).record.sequence == settled.record.sequence
        assert one.pointers.evidence() == two.pointers.evidence() == []


async def test_one_number_given_twice_stays_what_was_said_first(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(3)
        one = await lab.host(signer=PUBLISHER)
        two = await lab.host(signer=PUBLISHER)
        first = make_version({"f": b"1" * 9000})
        await one.node.publish(first)
        await one.naming.publish()
        await trio.sleep(2)
        await two.node.publish(make_version({"f": b"2" * 9000}))
        await two.naming.publish()
        await trio.sleep(60)
        expected = {"model": (CatalogEntry(1, first.manifest.cid),)}
        assert dict(own(one).catalog.models) == dict(own(two).catalog.models) == expected
        assert own(one).record.sequence == own(two).record.sequence
        resolved = await lab.hosts[0].naming.resolve(NAME, "model")
        assert resolved.manifest == first.manifest.cid


async def test_the_catalog_stays_a_block_of_the_store(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(1)
        publisher = await lab.host(signer=PUBLISHER)
        await publisher.node.publish(small_version(5))
        result = await publisher.naming.publish()
        assert result is not None
        block = own(publisher).block
        # a removal sweeps loose blocks that no version holds; what is told again is put again
        store = publisher.node.store
        with store._index.writing() as db:
            db.execute("DELETE FROM loose WHERE cid = ?", (result.cid.to_bytes(),))
        assert store.get_loose(result.cid) is None
        lab.clock_offset += CONFIG.republish_s
        await trio.sleep(TIMELY)
        assert store.get_loose(result.cid) == block


async def test_too_many_models_for_one_catalog_are_refused(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(1)
        publisher = await lab.host(signer=PUBLISHER)
        await publisher.node.publish(small_version(5))
        monkeypatch.setattr("sbp2p_protocol.catalog.CATALOG_MAX", 300)
        with pytest.raises(ConfigError, match="too many models"):
            await publisher.naming.publish()
        await trio.sleep(TIMELY)
        with pytest.raises(NotFoundError):
            await lab.hosts[0].naming.resolve(NAME, "another")
        monkeypatch.setattr("sbp2p_protocol.catalog.CATALOG_MAX", 3000)
        assert await publisher.naming.publish() is not None


def test_the_numbers_of_the_configuration_fit_together() -> None:
    config = replace(CONFIG)
    assert config.republish_s * 4 < config.lifetime_s
    assert config.ttl_s < config.republish_s
    assert config.follow_lookup_min_s < config.ttl_s < config.follow_lookup_max_s

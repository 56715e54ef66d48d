"""From a peer id and a name to a version: over a DHT, against liars, old news, silence and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.calls import InlineCalls
from sbp2p.errors import NotFoundError, PeerMisbehavedError, PeerUnreachableError
from sbp2p.naming import Pointers, open_naming
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.catalog import Catalog, CatalogEntry, catalog_cid, sign_catalog
from sbp2p_protocol.cid import RAW, Cid
from sbp2p_protocol.ipns import (
    SECOND_NS,
    ipfs_path,
    ipns_key,
    make_ipns_record,
    read_ipns_record,
)
from tests.runtime.exchange_lab import small_version
from tests.runtime.naming_lab import CONFIG, PUBLISHER, Host, NamingLab, open_naming_lab

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

KEY = ipns_key(PUBLISHER.peer_id)
THIEF = PrivateKey.from_seed(b"t" * 32)


async def published(lab: NamingLab, *numbers: int, servers: int = 3) -> Host:
    """Start servers and a publisher that has these versions, and has said so."""
    await lab.servers(servers)
    host = await lab.host(signer=PUBLISHER)
    for number in numbers:
        await host.node.publish(small_version(5, number=number))
    result = await host.naming.publish()
    assert result is not None
    assert result.servers == servers
    return host


def pointer(lab: NamingLab, value: bytes, sequence: int, *, life: float = 3600.0) -> bytes:
    return make_ipns_record(
        PUBLISHER,
        value,
        sequence=sequence,
        valid_until_ns=int(lab.now() + life) * SECOND_NS,
        ttl_ns=300 * SECOND_NS,
    )


def plant(lab: NamingLab, hosts: list[Host], value: bytes) -> None:
    """Have servers hold a record, whatever they held before."""
    for host in hosts:
        host.records.values.expire(lab.now() + 1e9)
        assert host.records.values.put(KEY, value, lab.now(), account="planted")


async def offer(host: Host, block: bytes) -> bytes:
    """Have a host serve a block, and return what points to it."""
    cid = catalog_cid(block)
    host.node.store.put_loose(cid, block)
    return ipfs_path(cid)


# -- finding ---------------------------------------------------------------------------------------


async def test_a_peer_id_and_a_name_are_enough(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_naming_lab(tmp_path) as lab:
        publisher = await published(lab, 1, 2)
        reader = await lab.host()
        resolved = await reader.naming.resolve(PUBLISHER.peer_id, "model")
        assert resolved.version == 2
        assert resolved.manifest == small_version(5, number=2).manifest.cid
        assert (resolved.origin, resolved.age_s, resolved.rollbacks) == ("pointer", 0.0, 0)
        assert resolved.ttl_s == CONFIG.ttl_s
        assert resolved.valid_until is not None
        assert resolved.valid_until - lab.now() > CONFIG.lifetime_s - 60
        assert [each.peer_id for each in resolved.sources] == [publisher.node.key.peer_id]
        older = await reader.naming.resolve(PUBLISHER.peer_id, "model", 1)
        assert (older.version, older.rollbacks) == (1, 0)
        assert older.manifest == small_version(5, number=1).manifest.cid


async def test_the_catalog_outlives_its_publisher(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        publisher = await published(lab, 1)
        reader = await lab.host()
        await reader.naming.resolve(PUBLISHER.peer_id, "model")
        await publisher.stop()
        await publisher.node.swarm.disconnect(lab.hosts[0].node.key.peer_id)
        resolved = await reader.naming.resolve(PUBLISHER.peer_id, "model")
        assert (resolved.version, resolved.origin) == (1, "pointer")


async def test_a_name_that_is_not_listed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await published(lab, 1)
        reader = await lab.host()
        with pytest.raises(NotFoundError, match="does not publish another") as caught:
            await reader.naming.resolve(PUBLISHER.peer_id, "another")
        assert caught.value.hint == "its catalog lists model"
        with pytest.raises(NotFoundError, match="model@7"):
            await reader.naming.resolve(PUBLISHER.peer_id, "model", 7)
        with pytest.raises(NotFoundError, match="nobody knows model"):
            await reader.naming.resolve(THIEF.peer_id, "model")


async def test_connected_peers_tell_without_a_dht(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        publisher = await lab.host()
        await publisher.node.publish(small_version(5))
        reader = await lab.lab.node()
        with Pointers(None) as pointers:
            async with open_naming(
                swarm=reader.swarm,
                exchange=reader.exchange,
                store=reader.store,
                pointers=pointers,
                config=CONFIG,
                wall_clock=lab.now,
                calls=InlineCalls(),
            ) as naming:
                with pytest.raises(PeerUnreachableError):
                    await naming.resolve(PUBLISHER.peer_id, "model")
                await reader.swarm.connect(publisher.node.addresses, publisher.node.key.peer_id)
                resolved = await naming.resolve(PUBLISHER.peer_id, "model")
                assert (resolved.version, resolved.origin) == (1, "peers")
                assert (resolved.age_s, resolved.sequence) == (None, None)


async def test_a_slow_dht_does_not_hold_up_what_peers_have_told(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        publisher = await lab.host()
        await publisher.node.publish(small_version(5))
        reader = await lab.host()

        async def never(key: bytes, *, quorum: int | None = None) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(reader.dht, "get_value", never)
        began = trio.current_time()
        resolved = await reader.naming.resolve(PUBLISHER.peer_id, "model")
        assert (resolved.version, resolved.origin) == (1, "peers")
        assert trio.current_time() - began < CONFIG.lookup_grace_s + 5


# -- old news --------------------------------------------------------------------------------------


async def test_a_rollback_is_refused_also_after_a_restart(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    memory = tmp_path / "names.sqlite"
    async with open_naming_lab(tmp_path) as lab:
        publisher = await published(lab, 1)
        old = publisher.pointers.own(PUBLISHER.peer_id)
        assert old is not None
        await publisher.node.publish(small_version(5, number=2))
        await publisher.naming.publish()
        reader = await lab.host(pointers=memory)
        assert (await reader.naming.resolve(PUBLISHER.peer_id, "model")).version == 2
        await reader.stop()
        await publisher.stop()
        for record in publisher.node.store.versions():
            publisher.node.store.remove_version(record.cid)
        plant(lab, lab.hosts[:3], old.record.encoded)
        reader = await lab.host(pointers=memory, node=reader.node)
        resolved = await reader.naming.resolve(PUBLISHER.peer_id, "model")
        assert resolved.version == 2
        assert resolved.rollbacks == 1
        assert resolved.origin == "kept"
        assert resolved.evidence == ()


async def test_a_peer_cannot_make_a_version_go_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        old = await lab.host()
        await old.node.publish(small_version(5, number=1))
        reader = await lab.host()
        entry = CatalogEntry(2, small_version(5, number=2).manifest.cid)
        reader.pointers.take_version(PUBLISHER.peer_id, "model", entry, lab.now())
        resolved = await reader.naming.resolve(PUBLISHER.peer_id, "model")
        assert (resolved.version, resolved.origin, resolved.rollbacks) == (2, "kept", 1)
        exact = await reader.naming.resolve(PUBLISHER.peer_id, "model", 1)
        assert (exact.version, exact.rollbacks) == (1, 0)


async def test_servers_that_lag_are_no_rollback(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_naming_lab(tmp_path) as lab:
        publisher = await published(lab, 1)
        own = publisher.pointers.own(PUBLISHER.peer_id)
        assert own is not None
        plant(lab, lab.hosts[:1], pointer(lab, own.record.value, own.record.sequence - 5))
        reader = await lab.host()
        resolved = await reader.naming.resolve(PUBLISHER.peer_id, "model")
        assert (resolved.version, resolved.rollbacks, resolved.evidence) == (1, 0, ())


async def test_equivocation_is_kept_and_shown(tmp_path: Path, autojump_clock: MockClock) -> None:
    memory = tmp_path / "names.sqlite"
    async with open_naming_lab(tmp_path) as lab:
        await published(lab, 1)
        reader = await lab.host(pointers=memory)
        sequence = int(lab.now()) + 1000
        values = []
        for number in (1, 2):
            models = {
                "model": (CatalogEntry(number, small_version(5, number=number).manifest.cid),)
            }
            made = Catalog(publisher=PUBLISHER.peer_id, sequence=sequence, models=models)
            values.append(await offer(lab.hosts[0], sign_catalog(made, PUBLISHER)))
        plant(lab, lab.hosts[:2], pointer(lab, values[0], sequence, life=3600))
        plant(lab, lab.hosts[2:3], pointer(lab, values[1], sequence, life=7200))
        resolved = await reader.naming.resolve(PUBLISHER.peer_id, "model")
        (evidence,) = resolved.evidence
        first = read_ipns_record(evidence.first, PUBLISHER.peer_id)
        second = read_ipns_record(evidence.second, PUBLISHER.peer_id)
        assert first.contradicts(second)
        assert evidence.subject == str(sequence)
        chosen = resolved.version
        again = await reader.naming.resolve(PUBLISHER.peer_id, "model")
        assert again.version == chosen, "what was believed first stays"
        assert await reader.naming.evidence() == [evidence]
        await reader.stop()
        reader = await lab.host(pointers=memory, node=reader.node)
        assert await reader.naming.evidence(PUBLISHER.peer_id) == [evidence]
        assert await reader.naming.evidence(THIEF.peer_id) == []


# -- time and silence ------------------------------------------------------------------------------


async def test_without_a_network_the_last_word_counts_until_it_ends(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    memory = tmp_path / "names.sqlite"
    async with open_naming_lab(tmp_path) as lab:
        await published(lab, 1)
        reader = await lab.host(pointers=memory)
        await reader.naming.resolve(PUBLISHER.peer_id, "model")
        for host in lab.hosts:
            await host.stop()
        lab.hosts.clear()
        lab.clock_offset += 3600
        alone = await lab.host(pointers=memory)
        resolved = await alone.naming.resolve(PUBLISHER.peer_id, "model")
        assert (resolved.version, resolved.origin) == (1, "kept")
        assert resolved.age_s == pytest.approx(3600, abs=5)
        lab.clock_offset += 48 * 3600
        with pytest.raises(NotFoundError, match=r"ended 1\.0 h ago"):
            await alone.naming.resolve(PUBLISHER.peer_id, "model")


async def test_a_record_that_has_ended_says_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        publisher = await published(lab, 1)
        await publisher.stop()
        reader = await lab.host()
        lab.clock_offset += 48 * 3600
        with pytest.raises(NotFoundError, match="nobody knows"):
            await reader.naming.resolve(PUBLISHER.peer_id, "model")


# -- nonsense that is signed -----------------------------------------------------------------------


async def test_what_points_to_no_catalog_is_the_publishers_fault(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await published(lab, 1)
        reader = await lab.host()
        sequence = int(lab.now()) + 100
        stolen = Catalog(publisher=THIEF.peer_id, sequence=1, models={})
        newer = Catalog(publisher=PUBLISHER.peer_id, sequence=sequence + 50, models={})
        blocks = [
            b"not a catalog",
            sign_catalog(stolen, THIEF),
            sign_catalog(stolen, PUBLISHER),
            sign_catalog(newer, PUBLISHER),
        ]
        for block in blocks:
            sequence += 1
            value = await offer(lab.hosts[0], block)
            plant(lab, lab.hosts[:3], pointer(lab, value, sequence))
            with pytest.raises(PeerMisbehavedError):
                await reader.naming.resolve(PUBLISHER.peer_id, "nothing-else")


async def test_a_pointer_to_something_else_says_nothing_of_models(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(3)
        reader = await lab.host()
        plant(lab, lab.hosts[:3], pointer(lab, b"/ipns/example.org", int(lab.now())))
        with pytest.raises(NotFoundError):
            await reader.naming.resolve(PUBLISHER.peer_id, "model")


async def test_a_catalog_that_nobody_has(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_naming_lab(tmp_path) as lab:
        await lab.servers(3)
        reader = await lab.host()
        lost = Cid(1, RAW, 0x1E, bytes(32))
        plant(lab, lab.hosts[:3], pointer(lab, ipfs_path(lost), int(lab.now())))
        with pytest.raises(NotFoundError):
            await reader.naming.resolve(PUBLISHER.peer_id, "model")

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.errors import (
    NotFoundError,
    PeerMisbehavedError,
    PeerUnreachableError,
    StoreError,
    TrustError,
)
from sbp2p.exchange import Choice, FetchProgress, FoundVersion, Phase, Source
from sbp2p.exchange.fetch import _Opening
from sbp2p.transport import LinkProfile
from sbp2p_protocol.link import ManifestLink, NameLink
from sbp2p_protocol.manifest import Manifest, sign_manifest
from tests.runtime.exchange_lab import (
    BLOCK,
    PUBLISHER,
    BadSeed,
    LabNode,
    make_version,
    open_lab,
    small_version,
)
from tests.runtime.store_samples import noise

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trio.testing import MockClock

    from sbp2p_keys.signing import SignedDocument


async def test_one_seed(tmp_path: Path) -> None:
    version = small_version()
    async with open_lab(tmp_path) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        result = await leech.get(version, seed)
        version.assert_at(leech.out)
        assert result.bytes_wanted == version.table.total_bytes
        assert result.bytes_useless == result.bytes_local == 0
        assert [source.blocks_verified for source in result.sources] == [len(version.table)]
        record = leech.store.version(version.manifest.cid)
        assert record is not None
        assert record.complete
        sent = seed.exchange.statistics()
        assert sent.bytes_sent == result.bytes_received
        # and who has fetched it seeds it, tree included
        third = await lab.node()
        await third.get(version, leech)
        version.assert_at(third.out)


async def test_addresses_in_the_link_are_enough(tmp_path: Path) -> None:
    version = small_version(5)
    async with open_lab(tmp_path) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        link = ManifestLink(version.manifest.cid, tuple(seed.addresses))
        await leech.exchange.fetch(link, leech.out)
        version.assert_at(leech.out)


async def test_several_seeds_share_the_work(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = make_version({"w": noise("w", 90 * 65536)}, block=65536)
    profile = LinkProfile(latency_s=0.02, bytes_per_s=2e6)
    async with open_lab(tmp_path, profile=profile, pipeline_bytes=1 << 20) as lab:
        seeds = [await lab.node() for _ in range(3)]
        for seed in seeds:
            await seed.publish(version)
        leech = await lab.node()
        result = await leech.get(version, *seeds)
        version.assert_at(leech.out)
        shares = [source.blocks_verified for source in result.sources]
        assert len(shares) == 3
        assert min(shares) > 15


async def test_everything_there_needs_no_peer(tmp_path: Path) -> None:
    version = small_version()
    async with open_lab(tmp_path) as lab:
        node = await lab.node()
        await node.publish(version)
        result = await node.get(version)
        version.assert_at(node.out)
        assert result.bytes_local == result.bytes_wanted
        assert result.bytes_received == 0


async def test_a_new_version_costs_what_changed(tmp_path: Path) -> None:
    old = make_version({"w": noise("w", 20 * BLOCK)})
    changed = noise("w", 20 * BLOCK)[: 18 * BLOCK] + noise("new", 2 * BLOCK)
    new = make_version({"renamed/w": changed}, number=2)
    async with open_lab(tmp_path) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(old)
        await leech.get(old, seed)
        await seed.publish(new)
        result = await leech.exchange.fetch(new.link, leech.home / "two", sources=[seed.source])
        new.assert_at(leech.home / "two")
        assert result.bytes_wanted - result.bytes_local == 2 * BLOCK


async def test_a_part_of_a_version(tmp_path: Path) -> None:
    version = make_version({"a": noise("a", 9 * BLOCK), "b": noise("b", 5 * BLOCK)})

    def only_b(found: FoundVersion) -> Choice:
        assert found.manifest == version.manifest
        return Choice(found.table.blocks_of_files([1]))

    async with open_lab(tmp_path) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        result = await leech.exchange.fetch(
            version.link, leech.out, sources=[seed.source], choose=only_b, in_order=True
        )
        assert result.bytes_wanted == 5 * BLOCK
        assert (leech.out / "b").read_bytes() == version.files["b"]
        assert not (leech.out / "a").exists()
        # what a part of a version holds is served too
        third = await lab.node()
        await third.exchange.fetch(version.link, third.out, sources=[leech.source], choose=only_b)
        assert (third.out / "b").read_bytes() == version.files["b"]


async def test_only_the_chosen_files_are_made(tmp_path: Path) -> None:
    same = noise("same", 3 * BLOCK)
    version = make_version({"a": same, "b": same, "c/empty": b"", "d": noise("d", BLOCK)})

    def chosen(*numbers: int) -> Callable[[FoundVersion], Choice]:
        return lambda found: Choice(found.table.blocks_of_files(numbers), numbers)

    async with open_lab(tmp_path) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        sources = [seed.source]
        for numbers, made in (((1,), ["b"]), ((2,), ["empty"]), ((0, 1, 2), ["a", "b", "empty"])):
            out = leech.home / f"out-{numbers}"
            await leech.exchange.fetch(version.link, out, sources=sources, choose=chosen(*numbers))
            assert sorted(each.name for each in out.rglob("*") if each.is_file()) == made
        # the rest can come later
        out = leech.home / "out-(1,)"
        await leech.exchange.fetch(version.link, out, sources=sources)
        version.assert_at(out)


async def test_newest_version_of_a_name(tmp_path: Path, autojump_clock: MockClock) -> None:
    versions = [small_version(4, number=number) for number in (1, 2, 3)]
    async with open_lab(tmp_path) as lab:
        behind, ahead, leech = [await lab.node() for _ in range(3)]
        await behind.publish(versions[0])
        await ahead.publish(versions[1])
        await ahead.publish(versions[2])
        link = NameLink(PUBLISHER.peer_id, "model")
        sources = [behind.source, ahead.source]
        result = await leech.exchange.fetch(link, leech.out, sources=sources)
        assert result.version.manifest.version == 3
        old = NameLink(PUBLISHER.peer_id, "model", 2)
        result = await leech.exchange.fetch(old, leech.home / "old", sources=sources)
        assert result.version.manifest.version == 2
        # a peer that knows only older ones does not roll it back
        result = await leech.exchange.fetch(link, leech.out, sources=[behind.source])
        assert result.version.manifest.version == 3
        with pytest.raises(NotFoundError, match="other"):
            await leech.exchange.fetch(
                NameLink(PUBLISHER.peer_id, "other"), leech.out, sources=sources
            )


async def test_two_that_fetch_help_each_other(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = make_version({"w": noise("w", 48 * 65536)}, block=65536)
    profile = LinkProfile(latency_s=0.01, bytes_per_s=1e6)
    async with open_lab(tmp_path, profile=profile, pipeline_bytes=1 << 20) as lab:
        seed, one, two = [await lab.node() for _ in range(3)]
        await seed.publish(version)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.get, version, seed, two)
            nursery.start_soon(two.get, version, seed, one)
        version.assert_at(one.out)
        version.assert_at(two.out)
        between = one.exchange.statistics().blocks_sent + two.exchange.statistics().blocks_sent
        assert between > 10


async def test_blocks_gained_later_are_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(20)
    async with open_lab(tmp_path, patience_s=60.0) as lab:
        middle, leech, seed = [await lab.node() for _ in range(3)]
        middle.have(version, [0])  # knows the version, has one block of it
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leech.get, version, middle)
            await trio.sleep(5)
            assert not (leech.out / "a/weights.bin").exists()
            await seed.publish(version)
            await middle.get(version, seed)
        version.assert_at(leech.out)


async def test_peers_may_join_late(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version()
    async with open_lab(tmp_path) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        send, arrivals = trio.open_memory_channel[Source](0)

        async def arrive() -> None:
            await trio.sleep(15)
            async with send:
                await send.send(seed.source)
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(arrive)
            await leech.exchange.fetch(version.link, leech.out, arrivals=arrivals)
            nursery.cancel_scope.cancel()
        version.assert_at(leech.out)


async def test_progress_is_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(100)
    told: list[FetchProgress] = []
    profile = LinkProfile(bytes_per_s=50 * BLOCK)
    async with open_lab(tmp_path, profile=profile) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        await leech.exchange.fetch(
            version.link, leech.out, sources=[seed.source], progress=told.append
        )
    phases = list(dict.fromkeys(event.phase for event in told))
    assert phases == list(Phase)
    assert told[-1].bytes_verified == told[-1].bytes_total == version.table.total_bytes
    assert told[-1].blocks_verified == told[-1].blocks_total == len(version.table)
    rates = [event.rate for event in told if event.phase is Phase.TRANSFERRING]
    assert 10 * BLOCK < max(rates) < 80 * BLOCK


async def test_cancelled_fetch_keeps_what_it_has(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(100)
    profile = LinkProfile(bytes_per_s=20 * BLOCK)
    async with open_lab(tmp_path, profile=profile) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        with trio.move_on_after(3):
            await leech.get(version, seed)
        stopped_at = trio.current_time()
        result = await leech.get(version, seed)
        version.assert_at(leech.out)
        assert result.bytes_resumed > 20 * BLOCK
        assert result.bytes_resumed + 30 * BLOCK < result.bytes_wanted
        assert stopped_at < trio.current_time()


async def test_nobody_to_ask(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(3)
    async with open_lab(tmp_path) as lab:
        leech, nobody = await lab.node(), await lab.node()
        with pytest.raises(PeerUnreachableError, match="no peer"):
            await leech.get(version)
        await nobody.swarm.disconnect(leech.key.peer_id)
        with pytest.raises(PeerUnreachableError, match="none of 1 peers"):
            await leech.get(version, Source(PUBLISHER.peer_id))
        with pytest.raises(NotFoundError, match="none of 1 peers that answered knows version"):
            await leech.get(version, nobody)
        missing = NameLink(PUBLISHER.peer_id, "model", 7)
        with pytest.raises(NotFoundError, match="knows model@7 of publisher"):
            await leech.exchange.fetch(missing, leech.out, sources=[nobody.source])


async def test_blocks_that_nobody_has(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(10)
    async with open_lab(tmp_path) as lab:
        partial, leech = await lab.node(), await lab.node()
        partial.have(version, [0, 1, 2])
        started = trio.current_time()
        with pytest.raises(NotFoundError, match="7 of 10 blocks are missing"):
            await leech.get(version, partial)
        assert 20 <= trio.current_time() - started < 25
        record = leech.store.version(version.manifest.cid)
        assert record is not None
        assert leech.store.have_bitmap(version.table).count() == 3


async def test_trust_is_asked_first(tmp_path: Path) -> None:
    version = small_version(3)

    async def refuse(_document: SignedDocument, manifest: Manifest) -> None:
        raise TrustError(f"{manifest.publisher} is not trusted")

    async with open_lab(tmp_path) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        with pytest.raises(TrustError):
            await leech.exchange.fetch(version.link, leech.out, sources=[seed.source], trust=refuse)
        assert not leech.out.exists()


async def test_malformed_version_is_the_publishers_fault(tmp_path: Path) -> None:
    version = small_version(3)
    root = version.manifest.root
    file_cid = version.nodes[0][0]
    manifest = Manifest(  # a file where the directory belongs
        name="bad", version=1, root=file_cid, publisher=PUBLISHER.peer_id, created=1
    )
    bad = BadSeed(version)
    bad.version = type(version)(
        sign_manifest(manifest, PUBLISHER), manifest, version.table, version.nodes, {}
    )
    assert root != file_cid
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(bad.handle)
        leech = await lab.node()
        with pytest.raises(PeerMisbehavedError, match="malformed"):
            await leech.exchange.fetch(ManifestLink(manifest.cid), leech.out, sources=[source])


async def test_many_nodes_one_seed(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = make_version({"w": noise("w", 24 * 65536)}, block=65536)
    profile = LinkProfile(latency_s=0.005, bytes_per_s=1e6)
    async with open_lab(tmp_path, profile=profile, pipeline_bytes=1 << 20) as lab:
        seed = await lab.node()
        await seed.publish(version)
        leeches: list[LabNode] = [await lab.node() for _ in range(4)]
        async with trio.open_nursery() as nursery:
            for leech in leeches:
                others = [each for each in leeches if each is not leech]
                nursery.start_soon(leech.get, version, seed, *others)
        for leech in leeches:
            version.assert_at(leech.out)


async def test_cancelled_at_any_moment_the_next_fetch_goes_on(tmp_path: Path) -> None:
    version = small_version(30)
    async with open_lab(tmp_path) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        for turns in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(leech.get, version, seed)
                for _ in range(turns):
                    await trio.sleep(0.001)
                nursery.cancel_scope.cancel()
        await leech.get(version, seed)
        version.assert_at(leech.out)


def test_download_is_not_opened_after_the_fetch_was_given_up() -> None:
    opening = _Opening()
    opening.close()
    with pytest.raises(StoreError, match="given up"):
        opening.open(lambda: pytest.fail("opened"))

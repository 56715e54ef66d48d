"""The DHT in virtual networks of dozens of nodes: lookups, churn, liars, stalls, sybils, time."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Final

import pytest
import trio

from sbp2p.config import DhtConfig
from sbp2p.dht import Dht, DhtRecords, open_dht
from sbp2p.dht.records import Contact
from sbp2p.testing import run_virtual
from sbp2p.testing.kad_network import KadFabric, VirtualKadNetwork, acquaint
from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_keys.multi import SHA2_256, multihash_encode
from sbp2p_protocol.kad_keys import kad_id, kad_id_of
from sbp2p_protocol.kad_messages import KadMessage, KadPeer, KadType
from sbp2p_protocol.kad_server import Requester, RequestRefusedError
from sbp2p_protocol.limits import KAD_REQUEST_BURST
from sbp2p_protocol.value_records import PK_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from sbp2p.testing import VirtualNetwork

CONFIG: Final = DhtConfig(mode="server", refresh_s=1e9, upkeep_s=600.0)
"""Tables that are full already need no refreshing, and a test no minutes of that."""
KEY: Final = multihash_encode(SHA2_256, b"k" * 32)
HOUR: Final = 3600.0


def now() -> float:
    return 1.8e9 + trio.current_time()


class Place:
    """A fabric and the nodes that were added to it."""

    def __init__(self, stack: AsyncExitStack, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311
        self.fabric = KadFabric(self.rng)
        self.dhts: list[Dht] = []
        self.networks: list[VirtualKadNetwork] = []
        self._stack = stack

    async def add(
        self,
        config: DhtConfig = CONFIG,
        records: DhtRecords | None = None,
        network: VirtualKadNetwork | None = None,
    ) -> Dht:
        network = network or self.fabric.add()
        dht = await self._stack.enter_async_context(
            open_dht(network, records, config, rng=self.rng, wall_clock=now)
        )
        self.dhts.append(dht)
        self.networks.append(network)
        return dht

    async def grow(self, count: int) -> None:
        """Add nodes that know each other."""
        for _ in range(count):
            await self.add()
        acquaint(self.dhts, self.networks, self.rng)

    def nearest(self, key: bytes, count: int = 20) -> list[VirtualKadNetwork]:
        place = kad_id(key)
        there = [each for each in self.networks if each.is_there]
        return sorted(there, key=lambda each: kad_id_of(each.peer_id) ^ place)[:count]

    def dht_of(self, network: VirtualKadNetwork) -> Dht:
        return self.dhts[self.networks.index(network)]


@asynccontextmanager
async def town(count: int, seed: int = 1) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        place = Place(stack, seed)
        await place.grow(count)
        yield place


async def providers(dht: Dht, key: bytes = KEY, count: int = 20) -> list[PeerId]:
    return [each.peer_id async for each in dht.find_providers(key, count=count)]


async def test_fifty_nodes_find_each_other_and_what_they_have(autojump_clock: MockClock) -> None:
    async with town(50) as place:
        assert await place.dhts[0].provide(KEY) == 20
        for dht in place.dhts[1::7]:
            assert await providers(dht) == [place.networks[0].peer_id]
        for target in place.networks[::9]:
            found = await place.dhts[3].find_peer(target.peer_id)
            assert found == target.addresses() or target is place.networks[3]
        holders = {
            network.peer_id
            for network, dht in zip(place.networks, place.dhts, strict=True)
            if dht.statistics().provider_records
        }
        nearest = [each.peer_id for each in place.nearest(KEY, 21)]
        assert holders == set([n for n in nearest if n != place.networks[0].peer_id][:20])


async def test_a_network_grows_out_of_one_node(autojump_clock: MockClock) -> None:
    async with town(1) as place:
        for _ in range(15):
            dht = await place.add()
            assert await dht.bootstrap([place.networks[0].bootstrap_address]) == 1
        assert min(len(dht.table) for dht in place.dhts) >= 14
        assert await place.dhts[5].provide(KEY) == 15
        assert await providers(place.dhts[9]) == [place.networks[5].peer_id]


async def test_who_is_alone_provides_to_who_comes(autojump_clock: MockClock) -> None:
    owner = PrivateKey.from_seed(b"o" * 32)
    name, value = PK_NAMESPACE + owner.peer_id.to_bytes(), owner.public_key.to_protobuf()
    async with town(1) as place:
        assert await place.dhts[0].provide(KEY) == 0
        assert await place.dhts[0].put_value(name, value) == 0
        late = await place.add(DhtConfig(mode="client"))
        assert await late.bootstrap([place.networks[0].bootstrap_address]) == 1
        assert await providers(late) == [place.networks[0].peer_id]
        found = await late.get_value(name)
        assert found is not None
        assert found.value == value


async def test_nobody_answers_at_a_bootstrap_address(autojump_clock: MockClock) -> None:
    async with town(1) as place:
        gone = place.fabric.add()
        gone.vanish()
        assert await place.dhts[0].bootstrap([gone.bootstrap_address]) == 0
        assert await place.dhts[0].bootstrap([place.fabric.address()]) == 0
        assert await providers(place.dhts[0]) == []
        assert await place.dhts[0].get_value(b"/pk/") is None


async def test_half_of_the_nodes_vanish_at_once(autojump_clock: MockClock) -> None:
    async with town(39) as place:
        survivor = await place.add(DhtConfig(mode="server", refresh_s=300.0))
        acquaint(place.dhts, place.networks, place.rng)
        await place.dhts[0].provide(KEY)
        for network in place.networks[1:39:2]:
            network.vanish()
        began = trio.current_time()
        assert await providers(survivor, count=1) == [place.networks[0].peer_id]
        assert trio.current_time() - began < 15.0
        # what is gone leaves the table once it was asked in vain
        await trio.sleep(1000.0)
        gone = {each.peer_id for each in place.networks[1:39:2]}
        assert not gone & {each.peer_id for each in survivor.peers()}
        assert len(survivor.table) >= 15


async def test_records_are_announced_again_and_forgotten_in_the_end(
    autojump_clock: MockClock,
) -> None:
    async with town(4) as place:
        await place.dhts[0].provide(KEY)
        kept = place.dhts[1].statistics
        await trio.sleep(47 * HOUR)
        assert kept().provider_records == 1
        assert await providers(place.dhts[2]) == [place.networks[0].peer_id]
        place.dhts[0].stop_providing([KEY])
        await trio.sleep(49 * HOUR)
        assert kept().provider_records == 0
        assert await providers(place.dhts[2]) == []


async def test_what_no_server_took_is_announced_soon_again(autojump_clock: MockClock) -> None:
    async with town(1) as place:
        assert await place.dhts[0].provide(KEY) == 0
        await place.add()
        await place.dhts[1].bootstrap([place.networks[0].bootstrap_address])
        await trio.sleep(3 * CONFIG.upkeep_s)
        assert place.dhts[1].statistics().provider_records == 1


async def test_a_server_that_takes_nothing_is_tried_more_and_more_rarely(
    autojump_clock: MockClock,
) -> None:
    async with town(1) as place:
        refusing = Refuser(place.fabric.add())
        place.dhts[0].table.add(refusing.network.peer_id, refusing.network.addresses(), 0.0)
        assert await place.dhts[0].provide(KEY) == 0
        await trio.sleep(4 * HOUR)
        assert 4 < refusing.refused < 10


async def test_who_refuses_a_value_stays_a_contact(autojump_clock: MockClock) -> None:
    owner = PrivateKey.from_seed(b"o" * 32)
    name, value = PK_NAMESPACE + owner.peer_id.to_bytes(), owner.public_key.to_protobuf()
    async with town(1) as place:
        refusing = Refuser(place.fabric.add())
        place.dhts[0].table.add(refusing.network.peer_id, refusing.network.addresses(), 0.0)
        for _ in range(3):
            assert await place.dhts[0].put_value(name, value) == 0
        assert refusing.network.peer_id in place.dhts[0].table


async def test_what_cannot_be_a_key(autojump_clock: MockClock) -> None:
    async with town(1) as place:
        for key in (b"", bytes(81)):
            with pytest.raises(ValueError, match="multihash"):
                await place.dhts[0].provide(key)
            with pytest.raises(ValueError, match="multihash"):
                await place.dhts[0].provide_many([KEY, key])


async def test_many_keys_cost_few_lookups(autojump_clock: MockClock) -> None:
    async with town(50) as place:
        keys = [multihash_encode(SHA2_256, place.rng.randbytes(32)) for _ in range(300)]
        report = await place.dhts[0].provide_many(keys)
        assert (report.announced, report.records, report.refused) == (300, 6000, 0)
        assert report.lookups <= 16
        assert report.rpcs <= 22 * 300
        for key in keys[::60]:
            assert await providers(place.dhts[7], key) == [place.networks[0].peer_id]
        assert place.dhts[0].statistics().providing == 300


async def test_without_an_address_nothing_is_announced(autojump_clock: MockClock) -> None:
    async with town(5) as place:
        hidden = await place.add(network=place.fabric.add(addresses=[]))
        assert await hidden.bootstrap([place.networks[0].bootstrap_address]) == 1
        assert await hidden.provide(KEY) == 0
        assert (await hidden.provide_many([KEY])).rpcs == 0


class TestRoutingTable:
    async def test_a_candidate_that_does_not_answer_is_not_added(
        self, autojump_clock: MockClock
    ) -> None:
        async with town(3) as place:
            gone = place.fabric.add()
            gone.vanish()
            place.dhts[0]._serving.server_found(gone.as_peer)
            await trio.sleep(30.0)
            assert gone.peer_id not in place.dhts[0].table

    async def test_more_candidates_than_can_be_checked_are_dropped(
        self, autojump_clock: MockClock
    ) -> None:
        async with town(1) as place:
            for _ in range(500):
                stalled = place.fabric.add()
                stalled.is_stalled = True
                place.dhts[0]._serving.server_found(stalled.as_peer)
            await trio.sleep(200.0)
            assert not len(place.dhts[0].table)
            assert place.dhts[0].statistics().requests < 150
            await place.add()
            place.dhts[0]._serving.server_found(place.networks[1].as_peer)
            await trio.sleep(5.0)
            assert len(place.dhts[0].table) == 1

    async def test_contacts_of_earlier_days_are_tried_until_one_is_there(
        self, autojump_clock: MockClock
    ) -> None:
        async with town(4) as place:
            records = DhtRecords(None)
            absent = place.fabric.add()
            absent.vanish()
            records.contacts = (Contact(absent.peer_id, absent.addresses()),)
            dht = await place.add(records=records)
            await trio.sleep(100.0)
            assert not dht.peers()
            back = place.fabric.add(absent.peer_id, absent.addresses())
            place.dhts.append(await place.add(network=back))
            await place.dhts[-1].bootstrap([place.networks[0].bootstrap_address])
            with trio.fail_after(120.0):
                await dht.wait_settled()
            assert len(dht.peers()) == 5

    async def test_who_stops_serving_leaves_the_table(self, autojump_clock: MockClock) -> None:
        async with town(4) as place:
            await place.dhts[0].find_peer(PeerId(KEY))
            assert place.networks[1].peer_id in place.dhts[0].table
            place.networks[1].serve(on=False)
            assert place.networks[1].peer_id not in place.dhts[0].table


class Liar:
    """Answers every question with peers that are not there, near to what was asked for."""

    def __init__(self, rng: Random, network: VirtualKadNetwork) -> None:
        self.asked = 0
        self._rng = rng
        self._network = network

    def server_found(self, server: KadPeer) -> None:
        pass

    def server_lost(self, peer_id: PeerId) -> None:
        pass

    def answer(self, request: KadMessage, requester: Requester) -> KadMessage:
        self.asked += 1
        junk = [PeerId(multihash_encode(SHA2_256, self._rng.randbytes(32))) for _ in range(400)]
        junk.sort(key=lambda each: kad_id_of(each) ^ kad_id(request.key))
        told = tuple(KadPeer(each, (self._network.fabric.address(),)) for each in junk[:20])
        return KadMessage(request.type, request.key, closer=told)


class Refuser:
    """Answers questions, and refuses everything that is to be kept."""

    def __init__(self, network: VirtualKadNetwork) -> None:
        self.network = network
        self.refused = 0
        network.attach(self)
        network.serve(on=True)

    def server_found(self, server: KadPeer) -> None:
        pass

    def server_lost(self, peer_id: PeerId) -> None:
        pass

    def answer(self, request: KadMessage, requester: Requester) -> KadMessage:
        if request.type in (KadType.ADD_PROVIDER, KadType.PUT_VALUE):
            self.refused += 1
            raise RequestRefusedError("no")
        return KadMessage(request.type, request.key)


class Sybil:
    """One of many that name only each other, and provide what they do not have."""

    def __init__(self, network: VirtualKadNetwork, crowd: list[VirtualKadNetwork]) -> None:
        self._network = network
        self._crowd = crowd

    def server_found(self, server: KadPeer) -> None:
        pass

    def server_lost(self, peer_id: PeerId) -> None:
        pass

    def answer(self, request: KadMessage, requester: Requester) -> KadMessage | None:
        if request.type is KadType.ADD_PROVIDER:
            return None
        place = kad_id(request.key)
        near = sorted(self._crowd, key=lambda each: kad_id_of(each.peer_id) ^ place)
        return KadMessage(
            request.type, request.key, closer=tuple(each.as_peer for each in near[:20])
        )


class TestHostility:
    async def test_liars_that_tell_of_junk_cost_little(self, autojump_clock: MockClock) -> None:
        async with town(40) as place:
            await place.dhts[0].provide(KEY)
            liars = []
            for _ in range(6):
                network = place.fabric.add()
                liars.append(Liar(place.rng, network))
                network.attach(liars[-1])
                network.serve(on=True)
                for dht in place.dhts:
                    dht.table.add(network.peer_id, network.addresses(), trio.current_time())
            began = trio.current_time()
            for dht in place.dhts[1:6]:
                assert await providers(dht) == [place.networks[0].peer_id]
            assert trio.current_time() - began < 5 * 30.0
            assert sum(liar.asked for liar in liars) > 3

    async def test_servers_that_stall_cost_seconds(self, autojump_clock: MockClock) -> None:
        async with town(40) as place:
            await place.dhts[0].provide(KEY)
            for network in place.nearest(KEY)[::3]:
                network.is_stalled = network is not place.networks[0]
            began = trio.current_time()
            asking = next(
                dht
                for network, dht in zip(place.networks, place.dhts, strict=True)
                if network not in place.nearest(KEY)
            )
            assert await providers(asking) == [place.networks[0].peer_id]
            assert trio.current_time() - began < 10.0

    async def test_a_crowd_of_sybils_around_a_key_hides_nothing(
        self, autojump_clock: MockClock
    ) -> None:
        async with town(60, seed=5) as place:
            crowd: list[VirtualKadNetwork] = []
            while len(crowd) < 9:
                network = place.fabric.add()
                if network.peer_id in {each.peer_id for each in place.networks}:
                    continue
                near = kad_id_of(place.nearest(KEY)[19].peer_id) ^ kad_id(KEY)
                if kad_id_of(network.peer_id) ^ kad_id(KEY) > near:
                    network.vanish()
                    continue
                crowd.append(network)
                network.attach(Sybil(network, crowd))
                network.serve(on=True)
            for dht in place.dhts:
                for network in crowd:
                    dht.table.add(network.peer_id, network.addresses(), trio.current_time())
            assert await place.dhts[0].provide(KEY) >= 11
            for dht in place.dhts[1:20:3]:
                assert await providers(dht) == [place.networks[0].peer_id]

    async def test_requests_beyond_a_quota_are_refused(self, autojump_clock: MockClock) -> None:
        async with town(1) as place:
            dht, serving = place.dhts[0], place.dhts[0]._serving
            asker = Requester(PeerId(KEY), place.fabric.address())
            ping = KadMessage(KadType.PING)
            for _ in range(KAD_REQUEST_BURST):
                serving.answer(ping, asker)
            with pytest.raises(RequestRefusedError):
                serving.answer(ping, asker)
            other = Requester(PeerId(KEY), place.fabric.address())
            assert serving.answer(ping, other) == ping
            await trio.sleep(1.0)
            assert serving.answer(ping, asker) == ping
            assert dht.statistics().refused == 1


class TestSearch:
    async def test_leaving_early_ends_the_lookup(self, autojump_clock: MockClock) -> None:
        async with town(40) as place:
            await providers(place.dhts[1])
            await trio.sleep(60.0)
            asked = place.dhts[1].statistics().requests
            async with place.dhts[1].find_providers(KEY):
                pass
            await trio.sleep(10.0)
            assert place.dhts[1].statistics().requests - asked <= 10

    async def test_a_provider_without_addresses_comes_last(self, autojump_clock: MockClock) -> None:
        async with town(5) as place:
            for network, dht in zip(place.networks[1:4], place.dhts[1:4], strict=True):
                await dht.provide(KEY)
                assert network.is_serving
            await trio.sleep(25 * HOUR)  # addresses are passed on for a day only
            place.dhts[1].stop_providing([KEY])
            found = [each async for each in place.dhts[0].find_providers(KEY)]
            assert {each.peer_id for each in found} == {
                each.peer_id for each in place.networks[1:4]
            }
            assert not [each.addresses for each in found if not each.addresses][1:]

    async def test_no_more_than_were_wanted(self, autojump_clock: MockClock) -> None:
        async with town(12) as place:
            for dht in place.dhts[:6]:
                await dht.provide(KEY)
            assert len(await providers(place.dhts[9], count=4)) == 4
            assert len(await providers(place.dhts[9])) == 6


def test_a_seed_repeats_a_run() -> None:
    async def main(network: VirtualNetwork) -> tuple[object, ...]:
        async with town(20, seed=network.random("dht").randrange(1000)) as place:
            await place.dhts[0].provide(KEY)
            place.networks[3].vanish()
            await providers(place.dhts[5])
            fabric = place.fabric
            return fabric.requests, fabric.dials, fabric.records, trio.current_time()

    assert run_virtual(main, seed=3) == run_virtual(main, seed=3)
    assert run_virtual(main, seed=3) != run_virtual(main, seed=4)

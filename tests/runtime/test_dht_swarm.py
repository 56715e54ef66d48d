"""The DHT over real connections: swarms in a memory network, frames and all."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.config import DhtConfig
from sbp2p.dht import Dht, DhtRecords, SwarmNetwork, open_dht
from sbp2p.dht.swarm_network import look_reachable
from sbp2p.errors import PeerMisbehavedError, PeerUnreachableError
from sbp2p.swarm import open_swarm
from sbp2p.transport import LinkProfile, MemoryNetwork
from sbp2p_keys.identity import PrivateKey
from sbp2p_keys.multi import SHA2_256, multihash_encode
from sbp2p_protocol.framing import LengthPrefixedReader, encode_length_prefixed
from sbp2p_protocol.kad_messages import KadMessage, KadPeer, KadRecord, KadType, kad_protocol
from sbp2p_protocol.limits import KAD_MESSAGE_MAX, KAD_SERVED_STREAMS_EACH
from sbp2p_protocol.multiaddr import parse_address
from sbp2p_protocol.value_records import PK_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trio.testing import MockClock

    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_protocol.multiaddr import Address

KEYS = [PrivateKey.from_seed(bytes([number]) * 32) for number in range(1, 40)]
BLOCK = multihash_encode(SHA2_256, b"b" * 32)
KAD = kad_protocol()


def at(number: int) -> Address:
    return parse_address(f"/memory/{number + 1}").with_peer(KEYS[number].peer_id)


def now() -> float:
    return 1.8e9 + trio.current_time()


class Town:
    """Nodes in one memory network; the n-th has the n-th key and listens at /memory/n+1."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.network = MemoryNetwork(profile=LinkProfile(latency_s=0.01))
        self._stack = stack

    async def add_swarm(self, number: int) -> Swarm:
        swarm = await self._stack.enter_async_context(
            open_swarm(KEYS[number], transports=[self.network])
        )
        await swarm.listen(at(number))
        return swarm

    async def add(
        self,
        number: int,
        *,
        config: DhtConfig | None = None,
        records: DhtRecords | None = None,
        name: str = "/sbp2p",
    ) -> Dht:
        dht, _ = await self.add_both(number, config=config, records=records, name=name)
        return dht

    async def add_both(
        self,
        number: int,
        *,
        config: DhtConfig | None = None,
        records: DhtRecords | None = None,
        name: str = "/sbp2p",
    ) -> tuple[Dht, Swarm]:
        swarm = await self.add_swarm(number)
        dht = await self._stack.enter_async_context(
            open_dht(
                swarm,
                records,
                config,
                name=name,
                rng=Random(number),  # noqa: S311
                wall_clock=now,
            )
        )
        return dht, swarm


@asynccontextmanager
async def town() -> AsyncIterator[Town]:
    async with AsyncExitStack() as stack:
        yield Town(stack)


async def test_a_record_is_left_by_one_and_found_by_another(autojump_clock: MockClock) -> None:
    async with town() as place:
        nodes = [await place.add(number) for number in range(6)]
        for node in nodes[1:]:
            assert await node.bootstrap([at(0)]) == 1
        assert await nodes[1].provide(BLOCK) == 5
        found = [each async for each in nodes[5].find_providers(BLOCK)]
        assert [each.peer_id for each in found] == [KEYS[1].peer_id]
        assert found[0].addresses == (at(1).without_peer(),)
        assert await nodes[2].find_peer(KEYS[4].peer_id) == (at(4).without_peer(),)
        statistics = nodes[0].statistics()
        assert statistics.mode == "server"
        assert statistics.contacts == 5
        assert statistics.provider_records == 1


async def test_many_records_go_over_one_stream_a_server(autojump_clock: MockClock) -> None:
    keys = [multihash_encode(SHA2_256, bytes([number]) * 32) for number in range(200)]
    async with town() as place:
        nodes = [await place.add(number) for number in range(4)]
        for node in nodes[1:]:
            await node.bootstrap([at(0)])
        told: list[tuple[int, int]] = []
        report = await nodes[0].provide_many(
            keys, progress=lambda done, total: told.append((done, total))
        )
        assert (report.keys, report.announced, report.records) == (200, 200, 600)
        assert report.streams <= 12
        assert report.requests < 20
        assert told[-1] == (200, 200)
        found = [each async for each in nodes[3].find_providers(keys[77], count=1)]
        assert [each.peer_id for each in found] == [KEYS[0].peer_id]


async def test_a_value_is_put_got_and_corrected(autojump_clock: MockClock) -> None:
    owner = KEYS[30]
    key = PK_NAMESPACE + owner.peer_id.to_bytes()
    value = owner.public_key.to_protobuf()
    async with town() as place:
        nodes = [await place.add(number) for number in range(4)]
        for node in nodes[1:]:
            await node.bootstrap([at(0)])
        assert await nodes[2].get_value(key) is None
        assert await nodes[1].put_value(key, value) == 3
        found = await nodes[2].get_value(key)
        assert found is not None
        assert (found.value, found.values, found.holders) == (value, (value,), 3)
        with pytest.raises(ValueError, match="may not stand"):
            await nodes[1].put_value(key, b"something else")
        assert nodes[1].statistics().value_records == 1
        await trio.sleep(1.0)
        late = await place.add(4)
        await late.bootstrap([at(0)])
        assert (await nodes[0].get_value(key)) is not None
        await trio.sleep(1.0)
        assert late.statistics().value_records == 1


async def test_a_client_finds_and_is_not_asked(autojump_clock: MockClock) -> None:
    async with town() as place:
        servers = [await place.add(number) for number in range(3)]
        for node in servers[1:]:
            await node.bootstrap([at(0)])
        client = await place.add(3, config=DhtConfig(mode="client"))
        assert await client.bootstrap([at(0)]) == 1
        assert await client.provide(BLOCK) == 3
        assert client.mode == "client"
        assert all(KEYS[3].peer_id not in node.table for node in servers)
        assert [each.peer_id async for each in servers[1].find_providers(BLOCK)] == [
            KEYS[3].peer_id
        ]
        # who is connected is told of, server or not
        assert await servers[2].find_peer(KEYS[3].peer_id) == (at(3).without_peer(),)


async def test_the_mode_follows_what_is_found_out(autojump_clock: MockClock) -> None:
    async with town() as place:
        first, _ = await place.add_both(0)
        second, swarm = await place.add_both(1)
        await swarm.connect([at(0)])
        await trio.sleep(1.0)
        assert KEYS[1].peer_id in first.table
        second.set_reachable(False)
        await trio.sleep(1.0)
        assert second.mode == "client"
        assert KEYS[1].peer_id not in first.table
        second.set_reachable(None)
        await trio.sleep(1.0)
        assert KEYS[1].peer_id in first.table


async def test_who_does_not_listen_yet_is_a_client_until_it_does(
    autojump_clock: MockClock,
) -> None:
    async with AsyncExitStack() as stack:
        place = Town(stack)
        swarm = await stack.enter_async_context(open_swarm(KEYS[0], transports=[place.network]))
        dht = await stack.enter_async_context(open_dht(swarm))
        assert dht.mode == "client"
        assert await dht.provide(BLOCK) == 0
        await swarm.listen(at(0))
        await trio.sleep(6.0)
        assert dht.mode == "server"


@pytest.mark.parametrize(
    ("listening", "confirmed", "reachable"),
    [
        ([], False, False),
        ([], True, False),
        (["/ip4/127.0.0.1/tcp/1"], False, True),
        (["/ip4/127.0.0.1/tcp/1", "/ip4/45.9.9.9/tcp/1"], False, False),
        (["/ip4/127.0.0.1/tcp/1", "/ip4/45.9.9.9/tcp/1"], True, True),
        (["/ip4/127.0.0.1/tcp/1", "/ip4/10.1.1.1/tcp/1"], False, True),
        (["/ip6/fe80::1/tcp/1"], False, False),
    ],
)
def test_where_a_node_listens_tells_whether_it_may_be_a_server(
    listening: list[str], confirmed: bool, reachable: bool
) -> None:
    addresses = [parse_address(text) for text in listening]
    assert look_reachable(addresses, confirmed=confirmed) is reachable


async def test_networks_do_not_mix(autojump_clock: MockClock) -> None:
    async with town() as place:
        ours = await place.add(0)
        theirs = await place.add(1, name="/other")
        assert await theirs.bootstrap([at(0)]) == 0
        await trio.sleep(1.0)
        assert not ours.peers()
        assert not theirs.peers()


async def test_contacts_and_records_outlive_a_restart(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    path = tmp_path / "dht.sqlite"
    async with town() as place:
        others = [await place.add(number) for number in (1, 2, 3, 4)]
        for other in others[1:]:
            await other.bootstrap([at(1)])
        async with town() as inner:
            inner.network = place.network
            records = DhtRecords.open(path, now())
            node = await inner.add(0, records=records)
            await node.bootstrap([at(1)])
            await others[3].provide(BLOCK)
            assert node.statistics().provider_records == 1
        records.close()
        records = DhtRecords.open(path, now())
        node = await place.add(0, records=records)
        with trio.fail_after(10.0):
            await node.wait_settled()
        assert {each.peer_id for each in node.peers()} == {KEYS[n].peer_id for n in (1, 2, 3, 4)}
        found = [each async for each in node.find_providers(BLOCK, count=1)]
        assert found[0].peer_id == KEYS[4].peer_id
    records.close()


# -- the wire --------------------------------------------------------------------------------------


async def ask(stream: Stream, *messages: KadMessage) -> list[KadMessage]:
    """Send requests one after the other; return the answers up to the end of the stream."""
    reader = LengthPrefixedReader(KAD_MESSAGE_MAX)
    replies = []
    for message in messages:
        await stream.send_all(message.encode())
    await stream.send_eof()
    while data := await stream.receive_some():
        reader.feed(data)
        while (frame := reader.next()) is not None:
            replies.append(KadMessage.decode(frame))
    return replies


async def test_one_stream_carries_many_requests(autojump_clock: MockClock) -> None:
    async with town() as place:
        await place.add(0)
        swarm = await place.add_swarm(1)
        await swarm.connect([at(0)])
        own = KadPeer(KEYS[1].peer_id, (at(1).without_peer(),))
        stream = await swarm.open_stream(KEYS[0].peer_id, [KAD])
        replies = await ask(
            stream,
            KadMessage(KadType.PING),
            KadMessage(KadType.ADD_PROVIDER, BLOCK, providers=(own,)),
            KadMessage(KadType.GET_PROVIDERS, BLOCK),
            KadMessage(KadType.FIND_NODE, KEYS[0].peer_id.to_bytes()),
        )
        assert [reply.type for reply in replies] == [
            KadType.PING,
            KadType.GET_PROVIDERS,
            KadType.FIND_NODE,
        ]
        assert replies[1].providers == (own,)


@pytest.mark.parametrize(
    "sent",
    [
        encode_length_prefixed(b"\xff\xff"),
        KadMessage(KadType.PUT_VALUE, b"/pk/x", KadRecord(b"/pk/y", b"")).encode(),
        KadMessage(KadType.ADD_PROVIDER, BLOCK, providers=(KadPeer(KEYS[5].peer_id),)).encode(),
        b"\xff\xff\xff\xff\x7f",
    ],
)
async def test_what_no_honest_peer_sends_resets_the_stream_and_is_held_against_it(
    autojump_clock: MockClock, sent: bytes
) -> None:
    async with town() as place:
        dht = await place.add(0)
        swarm = await place.add_swarm(1)
        for _ in range(3):
            await swarm.connect([at(0)])
            async with await swarm.open_stream(KEYS[0].peer_id, [KAD]) as stream:
                await stream.send_all(sent)
                with pytest.raises(trio.BrokenResourceError):
                    await stream.receive_some()
        await trio.sleep(1.0)
        assert not swarm.peers()
        assert dht.statistics().served == 0


async def test_streams_of_one_peer_are_bounded(autojump_clock: MockClock) -> None:
    async with town() as place:
        await place.add(0)
        swarm = await place.add_swarm(1)
        await swarm.connect([at(0)])
        streams = [
            await swarm.open_stream(KEYS[0].peer_id, [KAD]) for _ in range(KAD_SERVED_STREAMS_EACH)
        ]
        await streams[0].send_all(KadMessage(KadType.PING).encode())
        assert await streams[0].receive_some()
        with pytest.raises(PeerUnreachableError, match="reset"):
            await swarm.open_stream(KEYS[0].peer_id, [KAD])
        streams[0].reset()
        await trio.sleep(1.0)
        again = await swarm.open_stream(KEYS[0].peer_id, [KAD])
        assert len(await ask(again, KadMessage(KadType.PING))) == 1
        # one that asks nothing is closed after a minute
        await trio.sleep(70.0)
        with pytest.raises(trio.BrokenResourceError):
            await streams[1].receive_some()


class TestAsking:
    """Our side of a request, against handlers that do as they like."""

    async def test_streams_are_used_again_and_closed_when_idle(
        self, autojump_clock: MockClock
    ) -> None:
        opened = 0

        async def answer(stream: Stream) -> None:
            nonlocal opened
            opened += 1
            while await stream.receive_some():
                await stream.send_all(KadMessage(KadType.PING).encode())

        async with town() as place:
            server, swarm = await place.add_swarm(0), await place.add_swarm(1)
            server.handle(KAD, answer)
            network = SwarmNetwork(swarm, DhtConfig())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(network.run)
                for _ in range(5):
                    await network.request(KEYS[0].peer_id, [at(0)], KadMessage(KadType.PING))
                assert opened == 1
                await trio.sleep(30.0)
                # the connection was dialled for the DHT alone
                assert not swarm.peers()
                await network.request(KEYS[0].peer_id, [at(0)], KadMessage(KadType.PING))
                assert opened == 2
                nursery.cancel_scope.cancel()

    async def test_a_stream_that_the_peer_has_ended_is_replaced(
        self, autojump_clock: MockClock
    ) -> None:
        async def answer_once(stream: Stream) -> None:
            await stream.receive_some()
            await stream.send_all(KadMessage(KadType.PING).encode())

        async with town() as place:
            server, swarm = await place.add_swarm(0), await place.add_swarm(1)
            server.handle(KAD, answer_once)
            network = SwarmNetwork(swarm, DhtConfig())
            for _ in range(3):
                await network.request(KEYS[0].peer_id, [at(0)], KadMessage(KadType.PING))

    async def test_one_that_does_not_answer_costs_the_timeout(
        self, autojump_clock: MockClock
    ) -> None:
        async def stall(stream: Stream) -> None:
            await trio.sleep_forever()

        async with town() as place:
            server, swarm = await place.add_swarm(0), await place.add_swarm(1)
            server.handle(KAD, stall)
            network = SwarmNetwork(swarm, DhtConfig(request_timeout_s=3.0))
            began = trio.current_time()
            with pytest.raises(PeerUnreachableError, match="within 3 s"):
                await network.request(KEYS[0].peer_id, [at(0)], KadMessage(KadType.PING))
            assert trio.current_time() - began == pytest.approx(3.0)

    @pytest.mark.parametrize(
        "answer",
        [
            KadMessage(KadType.FIND_NODE, b"k").encode(),
            KadMessage(KadType.GET_VALUE, b"other").encode(),
            2 * KadMessage(KadType.GET_VALUE, b"k").encode(),
            encode_length_prefixed(b"\xff"),
            b"\xff\xff\xff\xff\x7f",
        ],
    )
    async def test_what_is_no_answer_is_held_against_the_peer(
        self, autojump_clock: MockClock, answer: bytes
    ) -> None:
        async def reply(stream: Stream) -> None:
            await stream.receive_some()
            await stream.send_all(answer)
            await trio.sleep_forever()

        async with town() as place:
            server, swarm = await place.add_swarm(0), await place.add_swarm(1)
            server.handle(KAD, reply)
            network = SwarmNetwork(swarm, DhtConfig())
            for _ in range(3):
                with pytest.raises(PeerMisbehavedError):
                    await network.request(
                        KEYS[0].peer_id, [at(0)], KadMessage(KadType.GET_VALUE, b"k")
                    )
            with pytest.raises(PeerUnreachableError, match="banned"):
                await network.request(KEYS[0].peer_id, [at(0)], KadMessage(KadType.PING))

    async def test_who_cannot_be_reached_or_serves_no_dht(self, autojump_clock: MockClock) -> None:
        async with town() as place:
            await place.add_swarm(0)
            swarm = await place.add_swarm(1)
            network = SwarmNetwork(swarm, DhtConfig())
            ping = KadMessage(KadType.PING)
            for number, addresses, error in (
                (0, [at(0)], "does not speak"),
                (7, [at(7)], "cannot reach"),
                (7, [], "no address"),
                (7, [at(0)], "different peers"),
            ):
                with pytest.raises(PeerUnreachableError, match=error):
                    await network.request(KEYS[number].peer_id, addresses, ping)
            with pytest.raises(PeerUnreachableError):
                await network.send(KEYS[9].peer_id, [at(9)], [ping])

    async def test_a_peer_that_echoes_records_does_not_stop_them(
        self, autojump_clock: MockClock
    ) -> None:
        received = 0

        async def echo(stream: Stream) -> None:
            nonlocal received
            while data := await stream.receive_some():
                received += len(data)
                await stream.send_all(bytes(data))

        async with town() as place:
            server, swarm = await place.add_swarm(0), await place.add_swarm(1)
            server.handle(KAD, echo)
            network = SwarmNetwork(swarm, DhtConfig())
            own = KadPeer(KEYS[1].peer_id, (at(1).without_peer(),))
            messages = [
                KadMessage(KadType.ADD_PROVIDER, number.to_bytes(34), providers=(own,))
                for number in range(8000)
            ]
            await network.send(KEYS[0].peer_id, [at(0)], messages)
            assert received == sum(len(each.encode()) for each in messages)

    async def test_a_peer_that_takes_no_records(self, autojump_clock: MockClock) -> None:
        async def refuse(stream: Stream) -> None:
            await stream.receive_some()
            stream.reset()

        async with town() as place:
            server, swarm = await place.add_swarm(0), await place.add_swarm(1)
            server.handle(KAD, refuse)
            network = SwarmNetwork(swarm, DhtConfig())
            with pytest.raises(PeerUnreachableError):
                await network.send(KEYS[0].peer_id, [at(0)], [KadMessage(KadType.PING)] * 5)

    async def test_connections_of_the_dht_are_few(self, autojump_clock: MockClock) -> None:
        async with town() as place:
            for number in range(6):
                await place.add(number)
            swarm = await place.add_swarm(10)
            network = SwarmNetwork(swarm, DhtConfig(max_connections=3))
            for number in range(6):
                await network.request(KEYS[number].peer_id, [at(number)], KadMessage(KadType.PING))
                await trio.sleep(0.1)
                assert len(swarm.peers()) <= 3

"""Peers that do what no honest peer does: the transfer goes on, and nobody honest pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.transport import LinkProfile
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.exchange_events import Subscribed, VersionWanted
from sbp2p_protocol.exchange_messages import (
    PROTOCOL_ID,
    SWARM_FEATURE,
    Choke,
    Got,
    HaveAll,
    Hello,
    Message,
    NotFound,
    Peers,
    Request,
    Subscribe,
    Wants,
    encode_message,
)
from sbp2p_protocol.exchange_server import ExchangeServer
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.limits import (
    BLOCK_MAX,
    EXCHANGE_BITMAP_CHUNK,
    EXCHANGE_RECORDS_BATCH,
    EXCHANGE_RECORDS_RATE,
    EXCHANGE_WANTS_MAX,
    VERSION_LEAVES_MAX,
)
from sbp2p_protocol.multiaddr import parse_address
from sbp2p_protocol.peer_record import seal_peer_record
from tests.runtime.exchange_lab import (
    BLOCK,
    BadSeed,
    Lab,
    LabNode,
    Version,
    open_lab,
    small_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trio.testing import MockClock

    from sbp2p.exchange import FetchResult, Source
    from sbp2p.stream import Stream

SLOW = LinkProfile(latency_s=0.01, bytes_per_s=20 * BLOCK, capacity_bytes=4 * BLOCK)
HELLO = Hello(1, (SWARM_FEATURE,), 16 * BLOCK_MAX, 1000)


def frame(*messages: Message) -> bytes:
    return b"".join(encode_length_prefixed(encode_message(each)) for each in messages)


async def get_beside(lab: Lab, version: Version, bad: Source) -> tuple[LabNode, FetchResult]:
    """Fetch from an honest seed and a bad peer; the honest one is thought well of afterwards."""
    seed, leech = await lab.node(), await lab.node()
    await seed.publish(version)
    result = await leech.get(version, bad, seed)
    version.assert_at(leech.out)
    assert seed.key.peer_id in leech.swarm.peers(), "an honest peer is never banned"
    assert leech.key.peer_id in seed.swarm.peers(), "an honest peer is never banned"
    return leech, result


async def test_one_that_claims_everything_and_rejects_all_of_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(60)
    liar = BadSeed(version, lacks=frozenset(range(60)))
    async with open_lab(tmp_path, profile=SLOW) as lab:
        _, source = await lab.serve(liar.handle)
        await get_beside(lab, version, source)
        assert max(liar.requested.count(index) for index in range(60)) <= 2


async def test_one_that_stalls_at_the_last_percent(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(60)
    staller = BadSeed(version, silent_after=20)
    async with open_lab(tmp_path, profile=SLOW) as lab:
        _, source = await lab.serve(staller.handle)
        started = trio.current_time()
        await get_beside(lab, version, source)
        assert trio.current_time() - started < 15


async def test_one_that_sends_a_byte_now_and_then(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(30)

    async def drip(stream: Stream) -> None:
        server = ExchangeServer(max_outstanding_bytes=16 * BLOCK_MAX)
        await stream.send_all(server.data_to_send())
        told = False
        while True:
            server.receive_data(await stream.receive_some())
            while (event := server.next_event()) is not None:
                if not isinstance(event, Subscribed) or told:
                    continue
                told = True
                await stream.send_all(frame(HaveAll(event.subscription)))
            wanted = server.next_wanted()
            if wanted is not None and wanted.cid is None:
                break
        index = version.table.index(wanted.digest)
        assert index is not None
        header = server.block_header(wanted.digest, version.table.length(index))
        for byte in header + version.block(index):
            await stream.send_all(bytes([byte]))
            await trio.sleep(1)

    async with open_lab(tmp_path, profile=SLOW) as lab:
        _, source = await lab.serve(drip)
        started = trio.current_time()
        await get_beside(lab, version, source)
        assert trio.current_time() - started < 25


async def test_wrong_blocks_ban_their_sender_and_nobody_else(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(60)
    bad = BadSeed(version, corrupt=frozenset(range(60)))
    async with open_lab(tmp_path, profile=SLOW) as lab:
        _, source = await lab.serve(bad.handle)
        leech, result = await get_beside(lab, version, source)
        blamed = [each.peer_id for each in result.sources if each.blocks_bad]
        if bad.sent:
            assert blamed == [source.peer_id]
            assert source.peer_id not in leech.swarm.peers()


def forged(record: bytes) -> bytes:
    return record[:-1] + bytes([record[-1] ^ 1])


async def tells(records: Callable[[], list[bytes]], version: Version, stream: Stream) -> None:
    """Serve nothing, and tell of peers once asked about the version."""
    await stream.send_all(frame(HELLO))
    server = ExchangeServer(max_outstanding_bytes=16 * BLOCK_MAX)
    while not server.closed:
        data = await stream.receive_some()
        if not data:
            return
        server.receive_data(data)
        while (event := server.next_event()) is not None:
            if isinstance(event, VersionWanted):
                await stream.send_all(frame(NotFound(event.request)))
            elif isinstance(event, Subscribed):
                batch = EXCHANGE_RECORDS_BATCH
                found = records()
                for at in range(0, len(found), batch):
                    told = Peers(version.manifest.root, tuple(found[at : at + batch]))
                    await stream.send_all(frame(told))


def record_of(number: int) -> bytes:
    key = PrivateKey.from_seed(number.to_bytes(32, "big"))
    address = parse_address(f"/memory/{10_000 + number}").to_bytes()
    return seal_peer_record(key, 1, (address,))


async def test_a_record_that_nobody_signed_is_blamed_on_who_passed_it_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(60)
    async with open_lab(tmp_path, profile=SLOW) as lab:

        async def handle(stream: Stream) -> None:
            await tells(lambda: [forged(record_of(1))], version, stream)

        _, source = await lab.serve(handle)
        leech, result = await get_beside(lab, version, source)
        del leech
        assert not any(each.connected for each in result.sources if each.peer_id == source.peer_id)


async def test_a_flood_of_peers_that_do_not_exist(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(60)
    count = EXCHANGE_RECORDS_RATE + 40
    async with open_lab(tmp_path, profile=SLOW) as lab:

        async def handle(stream: Stream) -> None:
            await tells(lambda: [record_of(number) for number in range(count)], version, stream)

        _, source = await lab.serve(handle)
        leech, _ = await get_beside(lab, version, source)
        assert leech.swarm.statistics().dials <= 3 * EXCHANGE_RECORDS_RATE


@pytest.mark.parametrize(
    "messages",
    [
        [Got(1, (VERSION_LEAVES_MAX - 1,)), Got(1, (10**6, 0, 0, 7))],
        [Wants(1, VERSION_LEAVES_MAX // 8 * 8 - 8 * EXCHANGE_BITMAP_CHUNK, b"\xff" * 100)],
        [Wants(9, 0, b"\xff"), Got(9, (0,))],
        [
            Wants(1, 8 * n * EXCHANGE_BITMAP_CHUNK, b"\xff" * EXCHANGE_BITMAP_CHUNK)
            for n in range(5)
        ],
    ],
    ids=["gains beyond the version", "wants far away", "no subscription", "wants without end"],
)
async def test_nonsense_about_wants_and_gains_is_ignored(
    tmp_path: Path, autojump_clock: MockClock, messages: list[Message]
) -> None:
    version = small_version(30)
    async with open_lab(tmp_path, profile=SLOW) as lab:
        seed, leech, other = await lab.node(), await lab.node(), await lab.node()
        await seed.publish(version)
        await other.swarm.connect(seed.addresses)
        stream = await other.swarm.open_stream(seed.key.peer_id, [PROTOCOL_ID])
        await stream.send_all(frame(HELLO, Subscribe(1, version.manifest.root), *messages))
        await leech.get(version, seed)
        version.assert_at(leech.out)
        (session,) = [s for s in seed.exchange._serving if s.peer_id == other.key.peer_id]
        assert session._wants_bytes <= EXCHANGE_WANTS_MAX


async def test_one_that_asks_for_all_and_never_reads_starves_nobody(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(60)
    async with open_lab(tmp_path, profile=SLOW) as lab:
        seed, leech = await lab.node(), await lab.node()
        greedy = [await lab.node() for _ in range(4)]
        await seed.publish(version)
        digests = tuple(version.table.digest(index) for index in range(len(version.table)))
        for other in greedy:
            await other.swarm.connect(seed.addresses)
            stream = await other.swarm.open_stream(seed.key.peer_id, [PROTOCOL_ID])
            await stream.send_all(frame(HELLO, Subscribe(1, version.manifest.root)))
            await stream.send_all(frame(Request(digests)))
        started = trio.current_time()
        await leech.get(version, seed)
        assert trio.current_time() - started < 60


async def test_one_that_chokes_and_unchokes_all_the_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(40)

    async def flip(stream: Stream) -> None:
        await stream.send_all(frame(HELLO))
        for _ in range(500):
            await stream.send_all(frame(Choke(choked=True), Choke(choked=False)))
            await trio.sleep(0.01)

    async with open_lab(tmp_path, profile=SLOW) as lab:
        _, source = await lab.serve(flip)
        await get_beside(lab, version, source)

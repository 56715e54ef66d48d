from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.config import SwarmConfig
from sbp2p.errors import NotFoundError, PeerMisbehavedError, PeerUnreachableError
from sbp2p.exchange import Source
from sbp2p.exchange.reading import BlockBuffers
from sbp2p.swarm import VIOLATION_POINTS, Gate
from sbp2p.transport import LinkProfile
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.exchange_messages import (
    PROTOCOL_ID,
    Goodbye,
    GoodbyeCode,
    HaveAll,
    Hello,
    Message,
    NotFound,
    Reject,
    RejectReason,
    Request,
    Subscribe,
    decode_message,
    encode_message,
)
from sbp2p_protocol.framing import LengthPrefixedReader, encode_length_prefixed
from sbp2p_protocol.limits import BLOCK_MAX, EXCHANGE_FRAME_MAX
from tests.runtime.exchange_lab import (
    BLOCK,
    PUBLISHER,
    BadSeed,
    make_version,
    open_lab,
    small_version,
)
from tests.runtime.store_samples import noise

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from sbp2p.stream import Stream


async def test_wrong_block_bans_its_sender_and_comes_from_another(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(30)
    bad = BadSeed(version, corrupt=frozenset({7}))
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(bad.handle)
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        result = await leech.get(version, source, seed)
        version.assert_at(leech.out)
        if 7 in bad.sent:
            by_peer = {each.peer_id: each for each in result.sources}
            assert by_peer[source.peer_id].blocks_bad >= 1
            assert source.peer_id not in leech.swarm.peers()
            with pytest.raises(PeerUnreachableError, match="ban"):
                await leech.swarm.connect(source.addresses)


async def test_only_wrong_blocks_means_no_peer_is_left(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(10)
    bad = BadSeed(version, corrupt=frozenset({3}))
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(bad.handle)
        leech = await lab.node()
        started = trio.current_time()
        with pytest.raises(PeerMisbehavedError, match="block 3 does not match its hash") as caught:
            await leech.get(version, source)
        assert "blocks are missing" in str(caught.value)
        assert trio.current_time() - started < 2, "nobody is left to wait for"
        assert bad.streams == 1
        assert leech.store.have_bitmap(version.table).get(3) is False


async def test_wrong_tree_node_bans_its_sender(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(10)
    bad = BadSeed(version, corrupt_nodes=True)
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(bad.handle)
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        send, arrivals = trio.open_memory_channel[Source](0)

        async def arrive() -> None:
            await trio.sleep(3)
            await send.send(seed.source)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(arrive)
            await leech.exchange.fetch(version.link, leech.out, sources=[source], arrivals=arrivals)
        version.assert_at(leech.out)
        assert bad.streams == 1


async def test_lying_bitmap_costs_a_reject(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(30)
    liar = BadSeed(version, lacks=frozenset(range(0, 30, 2)))
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(liar.handle)
        partial, leech = await lab.node(), await lab.node()
        partial.have(version, list(range(0, 30, 2)))
        await leech.get(version, source, partial)
        version.assert_at(leech.out)
        assert max(liar.requested.count(index) for index in range(30)) == 1


async def test_peer_with_nothing_it_says_is_let_go(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbp2p.exchange.scheduler._LIES_MAX", 64)
    version = small_version(100)
    liar = BadSeed(version, lacks=frozenset(range(100)))
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(liar.handle)
        leech = await lab.node(patience_s=60.0)
        with pytest.raises(NotFoundError, match=r"100 of 100.*none of 1 connected"):
            await leech.get(version, source)
        assert liar.streams == 2
        assert len(liar.requested) == 100  # it is not asked again for what it lacked
        assert trio.current_time() < 3


@pytest.mark.parametrize("blocks", [30, 300])
@pytest.mark.parametrize("lost", [(0, 1, 2), (1,)])
async def test_files_that_a_seed_lost_are_not_waited_for(
    tmp_path: Path, autojump_clock: MockClock, blocks: int, lost: tuple[int, ...]
) -> None:
    size = blocks // 3 * BLOCK
    version = make_version({f"f{number}": noise(f"f{number}", size) for number in range(3)})
    async with open_lab(tmp_path) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        for number in lost:
            (seed.home / "published-1" / f"f{number}").unlink()
        missing = len(lost) * blocks // 3
        began = trio.current_time()
        with pytest.raises(NotFoundError, match=f"{missing} of {blocks} blocks are missing"):
            await leech.get(version, seed)
        assert trio.current_time() - began < 1


async def test_what_one_seed_lost_another_may_still_gain(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(30)
    liar = BadSeed(version, lacks=frozenset({3, 4}))
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(liar.handle)
        late, leech = await lab.node(), await lab.node()
        late.have(version, [0, 1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leech.get, version, source, late)
            await trio.sleep(5)
            await late.publish(version)
        version.assert_at(leech.out)


async def test_silent_peer_loses_its_requests(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(30)
    silent = BadSeed(version, silent_after=2)
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(silent.handle)
        seed, leech = await lab.node(), await lab.node()
        seed.have(version, list(range(30)))
        started = trio.current_time()
        await leech.get(version, source, seed)
        version.assert_at(leech.out)
        assert trio.current_time() - started < 12


async def test_stall_at_the_last_block(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(30)
    silent = BadSeed(version, silent_after=29)
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(silent.handle)
        partial, leech = await lab.node(), await lab.node()
        partial.have(version, list(range(30)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leech.get, version, source, partial)
        version.assert_at(leech.out)


async def test_only_peer_stalls_for_ever(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(10)
    silent = BadSeed(version, silent_after=5)
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(silent.handle)
        leech = await lab.node()
        started = trio.current_time()
        with pytest.raises(PeerUnreachableError, match="5 of 10 blocks are missing"):
            await leech.get(version, source)
        assert 29 < trio.current_time() - started < 35


async def test_own_standstill_is_held_against_nobody(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = make_version({"w": noise("w", 40 * 65536)}, block=65536)
    profile = LinkProfile(latency_s=0.01, bytes_per_s=1e6)
    async with open_lab(tmp_path, profile=profile, patience_s=5.0) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)

        async def stand_still() -> None:
            await trio.sleep(1)
            autojump_clock.jump(25)  # as after Ctrl-Z and fg: nothing ran meanwhile

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stand_still)
            result = await leech.get(version, seed)
        version.assert_at(leech.out)
        assert result.sources[0].stalls == 0


async def test_peer_that_lets_others_in_only(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(3)
    async with open_lab(tmp_path) as lab:
        seed = await lab.node(gate=Gate(allow=frozenset({PUBLISHER.peer_id})))
        leech = await lab.node()
        with pytest.raises(PeerUnreachableError, match="may be full, or serve only peers it knows"):
            await leech.get(version, seed)


async def test_late_blocks_are_taken(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(6)
    slow = BadSeed(version, delay_s=11.0)  # each block comes after the deadline
    async with open_lab(tmp_path, patience_s=60.0) as lab:
        _, source = await lab.serve(slow.handle)
        leech = await lab.node()
        result = await leech.get(version, source)
        version.assert_at(leech.out)
        assert result.sources[0].stalls >= 1
        assert len(slow.sent) == 6


async def test_slow_peer_does_not_hold_up_the_end(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(40)
    slow = BadSeed(version, delay_s=5.0)
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(slow.handle)
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        started = trio.current_time()
        result = await leech.get(version, source, seed)
        version.assert_at(leech.out)
        assert trio.current_time() - started < 10  # alone it would take 200 s
        assert result.bytes_useless <= 2 * BLOCK


async def test_peer_that_leaves_is_replaced_and_tried_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(30)
    leaving = BadSeed(version, leaves_after=5)
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(leaving.handle)
        leech = await lab.node(patience_s=60.0)
        result = await leech.get(version, source)
        version.assert_at(leech.out)
        assert leaving.streams == 6  # five blocks each time
        assert result.sources[0].blocks_verified == 30


async def test_busy_peer_is_asked_again_later(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(10)
    busy = BadSeed(version, busy_times=25)
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(busy.handle)
        leech = await lab.node()
        result = await leech.get(version, source)
        version.assert_at(leech.out)
        assert result.sources[0].blocks_rejected == 25


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xff\xff\xff",
        b"\x05hello",
        encode_length_prefixed(encode_message(HaveAll(1))),
        encode_length_prefixed(encode_message(Hello(1, (), BLOCK_MAX, 1)))
        + encode_length_prefixed(encode_message(NotFound(77))),
        encode_length_prefixed(encode_message(Goodbye(GoodbyeCode.REFUSED, "full"))),
        b"",
    ],
)
async def test_peer_that_talks_nonsense(
    tmp_path: Path, autojump_clock: MockClock, answer: bytes
) -> None:
    version = small_version(5)

    async def talk(stream: Stream) -> None:
        await stream.send_all(answer)
        await stream.send_eof()
        await trio.sleep_forever()

    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(talk)
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        await leech.get(version, source, seed)
        version.assert_at(leech.out)


async def test_peer_that_never_says_hello(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(5)

    async def hold(_stream: Stream) -> None:
        await trio.sleep_forever()

    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(hold)
        leech = await lab.node()
        started = trio.current_time()
        with pytest.raises(PeerUnreachableError, match=r"none of 1 peers.*not answer"):
            await leech.get(version, source)
        assert trio.current_time() - started < 35


async def test_peers_that_only_talk_nonsense_are_to_blame(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(5)

    async def talk(stream: Stream) -> None:
        await stream.send_all(b"\x05hello")
        await trio.sleep_forever()

    async with open_lab(tmp_path) as lab:
        sources = [source for _, source in [await lab.serve(talk), await lab.serve(talk)]]
        leech = await lab.node()
        with pytest.raises(PeerMisbehavedError, match=r"none of 2 peers.*broke the protocol"):
            await leech.get(version, *sources)
        # who is only not there may be tried again, so then nobody is blamed
        with pytest.raises(PeerUnreachableError, match="broke the protocol"):
            await leech.get(version, *sources, Source(PrivateKey.from_seed(b"n" * 32).peer_id))


# -- the serving side against bad askers --------------------------------------------------------


class Asker:
    """Speaks to a node's exchange by hand."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._reader = LengthPrefixedReader(EXCHANGE_FRAME_MAX)

    async def say(self, *messages: Message) -> None:
        for message in messages:
            await self.stream.send_all(encode_length_prefixed(encode_message(message)))

    async def hear(self) -> Message | None:
        """Return the next message; None at the end of the stream."""
        while (frame := self._reader.next()) is None:
            data = await self.stream.receive_some()
            if not data:
                return None
            self._reader.feed(data)
        return decode_message(frame)


async def test_what_is_not_there_is_rejected(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = small_version(5)
    async with open_lab(tmp_path) as lab:
        seed, other = await lab.node(), await lab.node()
        await seed.publish(version)
        await other.swarm.connect(seed.addresses)
        asker = Asker(await other.swarm.open_stream(seed.key.peer_id, [PROTOCOL_ID]))
        absent = bytes(32)
        await asker.say(Hello(1, (), BLOCK_MAX, 1), Request((absent,)))
        assert isinstance(await asker.hear(), Hello)
        assert await asker.hear() == Reject((absent,), RejectReason.NOT_HAVE)
        # a file that changed under the seed is never served
        (seed.home / "published-1" / "a/weights.bin").write_bytes(noise("other", 3 * BLOCK + 17))
        index = version.table.blocks_of_files([version.table.file_number("a/weights.bin") or 0])
        digest = version.table.digest(next(iter(index)))
        await asker.say(Request((digest,)))
        assert await asker.hear() == Reject((digest,), RejectReason.CHANGED)


async def test_garbage_resets_the_stream_and_costs_points(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_lab(tmp_path) as lab:
        seed, other = await lab.node(), await lab.node()
        await other.swarm.connect(seed.addresses)
        for _ in range(math.ceil(SwarmConfig().ban_score / VIOLATION_POINTS)):
            assert other.swarm.peers() == [seed.key.peer_id]
            stream = await other.swarm.open_stream(seed.key.peer_id, [PROTOCOL_ID])
            await stream.send_all(b"\x03abc")
            await trio.sleep(1)
        assert other.swarm.peers() == []


async def test_asker_that_never_reads_is_not_read_from(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_lab(tmp_path) as lab:
        seed, other = await lab.node(), await lab.node()
        await other.swarm.connect(seed.addresses)
        stream = await other.swarm.open_stream(seed.key.peer_id, [PROTOCOL_ID])
        asker = Asker(stream)
        await asker.say(Hello(1, (), BLOCK_MAX, 1))
        sent = 0
        with trio.move_on_after(30):
            for number in range(20_000):
                digests = [(number * 100 + n).to_bytes(32, "big") for n in range(100)]
                await asker.say(Request(tuple(digests)))
                sent += 1
        assert sent < 2_000


async def test_more_streams_than_allowed_are_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_lab(tmp_path, max_serving_streams=2) as lab:
        seed, other = await lab.node(), await lab.node()
        await other.swarm.connect(seed.addresses)
        askers = [
            Asker(await other.swarm.open_stream(seed.key.peer_id, [PROTOCOL_ID])) for _ in range(3)
        ]
        for asker in askers:
            await asker.say(Hello(1, (), BLOCK_MAX, 1))
        assert isinstance(await askers[0].hear(), Hello)
        assert isinstance(await askers[1].hear(), Hello)
        assert isinstance(await askers[2].hear(), Hello)
        farewell = await askers[2].hear()
        assert isinstance(farewell, Goodbye)
        assert farewell.code is GoodbyeCode.REFUSED


async def test_follower_of_an_unknown_root_hears_when_it_is_published(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = small_version(5)
    async with open_lab(tmp_path) as lab:
        seed, other = await lab.node(), await lab.node()
        await other.swarm.connect(seed.addresses)
        asker = Asker(await other.swarm.open_stream(seed.key.peer_id, [PROTOCOL_ID]))
        await asker.say(Hello(1, (), BLOCK_MAX, 1), Subscribe(1, version.manifest.root))
        assert isinstance(await asker.hear(), Hello)
        assert await asker.hear() == NotFound(1)
        await seed.publish(version)
        assert await asker.hear() == HaveAll(1)


async def test_slow_reader_and_fast_reader_share_a_seed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    version = make_version({"w": noise("w", 20 * 65536)}, block=65536)
    profile = LinkProfile(latency_s=0.01, bytes_per_s=1e6)
    async with open_lab(
        tmp_path, profile=profile, serve_memory_bytes=4 * BLOCK_MAX, pipeline_bytes=BLOCK_MAX
    ) as lab:
        seed = await lab.node()
        await seed.publish(version)
        leeches = [await lab.node() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for leech in leeches:
                nursery.start_soon(leech.get, version, seed)
        for leech in leeches:
            version.assert_at(leech.out)


def test_buffers_are_reused_and_bounded() -> None:
    buffers = BlockBuffers(2 * BLOCK_MAX)
    first = buffers.take()
    assert not buffers.crowded
    second, third = buffers.take(), buffers.take()
    assert buffers.crowded
    for buffer in (first, second, third):
        buffers.give(buffer)
    assert not buffers.crowded
    again = {id(buffers.take()) for _ in range(2)}
    assert again == {id(first), id(second)}

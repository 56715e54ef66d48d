"""A peer that fills its stream with short messages does not stop the event loop."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.errors import Sbp2pError
from sbp2p_protocol.exchange_messages import (
    PROTOCOL_ID,
    Cancel,
    Goodbye,
    GoodbyeCode,
    Have,
    HaveAll,
    Hello,
    Message,
    Subscribe,
    Unsubscribe,
    encode_message,
)
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.limits import EXCHANGE_SLICE_FRAMES, MIB
from tests.runtime.exchange_lab import open_lab, small_version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trio.testing import MockClock

    from sbp2p.stream import Stream


def frame(message: Message) -> bytes:
    return encode_length_prefixed(encode_message(message))


UNKNOWN = encode_length_prefixed(b"\x81\x17")
FRAMES = 40 * EXCHANGE_SLICE_FRAMES


class Turns:
    """Counts how often another task had its turn."""

    def __init__(self) -> None:
        self.count = 0


@asynccontextmanager
async def open_turns() -> AsyncIterator[Turns]:
    """Count turns while the block lasts; a virtual clock stands still meanwhile."""
    turns = Turns()

    async def run() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            turns.count += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield turns
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("unit", [UNKNOWN, frame(HaveAll(1)), frame(Have(1, (3,)))])
async def test_flood_of_answers_leaves_others_their_turn(
    tmp_path: Path, autojump_clock: MockClock, unit: bytes
) -> None:
    version = small_version(20)
    taken = 0

    async def flood(stream: Stream) -> None:
        nonlocal taken
        await stream.send_all(frame(Hello(1, (), MIB, 100)))
        received = b""
        while frame(Subscribe(1, version.manifest.root)) not in received:
            received += await stream.receive_some()
        async with open_turns() as turns:
            await stream.send_all(unit * FRAMES + frame(Goodbye(GoodbyeCode.DONE, "bye")))
            with suppress(trio.BrokenResourceError):  # it asked for blocks and gets none
                while await stream.receive_some():
                    pass
        taken = max(taken, turns.count)

    async with open_lab(tmp_path, patience_s=2.0) as lab:
        _, source = await lab.serve(flood)
        leech = await lab.node()
        leech.have(version, [])
        with pytest.raises(Sbp2pError):
            await leech.get(version, source)
    assert taken >= FRAMES // EXCHANGE_SLICE_FRAMES


@pytest.mark.parametrize(
    "unit", [UNKNOWN, frame(Unsubscribe(9)), frame(Cancel((bytes(32),)))], ids=["1", "2", "3"]
)
async def test_flood_of_questions_leaves_others_their_turn(
    tmp_path: Path, autojump_clock: MockClock, unit: bytes
) -> None:
    async with open_lab(tmp_path) as lab:
        seed, asker = await lab.node(), await lab.node()
        await asker.swarm.connect(seed.addresses, seed.key.peer_id)
        stream = await asker.swarm.open_stream(seed.key.peer_id, [PROTOCOL_ID])
        await stream.send_all(frame(Hello(1, (), MIB, 100)))
        async with open_turns() as turns:
            await stream.send_all(unit * FRAMES + frame(Goodbye(GoodbyeCode.DONE, "bye")))
            while await stream.receive_some():
                pass
        assert turns.count >= FRAMES // EXCHANGE_SLICE_FRAMES
        await stream.aclose()

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sbp2p import __version__
from sbp2p.handlers import HandlerTable
from sbp2p.identify import Identifier
from sbp2p.swarm import PeerIdentified, open_swarm
from sbp2p.transport import MemoryNetwork
from sbp2p_protocol.identify import IDENTIFY_PROTOCOL, IDENTIFY_PUSH_PROTOCOL, IdentifyMessage
from sbp2p_protocol.multiaddr import parse_address
from sbp2p_protocol.peer_record import open_peer_record
from tests.runtime.pair import ECHO, KEYS, echo, joined

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId


@asynccontextmanager
async def two_swarms() -> AsyncIterator[tuple[Swarm, Swarm]]:
    network = MemoryNetwork()
    async with open_swarm(KEYS[0], transports=[network]) as one:
        async with open_swarm(KEYS[1], transports=[network]) as two:
            await one.listen(parse_address("/memory/1"))
            await two.listen(parse_address("/memory/2"))
            yield one, two


async def settle() -> None:
    for _ in range(3):
        await wait_all_tasks_blocked()


async def test_both_sides_learn_what_the_other_is() -> None:
    async with two_swarms() as (one, two):
        two.handle(ECHO, echo)
        await one.connect(two.addresses)
        await settle()
        about_two, about_one = one.identified(two.peer_id), two.identified(one.peer_id)
        assert about_two
        assert about_one
        assert about_two.agent_version == f"sbp2p/{__version__}"
        assert ECHO in about_two.protocols
        assert ECHO not in about_one.protocols
        assert [each.text for each in about_two.addresses] == ["/memory/2"]
        assert about_one.observed == parse_address("/memory/2")
        assert about_two.public_key == KEYS[1].public_key.to_protobuf()
        record = about_two.checked_against(two.peer_id)
        assert record
        assert record.addresses == about_two.listen_addresses


async def test_a_change_is_pushed_to_who_is_connected() -> None:
    async with two_swarms() as (one, two):
        await one.connect(two.addresses)
        await settle()
        events = one.subscribe()
        before = one.identified(two.peer_id)
        two.handle(ECHO, echo)
        await settle()
        event = await events.receive()
        assert isinstance(event, PeerIdentified)
        assert ECHO in event.message.protocols
        await two.listen(parse_address("/memory/22"))
        await settle()
        after = one.identified(two.peer_id)
        assert before
        assert after
        assert [each.text for each in after.addresses] == ["/memory/2", "/memory/22"]
        assert after.agent_version == before.agent_version
        assert before.signed_peer_record
        assert after.signed_peer_record
        old = open_peer_record(before.signed_peer_record)
        assert open_peer_record(after.signed_peer_record).is_newer_than(old)


async def test_a_partial_push_changes_only_what_it_names() -> None:
    async with two_swarms() as (one, two):
        await one.connect(two.addresses)
        await settle()
        before = one.identified(two.peer_id)
        async with await two.open_stream(one.peer_id, [IDENTIFY_PUSH_PROTOCOL]) as stream:
            await stream.send_all(IdentifyMessage(protocols=("/only/this",)).encode())
        await settle()
        after = one.identified(two.peer_id)
        assert before
        assert after
        assert after.protocols == ("/only/this",)
        assert after.agent_version == before.agent_version


def answering(handler: Callable[[Stream], object]) -> HandlerTable:
    table = HandlerTable()
    table.handle(IDENTIFY_PROTOCOL, handler)  # type: ignore[arg-type]
    return table


async def nothing(_stream: Stream) -> None:
    pass


async def nonsense(stream: Stream) -> None:
    await stream.send_all(b"\x05hello")


async def too_long(stream: Stream) -> None:
    await stream.send_all(b"\xff\xff\x7f" + bytes(100))


async def somebody_else(stream: Stream) -> None:
    message = IdentifyMessage(public_key=KEYS[5].public_key.to_protobuf())
    await stream.send_all(message.encode())


async def silent(_stream: Stream) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize("handler", [nothing, nonsense, too_long, somebody_else, silent, None])
async def test_a_peer_that_cannot_be_identified_keeps_its_connection(
    handler: Callable[[Stream], object] | None, autojump_clock: trio.testing.MockClock
) -> None:
    heard: list[tuple[PeerId, IdentifyMessage]] = []

    def on_identified(*args: object) -> None:
        heard.append(args)  # type: ignore[arg-type]

    handlers = answering(handler) if handler else HandlerTable()
    async with joined(handlers=handlers) as (near, _far):
        identifier = Identifier(KEYS[0], HandlerTable(), on_identified)
        started = trio.current_time()
        await identifier.ask(near, timeout_s=5.0)
        assert trio.current_time() - started <= 5.0
        assert not heard
        assert near.is_open
        await near.ping()
        assert near.statistics().open_streams <= 1  # a closed one may linger


async def test_a_bad_push_is_not_believed() -> None:
    async with two_swarms() as (one, two):
        await one.connect(two.addresses)
        await settle()
        before = one.identified(two.peer_id)
        payloads: Sequence[bytes] = [
            b"\x05hello",
            IdentifyMessage(public_key=KEYS[5].public_key.to_protobuf()).encode(),
        ]
        for payload in payloads:
            async with await two.open_stream(one.peer_id, [IDENTIFY_PUSH_PROTOCOL]) as stream:
                await stream.send_all(payload)
            await settle()
        assert one.identified(two.peer_id) == before
        assert one.peers() == [two.peer_id]

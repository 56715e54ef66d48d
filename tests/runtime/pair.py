"""Two connections joined in memory, and raw streams that misbehave."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from sbp2p.config import NodeConfig
from sbp2p.handlers import HandlerTable
from sbp2p.transport import LinkProfile, MemoryNetwork
from sbp2p.upgrade import make_connection
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.multiaddr import parse_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sbp2p.connection import Connection
    from sbp2p.stream import Stream
    from sbp2p.transport import Bytes, RawStream
    from sbp2p.transport.memory import MemoryStream
    from sbp2p_protocol.multiaddr import Address

ECHO = "/test/echo/1.0.0"
SINK = "/test/sink/1.0.0"
HOLD = "/test/hold/1.0.0"
KEYS = [PrivateKey.from_seed(bytes([number]) * 32) for number in range(1, 9)]
NEAR, FAR = parse_address("/memory/1"), parse_address("/memory/2")


def knobs(**changes: float) -> NodeConfig:
    """Return a node config with some knobs changed, whichever part they are in."""
    config = NodeConfig()
    for name, value in changes.items():
        for part_name in ("transport", "connection", "swarm"):
            part = getattr(config, part_name)
            if name in part.__slots__:
                config = replace(config, **{part_name: replace(part, **{name: value})})
                break
        else:
            raise ValueError(name)
    return config


async def echo(stream: Stream) -> None:
    """Send back what comes, until it ends."""
    while data := await stream.receive_some():
        await stream.send_all(data)


async def sink(stream: Stream) -> None:
    """Read to the end, then say how much it was."""
    total = 0
    while data := await stream.receive_some():
        total += len(data)
    await stream.send_all(total.to_bytes(8, "big"))


async def hold(_stream: Stream) -> None:
    """Do nothing, for ever."""
    await trio.sleep_forever()


def served() -> HandlerTable:
    """Return a table of the three handlers above."""
    table = HandlerTable()
    for protocol, handler in ((ECHO, echo), (SINK, sink), (HOLD, hold)):
        table.handle(protocol, handler)
    return table


def raw_pair(profile: LinkProfile | None = None) -> tuple[MemoryStream, MemoryStream]:
    return MemoryNetwork(profile=profile).open_pair(NEAR, FAR)


def make(
    raw: RawStream,
    side: int,
    config: NodeConfig | None = None,
    handlers: HandlerTable | None = None,
    *,
    key: PrivateKey | None = None,
) -> Connection:
    """Return side 0, which dials, or side 1 of a pair."""
    return make_connection(
        raw,
        key or KEYS[side],
        config or NodeConfig(),
        initiator=side == 0,
        expected_peer=KEYS[1].peer_id if side == 0 else None,
        handlers=handlers or served(),
        on_established=lambda _: None,
    )


@asynccontextmanager
async def joined(
    config: NodeConfig | None = None,
    *,
    profile: LinkProfile | None = None,
    handlers: HandlerTable | None = None,
    near_raw: RawStream | None = None,
    far_raw: RawStream | None = None,
) -> AsyncIterator[tuple[Connection, Connection]]:
    """Yield both ends of an established connection; the far end serves echo, sink and hold."""
    raws = raw_pair(profile) if near_raw is None or far_raw is None else (near_raw, far_raw)
    near, far = make(raws[0], 0, config), make(raws[1], 1, config, handlers)
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as starting:
            starting.start_soon(nursery.start, near.run)
            starting.start_soon(nursery.start, far.run)
        yield near, far
        await near.aclose()
        await far.aclose()


class Troubled:
    """A raw stream that can stop delivering, or that blocks for ever at its n-th call."""

    def __init__(self, inner: RawStream, *, block_at: int = -1) -> None:
        self.inner = inner
        self.calls = 0
        self.aborted = False
        self.blocked = trio.Event()
        self._block_at = block_at
        self._frozen = False

    @property
    def local_address(self) -> Address:
        return self.inner.local_address

    @property
    def remote_address(self) -> Address:
        return self.inner.remote_address

    def freeze(self) -> None:
        """From now on nothing that the other side sends is seen here, and nothing is sent."""
        self._frozen = True

    async def _maybe_block(self) -> None:
        self.calls += 1
        if self.calls == self._block_at:
            self._frozen = True
        if self._frozen:
            self.blocked.set()
            await trio.sleep_forever()

    async def receive_into(self, buffer: memoryview, enough: int = 1) -> int:
        await self._maybe_block()
        count = await self.inner.receive_into(buffer, enough)
        if self._frozen:
            await trio.sleep_forever()
        return count

    async def send_some(self, buffers: Sequence[Bytes]) -> int:
        await self._maybe_block()
        return await self.inner.send_some(buffers)

    async def send_eof(self) -> None:
        await self._maybe_block()
        await self.inner.send_eof()

    def abort(self) -> None:
        self.aborted = True
        self.inner.abort()

    async def aclose(self) -> None:
        await self.inner.aclose()

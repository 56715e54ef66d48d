"""From a raw stream to a connection: the machine with this node's knobs, and its driver."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from sbp2p_protocol.connection import Connection as ConnectionMachine
from sbp2p_protocol.connection import ConnectionMachineConfig
from sbp2p_protocol.yamux_streams import YamuxConfig

from .connection import Connection
from .handlers import HandlerTable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sbp2p_keys.identity import PeerId, PrivateKey
    from sbp2p_protocol.buffers import BufferPool

    from .config import NodeConfig
    from .transport import RawStream


def make_connection(
    raw: RawStream,
    identity: PrivateKey,
    config: NodeConfig,
    *,
    initiator: bool,
    expected_peer: PeerId | None,
    handlers: HandlerTable,
    on_established: Callable[[Connection], str | None],
    admission: Callable[[Connection], Awaitable[str | None]] | None = None,
    pool: BufferPool | None = None,
) -> Connection:
    """Return a connection that is to be `run`; a node's connections may share a `pool`."""
    machine = ConnectionMachine(
        identity=identity,
        initiator=initiator,
        expected_peer=expected_peer,
        config=ConnectionMachineConfig(
            receive_buffer_bytes=config.connection.receive_buffer_bytes,
            upgrade_timeout_s=config.transport.upgrade_timeout_s,
            prologue=config.connection.prologue,
            yamux=YamuxConfig(
                keepalive_s=config.connection.keepalive_s,
                ping_timeout_s=config.connection.ping_timeout_s,
            ),
        ),
        now=trio.current_time(),
        pool=pool,
    )
    return Connection(
        raw,
        machine,
        initiator=initiator,
        handlers=handlers,
        config=config.connection,
        on_established=on_established,
        admission=admission,
    )


@asynccontextmanager
async def open_connection(
    raw: RawStream,
    identity: PrivateKey,
    config: NodeConfig,
    *,
    initiator: bool,
    expected_peer: PeerId | None = None,
    handlers: HandlerTable | None = None,
) -> AsyncIterator[Connection]:
    """Upgrade `raw` and yield the connection; closes it at the end.

    For one connection without a swarm: tests, benchmarks, tools.

    Raises:
        UpgradeError: no connection came of it.
    """
    connection = make_connection(
        raw,
        identity,
        config,
        initiator=initiator,
        expected_peer=expected_peer,
        handlers=handlers or HandlerTable(),
        on_established=lambda _: None,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run)
        yield connection
        await connection.aclose()
        nursery.cancel_scope.cancel()

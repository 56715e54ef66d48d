"""Dialling an address only to see who is there.

The peer proves its id over a fresh connection, which ends before anything is asked of it and enters
no table. So it tells whether an address leads to a peer at this moment, whatever connections there
are already: AutoNAT's dial-back, and what `sbp2p doctor` wants to know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sbp2p.connection import TaskStatus, UpgradeError
from sbp2p.handlers import HandlerTable
from sbp2p.transport import DialError
from sbp2p.upgrade import make_connection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sbp2p.config import NodeConfig
    from sbp2p.connection import Connection
    from sbp2p.transport import DialFailure, RawStream, Transport
    from sbp2p_keys.identity import PeerId, PrivateKey
    from sbp2p_protocol.multiaddr import Address


class Probe:
    """Looks at addresses for one node: call it, or `visit`."""

    def __init__(
        self, identity: PrivateKey, config: NodeConfig, transports: Sequence[Transport]
    ) -> None:
        self._identity = identity
        self._config = config
        self._transports = transports

    async def __call__(self, address: Address, peer_id: PeerId | None = None) -> PeerId:
        """Return who proved its id at an address, or at the first that a name stands for.

        Args:
            address: where to look; a peer id in it is who must be there.
            peer_id: who must be there; None takes whoever answers.

        Raises:
            DialError: nobody, or somebody else, is there; it holds the reason.
        """
        peer_id = peer_id or address.peer_id
        address = address.without_peer()
        transport = self._transport(address)
        failures: list[DialFailure] = []
        for each in await transport.resolve(address):
            try:
                return await self._look(transport, each, peer_id)
            except DialError as error:
                failures += error.failures
        raise DialError(failures)

    async def visit(
        self,
        address: Address,
        peer_id: PeerId,
        use: Callable[[Connection], Awaitable[None]],
    ) -> None:
        """Dial a numeric address, have `peer_id` prove its id, use the connection, and leave.

        Raises:
            DialError: nobody, or somebody else, is there; it holds the reason.
        """
        transport = self._transport(address)
        raw = await transport.connect(address.without_peer())
        connection = self._connection(raw, peer_id, lambda _: None)
        failed: list[UpgradeError] = []

        async def run(*, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
            try:
                await connection.run(task_status=task_status)
            except UpgradeError as error:
                failed.append(error)
                task_status.started(connection)

        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            if not failed:
                await use(connection)
                await connection.aclose()
            nursery.cancel_scope.cancel()
        if failed:
            raise DialError.at(address, str(failed[0])) from failed[0]

    def _transport(self, address: Address) -> Transport:
        transport = next((each for each in self._transports if each.can_dial(address)), None)
        if transport is None:
            raise DialError.at(address, "no transport here can dial this kind of address")
        return transport

    def _connection(
        self,
        raw: RawStream,
        peer_id: PeerId | None,
        on_established: Callable[[Connection], str | None],
    ) -> Connection:
        return make_connection(
            raw,
            self._identity,
            self._config,
            initiator=True,
            expected_peer=peer_id,
            handlers=HandlerTable(),
            on_established=on_established,
        )

    async def _look(self, transport: Transport, address: Address, peer_id: PeerId | None) -> PeerId:
        proved: list[PeerId] = []

        def leave(connection: Connection) -> str:
            proved.append(connection.peer_id)
            return "this was only a look"

        connection = self._connection(await transport.connect(address), peer_id, leave)
        try:
            await connection.run()
        except UpgradeError as error:
            if not proved:
                raise DialError.at(address, str(error)) from error
        return proved[0]

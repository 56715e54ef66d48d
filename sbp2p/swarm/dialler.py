"""Dialling peers: who is expected, one dial per peer at a time, and why it failed.

The peer id in an address (`/p2p/...`) is who must answer there. Callers that want the same peer at
the same time share one dial; it goes on while any of them waits, and a caller whose own addresses
were not part of a failed dial tries those next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sbp2p.errors import ConfigError, PeerUnreachableError
from sbp2p.transport import DialError, dial_with

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sbp2p.config import TransportConfig
    from sbp2p.connection import Connection
    from sbp2p.transport import DialFailure, Transport
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.multiaddr import Address

    Upgrade = Callable[[Transport, Address, PeerId | None], Awaitable[Connection]]


class DialFailedError(PeerUnreachableError):
    """No address led to the peer; `failures` says why for each."""

    def __init__(self, who: str, failures: Sequence[DialFailure]) -> None:
        reasons = "; ".join(map(str, failures)) or "no address is known"
        super().__init__(f"cannot reach {who}: {reasons}", hint=_hint(failures))
        self.failures = tuple(failures)


def expected_peer(addresses: Sequence[Address], peer_id: PeerId | None) -> PeerId | None:
    """Return the one peer that `addresses` and `peer_id` speak of.

    Raises:
        ConfigError: they name different peers.
    """
    named = {address.peer_id for address in addresses if address.peer_id is not None}
    if peer_id is not None:
        named.add(peer_id)
    if len(named) > 1:
        raise ConfigError(
            f"these addresses belong to different peers: {', '.join(sorted(map(str, named)))}",
            hint="connect to one peer at a time",
        )
    return named.pop() if named else None


class Dialler:
    """Races dials, and shares them between callers."""

    def __init__(
        self,
        nursery: trio.Nursery,
        transports: Sequence[Transport],
        config: TransportConfig,
        upgrade: Upgrade,
    ) -> None:
        self.dials = 0
        self.dials_failed = 0
        self._nursery = nursery
        self._transports = transports
        self._config = config
        self._upgrade = upgrade
        self._shared: dict[PeerId, _SharedDial] = {}

    async def dial(self, addresses: Sequence[Address], peer_id: PeerId | None) -> Connection:
        """Return a new connection, or the one that another caller is dialling.

        Raises:
            DialFailedError: no address led to the peer.
        """
        if peer_id is None:
            return await self._race(addresses, None)
        missing = [address.without_peer() for address in addresses]
        while True:
            shared = self._shared.get(peer_id)
            if shared is None or shared.scope.cancel_called:  # given up, and not gone yet
                shared = self._shared[peer_id] = _SharedDial(missing)
                self._nursery.start_soon(self._run_shared, shared, peer_id)
            connection = await shared.wait()
            if connection is not None:
                return connection
            missing = [each for each in missing if each not in shared.addresses]
            if not missing:
                raise DialFailedError(f"peer {peer_id}", shared.failures)

    async def _run_shared(self, shared: _SharedDial, peer_id: PeerId) -> None:
        try:
            with shared.scope:
                shared.connection = await self._race(shared.addresses, peer_id)
        except DialFailedError as error:
            shared.failures = error.failures
        finally:
            if self._shared.get(peer_id) is shared:
                del self._shared[peer_id]
            shared.done.set()

    async def _race(self, addresses: Sequence[Address], peer_id: PeerId | None) -> Connection:
        self.dials += 1

        async def attempt(transport: Transport, address: Address) -> Connection:
            return await self._upgrade(transport, address, peer_id)

        try:
            return await dial_with(
                [address.without_peer() for address in addresses],
                self._transports,
                self._config,
                attempt=attempt,
                discard=lambda connection: connection.close(),
            )
        except DialError as error:
            self.dials_failed += 1
            who = f"peer {peer_id}" if peer_id is not None else "any peer"
            raise DialFailedError(who, error.failures) from error


class _SharedDial:
    """One dial that several callers wait for."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.addresses = tuple(addresses)
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.connection: Connection | None = None
        self.failures: tuple[DialFailure, ...] = ()
        self._waiting = 0

    async def wait(self) -> Connection | None:
        """Wait for the outcome; the last to give up waiting cancels the dial."""
        self._waiting += 1
        try:
            await self.done.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.scope.cancel()
        return self.connection


def _hint(failures: Sequence[DialFailure]) -> str:
    """Say what to do next about the failure that tells the most."""
    reasons = " ".join(failure.reason for failure in failures)
    if "found 12D3" in reasons or "wrong peer" in reasons:
        return "the address now belongs to another node: ask for a new link"
    if "list" in reasons or "banned" in reasons:
        return "this node's own allow and deny lists keep it from dialling that peer"
    if "refused" in reasons:
        return "check that the other node is running and that the port is right"
    if "no answer" in reasons:
        return "check the address, and that no firewall is in the way"
    return ""

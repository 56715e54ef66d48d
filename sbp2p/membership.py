"""A node's place in a private swarm: what it shows and knows, and the handshake on a connection.

Theory of operation: `admit` runs on every new connection before anything else of it is served (see
`sbp2p/connection.py`), dialled or accepted, and says why a peer may not stay. What each peer has
shown is kept as long as its connection, because time and newer revocation lists may end a
membership at any moment: `refusal` looks again. The swarm does so (`sbp2p/swarm/members.py`).

Error cases: whatever a peer does in `admit` is a reason for it not to stay, and no exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

import trio

from sbp2p_keys.membership import Capability, Revocations, network_id
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.membership import (
    MEMBERSHIP_PROTOCOL,
    Credentials,
    MembershipHandshake,
    MembershipRefusedError,
    RevocationList,
    Shown,
)

from .errors import Sbp2pError
from .negotiate import answer
from .roles import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbp2p_keys.swarm_file import SwarmFile

    from .connection import Connection
    from .stream import Stream

HANDSHAKE_TIMEOUT_S: Final = 5.0
"""Three messages of some hundred bytes: five round trips over the slowest link worth having."""

_PROLOGUE: Final = b"sbp2p-private-network"


def prologue_of(swarm: SwarmFile) -> bytes:
    """Return what the Noise handshakes of a swarm's connections begin from."""
    return _PROLOGUE + swarm.secret


class SwarmFileKeeper(Protocol):
    """Where a node's swarm file lies."""

    async def read(self) -> SwarmFile | None:
        """Return it if it has changed since it was read last; raises Sbp2pError."""

    async def write_revocations(self, document: bytes) -> None:
        """Keep a newer list in it; raises Sbp2pError."""


class Membership:
    """What one node shows and knows, while it runs.

    Args:
        swarm: the node's file.
        delegate: signed by the member for the key that the node runs as; empty if it runs as the
            member itself.
        wall_clock: seconds since 1970.
        keeper: where newer revocation lists are kept, and come from.
    """

    def __init__(
        self,
        swarm: SwarmFile,
        *,
        delegate: bytes = b"",
        wall_clock: Callable[[], float],
        keeper: SwarmFileKeeper | None = None,
    ) -> None:
        self.keeper = keeper
        self.owner = swarm.owner
        self.revocations = RevocationList(Revocations(swarm.owner))
        """The newest list known."""
        self._credentials = Credentials(swarm.certificate, delegate)
        self._serial = swarm.read_certificate().serial
        self._wall_clock = wall_clock
        self._shown: WeakKeyDictionary[Connection, Shown] = WeakKeyDictionary()
        self.learn(swarm.revocations)

    @property
    def network_id(self) -> str:
        """The network that this swarm announces and looks for peers in."""
        return network_id(self.owner)

    def learn(self, document: bytes) -> bool:
        """Take a revocation list; returns whether it is newer than what was known.

        Raises:
            RemoteProtocolError: the owner has not signed it.
        """
        before = self.revocations
        self.revocations = before.newer(document)
        return self.revocations is not before

    def renew(self, swarm: SwarmFile) -> None:
        """Show a newer certificate of the same member from now on, if this is one."""
        serial = swarm.read_certificate().serial
        if swarm.owner == self.owner and serial > self._serial:
            self._serial = serial
            self._credentials = Credentials(swarm.certificate, self._credentials.delegate)

    def refusal(self, connection: Connection) -> str | None:
        """Return why the peer of a connection is no member any more; None while it is one."""
        shown = self._shown.get(connection)
        if shown is None:
            return "it has shown no certificate"
        try:
            shown.check(connection.peer_id, self.revocations.value, self._wall_clock())
        except MembershipRefusedError as error:
            return str(error)
        return None

    def role_of(self, connection: Connection) -> Role:
        """Return what the certificate of a member lets it do."""
        shown = self._shown[connection]
        allowed = shown.certificate.capabilities
        if shown.delegate is not None:
            allowed &= shown.delegate.capabilities
        return Role.of(sends=Capability.SEND in allowed, receives=Capability.RECEIVE in allowed)

    async def admit(self, connection: Connection) -> str | None:
        """Show this side's certificate and look at the peer's; returns why it may not stay."""
        try:
            with trio.fail_after(HANDSHAKE_TIMEOUT_S):
                async with await self._stream(connection) as stream:
                    await self._shake_hands(connection, stream)
        except trio.TooSlowError:
            return "it did not show in time that it is a member"
        except (RemoteProtocolError, Sbp2pError) as error:
            return str(error)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            return f"it ended the membership handshake: {error}"
        return None

    async def _stream(self, connection: Connection) -> Stream:
        if connection.initiator:
            return await connection.open_first_stream([MEMBERSHIP_PROTOCOL])
        stream = await connection.accept_first_stream()
        stream.protocol = await answer(stream, lambda protocol: protocol == MEMBERSHIP_PROTOCOL)
        return stream

    async def _shake_hands(self, connection: Connection, stream: Stream) -> None:
        machine = MembershipHandshake(
            initiator=connection.initiator,
            peer=connection.peer_id,
            credentials=self._credentials,
            revocations=self.revocations,
        )
        while True:
            if data := machine.data_to_send():
                await stream.send_all(data)
            if machine.done and machine.shown is not None:
                self.learn(machine.revocations.document)
                self._shown[connection] = machine.shown
                return
            received = await stream.receive_some()
            if not received:
                raise trio.BrokenResourceError("the end of the stream")
            machine.receive_data(received, self._wall_clock())

"""Members only: who is let into a private swarm, and who has to leave it.

Theory of operation. A connection is in the table once its peer has shown a certificate
(`sbp2p/membership.py`). From then on one task looks again every CHECK_S, and at once when a newer
revocation list is heard of, from whomever: it ends the connections of those who are members no
more, has the list written down, and tells it to everybody who stays. Lists grow in number, so what
goes round ends by itself. The same task reads the node's file again, because another process may
have changed it: the owner revokes there, and a certificate is renewed there.

Error cases: a peer that sends a list which the owner has not signed is penalized; one that cannot
be told a list hears of it with its next connection; a file that cannot be read or written is logged
and tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from sbp2p import observe
from sbp2p.errors import Sbp2pError
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.membership import REVOCATIONS_PROTOCOL, RevocationsReader

from .arrivals import origin_of
from .scores import VIOLATION_POINTS

if TYPE_CHECKING:
    from sbp2p.connection import Connection
    from sbp2p.membership import Membership
    from sbp2p.stream import Stream

    from .arrivals import Arrivals
    from .swarm import Swarm
    from .table import ConnectionTable

CHECK_S: Final = 5.0
_TELL_TIMEOUT_S: Final = 10.0


class Members:
    """The rule that only members have connections, for one swarm."""

    def __init__(
        self,
        membership: Membership,
        swarm: Swarm,
        table: ConnectionTable,
        arrivals: Arrivals,
    ) -> None:
        self._membership = membership
        self._swarm = swarm
        self._table = table
        self._arrivals = arrivals
        self._kept = membership.revocations.document
        self._heard = trio.Event()

    async def admit(self, connection: Connection) -> str | None:
        """Have peers show that they are members; returns why this one may not stay."""
        refusal = self._swarm.refusal(connection.peer_id)
        if refusal is None:
            refusal = await self._membership.admit(connection)
            self._look_again()
        if refusal is None:
            self._swarm.roles.limit(connection.peer_id, self._membership.role_of(connection))
            return None
        if not connection.initiator and connection.lost is None:  # it did not just go away
            origin = origin_of(connection.remote_address)
            self._arrivals.turned_away(origin, trio.current_time())
        return f"peer {connection.peer_id} is not let in: {refusal}"

    async def take_list(self, stream: Stream) -> None:
        """Serve REVOCATIONS_PROTOCOL: a member tells of a newer list."""
        reader = RevocationsReader()
        try:
            document = None
            with trio.fail_after(_TELL_TIMEOUT_S):
                while document is None and (data := await stream.receive_some()):
                    document = reader.receive_data(data)
            if document is not None:
                self._membership.learn(document)
        except RemoteProtocolError as error:
            self._swarm.penalize(stream.peer_id, VIOLATION_POINTS, str(error))
            raise
        self._look_again()

    async def keep(self) -> None:
        """Do what has to be done as time and lists go on, for ever."""
        told = self._membership.revocations.document
        while True:
            with trio.move_on_after(CHECK_S):
                await self._heard.wait()
            self._heard = trio.Event()
            await self._look_at_file()
            for connection in self._table:
                if (reason := self._membership.refusal(connection)) is not None:
                    observe.report_refused(connection, reason)
                    connection.close()
            document = self._membership.revocations.document
            if document != told:
                told = document
                for connection in self._table:
                    if connection.is_open:
                        connection.start_soon(self._tell)

    def _look_again(self) -> None:
        if self._membership.revocations.document != self._kept:
            self._heard.set()

    async def _look_at_file(self) -> None:
        keeper = self._membership.keeper
        if keeper is None:
            self._kept = self._membership.revocations.document
            return
        try:
            swarm = await keeper.read()
            if swarm is not None:
                self._membership.renew(swarm)
                self._membership.learn(swarm.revocations)
                self._kept = swarm.revocations
            document = self._membership.revocations.document
            if document != self._kept:
                await keeper.write_revocations(document)
                self._kept = document
        except (Sbp2pError, RemoteProtocolError) as error:
            observe.report_refused("the swarm file", str(error))

    async def _tell(self, connection: Connection) -> None:
        document = self._membership.revocations.document
        try:
            with trio.fail_after(_TELL_TIMEOUT_S):
                async with await connection.open_stream([REVOCATIONS_PROTOCOL]) as stream:
                    await stream.send_all(encode_length_prefixed(document))
        except (
            Sbp2pError,
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            trio.TooSlowError,
        ) as error:
            observe.report_stream_failed(f"the revocation list for {connection.peer_id}", error)

"""The connection table and everything that fills and empties it.

A swarm listens, dials, lets peers in or not, and hands out streams. Every connection runs in a
nursery of its own under the swarm's; nothing outlives the `async with` of `open_swarm`.

The moment that matters is `_admit`: the connection's driver calls it when the peer has proved its
id, before anything of the peer's is looked at. Gate, bans and limits decide there, in one
synchronous step, and an admitted connection is in the table before its next event.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from sbp2p import observe
from sbp2p.config import NodeConfig
from sbp2p.connection import Connection, TaskStatus, UpgradeError
from sbp2p.errors import ConfigError, PeerUnreachableError
from sbp2p.handlers import HandlerTable
from sbp2p.identify import Identifier
from sbp2p.limits import Limits
from sbp2p.transport import DialError, TcpTransport
from sbp2p.upgrade import make_connection
from sbp2p_protocol.buffers import BufferPool
from sbp2p_protocol.errors import CloseCode, IntegrityError, RemoteProtocolError
from sbp2p_protocol.limits import REFUSED_ORIGINS_MAX, SCORED_PEERS_MAX
from sbp2p_protocol.membership import REVOCATIONS_PROTOCOL

from .arrivals import Arrivals, origin_of
from .dialler import Dialler, expected_peer
from .events import PeerConnected, PeerDisconnected, PeerIdentified, Subscribers
from .gate import Gate
from .members import Members
from .own_addresses import OwnAddresses
from .probe import Probe
from .roles import Roles
from .scores import VIOLATION_POINTS, Scores
from .table import SIMULTANEOUS_WINDOW_S, ConnectionTable
from .upkeep import close_idle, keep_to_roles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sbp2p.handlers import StreamHandler
    from sbp2p.membership import Membership
    from sbp2p.stream import Stream
    from sbp2p.transport import Listener, RawStream, Transport
    from sbp2p_keys.identity import PeerId, PrivateKey
    from sbp2p_protocol.identify import IdentifyMessage
    from sbp2p_protocol.multiaddr import Address

    from .events import SwarmEvent

POOLED_BUFFERS = 16
"""Large buffers (about 1 MiB each) kept for all connections together. One busy connection uses
four: one that is sent, one that is filled, and two batches that the application works on."""


@asynccontextmanager
async def open_swarm(
    identity: PrivateKey,
    config: NodeConfig | None = None,
    *,
    gate: Gate | None = None,
    membership: Membership | None = None,
    transports: Sequence[Transport] | None = None,
) -> AsyncIterator[Swarm]:
    """Open a swarm that lives as long as the `async with` block.

    Args:
        identity: the key that this node proves to its peers.
        config: knobs.
        gate: who may connect; everybody by default.
        membership: of a private swarm: only its members are connected to, in both directions.
        transports: how to reach addresses; TCP by default.
    """
    config = config or NodeConfig()
    try:
        async with trio.open_nursery() as nursery:
            swarm = Swarm(
                identity,
                config,
                gate=gate or Gate(),
                membership=membership,
                transports=transports or [TcpTransport(config.transport)],
                nursery=nursery,
            )
            nursery.start_soon(close_idle, swarm._table, config.swarm.idle_connection_s)
            nursery.start_soon(keep_to_roles, swarm._table, swarm.roles)
            if swarm._members is not None:
                swarm.handle(REVOCATIONS_PROTOCOL, swarm._members.take_list)
                nursery.start_soon(swarm._members.keep)
            try:
                yield swarm
            finally:
                await swarm._shut_down()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # the tasks of a swarm raise nothing, so what the block raised is alone in here
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


class Swarm:
    """The peers this node is connected to. Made by `open_swarm`."""

    def __init__(
        self,
        identity: PrivateKey,
        config: NodeConfig,
        *,
        gate: Gate,
        membership: Membership | None,
        transports: Sequence[Transport],
        nursery: trio.Nursery,
    ) -> None:
        self.identity = identity
        self.peer_id = identity.peer_id
        self.limits = Limits(config.limits)
        """How fast protocols that move much may send and read; they ask by themselves."""
        self.roles = Roles(config.roles)
        """Who is sent to and asked."""
        self._config = config
        self._gate = gate
        self._transports = transports
        self._nursery = nursery
        self._handlers = HandlerTable()
        self._table = ConnectionTable(self.peer_id)
        self._pool = BufferPool(buffers_max=POOLED_BUFFERS)
        self._subscribers = Subscribers()
        self._scores = Scores(
            ban_score=config.swarm.ban_score,
            ban_duration_s=config.swarm.ban_duration_s,
            half_life_s=config.swarm.penalty_half_life_s,
            peers_max=SCORED_PEERS_MAX,
        )
        self._arrivals = Arrivals(
            connections_max=config.swarm.max_connections_per_ip,
            wait_s=config.swarm.refused_wait_s,
            wait_max_s=config.swarm.refused_wait_max_s,
            origins_max=REFUSED_ORIGINS_MAX,
        )
        self._dialler = Dialler(nursery, transports, config.transport, self._dial_upgrade)
        self._identifier = Identifier(
            identity, self._handlers, self._on_identified, self._on_observed
        )
        self._listeners: list[Listener] = []
        self.own_addresses = OwnAddresses(self.peer_id, config.swarm, self._listeners)
        self.probe = Probe(identity, config, transports)
        self._members: Members | None = None
        if membership is not None:
            self._members = Members(membership, self, self._table, self._arrivals)
        self._half_open: set[Connection] = set()
        self._identified: dict[PeerId, IdentifyMessage] = {}
        self._accepted = 0
        self._refused = 0
        self._bytes_sent = 0  # of connections that are gone
        self._bytes_received = 0

    # -- this node --------------------------------------------------------------------------

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where this node listens, each with its peer id."""
        return tuple(each.with_peer(self.peer_id) for each in self.own_addresses.listening)

    def announced_addresses(self) -> tuple[Address, ...]:
        """Return where others may be told to dial this node, each with its peer id, best first."""
        return self.own_addresses.announced()

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve `protocol` from now on; see `HandlerTable`.

        Raises:
            ValueError: it is no protocol id, or is served already.
        """
        self._handlers.handle(protocol, handler)
        self.announce()

    def withdraw(self, protocol: str) -> None:
        """Serve `protocol` no more, and tell the peers; streams that are open stay."""
        self._handlers.withdraw(protocol)
        self.announce()

    async def listen(self, address: Address) -> list[Address]:
        """Listen on an address; return those to dial, with this node's peer id.

        Raises:
            ConfigError: it cannot be listened on.
        """
        transport = next((each for each in self._transports if each.can_dial(address)), None)
        if transport is None:
            raise ConfigError(f"no transport can listen on {address.text}")
        listener = await transport.listen(address.without_peer())
        self._listeners.append(listener)
        self._nursery.start_soon(self._accept, listener)
        self.announce()
        return [each.with_peer(self.peer_id) for each in listener.addresses]

    # -- peers ------------------------------------------------------------------------------

    async def connect(
        self, addresses: Sequence[Address], peer_id: PeerId | None = None
    ) -> Connection:
        """Return a connection with the peer at `addresses`: an open one, or a new one.

        The addresses are tried at once, with a head start for the earlier ones. Callers that want
        one peer at the same time share a dial.

        Args:
            addresses: where the peer may be; a peer id in them is who must be there.
            peer_id: who must be there, if the addresses do not say. Without either, whoever
                answers is taken, and a new connection is made in any case.

        Raises:
            DialFailedError: nobody, or not the right peer, could be reached; says why for each
                address.
            PeerUnreachableError: this node may not or cannot connect to it.
            ConfigError: the addresses are of different peers.
        """
        peer_id = expected_peer(addresses, peer_id)
        if peer_id is not None:
            if refusal := self.refusal(peer_id):
                raise PeerUnreachableError(
                    f"peer {peer_id} is not dialled: {refusal}",
                    hint="this node's own rules keep it away from that peer",
                )
            if connection := self._table.best(peer_id):
                await trio.lowlevel.checkpoint()
                return connection
        own = {address.without_peer() for address in self.addresses}
        others = [each for each in addresses if each.without_peer() not in own]
        if addresses and not others:
            raise PeerUnreachableError(f"{addresses[0].text} is this node itself")
        if len(self._table) >= self._config.swarm.max_connections:
            raise PeerUnreachableError(
                f"this node has {len(self._table)} connections, and may have no more",
                hint="raise max_connections, or wait for some to end",
            )
        connection = await self._dialler.dial(others, peer_id)
        # when both sides dialled, this one may be the one that is given up
        return self._table.best(connection.peer_id) or connection

    async def open_stream(self, peer_id: PeerId, protocols: Sequence[str]) -> Stream:
        """Open a stream to a connected peer, on one of `protocols`, the most wanted first.

        Raises:
            ProtocolUnsupportedError: the peer speaks none of them.
            PeerUnreachableError: there is no connection, it ended, or the peer did not answer.
        """
        reason = "there is no connection to it"
        for _ in range(2):  # the second time when one of two connections was just given up
            connection = self._table.best(peer_id)
            if connection is None:
                break
            try:
                return await connection.open_stream(protocols)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                reason = str(error)
        raise PeerUnreachableError(
            f"no stream to peer {peer_id}: {reason}",
            hint="it may be gone, or may not let this node in",
        )

    def peers(self) -> list[PeerId]:
        """Return the peers that are connected."""
        return self._table.peers()

    def connections(self, peer_id: PeerId) -> list[Connection]:
        """Return the connections with a peer, oldest first."""
        return self._table.of(peer_id)

    def identified(self, peer_id: PeerId) -> IdentifyMessage | None:
        """Return what a connected peer said about itself, once it has."""
        return self._identified.get(peer_id)

    async def disconnect(self, peer_id: PeerId) -> None:
        """Close every connection with a peer, and wait until they are."""
        connections = self._table.of(peer_id)
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()

    def penalize(self, peer_id: PeerId, points: int, reason: str) -> None:
        """Hold something against a peer; at `ban_score` points it is cut off and kept out."""
        banned = self._scores.penalize(peer_id, points, trio.current_time())
        observe.report_penalty(peer_id, points, reason, banned=banned)
        if banned:
            for connection in self._table.of(peer_id):
                connection.close(CloseCode.PROTOCOL_ERROR)

    def forgive(self, peer_id: PeerId) -> None:
        """Forget a peer's points, and lift its ban."""
        self._scores.forgive(peer_id)

    def subscribe(self) -> trio.MemoryReceiveChannel[SwarmEvent]:
        """Return a channel of the events from now on; close it to unsubscribe.

        The channel ends when the swarm does, or when it is not read and 1024 events wait: who sees
        it end subscribes again and asks for `peers`.
        """
        return self._subscribers.subscribe()

    def statistics(self) -> observe.SwarmStatistics:
        """Return the counters at this moment."""
        connections = tuple(each.statistics() for each in self._table)
        return observe.SwarmStatistics(
            connections=connections,
            half_open=len(self._half_open),
            dials=self._dialler.dials,
            dials_failed=self._dialler.dials_failed,
            accepted=self._accepted,
            refused=self._refused,
            bytes_sent=self._bytes_sent + sum(each.bytes_sent for each in connections),
            bytes_received=self._bytes_received + sum(each.bytes_received for each in connections),
        )

    # -- letting connections in -------------------------------------------------------------

    async def _accept(self, listener: Listener) -> None:
        while True:
            try:
                raw = await listener.accept()
            except trio.ClosedResourceError:
                return
            self._accepted += 1
            origin = origin_of(raw.remote_address)
            refusal = self._arrivals.refusal(origin, trio.current_time())
            if len(self._table) + len(self._half_open) >= self._config.swarm.max_connections:
                refusal = "too many connections"
            elif len(self._half_open) >= self._config.transport.max_half_open:
                refusal = "too many connections that have not proved anything yet"
            if refusal is not None:
                self._refused += 1
                observe.report_refused(raw.remote_address, refusal)
                raw.abort()
            else:
                connection = self._make_connection(raw, initiator=False, expected_peer=None)
                self._half_open.add(connection)
                self._arrivals.entered(origin)
                self._nursery.start_soon(self._run_inbound, connection, origin)

    async def _run_inbound(self, connection: Connection, origin: str | None) -> None:
        try:
            await self._run(connection)
        except UpgradeError as error:
            self._refused += 1
            observe.report_refused(connection.remote_address, str(error))
        finally:
            self._half_open.discard(connection)
            self._arrivals.left(origin)

    async def _dial_upgrade(
        self, transport: Transport, address: Address, peer_id: PeerId | None
    ) -> Connection:
        raw = await transport.connect(address)
        connection = self._make_connection(raw, initiator=True, expected_peer=peer_id)
        try:
            started: Connection = await self._nursery.start(self._run, connection)
        except UpgradeError as error:
            raise DialError.at(address, str(error)) from error
        return started

    def _make_connection(
        self, raw: RawStream, *, initiator: bool, expected_peer: PeerId | None
    ) -> Connection:
        return make_connection(
            raw,
            self.identity,
            self._config,
            initiator=initiator,
            expected_peer=expected_peer,
            handlers=self._handlers,
            on_established=self._admit,
            admission=None if self._members is None else self._members.admit,
            pool=self._pool,
        )

    async def _run(
        self,
        connection: Connection,
        *,
        task_status: TaskStatus = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run a connection to its end, whatever happens in it."""
        try:
            await connection.run(task_status=task_status)
        except UpgradeError:
            raise
        except Exception as error:
            # a bug that one peer can reach must not take the other connections with it
            observe.report_bug(f"{connection}", error)
        finally:
            if connection.is_admitted:
                self._remove(connection)

    def _admit(self, connection: Connection) -> str | None:
        """Decide whether a peer that has proved its id may stay; None lets it in."""
        peer_id = connection.peer_id
        self._half_open.discard(connection)
        if refusal := self.refusal(peer_id):
            if not connection.initiator:
                origin = origin_of(connection.remote_address)
                self._arrivals.turned_away(origin, trio.current_time())
            return f"peer {peer_id} is not let in: {refusal}"
        mine = self._table.of(peer_id)
        if len(mine) >= self._config.swarm.max_connections_per_peer:
            return f"peer {peer_id} has {len(mine)} connections already"
        superfluous = self._table.add(connection)
        if superfluous is not None:
            superfluous.start_soon(self._retire)
        self.own_addresses.connected(connection)
        connection.start_soon(self._identify)
        observe.report_peer_connected(
            peer_id, connection.remote_address.text, initiator=connection.initiator
        )
        if not mine:
            self._subscribers.publish(PeerConnected(peer_id))
        return None

    def refusal(self, peer_id: PeerId) -> str | None:
        """Return why a peer is not let in, as far as its id tells."""
        if self._scores.is_banned(peer_id, trio.current_time()):
            return "it is banned for what it did"
        rules = self.roles.rules
        if not (rules.sends_to(peer_id) or rules.receives_from(peer_id)):
            return "this node is offline to it"
        return self._gate.refusal(peer_id)

    def _remove(self, connection: Connection) -> None:
        peer_id = connection.peer_id
        statistics = connection.statistics()
        self._bytes_sent += statistics.bytes_sent
        self._bytes_received += statistics.bytes_received
        self.own_addresses.disconnected(connection)
        reason = str(connection.lost or "closed")
        observe.report_peer_gone(peer_id, reason)
        if self._table.remove(connection):
            self._identified.pop(peer_id, None)
            self._subscribers.publish(PeerDisconnected(peer_id, reason))
        lost = connection.lost
        if isinstance(lost, IntegrityError):
            return  # not what the peer sealed: whoever is on the way could have it banned
        if isinstance(lost, RemoteProtocolError) and lost.close_code is not CloseCode.NORMAL:
            self.penalize(peer_id, VIOLATION_POINTS, reason)

    # -- what connections do ----------------------------------------------------------------

    async def _identify(self, connection: Connection) -> None:
        await self._identifier.ask(connection, self._config.swarm.identify_timeout_s)

    def _on_identified(self, peer_id: PeerId, message: IdentifyMessage) -> None:
        if self._table.of(peer_id):
            known = self._identified.get(peer_id)
            message = known.updated_by(message) if known else message  # a push may be partial
            self._identified[peer_id] = message
            self._subscribers.publish(PeerIdentified(peer_id, message))

    def _on_observed(self, connection: Connection, seen: Address) -> None:
        if self.own_addresses.observed(connection, seen):
            self.announce()

    def announce(self) -> None:
        """Tell the peers that the addresses or protocols of this node have changed."""
        self._identifier.update(self.own_addresses.identified())
        self.own_addresses.changed()
        for connection in self._table:
            if connection.is_open:
                connection.start_soon(self._push)

    async def _push(self, connection: Connection) -> None:
        await self._identifier.push(connection, self._config.swarm.identify_timeout_s)

    async def _retire(self, connection: Connection) -> None:
        """Close a superfluous connection once nothing uses it any more."""
        await trio.sleep(SIMULTANEOUS_WINDOW_S)  # the peer may not know of the other one yet
        await connection.wait_idle()
        connection.close()

    async def _shut_down(self) -> None:
        """Stop listening and close every connection, within `close_timeout_s`."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        connections = list(self._table)
        for connection in connections:
            connection.close()
        with trio.CancelScope(shield=True):
            for connection in connections:
                await connection.wait_closed()
        self._subscribers.close()

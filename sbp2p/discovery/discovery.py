"""Finds peers, keeps connections with some, and remembers those that worked.

    async with open_discovery(swarm, config, home=home) as discovery:
        discovery.offer(Candidate(peer_id, addresses, Origin.DHT))
        with discovery.subscribe() as candidates: ...

Theory of operation. Whatever names a peer offers it as a candidate: the bootstrap list, the
database of peers that worked, multicast, links, the exchange, the DHT. `CandidateBook` decides who
is dialled when; this module dials, at most `parallel_dials` at once, and tells the book how it
went. A peer that is meant to stay connected is pinged before either side would find the
connection idle.

Peers that this node has dialled with success, whoever wanted it, are remembered with the address
that led to them, and are candidates from then on. What the database does is done behind the
connections: it may be slow or broken, and then nothing is remembered.

Tasks, all in one nursery that ends with the block: dialling, watching the swarm, pinging,
reachability, multicast. Error cases: none leaves here; what fails is logged, and waits longer.
"""

from __future__ import annotations

import random
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio

from sbp2p import observe
from sbp2p.calls import ThreadCalls
from sbp2p.config import DiscoveryConfig
from sbp2p.errors import ConfigError, PeerUnreachableError, Sbp2pError, StoreError
from sbp2p.ping import ping
from sbp2p.swarm import PeerConnected, PeerDisconnected, PeerIdentified
from sbp2p_keys.identity import PeerId
from sbp2p_protocol.address_scope import Scope, scope_of
from sbp2p_protocol.candidates import Candidate, CandidateBook, Origin
from sbp2p_protocol.multiaddr import Address, BadAddressError, parse_address

from .autonat import serve_autonat
from .autonat2 import NonceServer
from .lan import Lan
from .reach import ReachabilityWatch
from .remembered import RememberedPeers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

    from sbp2p.calls import Calls
    from sbp2p.connection import Connection
    from sbp2p.swarm import Swarm, SwarmEvent
    from sbp2p_protocol.reachability import Reachability

INTERFACES_S: Final = 5.0
"""Between two looks at the addresses of this machine."""
SUBSCRIBER_QUEUE: Final = 64
"""Candidates that wait for one subscriber; more are left out, since `known` has them all."""
_BUSY_TIMEOUT_S: Final = 5.0
_DATABASE_QUEUE: Final = 64
"""Changes that wait for the database; more are lost, which costs a peer its place next time."""


def parse_bootstrap(texts: Iterable[str]) -> list[Address]:
    """Read bootstrap addresses.

    Raises:
        ConfigError: one is no address, or does not say which peer is there.
    """
    found = []
    for text in filter(None, (each.strip() for each in texts)):
        try:
            address = parse_address(text)
        except BadAddressError as error:
            raise ConfigError(
                f"bootstrap {text!r}: {error}",
                hint="addresses look like /ip4/192.0.2.1/tcp/4801/p2p/12D3KooW...",
            ) from error
        if address.peer_id is None:
            raise ConfigError(
                f"bootstrap {text!r} does not say which peer is there",
                hint="add /p2p/<peer-id> at its end, as `sbp2p seed` prints it",
            )
        if not address.is_dialable:
            raise ConfigError(
                f"bootstrap {text!r} cannot be dialled", hint="only plain TCP addresses can"
            )
        found.append(address)
    return found


@asynccontextmanager
async def open_discovery(
    swarm: Swarm,
    config: DiscoveryConfig | None = None,
    *,
    home: Path | None = None,
    remembers: bool = True,
    calls: Calls | None = None,
    rng: random.Random | None = None,
    wall_clock: Callable[[], float] = time.time,  # noqa: TID251  (a date outlives the process)
) -> AsyncIterator[Discovery]:
    """Find peers for `swarm` while the block runs.

    Args:
        swarm: whose peers are found.
        config: knobs.
        home: where peers are remembered; nowhere if None.
        remembers: whether what this process learns is written down there.
        calls: where the database's calls run; worker threads by default.
        rng: spreads questions and waits.
        wall_clock: Unix seconds, for what is kept on disk.

    Raises:
        ConfigError: a bootstrap address cannot be one.
    """
    config = config or DiscoveryConfig()
    bootstrap = parse_bootstrap(config.bootstrap)
    calls = calls or ThreadCalls(1)
    memory = None
    if home is not None and config.remember and config.enabled:
        try:
            memory = await calls.run_to_end(_open_memory, home, config)
        except StoreError as error:
            observe.report_not_found("remembering them", error)
    try:
        async with trio.open_nursery() as nursery:
            discovery = Discovery(
                swarm,
                config,
                memory=memory,
                remembers=remembers,
                calls=calls,
                rng=rng or random.Random(),  # noqa: S311  (spreads load)
                wall_clock=wall_clock,
                nursery=nursery,
            )
            if config.enabled:
                await discovery._start(bootstrap)
            try:
                yield discovery
            finally:
                discovery._end()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # the tasks raise nothing, so what the block raised is alone in here
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
    finally:
        if memory is not None:
            memory.close()


def _open_memory(home: Path, config: DiscoveryConfig) -> RememberedPeers:
    return RememberedPeers(home, keep_s=config.remember_s, busy_timeout_s=_BUSY_TIMEOUT_S)


class Discovery:
    """Candidates, and the connections made of them. Made by `open_discovery`."""

    def __init__(
        self,
        swarm: Swarm,
        config: DiscoveryConfig,
        *,
        memory: RememberedPeers | None,
        remembers: bool,
        calls: Calls,
        rng: random.Random,
        wall_clock: Callable[[], float],
        nursery: trio.Nursery,
    ) -> None:
        self._swarm = swarm
        self._config = config
        self._memory = memory
        self._remembers = remembers
        self._calls = calls
        self._rng = rng
        self._wall_clock = wall_clock
        self._nursery = nursery
        self._book = CandidateBook(
            swarm.peer_id,
            wanted=config.wanted_connections,
            bootstrap_wanted=config.bootstrap_connections,
            backoff_s=config.backoff_s,
            backoff_max_s=config.backoff_max_s,
            rng=rng,
        )
        self._reach = ReachabilityWatch(swarm, config, rng)
        self.lan = Lan(swarm, config, rng, self.offer) if config.lan and config.enabled else None
        """Who speaks by multicast, if this node does."""
        self._dials = 0
        self._wake = trio.Event()
        self._news = trio.lowlevel.ParkingLot()
        self._subscribers: list[trio.MemorySendChannel[Candidate]] = []
        self._to_database, self._database_work = trio.open_memory_channel[
            tuple[PeerId, tuple[Address, ...]]
        ](_DATABASE_QUEUE)
        self._connected_at: dict[PeerId, float] = {}
        self._remembered: set[PeerId] = set()
        """Connected peers that the database was told of: a peer may push identify at will."""

    # -- what is known ------------------------------------------------------------------------

    def offer(self, candidate: Candidate) -> None:
        """Take a candidate from wherever it was heard of; it may be dialled, now or later."""
        if not self._book.add(candidate, trio.current_time()):
            return
        known = self._book.of(candidate.peer_id)
        for channel in list(self._subscribers):
            try:
                channel.send_nowait(known or candidate)
            except trio.WouldBlock:
                continue
            except trio.BrokenResourceError:
                self._subscribers.remove(channel)
        self._look_again()

    def subscribe(self) -> trio.MemoryReceiveChannel[Candidate]:
        """Return a channel of candidates as they become known; close it to unsubscribe.

        It ends with the discovery. What is not read in time is left out: `known` has it.
        """
        send, receive = trio.open_memory_channel[Candidate](SUBSCRIBER_QUEUE)
        self._subscribers.append(send)
        return receive

    def known(self, *origins: Origin) -> list[Candidate]:
        """Return the candidates of these origins, or all, best first."""
        found = self._book.known()
        return [each for each in found if not origins or each.origin in origins]

    def failures(self) -> dict[PeerId, str]:
        """Return why candidates could not be reached when they were last dialled."""
        return self._book.failures()

    async def attempt(self, candidate: Candidate) -> bool:
        """Connect to a candidate now; return whether there is a connection.

        Without a dial if one has just failed, and has to wait before the next.
        """
        self.offer(candidate)
        peer_id = candidate.peer_id
        if self._swarm.connections(peer_id):
            await trio.lowlevel.checkpoint()
            return True
        if not self._book.begin(peer_id, trio.current_time()):
            await trio.lowlevel.checkpoint()
            return False
        self._dials += 1
        await self._dial(candidate)
        return bool(self._swarm.connections(peer_id))

    async def wait_tried(self) -> None:
        """Wait until somebody is connected, or until everybody who is known was tried in vain."""
        while not self._swarm.peers():
            failures = self._book.failures()
            if all(each.peer_id in failures for each in self._book.known()):
                return
            await self._news.park()

    async def wait_connected(self, timeout_s: float) -> bool:
        """Wait for any connection; return whether there is one."""
        with self._swarm.subscribe() as events, trio.move_on_after(timeout_s):
            while not self._swarm.peers():
                await events.receive()
        return bool(self._swarm.peers())

    # -- being found --------------------------------------------------------------------------

    @property
    def reachability(self) -> Reachability:
        """Whether others can dial this node."""
        return self._reach.state

    @property
    def reachability_reason(self) -> str:
        """What the last peer that was asked said."""
        return self._reach.reason

    @property
    def reachability_counts(self) -> tuple[int, int]:
        """How many groups of peers reached this node, and how many failed to."""
        return self._reach.counts

    def on_reachability(self, callback: Callable[[Reachability], object]) -> None:
        """Call `callback` with the reachability now and at each change; it must not raise."""
        self._reach.on_change(callback)

    # -- tasks --------------------------------------------------------------------------------

    async def _start(self, bootstrap: Sequence[Address]) -> None:
        for address in bootstrap:
            if address.peer_id is not None:
                self.offer(Candidate(address.peer_id, (address,), Origin.BOOTSTRAP))
        await self._load()
        start = self._nursery.start_soon
        start(self._watch, self._swarm.subscribe())
        start(self._dial_those_due)
        start(self._keep_alive)
        start(self._watch_interfaces)
        if self._memory is not None and self._remembers:
            start(self._write, self._memory)
        if self.lan is not None:
            start(self.lan.run)
        if self._config.autonat:
            NonceServer(self._swarm, serve_autonat(self._swarm, self._config))
            self._reach.serve()
        start(self._reach.run)

    def _end(self) -> None:
        while self._subscribers:
            self._subscribers.pop().close()

    async def _load(self) -> None:
        if self._memory is None:
            return
        try:
            found = await self._calls.run(self._memory.all, self._wall_clock())
        except StoreError as error:
            observe.report_not_found("what was remembered", error)
            return
        for peer in reversed(found):  # the best is offered last, and so counts as the newest
            self.offer(Candidate(peer.peer_id, peer.addresses, Origin.REMEMBERED))

    def _look_again(self) -> None:
        self._wake.set()
        self._news.unpark_all()

    async def _dial_those_due(self) -> None:
        while True:
            self._wake = trio.Event()
            now = trio.current_time()
            connected = set(self._swarm.peers())
            free = self._config.parallel_dials - self._dials
            for candidate in self._book.due(now, connected, free):
                self._dials += 1
                self._nursery.start_soon(self._dial, candidate)
            with trio.move_on_at(self._book.next_due(now, connected)):
                await self._wake.wait()

    async def _dial(self, candidate: Candidate) -> None:
        peer_id = candidate.peer_id
        try:
            await self._swarm.connect(candidate.addresses, peer_id)
        except Sbp2pError as error:
            self._failed(peer_id, str(error))
        else:
            self._book.succeeded(peer_id)
        finally:
            self._book.given_up(peer_id)
            self._dials -= 1
            self._look_again()

    def _failed(self, peer_id: PeerId, reason: str) -> None:
        self._book.failed(peer_id, reason, trio.current_time())
        observe.report_not_found(f"dialling {peer_id}", reason)
        self._remember(peer_id, ())

    async def _watch(self, events: trio.MemoryReceiveChannel[SwarmEvent]) -> None:
        while True:
            with events:
                async for event in events:
                    self._on_event(event)
            await trio.lowlevel.checkpoint()
            events = self._swarm.subscribe()  # fell behind; what is missing is only not remembered

    def _on_event(self, event: SwarmEvent) -> None:
        match event:
            case PeerConnected(peer_id):
                self._connected_at[peer_id] = trio.current_time()
                self._book.succeeded(peer_id)
                self._reach.arrived(peer_id)
            case PeerIdentified(peer_id):
                self._remember_dialled(peer_id)
            case PeerDisconnected(peer_id, reason):
                self._remembered.discard(peer_id)
                at = self._connected_at.pop(peer_id, 0.0)
                if trio.current_time() - at < self._config.short_lived_s:
                    self._book.failed(peer_id, reason, trio.current_time())
                else:
                    self._book.lasted(peer_id)
        self._look_again()

    async def _watch_interfaces(self) -> None:
        """Tell peers when this machine has come into another network."""
        own = self._swarm.own_addresses
        while True:
            before = set(own.listening)
            with trio.move_on_after(INTERFACES_S):
                await own.wait_changed()
                continue
            if set(own.listening) != before:
                self._swarm.announce()

    async def _keep_alive(self) -> None:
        while True:
            await trio.sleep(self._config.keepalive_s)
            wanted = max(self._config.wanted_connections, self._config.bootstrap_connections)
            connected = set(self._swarm.peers())
            kept = [each.peer_id for each in self._book.known() if each.peer_id in connected]
            async with trio.open_nursery() as nursery:
                for peer_id in kept[:wanted]:
                    nursery.start_soon(self._ping, peer_id)

    async def _ping(self, peer_id: PeerId) -> None:
        connections = [each for each in self._swarm.connections(peer_id) if each.is_open]
        if connections:
            try:
                await ping(connections[0])
                self._book.lasted(peer_id)
            except PeerUnreachableError:
                connections[0].close()
            except Sbp2pError as error:  # it speaks no ping: its connection may end as idle
                observe.report_stream_failed(f"ping of {peer_id}", error)

    # -- remembering --------------------------------------------------------------------------

    def _remember_dialled(self, peer_id: PeerId) -> None:
        dialled = [each for each in self._swarm.connections(peer_id) if each.initiator]
        if dialled and peer_id not in self._remembered:
            self._remembered.add(peer_id)
            addresses = self._addresses_of(dialled[0])
            self._remember(peer_id, addresses)
            self.offer(Candidate(peer_id, addresses, Origin.REMEMBERED))

    def _addresses_of(self, connection: Connection) -> tuple[Address, ...]:
        """Return where a peer was found, then where it says that it listens, in the same scope."""
        remote = connection.remote_address
        said = self._swarm.identified(connection.peer_id)
        told = said.addresses if said is not None else ()
        same = [
            each.without_peer()
            for each in told
            if each.is_dialable and scope_of(each) in (scope_of(remote), Scope.PUBLIC)
        ]
        return tuple(dict.fromkeys([remote, *same]))

    def _remember(self, peer_id: PeerId, addresses: tuple[Address, ...]) -> None:
        """Have the database told that a peer worked, or, without addresses, that it did not."""
        with suppress(trio.WouldBlock):
            self._to_database.send_nowait((peer_id, addresses))

    async def _write(self, memory: RememberedPeers) -> None:
        async for peer_id, addresses in self._database_work:
            try:
                if addresses:
                    now = self._wall_clock()
                    await self._calls.run_to_end(memory.worked, peer_id, addresses, now)
                else:
                    await self._calls.run_to_end(memory.failed, peer_id)
            except StoreError as error:
                observe.report_not_found("remembering them", error)

"""Finds out whether others can dial this node, and tells whoever needs to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sbp2p import observe
from sbp2p.errors import Sbp2pError
from sbp2p_protocol.address_scope import Scope, scope_of
from sbp2p_protocol.autonat import AUTONAT_PROTOCOL, DialStatus
from sbp2p_protocol.autonat2 import DIAL_REQUEST_PROTOCOL
from sbp2p_protocol.reachability import Reachability, ReachabilityMachine

from .autonat import ask_to_dial_back
from .autonat2 import DialBackAsker

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from sbp2p.config import DiscoveryConfig
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.autonat import DialResponse
    from sbp2p_protocol.multiaddr import Address

_ANSWERS = {DialStatus.OK: True, DialStatus.DIAL_ERROR: False}
"""What says something about this node; a refusal does not."""


class ReachabilityWatch:
    """Drives the machine for one swarm; `run` is its task."""

    def __init__(self, swarm: Swarm, config: DiscoveryConfig, rng: random.Random) -> None:
        self._swarm = swarm
        self._config = config
        self._machine = ReachabilityMachine(
            answers_min=config.autonat_answers_min,
            ask_s=config.autonat_ask_s,
            recheck_s=config.autonat_recheck_s,
            again_s=config.autonat_again_s,
            valid_s=config.autonat_valid_s,
            rng=rng,
        )
        self._asker = DialBackAsker(swarm)
        self._told = Reachability.UNKNOWN
        self._callbacks: list[Callable[[Reachability], object]] = []
        self.reason = "nobody was asked yet"
        """What the last answer was, for people."""

    @property
    def state(self) -> Reachability:
        """What is known now."""
        return self._machine.state

    @property
    def counts(self) -> tuple[int, int]:
        """How many groups of peers reached this node, and how many failed to."""
        return self._machine.counts

    def on_change(self, callback: Callable[[Reachability], object]) -> None:
        """Call `callback` with the state now and whenever it changes."""
        self._callbacks.append(callback)
        callback(self._told)

    def arrived(self, peer_id: PeerId) -> None:
        """Note a newly connected peer; one that dialled this node has answered the question."""
        connections = self._swarm.connections(peer_id)
        if connections and not any(each.initiator for each in connections):
            now = trio.current_time()
            self._machine.addresses_changed(self._known(), now)
            self._machine.arrived(peer_id, connections[0].remote_address, now)
            self._tell()

    def serve(self) -> None:
        """Take dial-backs from now on."""
        self._asker.serve()

    async def run(self) -> None:
        """Watch the addresses and, unless that is off, ask; for ever."""
        while True:
            now = trio.current_time()
            self._machine.addresses_changed(self._known(), now)
            chosen = self._machine.choose(self._servers(), now)
            self._tell()
            if chosen is not None:
                await self._ask(chosen)
            with trio.move_on_at(self._machine.next_ask):
                await self._swarm.own_addresses.wait_changed()

    def _known(self) -> list[Address]:
        own = self._swarm.own_addresses
        return [*own.listening, *own.confirmed]

    def _servers(self) -> list[tuple[PeerId, Address]]:
        """Return the connected peers that dial back, and where each is."""
        if not self._config.autonat:
            return []
        latest = trio.current_time() - self._config.autonat_settle_s
        found = []
        for peer_id in self._swarm.peers():
            said = self._swarm.identified(peer_id)
            connections = self._swarm.connections(peer_id)
            if (
                said is not None
                and not {AUTONAT_PROTOCOL, DIAL_REQUEST_PROTOCOL}.isdisjoint(said.protocols)
                and all(each.established_at <= latest for each in connections)
            ):
                found.append((peer_id, connections[0].remote_address))
        return found

    async def _ask(self, peer_id: PeerId) -> None:
        connections = self._swarm.connections(peer_id)
        if not connections:
            return
        remote = connections[0].remote_address
        own = self._swarm.own_addresses
        known = dict.fromkeys([*own.confirmed, *own.seen(), *own.listening])
        asked = [each for each in known if scope_of(each) is scope_of(remote)]
        # with none at the scope of that peer, it may still see one of ours that we do not know
        asked = asked or [each for each in known if scope_of(each) is not Scope.HERE]
        try:
            response = await self._put(peer_id, asked)
        except Sbp2pError as error:
            observe.report_stream_failed(f"the request to be dialled by {peer_id}", error)
            return
        self.reason = f"{peer_id}: {response.status.name.lower()} {response.text}".rstrip()
        reached = _ANSWERS.get(response.status)
        if reached is not None:
            now = trio.current_time()
            self._machine.answered(peer_id, remote, reached=reached, now=now)
            self._tell()

    async def _put(self, peer_id: PeerId, addresses: Sequence[Address]) -> DialResponse:
        """Put the question, in the version that a server cannot answer wrongly if it has it."""
        said = self._swarm.identified(peer_id)
        timeout_s = 3 * self._config.dial_back_timeout_s
        if said is not None and DIAL_REQUEST_PROTOCOL in said.protocols:
            return await self._asker.ask(peer_id, addresses, timeout_s)
        return await ask_to_dial_back(self._swarm, peer_id, addresses, timeout_s)

    def _tell(self) -> None:
        if self._machine.state is self._told:
            return
        self._told = self._machine.state
        listens = bool(self._swarm.own_addresses.listening)
        self._swarm.own_addresses.unreachable = listens and self._told is Reachability.UNREACHABLE
        observe.report_reachability(self._told.value)
        for callback in self._callbacks:
            callback(self._told)

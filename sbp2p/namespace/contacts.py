"""Peers that should be, or may be, members: where they are, and when to ask them next.

Theory of operation. A contact comes from the user, from a member's word, from the DHT, from the
network around, or is a connected peer that speaks the protocol. One task asks those that are due,
some at a time, and the wait of each doubles with every failure. What the user gave is asked for as
long as the namespace is open; what was only learned is forgotten after LEARNED_TRIES failures, or
when the peer says that it is not in the namespace: if it joins later, it will ask.

Nothing raises; what went wrong last is kept for messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from sbp2p.errors import Sbp2pError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from random import Random

    from sbp2p.config import NamespaceConfig
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.multiaddr import Address

LEARNED_TRIES: Final = 6
CONTACTS_MAX: Final = 1024
"""Contacts that are kept; more that were only learned are not taken."""
_ADDRESSES_MAX: Final = 16


@dataclass(slots=True)
class Contact:
    """One peer."""

    given: bool
    """The user named it."""
    addresses: dict[Address, None] = field(default_factory=dict)
    failures: int = 0
    due: float = -math.inf
    failure: str = ""
    busy: bool = False
    """It is being asked, or linked."""


class Contacts:
    """Those of one namespace.

    Args:
        ask: asks one peer, given where it may be; returns why that led to nothing, or "" when a
            link came of it, once that has ended.
    """

    def __init__(
        self,
        swarm: Swarm,
        config: NamespaceConfig,
        rng: Random,
        ask: Callable[[PeerId, tuple[Address, ...], trio.Semaphore], Awaitable[str]],
    ) -> None:
        self._swarm = swarm
        self._config = config
        self._rng = rng
        self._ask = ask
        self._known: dict[PeerId, Contact] = {}
        self._places = trio.Semaphore(config.parallel_dials)
        self._wake = trio.Event()

    def add(
        self, peer_id: PeerId, addresses: Iterable[Address] = (), *, given: bool = False
    ) -> None:
        """Take a peer in, or more about one."""
        if peer_id == self._swarm.peer_id:
            return
        contact = self._known.get(peer_id)
        if contact is None:
            if len(self._known) >= CONTACTS_MAX and not given:
                return
            contact = self._known[peer_id] = Contact(given)
            self._wake.set()
        contact.given |= given
        for address in addresses:
            if len(contact.addresses) < _ADDRESSES_MAX:
                contact.addresses.setdefault(address.with_peer(peer_id))

    def retry(self, peer_id: PeerId | None = None) -> None:
        """Ask a peer at once, or all of them: something has changed."""
        for each, contact in self._known.items():
            if peer_id in (None, each):
                contact.due = -math.inf
                contact.failures = 0
        self._wake.set()

    def forget(self, peer_id: PeerId) -> None:
        """Ask a peer no more, unless the user named it."""
        contact = self._known.get(peer_id)
        if contact is not None:
            contact.due = trio.current_time() + self._config.retry_max_s
            if not contact.given:
                contact.failures = LEARNED_TRIES

    def failure(self, peer_id: PeerId) -> str:
        """Return why a peer could not be asked last time; empty if nothing is known."""
        contact = self._known.get(peer_id)
        return "" if contact is None else contact.failure

    def failures(self) -> list[str]:
        """Return what went wrong last with each of those that the user named."""
        return [each.failure for each in self._known.values() if each.given and each.failure]

    async def keep(self, nursery: trio.Nursery) -> None:
        """Ask whoever is due, for ever."""
        while True:
            self._wake = trio.Event()
            now = trio.current_time()
            for peer_id, contact in list(self._known.items()):
                if contact.busy:
                    continue
                if contact.failures >= LEARNED_TRIES and not contact.given:
                    del self._known[peer_id]
                elif contact.due <= now:
                    contact.busy = True
                    nursery.start_soon(self._attempt, peer_id, contact)
            due = (each.due for each in self._known.values() if not each.busy)
            with trio.CancelScope(deadline=min(due, default=math.inf)):
                await self._wake.wait()

    async def _attempt(self, peer_id: PeerId, contact: Contact) -> None:
        try:
            failure = await self._ask(peer_id, tuple(contact.addresses), self._places)
        except Sbp2pError as error:
            failure = str(error)
        finally:
            contact.busy = False
            self._wake.set()
        contact.failure = failure
        contact.failures = contact.failures + 1 if failure else min(contact.failures, 1)
        wait = self._config.retry_s * 2.0 ** min(max(contact.failures - 1, 0), 16)
        wait = min(wait, self._config.retry_max_s) * self._rng.uniform(0.8, 1.2)
        contact.due = max(contact.due, trio.current_time() + wait)

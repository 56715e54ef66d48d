"""The routing table, kept: candidates are asked before they are added, old contacts now and then.

| task | does |
|---|---|
| `_check`, `parallel_checks` of them | asks candidates, and contacts that are in doubt |
| `_refresh_forever` | looks for this node's own place and one of every bucket, every `refresh_s` |

As long as no server is known, the contacts of earlier days are tried every `retry_s`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sbp2p import observe
from sbp2p.errors import Sbp2pError
from sbp2p_keys.identity import PeerId
from sbp2p_protocol.kad_messages import KadMessage, KadPeer, KadType
from sbp2p_protocol.kad_table import RoutingTable, Verdict
from sbp2p_protocol.limits import KAD_CHECKS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from sbp2p.config import DhtConfig
    from sbp2p_protocol.multiaddr import Address

    from .lookups import Lookups
    from .network import KadNetwork


class Contacts:
    """Fills the routing table and keeps it true.

    Args:
        network: where candidates are.
        table: the routing table.
        lookups: how they are asked.
        config: knobs.
        rng: for places to look at, and so that nodes do not move in step.
    """

    def __init__(
        self,
        network: KadNetwork,
        table: RoutingTable,
        lookups: Lookups,
        config: DhtConfig,
        rng: Random,
    ) -> None:
        self._network = network
        self._table = table
        self._lookups = lookups
        self._config = config
        self._rng = rng
        self._pending: dict[PeerId, KadPeer] = {}
        self._wanted, self._checks = trio.open_memory_channel[PeerId](KAD_CHECKS_MAX)
        self._wake = trio.Event()
        self._round = trio.Event()
        self._settled = trio.Event()
        self._is_filled = False
        lookups.on_doubt = self.doubt
        lookups.on_alone = self._on_alone

    # -- who is heard of ----------------------------------------------------------------------

    def found(self, server: KadPeer) -> None:
        """Note a peer that says it is a server."""
        verdict = self._table.judge(server.peer_id, server.addresses)
        if verdict is Verdict.KNOWN:
            self._table.moved(server.peer_id, server.addresses)
        elif verdict is Verdict.WANTED:
            self._check_soon(server)

    def lost(self, peer_id: PeerId) -> None:
        """Note that a peer says it is none any more."""
        self._table.remove(peer_id)

    def doubt(self, peer_id: PeerId) -> None:
        """Have a contact asked whether it is still there."""
        contact = self._table.get(peer_id)
        if contact is not None:
            self._check_soon(contact.as_peer)

    def _check_soon(self, peer: KadPeer) -> None:
        if peer.peer_id in self._pending:
            return
        try:
            self._wanted.send_nowait(peer.peer_id)
        except trio.WouldBlock:
            return  # who is of use is heard of again
        self._pending[peer.peer_id] = peer

    async def bootstrap(self, addresses: Sequence[Address]) -> int:
        """Ask whoever is at these addresses, all at once; return how many are servers.

        Ends when the table was filled from them, if there was any.
        """
        answered = 0

        async def ask(address: Address) -> None:
            nonlocal answered
            try:
                with trio.fail_after(2 * self._config.request_timeout_s):
                    peer_id = await self._network.dial(address)
                    peer = KadPeer(peer_id, (address.without_peer(),))
                    await self._lookups.request(peer, self._question())
            except (Sbp2pError, trio.TooSlowError) as error:
                observe.report_refused(f"bootstrap peer {address.text}", str(error))
            else:
                answered += 1

        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(ask, address)
        if answered:
            done = self._round
            self._wake.set()
            await done.wait()
        return answered

    async def wait_settled(self) -> None:
        """Wait until the table was filled for the first time."""
        await self._settled.wait()

    def filled(self) -> None:
        """Take the table as it is for the first round: it was filled by other means."""
        self._is_filled = True
        self._settled.set()
        self._wake.set()

    # -- tasks --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._config.parallel_checks):
                nursery.start_soon(self._check_forever)
            nursery.start_soon(self._refresh_forever)

    async def _check_forever(self) -> None:
        async for peer_id in self._checks.clone():
            peer = self._pending.get(peer_id)
            try:
                if peer is not None:
                    await self._check(peer)
            finally:
                self._pending.pop(peer_id, None)

    async def _check(self, peer: KadPeer) -> None:
        if (
            peer.peer_id not in self._table
            and self._table.judge(peer.peer_id, peer.addresses) is not Verdict.WANTED
        ):
            return  # the place was taken meanwhile
        try:
            await self._lookups.request(peer, self._question())
        except Sbp2pError:
            return
        if not self._settled.is_set():
            self._wake.set()

    def _question(self) -> KadMessage:
        """Return what candidates are asked: who is near this node is of use in any case."""
        return KadMessage(KadType.FIND_NODE, self._network.peer_id.to_bytes())

    async def _refresh_forever(self) -> None:
        while True:
            if not len(self._table) and not self._lookups.remembered:
                await self._wake.wait()
            self._wake = trio.Event()
            if not self._is_filled:
                await self._refresh()
            self._is_filled = False
            self._round.set()
            self._round = trio.Event()
            if len(self._table):
                self._settled.set()
            await self._pause()

    async def _refresh(self) -> None:
        """Look at this node's own place, at every bucket that no lookup has passed, and at those
        contacts of whom nothing was heard."""
        lookup = await self._lookups.find_closest(self._network.peer_id.to_bytes())
        known_from = self._table.known_from(lookup.closest())
        now = trio.current_time()
        for target in self._table.refresh_targets(
            now, self._config.refresh_s, self._rng, below=known_from
        ):
            await self._lookups.run(KadMessage(KadType.FIND_NODE, target))
        for contact in self._table.silent(trio.current_time(), self._config.silent_s):
            self._check_soon(contact.as_peer)

    async def _pause(self) -> None:
        """Wait until it is time again, or somebody asks for it."""
        wait_s = self._config.retry_s
        if len(self._table):
            wait_s = self._config.refresh_s * self._rng.uniform(0.9, 1.1)
        with trio.move_on_after(wait_s):
            await self._wake.wait()

    def _on_alone(self) -> None:
        self._wake.set()

"""Peers for one fetch, found while it runs: in the network around this node, by every way there is.

    async with finder.new_search(link) as search:
        exact = await search.resolve()
        await exchange.fetch(exact, ..., arrivals=search.arrivals)

Theory of operation. A fetch begins with whom the link and the user name, and whoever is connected.
A search adds others as they are found:

| way | what it adds |
|---|---|
| bootstrap, remembered | peers of the settings, and the best few of those that worked before |
| LAN | everybody who answers by multicast, at any time while the fetch runs |
| DHT | where the publisher is, if the link names one; providers of the manifest and of the root |

The first round asks all ways at once. When it is over and the fetch has not even found the version,
the channel ends, so that the fetch gives up as soon as those who were found have been asked. Once
there is a version, the channel stays open, and rounds follow, at first soon, since those who begin
to seed at the same time have yet to announce it, then every `search_again_s`; or sooner when no
peer has what is missing: seeders come and go in a long fetch.

With nothing but the link to go by (no bootstrap, no LAN, no DHT, nobody remembered) there is no
channel at all, and a fetch knows at once that nobody else will come.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Self

import trio

from sbp2p import observe
from sbp2p.discovery import Origin
from sbp2p.errors import (
    NotFoundError,
    PeerMisbehavedError,
    PeerUnreachableError,
    Sbp2pError,
)
from sbp2p.exchange import Source
from sbp2p_keys.multi import multihash_encode
from sbp2p_protocol.link import ManifestLink, NameLink

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from sbp2p.config import DiscoveryConfig
    from sbp2p.dht import Dht
    from sbp2p.discovery import Candidate, Discovery
    from sbp2p.naming import Naming
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.link import Link
    from sbp2p_protocol.manifest import Manifest
    from sbp2p_protocol.multiaddr import Address

_QUEUE: Final = 64
"""Sources that wait for the fetch to take them; it takes them at once."""


def provider_key(cid: Cid) -> bytes:
    """Return what the DHT calls a CID's content: its multihash."""
    return multihash_encode(cid.hash_code, cid.digest)


class PeerFinder:
    """Finds peers for the fetches of one node."""

    def __init__(
        self,
        swarm: Swarm,
        discovery: Discovery,
        config: DiscoveryConfig,
        *,
        dht: Dht | None = None,
        naming: Naming | None = None,
    ) -> None:
        self.swarm = swarm
        self.discovery = discovery
        self.config = config
        self.dht = dht
        self.naming = naming

    @property
    def has_ways(self) -> bool:
        """Whether anybody could be found who is not known yet."""
        return self.discovery.lan is not None or bool(self.discovery.known()) or self.dht_has_entry

    @property
    def dht_has_entry(self) -> bool:
        """Whether the DHT has, or may soon have, somebody to begin with."""
        if self.dht is None:
            return False
        return bool(self.dht.peers() or self.discovery.known() or self.swarm.peers())

    async def wait_for_dht(self) -> bool:
        """Wait a little until the DHT can be asked; return whether it can."""
        dht = self.dht
        if dht is None or not self.dht_has_entry:
            return False
        with trio.move_on_after(self.config.dht_wait_s):
            if not dht.peers():
                await self.discovery.wait_tried()
            if dht.peers() or self.swarm.peers():
                await dht.wait_settled()
        return bool(dht.peers())

    def new_search(self, link: Link, known: Iterable[PeerId] = ()) -> PeerSearch:
        """Return a search, which is to be entered.

        Args:
            link: what is to be fetched. The peers that it names are the fetch's to ask.
            known: other peers that the fetch asks anyway.
        """
        named = (address.peer_id for address in link.peers)
        return PeerSearch(self, link, {*known, *filter(None, named)})


class PeerSearch:
    """One search: runs while its `async with` block does.

    `arrivals` is for the fetch; None if nobody can be expected.
    """

    def __init__(self, finder: PeerFinder, link: Link, known: set[PeerId]) -> None:
        self._finder = finder
        self._link = link
        self._told = known
        self._manifest: Manifest | None = None
        self._in_need = trio.Event()
        self._stack = AsyncExitStack()
        self._send, receive = trio.open_memory_channel[Source](_QUEUE)
        self.arrivals = receive if finder.has_ways else None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self._send.close)
            nursery = await stack.enter_async_context(trio.open_nursery())
            stack.callback(nursery.cancel_scope.cancel)
            if self.arrivals is not None:
                nursery.start_soon(self._run)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    def found(self, manifest: Manifest) -> None:
        """Note that the version is known: from now on there is something to go on for."""
        self._manifest = manifest
        self._in_need.set()

    def report(self, *, in_need: bool) -> None:
        """Note whether the peers of the fetch are of no use just now: then it is searched soon."""
        if in_need and self._manifest is not None:
            self._in_need.set()

    async def resolve(self, sources: Iterable[Source] = ()) -> Link:
        """Return the link of exactly the version that a name stands for, if that can be told.

        Otherwise the link is returned as it is, and the peers of the fetch are asked for the name.
        """
        link, finder = self._link, self._finder
        if finder.naming is None or not isinstance(link, NameLink):
            return link
        await finder.wait_for_dht()
        try:
            resolved = await finder.naming.resolve(
                link.publisher, link.name, link.version, sources=sources
            )
        except (NotFoundError, PeerUnreachableError, PeerMisbehavedError) as error:
            observe.report_not_found(f"the name {link}", error)
            return link
        for source in resolved.sources:
            self._add(source.peer_id, source.addresses)
        return ManifestLink(resolved.manifest, link.peers)

    async def _run(self) -> None:
        """Search until cancelled, or until a first round found no version."""
        told_before = len(self._told)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_candidates, self._finder.discovery.subscribe())
            await self._round()
            if self._manifest is None and len(self._told) > told_before:
                # the fetch has yet to ask those that were just found
                with trio.move_on_after(self._finder.config.search_first_s):
                    await self._in_need.wait()
            wait = self._finder.config.search_in_need_s
            while self._manifest is not None:
                await self._wait_for_need(wait)
                await self._round()
                wait = min(2 * wait, self._finder.config.search_again_s)
            nursery.cancel_scope.cancel()
        self._send.close()

    async def _wait_for_need(self, at_most: float) -> None:
        self._in_need = trio.Event()
        with trio.move_on_after(at_most):
            await self._in_need.wait()
            await trio.sleep(self._finder.config.search_in_need_s)

    async def _round(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_lan)
            nursery.start_soon(self._ask_dht)
            nursery.start_soon(self._ask_remembered)
            self._add_known()

    def _add(self, peer_id: PeerId, addresses: Iterable[Address]) -> None:
        if peer_id in self._told or peer_id == self._finder.swarm.peer_id:
            return
        found = tuple(each.with_peer(peer_id) for each in addresses if each.is_dialable)
        if not found:
            return
        try:
            self._send.send_nowait(Source(peer_id, found, learned=True))
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the next round finds it again
        self._told.add(peer_id)

    # -- the ways -----------------------------------------------------------------------------

    def _add_known(self) -> None:
        discovery = self._finder.discovery
        for candidate in discovery.known(Origin.BOOTSTRAP, Origin.LAN, Origin.LINK):
            self._add(candidate.peer_id, candidate.addresses)

    async def _ask_remembered(self) -> None:
        remembered = self._finder.discovery.known(Origin.REMEMBERED)
        async with trio.open_nursery() as nursery:
            for candidate in remembered[: self._finder.config.remembered_sources_max]:
                nursery.start_soon(self._try, candidate)

    async def _try(self, candidate: Candidate) -> None:
        """Add a peer that is likely to be gone only if it is there."""
        if candidate.peer_id not in self._told and await self._finder.discovery.attempt(candidate):
            self._add(candidate.peer_id, candidate.addresses)

    async def _take_candidates(self, candidates: trio.MemoryReceiveChannel[Candidate]) -> None:
        with candidates:
            async for candidate in candidates:
                if candidate.origin in (Origin.LAN, Origin.BOOTSTRAP):
                    self._add(candidate.peer_id, candidate.addresses)

    async def _ask_lan(self) -> None:
        discovery = self._finder.discovery
        if discovery.lan is None:
            return
        discovery.lan.ask_now()
        if self._manifest is None and not discovery.known(Origin.LAN):
            await trio.sleep(self._finder.config.lan_wait_s)

    async def _ask_dht(self) -> None:
        dht = self._finder.dht
        if dht is None or not await self._finder.wait_for_dht():
            return
        async with trio.open_nursery() as nursery:
            link = self._link
            if isinstance(link, NameLink):
                nursery.start_soon(self._find_peer, dht, link.publisher)
            elif self._manifest is None:
                nursery.start_soon(self._find_providers, dht, link.manifest)
            if self._manifest is not None:
                nursery.start_soon(self._find_peer, dht, self._manifest.publisher)
                nursery.start_soon(self._find_providers, dht, self._manifest.cid)
                nursery.start_soon(self._find_providers, dht, self._manifest.root)

    async def _find_peer(self, dht: Dht, peer_id: PeerId) -> None:
        if peer_id in self._told:
            return
        try:
            self._add(peer_id, await dht.find_peer(peer_id))
        except Sbp2pError as error:
            observe.report_not_found(f"a lookup of {peer_id}", error)

    async def _find_providers(self, dht: Dht, cid: Cid) -> None:
        count = self._finder.config.providers_max
        try:
            async with dht.find_providers(provider_key(cid), count=count) as search:
                async for provider in search:
                    if provider.addresses:
                        self._add(provider.peer_id, provider.addresses)
                    else:
                        await self._find_peer(dht, provider.peer_id)
        except Sbp2pError as error:
            observe.report_not_found(f"a lookup of {cid}", error)

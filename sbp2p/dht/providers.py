"""Finding who provides something: providers are told as a lookup comes upon them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import trio

from sbp2p_protocol.kad_messages import KadMessage, KadType
from sbp2p_protocol.limits import KAD_PROVIDERS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.kad_lookup import Lookup
    from sbp2p_protocol.kad_messages import KadPeer
    from sbp2p_protocol.multiaddr import Address

    from .lookups import Lookups


@dataclass(frozen=True, slots=True)
class Provider:
    """A peer that says it has something, and where it may be found; addresses may be missing."""

    peer_id: PeerId
    addresses: tuple[Address, ...]


class ProviderSearch:
    """The providers that a lookup finds: iterate, and leave early by `async with` or `aclose`.

    Ends when as many as were wanted were told or the lookup is over, a minute at most.
    """

    def __init__(self, key: bytes, own: PeerId, count: int) -> None:
        self._key = key
        self._own = own
        self._count = count
        self._send, self._receive = trio.open_memory_channel[Provider](KAD_PROVIDERS_MAX)
        self._scope = trio.CancelScope()
        self._told: set[PeerId] = set()
        self._without_address: dict[PeerId, None] = {}

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Provider:
        try:
            return await self._receive.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Look no further."""
        self._scope.cancel()
        self._receive.close()
        await trio.lowlevel.checkpoint()

    async def run(self, lookups: Lookups, known: Sequence[KadPeer], paths: int) -> None:
        """Tell of those that are known here, then of those that a lookup finds."""
        with self._scope, self._send:
            self._take(known, known)
            if len(self._told) >= self._count:
                return

            def on_reply(lookup: Lookup, peer: KadPeer, reply: KadMessage) -> None:
                usable = lookups.usable(peer.peer_id, reply.providers)
                self._take(usable, reply.providers)
                if len(self._told) >= self._count:
                    lookup.stop()

            message = KadMessage(KadType.GET_PROVIDERS, self._key)
            await lookups.run(message, paths=paths, whole=True, on_reply=on_reply)
            for peer_id in self._without_address:
                self._tell(Provider(peer_id, ()))

    def _take(self, usable: Sequence[KadPeer], told: Sequence[KadPeer]) -> None:
        for each in usable:
            self._tell(Provider(each.peer_id, each.addresses))
        for each in told:
            if len(self._without_address) < KAD_PROVIDERS_MAX:
                self._without_address[each.peer_id] = None

    def _tell(self, provider: Provider) -> None:
        full = len(self._told) >= self._count
        if full or provider.peer_id == self._own or provider.peer_id in self._told:
            return
        try:
            self._send.send_nowait(provider)
        except (trio.WouldBlock, trio.BrokenResourceError):
            return  # whoever asked has more than it reads
        self._told.add(provider.peer_id)

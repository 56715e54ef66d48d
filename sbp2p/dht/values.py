"""Values: put on the servers nearest to their key, got from a quorum of them, and corrected.

A value is worth what its namespace says. Getting one asks the nearest servers until `quorum` of
them have told a valid one or nobody is left; the best of all is the answer. Servers near the key
that had an older one, or none, are then given the best, so that the next one who asks sees it
sooner.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from sbp2p.errors import Sbp2pError
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.kad_messages import KadMessage, KadPeer, KadRecord, KadType
from sbp2p_protocol.value_records import validate_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sbp2p.config import DhtConfig
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.kad_lookup import Lookup
    from sbp2p_protocol.value_records import Namespace

    from .lookups import Lookups


@dataclass(frozen=True, slots=True)
class ValueFound:
    """What a lookup for a value found.

    Attributes:
        value: The best.
        values: Every different valid one, the best first; more than one may be news or a fraud.
        holders: Servers that told the best.
        answers: Servers that answered at all.
    """

    value: bytes
    values: tuple[bytes, ...]
    holders: int
    answers: int


class Values:
    """Puts and gets values.

    Args:
        lookups: how servers are found.
        config: knobs.
        namespaces: what is valid and what is better.
        wall_clock: Unix time in seconds, which values are valid by.
        nursery: where corrections go on after the answer was given.
    """

    def __init__(
        self,
        lookups: Lookups,
        config: DhtConfig,
        namespaces: Mapping[bytes, Namespace],
        wall_clock: Callable[[], float],
        nursery: trio.Nursery,
    ) -> None:
        self._lookups = lookups
        self._config = config
        self._namespaces = namespaces
        self._wall_clock = wall_clock
        self._nursery = nursery

    async def put(self, key: bytes, value: bytes) -> int:
        """Store a value; return how many servers took it.

        Raises:
            ValueError: it may not stand under this key.
        """
        try:
            validate_value(key, value, self._wall_clock(), self._namespaces)
        except RemoteProtocolError as error:
            raise ValueError(f"this value may not stand under its key: {error}") from None
        lookup = await self._lookups.find_closest(key, paths=self._config.disjoint_paths)
        return await self._store(lookup.closest(), key, value)

    async def get(
        self, key: bytes, quorum: int | None = None, kept: bytes | None = None
    ) -> ValueFound | None:
        """Return the best value under a key, or None if nobody tells a valid one.

        Args:
            key: begins with its namespace.
            quorum: servers that must have told one; as configured if None.
            kept: the one that this node keeps for others, if it does.
        """
        wanted = self._config.quorum if quorum is None else quorum
        told: dict[PeerId, bytes] = {}
        orders: dict[bytes, Any] = {}

        def judge(value: bytes) -> bool:
            with suppress(RemoteProtocolError):
                if value not in orders:
                    now = self._wall_clock()
                    orders[value] = validate_value(key, value, now, self._namespaces).order
                return True
            return False

        def on_reply(lookup: Lookup, peer: KadPeer, reply: KadMessage) -> None:
            if reply.record is None or reply.record.key != key or not judge(reply.record.value):
                return
            told[peer.peer_id] = reply.record.value
            if len(told) >= wanted:
                lookup.stop()

        if kept is not None:
            judge(kept)
        lookup = await self._lookups.run(
            KadMessage(KadType.GET_VALUE, key),
            paths=self._config.disjoint_paths,
            whole=True,
            on_reply=on_reply,
        )
        if not orders:
            return None
        values = tuple(sorted(orders, key=lambda value: (orders[value], value), reverse=True))
        behind = [peer for peer in lookup.closest() if told.get(peer.peer_id) != values[0]]
        self._nursery.start_soon(self._store, behind, key, values[0])
        holders = sum(value == values[0] for value in told.values())
        return ValueFound(values[0], values, holders, lookup.answered)

    async def _store(self, servers: Iterable[KadPeer], key: bytes, value: bytes) -> int:
        """Give servers a value; return how many took it."""
        message = KadMessage(KadType.PUT_VALUE, key, KadRecord(key, value))
        taken = 0

        async def put(server: KadPeer) -> None:
            nonlocal taken
            try:
                reply = await self._lookups.request(server, message)
            except Sbp2pError:
                return
            taken += reply.record is not None and reply.record.value == value

        async with trio.open_nursery() as nursery:
            for server in servers:
                nursery.start_soon(put, server)
        return taken

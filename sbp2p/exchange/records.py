"""Peer records that a peer passes on: verified, bounded, and only addresses that make sense.

At most EXCHANGE_RECORDS_RATE records a minute of each peer are looked at, the rest is dropped
unread. Of a record's addresses those are kept that can be meant for us: private ones only from a
peer at a private address, those of this machine only from a peer on it, names never. So a false
record costs a few failed dials.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import trio

from sbp2p_protocol.address_scope import Scope, scope_of
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.limits import EXCHANGE_RECORDS_RATE, EXCHANGE_RECORDS_WINDOW_S
from sbp2p_protocol.multiaddr import BadAddressError, address_from_bytes
from sbp2p_protocol.peer_record import open_peer_record

from .source import Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.multiaddr import Address

_ADDRESSES_MAX: Final = 8
"""Addresses of one record that are dialled."""
_OPENED_KEPT: Final = 1024
"""Records that are not verified again, up to 2 KiB each. Everybody in a swarm passes on the same
ones: among 64 peers that is 4,000 signatures for each of them."""


class RecordReader:
    """Takes the records that one peer passes on."""

    def __init__(self, swarm: Swarm, teller: PeerId) -> None:
        self._swarm = swarm
        self._teller = teller
        self._window_began = trio.current_time()
        self._taken = 0

    def read(self, records: Sequence[bytes]) -> list[Source]:
        """Return the peers that records are about, with what can be dialled.

        Raises:
            RemoteProtocolError: one of them is no signed record.
        """
        now = trio.current_time()
        if now - self._window_began >= EXCHANGE_RECORDS_WINDOW_S:
            self._window_began, self._taken = now, 0
        allowed = records[: EXCHANGE_RECORDS_RATE - self._taken]
        self._taken += len(allowed)
        near = self._scopes()
        found: list[Source] = []
        for data in allowed:
            peer_id, dialable = _open(data)
            addresses = [each for each in dialable if scope_of(each) in near]
            if addresses and peer_id != self._swarm.peer_id:
                named = tuple(each.with_peer(peer_id) for each in addresses[:_ADDRESSES_MAX])
                found.append(Source(peer_id, named, learned=True))
        return found

    def _scopes(self) -> set[Scope]:
        """Return which addresses make sense, coming from the teller."""
        scopes = {Scope.PUBLIC}
        for connection in self._swarm.connections(self._teller):
            scope = scope_of(connection.remote_address)
            if scope is not Scope.PUBLIC:
                scopes.add(Scope.PRIVATE)
            if scope is Scope.HERE:
                scopes.add(Scope.HERE)
        return scopes


@lru_cache(maxsize=_OPENED_KEPT)
def _open(data: bytes) -> tuple[PeerId, tuple[Address, ...]]:
    """Return whom a verified record is about, and the addresses in it that can be dialled."""
    record = open_peer_record(data)
    return record.peer_id, tuple(readable(record.addresses))


def readable(binary: Iterable[bytes]) -> list[Address]:
    """Return those addresses that can be dialled here, without peer ids."""
    found: list[Address] = []
    for data in binary:
        try:
            address = address_from_bytes(data).without_peer()
        except (BadAddressError, RemoteProtocolError):
            continue
        if address.is_dialable:
            found.append(address)
    return found

"""Where others see this node: counted, and believed when enough of them agree.

Theory of operation. Every peer says in identify at which address it sees this node. One that
dialled here used that address, so its port is the right one too, also behind a port mapping. One
that was dialled sees the port of a passing socket, so only its host counts, with the ports that
this node listens on at the local address which the connection left from.

An address is confirmed once `observers_min` groups of observers (see `address_scope`) of its own
scope have reported it. A group counts while a connection with it is open and for `forget_s` after
the last one; it speaks for its newest OBSERVED_PER_GROUP_MAX addresses only, so that one host
cannot fill the table. At OBSERVER_GROUPS_MAX groups, one without a connection gives way, the one
that left first; with none of those, the newcomer is not heard.

Pure: time is an argument, in seconds. Nothing raises: what makes no sense is not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .address_scope import Scope, observer_group, scope_of
from .limits import AUTONAT_ADDRESSES_MAX, OBSERVED_PER_GROUP_MAX, OBSERVER_GROUPS_MAX
from .multiaddr import parse_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sbp2p_keys.identity import PeerId

    from .multiaddr import Address


@dataclass(slots=True)
class _Group:
    scope: Scope
    open: int = 0
    left_at: float = -math.inf
    seen: dict[Address, None] = field(default_factory=dict)


class ObservedAddresses:
    """What the peers of one node say about its addresses."""

    def __init__(self, *, observers_min: int, forget_s: float) -> None:
        self._observers_min = observers_min
        self._forget_s = forget_s
        self._groups: dict[str, _Group] = {}

    def connected(self, peer_id: PeerId, remote: Address) -> None:
        """Note a connection; what its peer sees counts at least until it ends."""
        name = observer_group(remote, peer_id)
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) >= OBSERVER_GROUPS_MAX and not self._make_room():
                return
            group = self._groups[name] = _Group(scope_of(remote))
        group.open += 1

    def disconnected(self, peer_id: PeerId, remote: Address, now: float) -> None:
        """Note the end of a connection."""
        group = self._groups.get(observer_group(remote, peer_id))
        if group is not None and group.open:
            group.open -= 1
            group.left_at = now

    def observe(
        self,
        peer_id: PeerId,
        remote: Address,
        seen: Address,
        *,
        dialled_by_us: bool,
        local: Address,
        listening: Iterable[Address],
    ) -> None:
        """Count what a connected peer says.

        Args:
            peer_id: who says it.
            remote: where that peer is.
            seen: where it sees this node.
            dialled_by_us: whether this node dialled the connection.
            local: this node's end of the connection.
            listening: where this node listens, no wildcards, no peer ids.
        """
        group = self._groups.get(observer_group(remote, peer_id))
        seen = seen.without_peer() if seen.peer_id is not None else seen
        if group is None or not _is_plain(seen) or scope_of(seen) is not group.scope:
            return
        known = set(listening)
        found = _at_ports(seen, local, known) if dialled_by_us else [seen]
        for address in found:
            if address in known:
                continue
            group.seen.pop(address, None)
            group.seen[address] = None
            if len(group.seen) > OBSERVED_PER_GROUP_MAX:
                del group.seen[next(iter(group.seen))]

    def confirmed(self, now: float) -> tuple[Address, ...]:
        """Return the addresses that enough observers agree on, the most agreed first."""
        votes: Counter[Address] = Counter()
        for group in self._groups.values():
            if group.open or now - group.left_at < self._forget_s:
                votes.update(group.seen.keys())
        agreed = [(each, count) for each, count in votes.items() if count >= self._observers_min]
        agreed.sort(key=lambda pair: (-pair[1], pair[0].data))
        return tuple(address for address, _ in agreed[:OBSERVED_PER_GROUP_MAX])

    def seen(self) -> tuple[Address, ...]:
        """Return what connected peers see, the most agreed first, confirmed or not."""
        votes = Counter(
            each for group in self._groups.values() if group.open for each in group.seen
        )
        return tuple(address for address, _ in votes.most_common(AUTONAT_ADDRESSES_MAX))

    def _make_room(self) -> bool:
        gone = [name for name, group in self._groups.items() if not group.open]
        if not gone:
            return False
        del self._groups[min(gone, key=lambda name: self._groups[name].left_at)]
        return True


def _is_plain(address: Address) -> bool:
    """Whether it is a host and a TCP port and nothing else, as this node listens on."""
    return address.kind in ("ip4", "ip6") and address.is_dialable and address.port > 0


def _at_ports(seen: Address, local: Address, listening: set[Address]) -> Sequence[Address]:
    """Return the seen host at each port that is listened on where the connection left from."""
    ports = {each.port for each in listening if each.kind == seen.kind and each.host == local.host}
    return [parse_address(f"/{seen.kind}/{seen.host}/tcp/{port}") for port in sorted(ports)]

"""Where inbound connections come from: how many of each origin, and which origins must wait.

Theory of operation: peer ids cost nothing to make, addresses cost something. So each origin (an
IPv4 address, or the /64 of an IPv6 address, which is what one subscriber gets) may have so many
inbound connections at once. And since finding out that a peer is banned or not allowed costs a
handshake, its origin then has to wait before the next one, and longer while it goes on. Others
behind the same address wait with it, which is why the wait stays short.

This machine itself (loopback, memory) is exempt: whoever is on it can do worse.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbp2p_protocol.multiaddr import Address

FORGET_S = 600.0
"""After this long without a refusal an origin starts anew."""


def origin_of(address: Address) -> str | None:
    """Return whom to count an address for; None for this machine itself."""
    if address.kind not in ("ip4", "ip6"):
        return None
    host = ipaddress.ip_address(address.host)
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    if host.is_loopback:
        return None
    if host.version == 4 or host.is_link_local:  # all of a link have the same link-local /64
        return str(host)
    return str(ipaddress.ip_network((host, 64), strict=False))


@dataclass(slots=True)
class _Refusals:
    wait_s: float
    last_at: float


class Arrivals:
    """Inbound connections by origin. Pure: time is an argument, in seconds."""

    def __init__(
        self, *, connections_max: int, wait_s: float, wait_max_s: float, origins_max: int
    ) -> None:
        self._connections_max = connections_max
        self._wait_s = wait_s
        self._wait_max_s = wait_max_s
        self._origins_max = origins_max
        self._connections: Counter[str] = Counter()
        self._refused: dict[str, _Refusals] = {}
        """In the order of the last refusal, the oldest first."""

    def refusal(self, origin: str | None, now: float) -> str | None:
        """Return why nobody from `origin` is let in now, or None when they may try."""
        if origin is None:
            return None
        if self._connections[origin] >= self._connections_max:
            return f"{origin} has {self._connections[origin]} connections already"
        refused = self._refused.get(origin)
        if refused is not None and now < refused.last_at + refused.wait_s:
            return f"a peer from {origin} was just refused"
        return None

    def entered(self, origin: str | None) -> None:
        """Count a connection, from its first byte on."""
        if origin is not None:
            self._connections[origin] += 1

    def left(self, origin: str | None) -> None:
        """Count it no more."""
        if origin is None:
            return
        self._connections[origin] -= 1
        if not self._connections[origin]:
            del self._connections[origin]

    def turned_away(self, origin: str | None, now: float) -> None:
        """Note that a handshake led to a peer that is kept out."""
        if origin is None:
            return
        before = self._refused.pop(origin, None)
        wait_s = self._wait_s
        if before is not None and now - before.last_at < FORGET_S:
            wait_s = min(2 * before.wait_s, self._wait_max_s)
        elif len(self._refused) >= self._origins_max:
            del self._refused[next(iter(self._refused))]
        self._refused[origin] = _Refusals(wait_s, now)

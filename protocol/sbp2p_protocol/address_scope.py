"""Who can reach an address, and which of a node's own addresses are told to whom.

Theory of operation. An address has a scope: this machine, one link, a private network, the world.
A peer can only judge addresses of the scope that it is itself seen in, so observers of one scope
never confirm addresses of another. Peer ids cost nothing, addresses cost something: observers are
counted by group, which is an IPv4 address or the /56 of an IPv6 address (what one subscriber gets).
On this machine, where every peer has one and the same address, the peer id is the group.

| scope | addresses | announced |
|---|---|---|
| HERE | loopback, memory | only if this node has no other |
| LINK | fe80::/10, 169.254.0.0/16 | never: they mean something else on every link |
| PRIVATE | everything else that is not global: RFC 1918, unique local, shared (RFC 6598) | always |
| PUBLIC | global unicast | unless this node was found to be unreachable |
| NAMED | dns, dns4, dns6 | always: whoever gave the name knows why |

Everything here is pure and takes addresses that were parsed already, so nothing raises.
"""

from __future__ import annotations

import ipaddress
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sbp2p_keys.identity import PeerId

    from .multiaddr import Address

_SUBSCRIBER_PREFIX = 56
"""Bits of an IPv6 address that one subscriber shares; go-libp2p counts observers the same way."""

_Host: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class Scope(Enum):
    """From where an address can be reached."""

    HERE = "here"
    LINK = "link"
    PRIVATE = "private"
    PUBLIC = "public"
    NAMED = "named"


def host_of(address: Address) -> _Host | None:
    """Return the numeric host, IPv4 out of IPv6 where it is mapped; None if there is none."""
    if address.kind not in ("ip4", "ip6"):
        return None
    host = ipaddress.ip_address(address.host.partition("%")[0])
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        return host.ipv4_mapped
    return host


# lookups ask this of the same addresses again and again, and reading one takes 10 us
@lru_cache(maxsize=8192)
def scope_of(address: Address) -> Scope:
    """Return from where an address can be reached."""
    host = host_of(address)
    if host is None:
        return Scope.NAMED if address.kind.startswith("dns") else Scope.HERE
    if host.is_loopback or host.is_unspecified:
        return Scope.HERE
    if host.is_link_local:
        return Scope.LINK
    return Scope.PUBLIC if host.is_global and not host.is_multicast else Scope.PRIVATE


@lru_cache(maxsize=8192)
def observer_group(address: Address, peer_id: PeerId) -> str:
    """Return whom to count a peer at `address` for, among those who judge us."""
    host = host_of(address)
    if host is None or scope_of(address) is Scope.HERE:
        return str(peer_id)
    if isinstance(host, ipaddress.IPv4Address):
        return str(host)
    return str(ipaddress.ip_network((host, _SUBSCRIBER_PREFIX), strict=False))


def announced(
    listening: Sequence[Address], confirmed: Iterable[Address], *, unreachable: bool
) -> tuple[Address, ...]:
    """Return the addresses to tell the world of, the widest scope first, each once.

    Args:
        listening: where this node listens, no wildcards.
        confirmed: where others agree to have seen it.
        unreachable: whether dial-backs have failed: then public addresses would only cost others
            their time.
    """
    found = list(dict.fromkeys([*confirmed, *listening]))
    public = [] if unreachable else [each for each in found if scope_of(each) is Scope.PUBLIC]
    named = [each for each in found if scope_of(each) is Scope.NAMED]
    private = [each for each in found if scope_of(each) is Scope.PRIVATE]
    elsewhere = [*public, *named, *private]
    if elsewhere or any(scope_of(each) is Scope.PUBLIC for each in found):
        return tuple(elsewhere)
    return tuple(each for each in found if scope_of(each) is Scope.HERE)

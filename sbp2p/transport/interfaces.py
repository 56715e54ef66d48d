"""The network interfaces of this machine, as far as addresses and multicast need them."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Final

import psutil

_FAMILIES: Final = {socket.AF_INET: 4, socket.AF_INET6: 6}


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface that is up, with its numeric addresses, zones left out."""

    name: str
    index: int
    hosts: tuple[str, ...]
    is_multicast: bool
    """Whether the system says that it carries multicast; loopback usually says that it does not."""
    is_loopback: bool

    def hosts_of(self, version: int) -> list[str]:
        """Return its addresses of IPv4 (4) or IPv6 (6)."""
        return [each for each in self.hosts if ipaddress.ip_address(each).version == version]


def interfaces() -> list[Interface]:
    """Return the interfaces that are up and have an address, in the system's order.

    Asks the operating system: about a millisecond for a few interfaces. Without an answer there are
    none: a container may forbid to ask.
    """
    try:
        states, known = psutil.net_if_stats(), psutil.net_if_addrs()
    except OSError:
        return []
    found = []
    for name, addresses in known.items():
        state = states.get(name)
        hosts = tuple(
            dict.fromkeys(
                each.address.partition("%")[0] for each in addresses if each.family in _FAMILIES
            )
        )
        if state is None or not state.isup or not hosts:
            continue
        try:
            index = socket.if_nametoindex(name)
        except OSError:
            continue  # gone since the list was made
        flags = state.flags.split(",")  # empty where the system does not tell
        found.append(
            Interface(
                name,
                index,
                hosts,
                is_multicast="multicast" in flags or not state.flags,
                is_loopback=all(ipaddress.ip_address(each).is_loopback for each in hosts),
            )
        )
    return found


def reachable_hosts(version: int) -> list[str]:
    """Return this machine's addresses that others may dial: no loopback, none of one link only."""
    hosts = [host for each in interfaces() for host in each.hosts_of(version)]
    numeric = [(host, ipaddress.ip_address(host)) for host in dict.fromkeys(hosts)]
    return [host for host, each in numeric if not each.is_loopback and not each.is_link_local]

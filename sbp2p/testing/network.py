"""The virtual network: hosts, links between them, and what goes wrong on the way.

Theory of operation. A host has an uplink and a downlink of given rates (`shaper`); the core between
them is as fast as anybody wants, and a pair of hosts is a latency apart. A connection is two pipes
(`pipe`), each bounded by a send buffer and a window, as sockets are. Nothing is random but what is
drawn from the seed: addresses, latencies, keys, and the dice of the nodes. So a run is repeated by
its seed, and `digest` tells whether it was.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import random
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import trio

from sbp2p.calls import InlineCalls
from sbp2p.config import NodeConfig
from sbp2p.node.environment import Environment
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.limits import KIB

from .hosts import PORT, Host, VirtualTransport, tcp_address
from .link import Link
from .node import VirtualNode
from .shaper import CHUNK_S
from .timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from sbp2p.swarm import Gate
    from sbp2p_protocol.multiaddr import Address

    from .link import VirtualStream

EPOCH: Final = 1_767_225_600.0
"""The date at virtual time 0: 2026-01-01."""
_TRACE_KEPT: Final = 1000


class VirtualNetwork:
    """Hosts, links and nodes. Made by `open_network` or `run_virtual`.

    Args:
        seed: of everything random.
        folder: where nodes have their homes.
        nursery: in which they run.
        latency_s: one way between two hosts; of a range each pair draws its own.
        send_buffer_bytes: of each connection and direction.
        window_min_bytes: least that may be under way on a connection; a link with a large product
            of rate and delay gets twice that product.
        resolution_s: events this close together may be carried out together, each up to this much
            late: rates stay exact, and large networks take a fraction of the time.
        chunk_s: time that one chunk occupies a line for; see `shaper`.
        trace_to: told each line of the trace.
    """

    def __init__(
        self,
        seed: int | str,
        folder: Path,
        nursery: trio.Nursery,
        *,
        latency_s: float | tuple[float, float] = (0.005, 0.05),
        send_buffer_bytes: int = 64 * KIB,
        window_min_bytes: int = 128 * KIB,
        resolution_s: float = 0.0,
        chunk_s: float = CHUNK_S,
        trace_to: Callable[[str], object] | None = None,
    ) -> None:
        self.seed = seed
        self.folder = folder
        self.timeline = Timeline(resolution_s)
        self.send_buffer_bytes = send_buffer_bytes
        self.rng = self.random("network")
        """For whatever a scenario draws."""
        self.nodes: dict[str, VirtualNode] = {}
        """By name, also those that have left."""
        self.names: dict[str, str] = {}
        """DNS: name to IPv4 address."""
        self.recent: deque[str] = deque(maxlen=_TRACE_KEPT)
        """The end of the trace."""
        self._nursery = nursery
        self._window_min_bytes = window_min_bytes
        self._chunk_s = chunk_s
        self._latency_range_s = latency_s if isinstance(latency_s, tuple) else (latency_s,) * 2
        self._latencies: dict[frozenset[str], float] = {}
        self._hosts: dict[str, Host] = {}
        self._by_ip: dict[str, Host] = {}
        self._links: dict[int, Link] = {}
        self._links_made = 0
        self._cuts: set[frozenset[str]] = set()
        self._groups: dict[str, int] = {}
        self._trace_to = trace_to
        self._digest = hashlib.sha256()
        nursery.start_soon(self.timeline.run)

    def random(self, purpose: str) -> random.Random:
        """Return dice of their own for a purpose: what one part draws shifts no other part's."""
        return random.Random(f"{self.seed}/{purpose}")  # noqa: S311

    # -- nodes ------------------------------------------------------------------------------------

    async def add_node(
        self,
        name: str,
        *,
        up: float = math.inf,
        down: float = math.inf,
        reachable: bool = True,
        home: Path | None = None,
        config: NodeConfig | None = None,
        gate: Gate | None = None,
        identity: PrivateKey | None = None,
        ip: str | None = None,
    ) -> VirtualNode:
        """Start a node, on a host of its own; a name that has left comes back where it was.

        Args:
            name: of the host and the node.
            up: bytes per second that leave the host.
            down: bytes per second that reach it.
            reachable: False puts it behind a router that lets nobody in.
            home: its folder; one under the network's by default.
            config: knobs of the node.
            gate: who may connect to it.
            identity: its key; one from the seed and the name by default.
            ip: its public IPv4 address; one from the seed by default.

        Raises:
            ValueError: a node of that name is running.
        """
        before = self.nodes.get(name)
        if before is not None and before.is_running:
            raise ValueError(f"node {name} is running")
        host = self._hosts.get(name) or self.add_host(name, reachable=reachable, ip=ip)
        host.uplink.bytes_per_s, host.downlink.bytes_per_s = up, down
        host.is_up = True
        config = config or NodeConfig()
        calls = InlineCalls()
        lives = 1 if before is None else before.lives + 1
        node = VirtualNode(
            self,
            host,
            lives=lives,
            home=home or (before.home if before is not None else self.folder / name),
            identity=identity or self.key(name),
            config=config,
            gate=gate,
            listen=[tcp_address(host.own_ip, PORT).text],
            environment=Environment(
                transports=[VirtualTransport(self, host, config.transport.dial_timeout_s)],
                calls=calls,
                exchange_calls=calls,
                rng=self.random(f"node/{name}/{lives}"),
                wall_clock=lambda: EPOCH + trio.current_time(),
            ),
        )
        self.nodes[name] = node
        self.trace("start", host)
        await self._nursery.start(node.live)
        return node

    def key(self, name: str) -> PrivateKey:
        """Return the key that a node of this name has."""
        return PrivateKey.from_seed(hashlib.sha256(f"{self.seed}/key/{name}".encode()).digest())

    def add_host(self, name: str, *, reachable: bool = True, ip: str | None = None) -> Host:
        """Make a machine without a node; its lines are as fast as anybody wants."""
        rng = self.random(f"host/{name}")
        public_ip = ip or _public_ip(rng)
        while ip is None and public_ip in self._by_ip:
            public_ip = _public_ip(rng)
        private_ip = None if reachable else f"192.168.{rng.randrange(256)}.{rng.randrange(2, 255)}"
        host = self._hosts[name] = Host(
            name,
            len(self._hosts),
            self.timeline,
            public_ip=public_ip,
            private_ip=private_ip,
            chunk_s=self._chunk_s,
        )
        self._by_ip[public_ip] = host
        return host

    # -- trouble ----------------------------------------------------------------------------------

    def partition(self, groups: Iterable[Sequence[VirtualNode | str]]) -> None:
        """Let only members of the same group hear each other; who is in none, hears nobody.

        Connections across stay open and silent, as TCP does. `heal` ends it.
        """
        self._groups = {
            _name(member): number for number, group in enumerate(groups) for member in group
        }
        self._groups |= {
            name: -1 - number for number, name in enumerate(self._hosts) if name not in self._groups
        }
        self._cut_links()

    def cut(self, one: VirtualNode | str, other: VirtualNode | str) -> None:
        """Let nothing pass between two nodes, until `heal`."""
        self._cuts.add(frozenset((_name(one), _name(other))))
        self._cut_links()

    def heal(self) -> None:
        """Let everything pass again; what waited goes on."""
        self._groups = {}
        self._cuts.clear()
        self._cut_links()

    def reset(self, one: VirtualNode | str, other: VirtualNode | str) -> int:
        """Reset the connections of two nodes; return how many there were."""
        pair = {_name(one), _name(other)}
        links = [each for each in self._links.values() if {h.name for h in each.hosts} == pair]
        for link in links:
            self.trace("reset", *link.hosts)
            link.reset()
        return len(links)

    async def reset_at_random(self, mean_s: float, *nodes: VirtualNode | str) -> None:
        """Reset some connection about every `mean_s` seconds, for ever; of these nodes if any."""
        names = {_name(each) for each in nodes}
        rng = self.random(f"resets/{sorted(names)}")
        while True:
            await trio.sleep(rng.expovariate(1 / mean_s))
            links = [
                link
                for link in self._links.values()
                if not names or names & {host.name for host in link.hosts}
            ]
            if links:
                link = rng.choice(links)
                self.trace("reset", *link.hosts)
                link.reset()

    def vanish(self, host: Host) -> None:
        """Take a host away without a word to anybody."""
        self.trace("vanish", host)
        host.is_up = False
        for link in self.links_of(host):
            link.vanish(host)

    def links_of(self, host: Host) -> list[Link]:
        """Return the open connections of a host."""
        return [link for link in self._links.values() if host in link.hosts]

    def _cut_links(self) -> None:
        self.trace("cut", sorted(map(sorted, self._cuts)), sorted(self._groups.items()))
        for link in self._links.values():
            link.cut(self.is_cut(*link.hosts))

    # -- for hosts and links ----------------------------------------------------------------------

    def is_cut(self, one: Host, other: Host) -> bool:
        """Whether nothing passes between two hosts."""
        if frozenset((one.name, other.name)) in self._cuts:
            return True
        return self._groups.get(one.name, 0) != self._groups.get(other.name, 0)

    def host_at(self, ip: str, asker: Host) -> Host | None:
        """Return the host that answers at an address, or None if none does."""
        host = asker if ip == asker.own_ip else self._by_ip.get(ip)
        if host is None or not host.is_up:
            return None
        return host if host.is_reachable or host is asker else None

    def latency_s(self, one: Host, other: Host) -> float:
        """Return the delay between two hosts, one way."""
        if one is other:
            return 0.0
        pair = frozenset((one.name, other.name))
        if pair not in self._latencies:
            rng = self.random(f"latency/{sorted(pair)}")
            self._latencies[pair] = rng.uniform(*self._latency_range_s)
        return self._latencies[pair]

    def set_latency(
        self, one: VirtualNode | str, other: VirtualNode | str, latency_s: float
    ) -> None:
        """Choose the delay between two nodes, one way, for connections from now on."""
        self._latencies[frozenset((_name(one), _name(other)))] = latency_s

    def window_bytes(self, bytes_per_s: float, latency_s: float) -> int:
        """Return how much may be under way on a connection."""
        product = 0.0 if bytes_per_s == math.inf else 4 * bytes_per_s * latency_s
        return max(self._window_min_bytes, int(product))

    def open_link(
        self, host: Host, target: Host, address: Address
    ) -> tuple[VirtualStream, VirtualStream]:
        """Return both ends of a new connection."""
        port = host.free_port()
        near, seen_as = tcp_address(host.own_ip, port), tcp_address(host.public_ip, port)
        self._links_made += 1
        link = Link(self, self._links_made, (host, target), (near, seen_as, address))
        self._links[link.number] = link
        self.trace("open", host, target)
        return link.streams

    def forget(self, link: Link) -> None:
        """Take a connection that is over from the list."""
        self.trace("over", *link.hosts)
        self._links.pop(link.number, None)

    # -- the trace --------------------------------------------------------------------------------

    def trace(self, what: str, *details: Any) -> None:
        """Note something that happened: part of what a repeated run must do again."""
        shown = " ".join(each.name if isinstance(each, Host) else str(each) for each in details)
        line = f"{self.timeline.now:.9f} {what} {shown}"
        self._digest.update(line.encode())
        self.recent.append(line)
        if self._trace_to is not None:
            self._trace_to(line)

    def digest(self) -> str:
        """Return a hash of everything that has happened: equal for equal runs."""
        return self._digest.hexdigest()


def _name(node: VirtualNode | str) -> str:
    return node if isinstance(node, str) else node.name


def _public_ip(rng: random.Random) -> str:
    """Return an address of the kind that rules about diversity and reachability expect."""
    while True:
        found = ipaddress.IPv4Address(rng.getrandbits(32))
        if found.is_global and not found.is_multicast:
            return str(found)

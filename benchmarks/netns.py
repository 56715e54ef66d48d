"""A small network of our own: one bridge, one shaped link for each host, all in network namespaces.

Theory of operation. The bridge lives in a namespace, the hub, and each host in one of its own,
joined to the hub by a veth pair. Nothing is added to the machine's own network: no address, no
route, no interface, and no packet leaves it. A host's upload is shaped at its end of the pair, its
download at the hub's end, each by a token bucket (tc-tbf(8)) in front of a short queue:

    host 1 [eth0] --tbf up-->  [p1]            the hub forwards between its ports as a switch does,
           [eth0] <--tbf down-- [p1] bridge    faster than any of the links
    host 2 [eth0] ...

Names: `sbp2p-bench-PID-N`, where PID made them. A namespace whose PID is gone was left behind by a
run that crashed: the next run ends what still runs in it and removes it. No other is ever touched.

Needs root and Linux, and says so: see `missing`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PREFIX = "sbp2p-bench-"
INTERFACE = "eth0"
MTU = 1500
QUEUE_MS = 50
"""How long a byte waits at most in front of a link, as in a home router that is not bloated."""
BURST_MS = 4
"""Tokens a link may save up: what a timer that wakes each millisecond or so needs."""
BURST_MIN_BYTES = 10 * MTU
_FIREWALL = "net.bridge.bridge-nf-call-iptables"
_COMMAND_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Link:
    """Rates of one host's link, in bits a second, of whole Ethernet frames."""

    up: int
    down: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a host's link has carried: Ethernet, IP and TCP headers included, drops not."""

    up: int
    down: int


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace with its address and its link."""

    namespace: str
    address: str
    link: Link
    _hub: str
    _port: str

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the argv that runs `argv` on this host; the process keeps its id."""
        return ["ip", "netns", "exec", self.namespace, *argv]

    def traffic(self) -> Traffic:
        """Return what the two token buckets have let through."""
        return Traffic(_sent(self.namespace, INTERFACE), _sent(self._hub, self._port))


def missing() -> str | None:
    """Return why no network can be made here, or None if one can."""
    if sys.platform != "linux":
        return "network namespaces are a thing of Linux"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (package iproute2)"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    remove_stale()
    name = f"{PREFIX}{os.getpid()}-try"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "add", "try0", "type", "veth", "peer", "name", "try1")
        _shape(name, "try0", 10_000_000)
    except SystemExit as error:  # a container without the capability, a kernel without tbf
        return f"this kernel does not let us: {error}"
    finally:
        _remove(name)
    return None


@contextmanager
def network(links: Sequence[Link]) -> Iterator[list[Host]]:
    """Make one host for each link, at 10.77.0.1 and up; all are gone after the block."""
    remove_stale()
    own = f"{PREFIX}{os.getpid()}-"
    hub = f"{own}hub"
    hosts = [
        Host(f"{own}{number}", f"10.77.{number >> 8}.{number & 255}", link, hub, f"p{number}")
        for number, link in enumerate(links, 1)
    ]
    try:
        _run("ip", "netns", "add", hub)
        _run("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
        with suppress(SystemExit):  # where the module is loaded, every frame would visit a firewall
            _run("ip", "netns", "exec", hub, "sysctl", "-q", "-w", f"{_FIREWALL}=0")
        _run("ip", "-n", hub, "link", "set", "br0", "up")
        for host in hosts:
            _add(host, hub)
        yield hosts
    finally:
        for host in hosts:
            _remove(host.namespace)
        _remove(hub)


def description() -> dict[str, Any]:
    """Return what a report says about the links, and about TCP, which hosts get from the machine.

    Linux lets a namespace have no other congestion control than the machine's own, or Reno.
    """
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()
    return {"mtu": MTU, "queue_ms": QUEUE_MS, "burst_ms": BURST_MS, "congestion_control": control}


def remove_stale() -> None:
    """Remove what runs that are gone have left, and end what still runs in it."""
    for path in Path("/run/netns").glob(f"{PREFIX}*-*"):
        owner = path.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _remove(path.name)


def _add(host: Host, hub: str) -> None:
    name, port = host.namespace, host._port
    _run("ip", "netns", "add", name)
    pair = ["type", "veth", "peer", "name", port, "netns", hub]
    _run("ip", "-n", name, "link", "add", INTERFACE, "mtu", str(MTU), *pair)
    # no chatter of a protocol that nobody here speaks
    _run("ip", "netns", "exec", name, "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1")
    _run("ip", "-n", name, "address", "add", f"{host.address}/16", "dev", INTERFACE)
    _run("ip", "-n", name, "link", "set", "lo", "up")
    _run("ip", "-n", name, "link", "set", INTERFACE, "up")
    _run("ip", "-n", hub, "link", "set", port, "mtu", str(MTU), "master", "br0", "up")
    _shape(name, INTERFACE, host.link.up)
    _shape(hub, port, host.link.down)


def _shape(namespace: str, interface: str, rate: int) -> None:
    burst = max(BURST_MIN_BYTES, rate // 8 * BURST_MS // 1000)
    bucket = ["rate", f"{rate}bit", "burst", f"{burst}b", "latency", f"{QUEUE_MS}ms"]
    _run("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf", *bucket)


def _sent(namespace: str, interface: str) -> int:
    text = _run("tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", interface)
    rows: list[dict[str, Any]] = json.loads(text)
    return sum(int(row["bytes"]) for row in rows if row["kind"] == "tbf")


def _remove(namespace: str) -> None:
    """Remove a namespace with everything that runs in it, if it is there."""
    if not Path("/run/netns", namespace).exists():
        return
    with suppress(SystemExit):
        for pid in _run("ip", "netns", "pids", namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _run("ip", "netns", "delete", namespace)


def _run(*argv: str) -> str:
    finished = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=_COMMAND_TIMEOUT_S
    )
    if finished.returncode != 0:
        raise SystemExit(f"{' '.join(argv)}: {finished.stderr.strip()}")
    return finished.stdout

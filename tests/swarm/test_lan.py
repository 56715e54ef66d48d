"""Real multicast, in network namespaces joined by veth pairs. Needs root on Linux; else skipped."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from sbp2p.discovery.lan import links
from sbp2p_protocol.mdns import MDNS_PORT

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 20
IP = shutil.which("ip") or ""


def _ip(*words: str) -> None:
    subprocess.run([IP, *words], check=True, capture_output=True)


@contextmanager
def lan(hosts: int = 2) -> Iterator[list[str]]:
    """Yield the names of namespaces whose interfaces `lan0` are ports of one bridge."""
    if sys.platform != "linux" or os.geteuid() != 0 or not IP:
        pytest.skip("network namespaces need root on Linux, and `ip`")
    hub = f"sbp2p-lan-{os.getpid()}"
    with ExitStack() as stack:
        try:
            _ip("netns", "add", hub)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        stack.callback(_ip, "netns", "del", hub)
        _ip("-n", hub, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        _ip("-n", hub, "link", "set", "br0", "up")
        names = []
        for number in range(1, hosts + 1):
            name = f"{hub}-{number}"
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip(*f"link add lan0 netns {name} type veth peer name p{number} netns {hub}".split())
            _ip("-n", hub, "link", "set", f"p{number}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "lan0")
            # no duplicate address detection: its second would be most of the test
            _ip("-n", name, "addr", "add", f"fd77::{number}/64", "dev", "lan0", "nodad")
            _ip("-n", name, "link", "set", "lan0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            names.append(name)
        yield names


class Lines:
    """The JSON lines of a process."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._buffer = b""

    async def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while b"\n" not in self._buffer:
            data = await self.process.stdout.receive_some()
            assert data, "the process ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def wait_for(self, key: str) -> dict[str, Any]:
        while True:
            line = await self.next()
            if key in line:
                return line


class Street:
    """Nodes in namespaces, which end with the block."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    async def node(
        self, namespace: str, seed: str, listen: str, network: str = "", interface: str = ""
    ) -> tuple[Lines, str]:
        """Start a node; return its lines and its peer id."""
        words = ["-m", "tests.swarm.lan_node", seed, listen, network, interface]
        lines = await self.run(namespace, sys.executable, *words)
        return lines, (await lines.wait_for("peer"))["peer"]

    async def run(self, namespace: str, *argv: str) -> Lines:
        start = partial(
            trio.run_process,
            [IP, "netns", "exec", namespace, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
            cwd=ROOT,
        )
        process: trio.Process = await self._nursery.start(start)
        return Lines(process)


async def street(stack: AsyncExitStack) -> Street:
    nursery = await stack.enter_async_context(trio.open_nursery())
    stack.callback(nursery.cancel_scope.cancel)
    return Street(nursery)


@pytest.mark.parametrize("listen", ["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"])
async def test_nodes_on_one_network_find_each_other(listen: str) -> None:
    with lan() as (here, there), trio.fail_after(TIMEOUT_S):
        async with AsyncExitStack() as stack:
            place = await street(stack)
            one, one_id = await place.node(here, "a", listen)
            two, two_id = await place.node(there, "b", listen)
            for lines, other, host in ((one, two_id, "2"), (two, one_id, "1")):
                found = await lines.wait_for("found")
                assert found["found"] == other
                assert found["origin"] == "lan"
                kinds = {each.split("/")[2] for each in found["addresses"]}
                assert kinds <= {f"10.77.0.{host}", f"fd77::{host}"}
                assert kinds  # and no loopback among them


async def test_private_networks_are_apart() -> None:
    with lan(3) as names, trio.fail_after(TIMEOUT_S):
        async with AsyncExitStack() as stack:
            place = await street(stack)
            listen = "/ip4/0.0.0.0/tcp/0"
            await place.node(names[0], "a", listen, "theirs")
            _, two_id = await place.node(names[1], "b", listen, "mine")
            three, _ = await place.node(names[2], "c", listen, "mine")
            assert (await three.wait_for("found"))["found"] == two_id
            with trio.move_on_after(0.8):
                while (await three.wait_for("found"))["found"] == two_id:
                    pass
                raise AssertionError("a node of another network was found")


async def test_two_nodes_of_one_host_find_each_other() -> None:
    with lan(1) as (here,), trio.fail_after(TIMEOUT_S):
        async with AsyncExitStack() as stack:
            place = await street(stack)
            listen = "/ip4/0.0.0.0/tcp/0"
            one, one_id = await place.node(here, "a", listen)
            two, two_id = await place.node(here, "b", listen)
            assert (await one.wait_for("found"))["found"] == two_id
            assert (await two.wait_for("found"))["found"] == one_id


async def test_who_listens_on_loopback_alone_is_not_told_of() -> None:
    with lan() as (here, there), trio.fail_after(TIMEOUT_S):
        async with AsyncExitStack() as stack:
            place = await street(stack)
            await place.node(here, "a", "/ip4/127.0.0.1/tcp/0")
            two, _ = await place.node(there, "b", "/ip4/0.0.0.0/tcp/0")
            with trio.move_on_after(0.8) as scope:
                await two.wait_for("found")
            assert scope.cancelled_caught


_ASKER = """
import json, socket, struct, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
sock.bind(("", 5353))
group = socket.inet_aton("224.0.0.251")
mine = socket.inet_aton("10.77.0.2")
sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + mine)
sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, mine)
sock.settimeout(10)
import dns.message
name = sys.argv[1]
sock.sendto(dns.message.make_query(name, "PTR").to_wire(), ("224.0.0.251", 5353))
while True:
    data, (host, port) = sock.recvfrom(9000)
    message = dns.message.from_wire(data)
    if message.flags & 0x8000 and message.answer[0].name.to_text() == name:
        break
print(json.dumps({
    "host": host, "port": port, "size": len(data),
    "answers": [rdata.to_text() for rrset in message.answer for rdata in rrset],
    "texts": [each.decode() for rrset in message.additional for r in rrset for each in r.strings],
}), flush=True)
"""


async def test_a_resolver_of_others_reads_our_answers() -> None:
    with lan() as (here, there), trio.fail_after(TIMEOUT_S):
        async with AsyncExitStack() as stack:
            place = await street(stack)
            _, peer_id = await place.node(here, "a", "/ip4/0.0.0.0/tcp/4801")
            asker = await place.run(there, sys.executable, "-c", _ASKER, "_p2p._udp.local.")
            told = await asker.next()
            assert (told["host"], told["port"]) == ("10.77.0.1", MDNS_PORT)
            assert told["texts"] == [f"dnsaddr=/ip4/10.77.0.1/tcp/4801/p2p/{peer_id}"]
            (instance,) = told["answers"]
            assert instance.endswith("._p2p._udp.local.")
            assert peer_id.lower() not in instance
            services = "_services._dns-sd._udp.local."
            asker = await place.run(there, sys.executable, "-c", _ASKER, services)
            assert (await asker.next())["answers"] == ["_p2p._udp.local."]


def test_loopback_is_no_link_unless_it_is_named() -> None:
    assert not [each for each in links() if each.host in ("127.0.0.1", "::1")]
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    assert {each.host for each in links(names)} & {"127.0.0.1", "::1"}
    assert struct.calcsize("@I") == 4


async def test_an_interface_that_comes_up_later_is_used() -> None:
    with lan() as (here, there), trio.fail_after(40):
        _ip("-n", here, "link", "set", "lan0", "down")
        async with AsyncExitStack() as stack:
            place = await street(stack)
            listen = "/ip4/0.0.0.0/tcp/0"
            one, one_id = await place.node(here, "a", listen)
            two, two_id = await place.node(there, "b", listen)
            _ip("-n", here, "link", "set", "lan0", "up")
            assert (await one.wait_for("found"))["found"] == two_id
            found = await two.wait_for("found")
            assert found["found"] == one_id
            assert found["addresses"][0].startswith("/ip4/10.77.0.1/tcp/")

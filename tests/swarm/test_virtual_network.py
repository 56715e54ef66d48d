"""The virtual network itself: lines, delays, what goes wrong, and that a run can be repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import trio

from sbp2p.errors import PeerUnreachableError, Sbp2pError
from sbp2p.testing import VirtualNetwork, VirtualNode, make_sample, run_virtual
from sbp2p.testing.hosts import VirtualTransport, tcp_address
from sbp2p.transport import DialError, RawStream
from sbp2p_protocol.limits import KIB, MIB
from sbp2p_protocol.multiaddr import parse_address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sbp2p.testing.hosts import Host

T = TypeVar("T")


def run(main: Callable[[VirtualNetwork], Awaitable[T]], **options: Any) -> T:
    return run_virtual(main, seed=3, limit_s=600, **{"latency_s": 0.01, **options})


class Machines:
    """Hosts without nodes: raw streams between them."""

    def __init__(self, network: VirtualNetwork) -> None:
        self.network = network

    def host(self, name: str, up: float, down: float, *, reachable: bool = True) -> Host:
        host = self.network.add_host(name, reachable=reachable)
        host.uplink.bytes_per_s, host.downlink.bytes_per_s = up, down
        return host

    async def connect(self, near: Host, far: Host, port: int) -> tuple[RawStream, RawStream]:
        address = tcp_address(far.own_ip, port)
        listener = await VirtualTransport(self.network, far, 10.0).listen(address)
        ends = [await VirtualTransport(self.network, near, 10.0).connect(address)]
        ends.append(await listener.accept())
        listener.close()
        return ends[0], ends[1]


async def send(stream: RawStream, count: int) -> None:
    data = memoryview(bytes(MIB))
    while count:
        count -= await stream.send_some([data[:count]])


async def receive(stream: RawStream, count: int) -> float:
    """Return when the last of `count` bytes came."""
    buffer = memoryview(bytearray(MIB))
    while count > 0:
        got = await stream.receive_into(buffer)
        assert got
        count -= got
    return trio.current_time()


async def move(pairs: list[tuple[RawStream, RawStream]], count: int) -> list[float]:
    """Send `count` bytes over each connection at once; return the seconds that each took."""
    began, ends = trio.current_time(), [0.0] * len(pairs)

    async def take(number: int, stream: RawStream) -> None:
        ends[number] = await receive(stream, count) - began

    async with trio.open_nursery() as nursery:
        for number, (near, far) in enumerate(pairs):
            nursery.start_soon(send, near, count)
            nursery.start_soon(take, number, far)
    return ends


@pytest.mark.parametrize("resolution_s", [0.0, 0.001])
@pytest.mark.parametrize(("up", "down"), [(2e6, 8e6), (8e6, 2e6), (2e6, 2e6)])
def test_the_slower_of_two_lines_sets_the_rate(up: float, down: float, resolution_s: float) -> None:
    async def main(network: VirtualNetwork) -> None:
        machines = Machines(network)
        a, b = machines.host("a", up, 1e9), machines.host("b", 1e9, down)
        [seconds] = await move([await machines.connect(a, b, 1)], 20_000_000)
        assert seconds == pytest.approx(10.0, rel=0.02)

    run(main, resolution_s=resolution_s)


def test_connections_share_a_line_equally_and_use_all_of_it() -> None:
    async def main(network: VirtualNetwork) -> None:
        machines = Machines(network)
        a = machines.host("a", 4e6, 1e9)
        others = [machines.host(f"b{number}", 1e9, 1e9) for number in range(4)]
        pairs = [await machines.connect(a, each, 1) for each in others]
        assert await move(pairs, 5_000_000) == pytest.approx([5.0] * 4, rel=0.02)
        assert a.uplink.bytes_served == 20_000_000

    run(main)


def test_a_slow_receiver_slows_nobody_else_down() -> None:
    async def main(network: VirtualNetwork) -> None:
        machines = Machines(network)
        a = machines.host("a", 4e6, 1e9)
        slow, fast = machines.host("slow", 1e9, 1e6), machines.host("fast", 1e9, 1e9)
        pairs = [await machines.connect(a, slow, 1), await machines.connect(a, fast, 1)]
        seconds = await move(pairs, 6_000_000)
        assert seconds == pytest.approx([6.0, 2.0], rel=0.06)

    run(main)


def test_a_line_is_not_slower_for_being_long() -> None:
    async def main(network: VirtualNetwork) -> None:
        machines = Machines(network)
        a, b = machines.host("a", 10e6, 1e9), machines.host("b", 1e9, 10e6)
        [seconds] = await move([await machines.connect(a, b, 1)], 50_000_000)
        assert seconds == pytest.approx(5.0 + 0.2, rel=0.03)

    run(main, latency_s=0.2)


def test_a_small_message_does_not_wait_for_bulk_transfers() -> None:
    async def main(network: VirtualNetwork) -> None:
        machines = Machines(network)
        a, b = machines.host("a", 1e6, 1e9), machines.host("b", 1e9, 1e9)
        bulk = [await machines.connect(a, b, port) for port in range(1, 9)]
        near, far = await machines.connect(a, b, 9)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(move, bulk, 500_000)
            await trio.sleep(1.0)
            [seconds] = await move([(near, far)], 100)
            assert seconds < 0.01 + 0.03, "the delay, and the chunk that was under way"

    run(main)


def test_who_does_not_read_stops_the_sender_after_buffer_and_window() -> None:
    async def main(network: VirtualNetwork) -> None:
        machines = Machines(network)
        a, b = machines.host("a", 1e9, 1e9), machines.host("b", 1e9, 1e9)
        near, far = await machines.connect(a, b, 1)
        with trio.move_on_after(60):
            await send(near, 10 * MIB)
        assert a.uplink.bytes_served == network.window_bytes(1e9, 0.0001)
        await receive(far, a.uplink.bytes_served)
        await trio.sleep(1)
        more = a.uplink.bytes_served - network.window_bytes(1e9, 0.0001)
        assert 40 * KIB < more <= 64 * KIB, "what was in the send buffer"

    run(main, latency_s=0.0001)


def test_a_dial_takes_a_round_trip_and_each_pair_has_its_own() -> None:
    async def main(network: VirtualNetwork) -> set[float]:
        machines = Machines(network)
        hosts = [machines.host(f"h{number}", 1e9, 1e9) for number in range(6)]
        taken = set()
        for host in hosts[1:]:
            began = trio.current_time()
            await machines.connect(hosts[0], host, 1)
            taken.add(trio.current_time() - began)
            assert network.latency_s(hosts[0], host) == network.latency_s(host, hosts[0])
        return taken

    taken = run(main, latency_s=(0.01, 0.1))
    assert len(taken) == 5
    assert all(0.02 <= each <= 0.2 for each in taken)
    assert run(main, latency_s=(0.01, 0.1)) == taken


def test_nobody_dials_a_closed_port_an_unknown_host_or_one_behind_a_router() -> None:
    async def main(network: VirtualNetwork) -> None:
        machines = Machines(network)
        a, b = machines.host("a", 1e9, 1e9), machines.host("b", 1e9, 1e9)
        hidden = machines.host("hidden", 1e9, 1e9, reachable=False)
        await VirtualTransport(network, hidden, 10.0).listen(tcp_address(hidden.own_ip, 1))
        transport = VirtualTransport(network, a, 10.0)
        for ip, reason in [
            (b.public_ip, "refused"),
            ("192.0.2.1", "no answer"),
            (hidden.public_ip, "no answer"),
            (hidden.own_ip, "no answer"),
        ]:
            with pytest.raises(DialError, match=reason):
                await transport.connect(tcp_address(ip, 1))
        near, far = await machines.connect(hidden, b, 1)
        assert far.remote_address.host == hidden.public_ip
        assert near.local_address.host == hidden.own_ip

    run(main)


def test_names_are_looked_up() -> None:
    async def main(network: VirtualNetwork) -> None:
        a = Machines(network).host("a", 1e9, 1e9)
        network.names["seed.example"] = a.public_ip
        transport = VirtualTransport(network, a, 10.0)
        found = await transport.resolve(parse_address("/dns4/seed.example/tcp/4801"))
        assert found == [tcp_address(a.public_ip, 4801)]
        with pytest.raises(DialError, match="no such name"):
            await transport.resolve(parse_address("/dns4/other.example/tcp/4801"))

    run(main)


@pytest.mark.parametrize("how", ["end", "abort", "reset", "vanish"])
def test_what_the_other_side_sees_of_an_end(how: str) -> None:
    async def main(network: VirtualNetwork) -> None:
        machines = Machines(network)
        a, b = machines.host("a", 1e6, 1e6), machines.host("b", 1e6, 1e6)
        near, far = await machines.connect(a, b, 1)
        await send(near, 1000)
        began = trio.current_time()
        if how == "end":
            await near.aclose()
            near.abort()
            assert await receive(far, 1000) == pytest.approx(began + 0.012, abs=0.001)
            assert await far.receive_into(memoryview(bytearray(1))) == 0
            await send(far, 1)
            await trio.sleep(1)
            with pytest.raises(trio.BrokenResourceError, match="reset"):
                await far.send_some([b"x"])
        elif how == "vanish":
            network.vanish(a)
            with pytest.raises(trio.TooSlowError), trio.fail_after(500):
                await far.receive_into(memoryview(bytearray(1)))
        else:
            near.abort() if how == "abort" else network.reset("a", "b")
            with pytest.raises(trio.BrokenResourceError, match="reset"):
                await far.receive_into(memoryview(bytearray(1)))
            assert trio.current_time() - began == pytest.approx(0.01 if how == "abort" else 0.0)
        if how != "reset":
            with pytest.raises((trio.ClosedResourceError, trio.BrokenResourceError)):
                await near.send_some([b"x"])
        assert network.links_of(a) == []

    run(main)


@pytest.mark.parametrize("how", ["cut", "partition"])
def test_what_was_cut_off_waits_and_goes_on(how: str) -> None:
    async def main(network: VirtualNetwork) -> None:
        machines = Machines(network)
        a, b = machines.host("a", 1e6, 1e6), machines.host("b", 1e6, 1e6)
        pair = await machines.connect(a, b, 1)
        ends: list[float] = []

        async def transfer() -> None:
            ends.extend(await move([pair], 2_000_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(transfer)
            await trio.sleep(1)
            network.cut("a", "b") if how == "cut" else network.partition([["a"], ["b"]])
            with pytest.raises(DialError, match="no answer"):
                await VirtualTransport(network, a, 10.0).connect(tcp_address(b.own_ip, 1))
            await trio.sleep(90)
            network.heal()
        assert ends == pytest.approx([102.0], rel=0.01)

    run(main)


def test_a_reset_behind_a_cut_arrives_when_it_heals() -> None:
    async def main(network: VirtualNetwork) -> None:
        machines = Machines(network)
        a, b = machines.host("a", 1e6, 1e6), machines.host("b", 1e6, 1e6)
        near, far = await machines.connect(a, b, 1)
        network.cut("a", "b")
        near.abort()
        with trio.move_on_after(5) as scope:
            await far.receive_into(memoryview(bytearray(1)))
        assert scope.cancelled_caught
        network.heal()
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await far.receive_into(memoryview(bytearray(1)))

    run(main)


# -- nodes ----------------------------------------------------------------------------------------


async def fetch(node: VirtualNode, link: str) -> None:
    await node.fetch(link, to=node.home / "out")


def test_a_fetch_takes_as_long_as_the_line_needs() -> None:
    async def main(network: VirtualNetwork) -> None:
        sample = make_sample(network.random("model"), blocks=128, block_bytes=64 * KIB)
        seed = await network.add_node("seed", up=1e6, down=1e6)
        leech = await network.add_node("leech", up=1e6, down=1e6)
        sample.give_to(seed)
        began = trio.current_time()
        await fetch(leech, sample.link(seed))
        assert sample.is_at(leech.home / "out")
        assert trio.current_time() - began == pytest.approx(sample.size / 1e6, rel=0.05)
        assert sample.size < seed.wire.up < 1.02 * sample.size
        assert leech.wire.down == seed.wire.up
        assert leech.wire.up < 0.02 * sample.size

    run(main)


@pytest.mark.parametrize("silently", [False, True])
def test_a_killed_node_is_gone_and_comes_back_with_what_it_had(silently: bool) -> None:
    async def main(network: VirtualNetwork) -> None:
        sample = make_sample(network.random("model"), blocks=64, block_bytes=64 * KIB)
        seed = await network.add_node("seed", up=1e6)
        leech = await network.add_node("leech")
        sample.give_to(seed)
        leech.start_soon(fetch, leech, sample.link(seed))
        await trio.sleep(2)
        await leech.kill(silently=silently)
        assert not leech.is_running
        began = trio.current_time()
        other = await network.add_node("other")
        with pytest.raises(PeerUnreachableError, match="no answer" if silently else "refused"):
            await other.connect(leech.address)
        assert trio.current_time() - began == pytest.approx(10.0 if silently else 0.02)

        again = await network.add_node("leech")
        assert (again.peer_id, again.address) == (leech.peer_id, leech.address)
        result = await again.fetch(sample.link(seed), to=again.home / "out")
        assert result.resumed_bytes > MIB
        assert sample.is_at(again.home / "out")

    run(main)


def test_a_node_that_leaves_says_goodbye() -> None:
    async def main(network: VirtualNetwork) -> None:
        one, other = await network.add_node("one"), await network.add_node("other")
        await one.connect(other.address)
        await other.leave()
        await trio.sleep(0.05)
        assert one.swarm.peers() == []
        assert network.links_of(one.host) == []
        with pytest.raises(ValueError, match="is running"):
            await network.add_node("one")

    run(main)


SCENARIO = """
import trio
from sbp2p.testing import VirtualNetwork, make_sample, run_virtual

async def main(network: VirtualNetwork) -> str:
    sample = make_sample(network.random("model"), blocks=12)
    seed = await network.add_node("seed", up=1e6, down=1e6)
    leeches = [await network.add_node(f"leech{n}", up=1e6, down=1e6) for n in range(3)]
    sample.give_to(seed)
    async with trio.open_nursery() as fetches:
        for each in leeches:
            fetches.start_soon(lambda n=each: n.fetch(sample.link(seed, *leeches), to=n.home))
        await trio.sleep(0.6)
        network.reset("leech0", "seed")
    return network.digest()
"""


def test_a_seed_repeats_a_run_also_in_another_process() -> None:
    scope: dict[str, Callable[[VirtualNetwork], Awaitable[str]]] = {}
    exec(compile(SCENARIO, "scenario", "exec"), scope)  # noqa: S102
    first = run_virtual(scope["main"], seed=5)
    assert run_virtual(scope["main"], seed=5) == first
    assert run_virtual(scope["main"], seed=6) != first
    again = subprocess.run(
        [sys.executable, "-c", SCENARIO + "\nprint(run_virtual(main, seed=5))"],
        env={**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout.strip() == first


def test_a_failure_says_how_to_repeat_it(tmp_path: Path) -> None:
    async def main(network: VirtualNetwork) -> None:
        await network.add_node("one")
        raise Sbp2pError("something")

    with pytest.raises(Sbp2pError) as caught:
        run_virtual(main, seed=41, folder=tmp_path)
    assert "SBP2P_SEED=41" in caught.value.__notes__[0]


def test_what_killed_runs_have_left_is_removed() -> None:
    script = (
        "import os\nfrom sbp2p.testing import run_virtual\n"
        "async def main(network):\n"
        "    print(network.folder, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "run_virtual(main)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    left = Path(killed.stdout.strip())
    assert left.is_dir()

    async def main(network: VirtualNetwork) -> Path:
        return network.folder

    assert not run_virtual(main).exists()
    assert not left.exists()


def test_a_run_that_hangs_is_given_up() -> None:
    async def main(network: VirtualNetwork) -> None:
        await network.add_node("one")
        await trio.sleep_forever()

    with pytest.raises(trio.TooSlowError):
        run_virtual(main, limit_s=60)


def test_the_example_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "virtual-network.md").read_text(encoding="utf-8")
    example = guide.partition("```python\n")[2].partition("```")[0]
    exec(compile(example, "virtual-network.md", "exec"), {})  # noqa: S102
    assert "the seed sent" in capsys.readouterr().out

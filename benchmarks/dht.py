"""The DHT among 100, 1,000 and 2,000 virtual nodes: lookups, churn, announcing 14 GB, sybils.

Every node runs the code of a real one (`sbp2p.dht`); what carries its requests is a fabric in the
same process with seeded latencies (10 to 100 ms a way), under a virtual clock. There are no streams
and no Noise, so figures are of the protocol: requests, records, dials, and the time that a lookup
would take. In the beginning nodes know whom days of lookups would have made known; who joins later
finds its way in by itself. Each scenario has a town of its own:

    lookups    200 of random keys: hops, requests, time; then half of all nodes vanish at once, half
               of those silently, and records announced before are sought
    churn      10 % a minute vanish and as many join, for five minutes, or until 500 have; a
               thousand searches meanwhile
    announce   one node announces 14 GB: root, manifest and shard, then 14,000 blocks
    sybils     around each of some keys, 30 % of all nodes are sybils that name only each other
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from benchmarks.dht_town import Resident, Town, random_key
from benchmarks.harness import Claim, Sample, parser, report
from sbp2p.testing import run_virtual
from sbp2p_protocol.kad_lookup import DISJOINT_PATHS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sbp2p.testing import VirtualNetwork

T = TypeVar("T")

SIZES = (100, 1000, 2000)
BLOCKS = 14_000
DIALS_A_BLOCK = 20
"""What announcing a block takes when each has its own lookup and its own 20 servers."""
CHURN_A_MINUTE = 0.10
NEWCOMERS_MAX = 500
SYBILS = 0.30


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How much of each scenario is done."""

    lookups: int
    searches: int
    churn_searches: int
    churn_minutes: float
    blocks: int
    sampled_blocks: int
    """Announced one by one, to know what that costs."""
    sybil_keys: int


FULL = Scale(
    lookups=200,
    searches=200,
    churn_searches=1000,
    churn_minutes=5.0,
    blocks=BLOCKS,
    sampled_blocks=30,
    sybil_keys=10,
)
QUICK = Scale(
    lookups=30,
    searches=30,
    churn_searches=60,
    churn_minutes=1.0,
    blocks=1000,
    sampled_blocks=5,
    sybil_keys=2,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lookups:
    """Lookups of random keys in peace, and searches after half of all nodes have vanished."""

    nodes: int
    hops: float
    requests: float
    median_s: float
    p95_s: float
    exact: float
    """Share of the 20 servers found that are the true nearest ones."""
    half_gone_success: float
    half_gone_median_s: float
    half_gone_p95_s: float

    @property
    def hops_over_log2n(self) -> float:
        """Hops, where 1 is a bit of the key a hop."""
        return self.hops / math.log2(self.nodes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Churn:
    """Searches while nodes come and go."""

    nodes: int
    vanished: int
    joined: int
    searches: int
    found: int
    median_s: float
    p95_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Announce:
    """Announcing one model."""

    nodes: int
    blocks: int
    root_rpcs: int
    root_dials: int
    root_s: float
    rpcs_per_block: float
    dials: int
    streams: int
    lookups: int
    seconds: float
    servers_per_block: float
    one_by_one_rpcs: float
    one_by_one_dials: float
    one_by_one_s: float
    """For each block, if it has its own lookup."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sybils:
    """Searches for keys that sybils lie around, with one path and with three."""

    nodes: int
    keys: int
    searches: int
    one_path: float
    disjoint: float


async def timed(action: Callable[[], Awaitable[T]]) -> tuple[T, float]:
    """Return what an action returns and its virtual seconds."""
    began = trio.current_time()
    result = await action()
    return result, trio.current_time() - began


async def search(resident: Resident, key: bytes) -> bool:
    """Tell whether a node finds somebody who provides a key."""
    async with resident.dht.find_providers(key, count=1) as found:
        async for _ in found:
            return True
    return False


def p95(values: Sequence[float]) -> float:
    """Return the value that 95 % are not above."""
    return sorted(values)[max(0, math.ceil(0.95 * len(values)) - 1)]


async def measure_lookups(nodes: int, scale: Scale, network: VirtualNetwork) -> Lookups:
    """Run the scenario `lookups`."""
    async with trio.open_nursery() as nursery:
        town = Town(nursery, network.random("dht"))
        rng = town.rng
        await town.settle(nodes)
        hops, requests, seconds, exact = [], [], [], 0
        for _ in range(scale.lookups):
            key = random_key(rng)
            asking = rng.choice(town.residents)
            closest, took_s = await timed(partial(asking.dht.find_closest, key))
            hops.append(closest.hops)
            requests.append(closest.requests)
            seconds.append(took_s)
            exact += len(set(closest.servers) & set(town.nearest(key, asking)))
        providers = rng.sample(town.residents, min(10, nodes // 4))
        keys = [random_key(rng) for _ in range(20)]
        for number, key in enumerate(keys):
            await providers[number % len(providers)].dht.provide(key)
        doomed = [each for each in town.residents if each not in providers]
        for each in rng.sample(doomed, nodes // 2):
            town.leave(each)
        others = [each for each in town.residents if each not in providers]
        found, waited = 0, []
        for _ in range(scale.searches):
            success, took_s = await timed(partial(search, rng.choice(others), rng.choice(keys)))
            found += success
            waited.append(took_s)
        nursery.cancel_scope.cancel()
    return Lookups(
        nodes=nodes,
        hops=statistics.mean(hops),
        requests=statistics.mean(requests),
        median_s=statistics.median(seconds),
        p95_s=p95(seconds),
        exact=exact / (20 * scale.lookups),
        half_gone_success=found / scale.searches,
        half_gone_median_s=statistics.median(waited),
        half_gone_p95_s=p95(waited),
    )


async def measure_churn(nodes: int, scale: Scale, network: VirtualNetwork) -> Churn:
    """Run the scenario `churn`."""
    async with trio.open_nursery() as nursery:
        town = Town(nursery, network.random("dht"))
        rng = town.rng
        await town.settle(nodes)
        providers = rng.sample(town.residents, 10)
        keys = [random_key(rng) for _ in range(30)]
        for number, key in enumerate(keys):
            await providers[number % len(providers)].dht.provide(key)
        vanished = joined = 0
        # a newcomer costs 200 requests, and the machine as many milliseconds
        minutes = min(scale.churn_minutes, NEWCOMERS_MAX / (CHURN_A_MINUTE * nodes))
        end = trio.current_time() + 60.0 * minutes
        pause_s = 60.0 / (CHURN_A_MINUTE * nodes)

        async def lose() -> None:
            nonlocal vanished
            while trio.current_time() < end:
                await trio.sleep(pause_s)
                mortal = [each for each in town.residents if each not in providers]
                town.leave(rng.choice(mortal))
                vanished += 1

        async def gain() -> None:
            nonlocal joined
            await town.join()
            joined += 1

        async def replace_lost() -> None:
            while trio.current_time() < end:
                await trio.sleep(pause_s)
                nursery.start_soon(gain)

        results: list[tuple[bool, float]] = []

        async def seek() -> None:
            others = [each for each in town.residents if each not in providers]
            asking = rng.choice(others)
            result = await timed(partial(search, asking, rng.choice(keys)))
            if asking.network.is_there:  # who vanished while it searched has found nothing out
                results.append(result)

        nursery.start_soon(lose)
        nursery.start_soon(replace_lost)
        async with trio.open_nursery() as seekers:
            for _ in range(scale.churn_searches):
                await trio.sleep(60.0 * minutes / scale.churn_searches)
                seekers.start_soon(seek)
        nursery.cancel_scope.cancel()
    seconds = [took_s for _, took_s in results]
    return Churn(
        nodes=nodes,
        vanished=vanished,
        joined=joined,
        searches=len(results),
        found=sum(success for success, _ in results),
        median_s=statistics.median(seconds),
        p95_s=p95(seconds),
    )


async def measure_announce(nodes: int, scale: Scale, network: VirtualNetwork) -> Announce:
    """Run the scenario `announce`."""
    async with trio.open_nursery() as nursery:
        town = Town(nursery, network.random("dht"))
        rng, fabric = town.rng, town.fabric
        await town.settle(nodes)
        publisher = town.residents[0].dht
        root = [random_key(rng) for _ in range(3)]
        before = fabric.dials
        root_report, root_s = await timed(partial(publisher.provide_many, root))
        root_dials = fabric.dials - before

        before, requests = fabric.dials, fabric.requests + fabric.records
        began = trio.current_time()
        # by somebody else each time, so that no connection is left from the time before
        for each in rng.sample(town.residents[1:], scale.sampled_blocks):
            await each.dht.provide(random_key(rng))
        one_by_one_s = trio.current_time() - began
        one_by_one_dials = fabric.dials - before
        one_by_one = fabric.requests + fabric.records - requests

        blocks = [random_key(rng) for _ in range(scale.blocks)]
        before = fabric.dials
        swept, seconds = await timed(partial(publisher.provide_many, blocks))
        dials = fabric.dials - before
        nursery.cancel_scope.cancel()
    return Announce(
        nodes=nodes,
        blocks=scale.blocks,
        root_rpcs=root_report.rpcs,
        root_dials=root_dials,
        root_s=root_s,
        rpcs_per_block=swept.rpcs / scale.blocks,
        dials=dials,
        streams=swept.streams,
        lookups=swept.lookups,
        seconds=seconds,
        servers_per_block=swept.records / scale.blocks,
        one_by_one_rpcs=one_by_one / scale.sampled_blocks,
        one_by_one_dials=one_by_one_dials / scale.sampled_blocks,
        one_by_one_s=one_by_one_s / scale.sampled_blocks,
    )


async def measure_sybils(nodes: int, scale: Scale, network: VirtualNetwork) -> Sybils:
    """Run the scenario `sybils`."""
    failed = {1: 0, DISJOINT_PATHS: 0}
    searches = 0
    async with trio.open_nursery() as nursery:
        town = Town(nursery, network.random("dht"))
        await town.settle(nodes)
        keys = [random_key(town.rng) for _ in range(scale.sybil_keys)]
        for key in keys:
            town.add_sybils(key, SYBILS)
        askers = {paths: [await town.add(paths) for _ in range(20)] for paths in failed}
        provider = town.residents[0]
        town.residents += [each for group in askers.values() for each in group]
        town.acquaint()
        for key in keys:
            await provider.dht.provide(key)
            searches += 20
            for paths, group in askers.items():
                for each in group:
                    failed[paths] += not await search(each, key)
        nursery.cancel_scope.cancel()
    return Sybils(
        nodes=nodes,
        keys=scale.sybil_keys,
        searches=searches,
        one_path=1 - failed[1] / searches,
        disjoint=1 - failed[DISJOINT_PATHS] / searches,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Everything about one size of network."""

    lookups: Lookups
    churn: Churn
    announce: Announce
    sybils: Sybils
    real_s: float


def measure(nodes: int, scale: Scale, seed: int) -> Figures:
    """Run all scenarios in networks of one size."""
    began = time.perf_counter()

    def run(name: str, scenario: Callable[[int, Scale, VirtualNetwork], Awaitable[T]]) -> T:
        started = time.perf_counter()
        result: T = run_virtual(partial(scenario, nodes, scale), seed=seed, limit_s=1e6)
        took_s = time.perf_counter() - started
        print(f"  {nodes:>5} nodes  {name:<10}{took_s:8.1f} s", file=sys.stderr)
        return result

    return Figures(
        lookups=run("lookups", measure_lookups),
        churn=run("churn", measure_churn),
        announce=run("announce", measure_announce),
        sybils=run("sybils", measure_sybils),
        real_s=time.perf_counter() - began,
    )


def claims_of(figures: Sequence[Figures]) -> list[Claim]:
    """Return the claims, each about the network where it does worst."""
    searches = sum(each.churn.searches for each in figures)
    found = sum(each.churn.found for each in figures)
    swept = [each.announce for each in figures]
    return [
        Claim(name="success_under_churn", value=found / searches, unit="", target=0.999),
        Claim(
            name="hops_over_log2n",
            value=max(each.lookups.hops_over_log2n for each in figures),
            unit="",
            target=1.0,
            better="lower",
        ),
        Claim(
            name="announce_rpcs_per_record",
            value=max(each.rpcs_per_block for each in swept),
            unit="",
            target=25.0,
            better="lower",
        ),
        Claim(
            name="dials_saved_by_sweep",
            value=min(DIALS_A_BLOCK * each.blocks / max(1, each.dials) for each in swept),
            unit="times",
        ),
        Claim(
            name="success_after_half_vanished",
            value=min(each.lookups.half_gone_success for each in figures),
            unit="",
        ),
        Claim(
            name="success_among_sybils",
            value=min(each.sybils.disjoint for each in figures),
            unit="",
        ),
    ]


def print_figures(figures: Sequence[Figures]) -> None:
    """Print what was measured, a line a figure and a column a size of network."""
    rows: list[tuple[str, Callable[[Figures], str]]] = [
        ("lookup: hops", lambda f: f"{f.lookups.hops:.2f}"),
        ("lookup: requests", lambda f: f"{f.lookups.requests:.1f}"),
        ("lookup: median s", lambda f: f"{f.lookups.median_s:.2f}"),
        ("lookup: 95 % s", lambda f: f"{f.lookups.p95_s:.2f}"),
        ("lookup: nearest found", lambda f: f"{f.lookups.exact:.4f}"),
        ("half gone: found", lambda f: f"{f.lookups.half_gone_success:.4f}"),
        ("half gone: median s", lambda f: f"{f.lookups.half_gone_median_s:.2f}"),
        ("half gone: 95 % s", lambda f: f"{f.lookups.half_gone_p95_s:.2f}"),
        ("churn: found", lambda f: f"{f.churn.found} of {f.churn.searches}"),
        ("churn: median s", lambda f: f"{f.churn.median_s:.2f}"),
        ("churn: 95 % s", lambda f: f"{f.churn.p95_s:.2f}"),
        ("root: RPCs, 3 records", lambda f: f"{f.announce.root_rpcs}"),
        ("root: dials", lambda f: f"{f.announce.root_dials}"),
        ("root: s", lambda f: f"{f.announce.root_s:.1f}"),
        ("blocks: RPCs a block", lambda f: f"{f.announce.rpcs_per_block:.2f}"),
        ("blocks: servers a block", lambda f: f"{f.announce.servers_per_block:.2f}"),
        ("blocks: dials in all", lambda f: f"{f.announce.dials}"),
        ("blocks: at 20 dials each", lambda f: f"{DIALS_A_BLOCK * f.announce.blocks}"),
        ("blocks: s", lambda f: f"{f.announce.seconds:.0f}"),
        ("one by one: RPCs a block", lambda f: f"{f.announce.one_by_one_rpcs:.1f}"),
        ("one by one: dials a block", lambda f: f"{f.announce.one_by_one_dials:.1f}"),
        ("one by one: s in all", lambda f: f"{f.announce.one_by_one_s * f.announce.blocks:.0f}"),
        ("sybils: found, one path", lambda f: f"{f.sybils.one_path:.3f}"),
        ("sybils: found, three paths", lambda f: f"{f.sybils.disjoint:.3f}"),
    ]
    print(f"{'nodes':<28}" + "".join(f"{each.lookups.nodes:>14}" for each in figures))
    for name, show in rows:
        print(f"{name:<28}" + "".join(f"{show(each):>14}" for each in figures))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the process's exit status."""
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--nodes", type=int, nargs="+", metavar="N", help="sizes of network")
    options.add_argument("--seed", type=int, default=1, help="of everything random (default 1)")
    chosen = options.parse_args(arguments)
    sizes = chosen.nodes or (SIZES[:1] if chosen.quick else SIZES)
    scale = QUICK if chosen.quick else FULL
    figures = [measure(nodes, scale, chosen.seed) for nodes in sizes]
    print_figures(figures)
    samples = {f"{each.lookups.nodes} nodes": [Sample(seconds=each.real_s)] for each in figures}
    return report(
        claims_of(figures),
        samples,
        json_path=chosen.json,
        extra={"seed": chosen.seed, "networks": [asdict(each) for each in figures]},
    )


if __name__ == "__main__":
    sys.exit(main())

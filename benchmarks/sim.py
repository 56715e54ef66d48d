"""One seeder and 8, 64 or 256 leechers on a virtual network: how does the swarm grow?

The nodes are real, network and clock are not (`sbp2p.testing`): a figure depends on what the
protocol does, and neither on this machine nor on chance, and the same seed gives the same figure.
Disks, hashing and encryption take no time here, and no packet is lost: `benchmarks.swarm` is the
one with real processes on real sockets.

Every size is the same race in another scale: a file of 256 blocks, sent once over the seeder's line
in 25.6 s. Everybody's lines carry the same, up and down; leechers know the seeder and up to 32
others.
Each policy is run against its ablation: rarest block first against a random one, tit-for-tat
against serving everybody in turn, super-seeding against none. Beside it a race with leechers that
give nothing and with few upload slots, since tit-for-tat is about them.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from benchmarks.chart import Chart
from benchmarks.harness import Claim, Sample, parser, report
from benchmarks.race import fluid_limit
from sbp2p.config import (
    ConnectionConfig,
    DhtConfig,
    DiscoveryConfig,
    ExchangeConfig,
    NamingConfig,
    NodeConfig,
)
from sbp2p.roles import Role, Rules
from sbp2p.testing import make_sample, run_virtual
from sbp2p_protocol.choker import ChokingPolicy
from sbp2p_protocol.limits import KIB
from sbp2p_protocol.picking import Picking

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from sbp2p.testing import Sample as Version
    from sbp2p.testing import VirtualNetwork, VirtualNode

BLOCKS = 256
QUICK_BLOCKS = 64
BLOCK_BYTES = {4: 128 * KIB, 8: 512 * KIB, 16: 128 * KIB, 64: 128 * KIB, 256: 64 * KIB}
"""By leechers. What is moved in all is 1, 2 and 4 GiB for 8, 64 and 256."""
BLOCKS_PER_S = 10
"""Rate of each line in blocks: the file takes 25.6 s."""
SIZES = (8, 64, 256)
QUICK_SIZES = (4, 16)
KNOWN = 32
"""Other leechers that each one knows from the start, and asks at the most."""
LATENCY_S = (0.005, 0.05)
RECEIVE_BUFFER = 128 * KIB
"""Of each connection: 256 nodes in one process have no memory for the default. What a connection
reads at once does not change what it carries."""
FREE_RIDERS = 0.25
"""Part of the leechers that give nothing, in the race that has any."""
RIDERS_BLOCKS_PER_S = 2
RIDERS_SLOTS = 4
"""That race takes 128 s, twelve rounds of choking, and has few upload slots: where everybody is
served there is nothing to choose."""
LIMIT_S = 1200.0

POLICIES: dict[str, ExchangeConfig] = {
    "default": ExchangeConfig(),
    "random picking": ExchangeConfig(picking=Picking.RANDOM),
    "no tit-for-tat": ExchangeConfig(choking=ChokingPolicy.NONE),
    "no super-seeding": ExchangeConfig(super_seed=False),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One race."""

    policy: str
    leechers: int
    free_riders: int
    size: int
    limit_s: float
    """The fluid limit of those that give."""
    last_s: float
    median_s: float
    last_free_rider_s: float
    """0 without any."""
    seeder_bytes: int
    received_bytes: int
    """Block payload that all leechers received."""
    wire_bytes: int
    """What all downlinks of leechers carried."""

    @property
    def last_over_limit(self) -> float:
        """The last giving leecher's time over the fluid limit."""
        return self.last_s / self.limit_s

    @property
    def seeder_over_size(self) -> float:
        """What the seeder's uplink carried over the size of the file."""
        return self.seeder_bytes / self.size

    @property
    def duplicates(self) -> float:
        """Part of the payload received that came twice."""
        wanted = self.leechers * self.size
        return (self.received_bytes - wanted) / wanted


class Race:
    """One seeder, leechers, one version."""

    def __init__(self, policy: str, leechers: int, blocks: int, *, free_riders: int = 0) -> None:
        self._policy = policy
        self._leechers = leechers
        self._blocks = blocks
        self._free_riders = free_riders
        self._block_bytes = BLOCK_BYTES[leechers]
        exchange = replace(POLICIES[policy], max_sources=KNOWN + 1)
        blocks_per_s = BLOCKS_PER_S
        if free_riders:
            exchange = replace(exchange, upload_slots_max=RIDERS_SLOTS)
            blocks_per_s = RIDERS_BLOCKS_PER_S
        self._rate = float(blocks_per_s * self._block_bytes)
        self._config = NodeConfig(
            exchange=exchange,
            connection=ConnectionConfig(receive_buffer_bytes=RECEIVE_BUFFER),
            dht=DhtConfig(enabled=False),
            discovery=DiscoveryConfig(enabled=False),
            naming=NamingConfig(publish=False),
            serve_perf=False,
        )
        self._ends: dict[str, float] = {}
        self._received = 0

    def run(self, seed: int) -> Outcome:
        """Run it to its end, in virtual time."""
        return run_virtual(
            self._race,
            seed=seed,
            limit_s=LIMIT_S,
            latency_s=LATENCY_S,
            resolution_s=0.002,
            chunk_s=0.03,
        )

    async def _race(self, network: VirtualNetwork) -> Outcome:
        version = make_sample(
            network.random("model"), blocks=self._blocks, block_bytes=self._block_bytes
        )
        seeder = await self._start(network, "seed", self._config)
        version.give_to(seeder)
        takers = replace(self._config, roles=Rules(node=Role.LEECH))
        leechers = [
            await self._start(
                network, f"leech{number}", takers if number < self._free_riders else self._config
            )
            for number in range(self._leechers)
        ]
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for node in leechers:
                others = [each for each in leechers if each is not node]
                known = network.rng.sample(others, min(KNOWN, len(others)))
                nursery.start_soon(self._fetch, node, version, [seeder, *known], began)
        givers = [self._ends[each.name] for each in leechers[self._free_riders :]]
        takers_ends = [self._ends[each.name] for each in leechers[: self._free_riders]]
        rates = [self._rate] * self._leechers
        return Outcome(
            policy=self._policy,
            leechers=self._leechers,
            free_riders=self._free_riders,
            size=version.size,
            limit_s=fluid_limit(version.size, self._rate, rates[self._free_riders :], rates),
            last_s=max(givers),
            median_s=statistics.median(givers),
            last_free_rider_s=max(takers_ends, default=0.0),
            seeder_bytes=seeder.wire.up,
            received_bytes=self._received,
            wire_bytes=sum(each.wire.down for each in leechers),
        )

    async def _start(self, network: VirtualNetwork, name: str, config: NodeConfig) -> VirtualNode:
        return await network.add_node(name, up=self._rate, down=self._rate, config=config)

    async def _fetch(
        self, node: VirtualNode, version: Version, known: Sequence[VirtualNode], began: float
    ) -> None:
        result = await node.fetch(
            version.link(), to=node.home / "out", peers=[each.address for each in known]
        )
        self._ends[node.name] = trio.current_time() - began
        self._received += result.network_bytes
        if not version.is_at(node.home / "out"):
            raise SystemExit(f"{node.name} does not have the bytes of the source")


HEAD = (
    f"{'leechers':>8}  {'policy':<22}{'T*':>7}{'last':>8}{'last/T*':>9}{'median/T*':>11}"
    f"{'seeder/F':>10}{'twice':>8}{'wire':>8}"
)


def row(outcome: Outcome) -> str:
    """Return one line of the table."""
    wire = outcome.wire_bytes / (outcome.leechers * outcome.size)
    name = outcome.policy + (", riders" if outcome.free_riders else "")
    return (
        f"{outcome.leechers:>8}  {name:<22}{outcome.limit_s:7.1f}{outcome.last_s:8.1f}"
        f"{outcome.last_over_limit:9.3f}{outcome.median_s / outcome.limit_s:11.3f}"
        f"{outcome.seeder_over_size:10.3f}{outcome.duplicates:8.2%}{wire:8.3f}"
    )


def claims_of(outcomes: Sequence[Outcome]) -> list[Claim]:
    """Return the figures; the virtual network has no targets of its own but the sizes' order."""
    claims: list[Claim] = []
    by_key = {(each.policy, each.leechers): each for each in outcomes if not each.free_riders}
    for (policy, leechers), outcome in by_key.items():
        if policy == "default":
            claims += [
                _lower(f"last_over_fluid_limit_{leechers}", outcome.last_over_limit),
                _lower(f"seeder_over_file_{leechers}", outcome.seeder_over_size),
                _lower(f"duplicate_share_{leechers}", outcome.duplicates),
            ]
        elif ours := by_key.get(("default", leechers)):
            name = policy.replace(" ", "_").replace("-", "_")
            claims.append(
                Claim(
                    name=f"{name}_over_default_{leechers}",
                    value=outcome.last_s / ours.last_s,
                    unit="x",
                )
            )
    for outcome in outcomes:
        if outcome.free_riders:
            name = "tit_for_tat" if outcome.policy == "default" else "no_tit_for_tat"
            claims.append(
                Claim(
                    name=f"free_rider_over_giver_{name}",
                    value=outcome.last_free_rider_s / outcome.last_s,
                    unit="x",
                )
            )
    return claims


def _lower(name: str, value: float) -> Claim:
    return Claim(name=name, value=value, unit="x", better="lower")


def charts(outcomes: Sequence[Outcome]) -> dict[str, Chart]:
    """Return the curves, by the name of their file."""
    honest = [each for each in outcomes if not each.free_riders]
    return {
        "sim-last": Chart(
            title="The last one's time over the fluid limit",
            x_label="leechers",
            y_label="last / T*",
            lines=_lines(honest, {each: each.last_over_limit for each in honest}),
        ),
        "sim-seeder": Chart(
            title="What the seeder sent over the size of the file",
            x_label="leechers",
            y_label="seeder / file",
            lines=_lines(honest, {each: each.seeder_over_size for each in honest}),
        ),
    }


def _lines(
    outcomes: Sequence[Outcome], values: Mapping[Outcome, float]
) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in outcomes:
        lines.setdefault(each.policy, []).append((float(each.leechers), values[each]))
    return lines


def main() -> int:
    """Run every race and print what came of it."""
    options = _options().parse_args()
    sizes = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    blocks = options.blocks or (QUICK_BLOCKS if options.quick else BLOCKS)
    races = [Race(policy, size, blocks) for size in sizes for policy in options.policies]
    if not options.no_free_riders:
        count = sizes[0] if len(sizes) == 1 else sizes[min(1, len(sizes) - 1)]
        takers = max(1, int(count * FREE_RIDERS))
        races += [
            Race(policy, count, blocks, free_riders=takers)
            for policy in ("default", "no tit-for-tat")
        ]
    outcomes: list[Outcome] = []
    print(HEAD)
    for race in races:
        outcomes.append(race.run(options.seed))
        print(row(outcomes[-1]), flush=True)
    if options.plot is not None:
        for name, chart in charts(outcomes).items():
            (options.plot / f"{name}.svg").write_text(chart.svg(), encoding="utf-8")
    samples = {
        f"{each.policy} {each.leechers}{' with free riders' if each.free_riders else ''}": [
            Sample(seconds=each.last_s)
        ]
        for each in outcomes
    }
    extra = {"outcomes": [asdict(each) for each in outcomes], "seed": options.seed}
    return report(claims_of(outcomes), samples, json_path=options.json, extra=extra)


def _options() -> argparse.ArgumentParser:
    made = parser(__doc__ or "")
    made.add_argument("--sizes", type=int, nargs="+", choices=sorted(BLOCK_BYTES), metavar="N")
    made.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    made.add_argument("--blocks", type=int, metavar="N", help="of the file, at ten a second")
    made.add_argument("--no-free-riders", action="store_true", help="leave that race out")
    made.add_argument("--seed", type=int, default=1, help="of the virtual network")
    made.add_argument(
        "--plot", type=Path, metavar="DIR", default=None, help="write the curves there, as SVG"
    )
    return made


if __name__ == "__main__":
    sys.exit(main())

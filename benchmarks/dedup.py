"""How many bytes a new version costs somebody who has the old one: sbp2p, fixed blocks, chunks.

Five ways in which a checkpoint becomes its next version, each with other random choices in every
round. Three ways to cut it: tensor-aware blocks as sbp2p cuts them, blocks of 1 MiB from each
file's start, and content-defined chunks of 64 KiB on average. What a way costs is the blocks of the
new version that the old one does not have, each once, and the list that names the blocks: sbp2p's
tree and tensor index, or 36 bytes (digest and length) for each block of a file whose list is new.

Beside that arithmetic stands a real fetch: a second node that has the old version fetches the new
one, and everything that it received is counted, handshake, manifest and framing included. The
claims are about these bytes, and about the worst round. The files are compared afterwards.
"""

from __future__ import annotations

import filecmp
import shutil
import statistics
import sys
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import trio
from blake3 import blake3

from benchmarks.chunking import content_defined_lengths, fixed_lengths
from benchmarks.data import MIB, fresh_folder
from benchmarks.harness import Claim, parser, report
from benchmarks.versions import CASES, changed_bytes, make_checkpoint, write_checkpoint
from sbp2p.checkpoint.publish import publish_tree
from sbp2p.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benchmarks.versions import Checkpoint

LIST_ENTRY = 36
LISTEN = "/ip4/127.0.0.1/tcp/0"
RESHARDED = "re-sharded and renamed"
REPLACED = "10 % replaced"


@dataclass(frozen=True, slots=True)
class Parts:
    """What a folder consists of for one way to cut it: blocks and lists, by name, with bytes."""

    blocks: Mapping[bytes, int]
    lists: Mapping[bytes, int]

    def cost_after(self, old: Parts) -> int:
        """Return the bytes that somebody who has `old` still needs."""
        blocks = sum(size for name, size in self.blocks.items() if name not in old.blocks)
        return blocks + sum(size for name, size in self.lists.items() if name not in old.lists)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """One case in one round, in bytes."""

    size: int
    """All files of the new version."""
    changed: int
    """Tensors that the old version does not have."""
    sbp2p: int
    fixed: int
    content_defined: int
    fetched: int
    """Received by a real node, all included."""


def files_of(folder: Path) -> list[Path]:
    """Return the files of a flat folder in order."""
    return sorted(path for path in folder.iterdir() if path.is_file())


def tensor_aware(folder: Path) -> Parts:
    """Cut as sbp2p does."""
    tree = publish_tree(folder)
    table = tree.table
    blocks = {table.digest(number): table.length(number) for number in range(len(table))}
    return Parts(blocks, {cid.digest: len(data) for cid, data in tree.nodes})


def cut_files(folder: Path, cutter: Callable[[NDArray[np.uint8]], Iterator[int]]) -> Parts:
    """Cut each file without knowing what is in it."""
    blocks: dict[bytes, int] = {}
    lists: dict[bytes, int] = {}
    for path in files_of(folder):
        data = np.fromfile(path, np.uint8)
        view = data.data
        names = []
        start = 0
        for length in cutter(data):
            name = blake3(view[start : start + length]).digest()
            blocks[name] = length
            names.append(name)
            start += length
        lists[blake3(b"".join(names)).digest()] = LIST_ENTRY * len(names)
    return Parts(blocks, lists)


CUTTERS: Mapping[str, Callable[[Path], Parts]] = {
    "sbp2p": tensor_aware,
    "fixed": partial(cut_files, cutter=fixed_lengths),
    "content_defined": partial(cut_files, cutter=content_defined_lengths),
}


def require_same_files(source: Path, copy: Path) -> None:
    """End the benchmark if the folders do not hold the same files."""
    names = [path.name for path in files_of(source)]
    same, _, _ = filecmp.cmpfiles(source, copy, names, shallow=False)
    if same != names or [path.name for path in files_of(copy)] != names:
        raise SystemExit(f"{copy} is not what {source} is")


class Dedup:
    """An old version that everybody has, and what the new ones cost."""

    def __init__(self, checkpoint: Checkpoint, work: Path, seeder: Node) -> None:
        self._old = checkpoint
        self._work = work
        self._seeder = seeder
        self._folder = write_checkpoint(checkpoint, work / "old")
        self._parts = {name: cut(self._folder) for name, cut in CUTTERS.items()}

    @property
    def average_chunk(self) -> float:
        """Bytes in a content-defined chunk of the old version, on average."""
        return statistics.mean(self._parts["content_defined"].blocks.values())

    async def prepare(self) -> None:
        """Publish the old version, and fetch it with the node that will want the new ones."""
        version = await self._seeder.publish(self._folder, name="bench")
        async with Node(home=self._work / "leecher") as leecher:
            await leecher.fetch(version.link(self._seeder.addresses), to=self._work / "held")
        require_same_files(self._folder, self._work / "held")

    async def measure(self, case: str, random: Random) -> Cost:
        """Make the next version, cut it in every way, and fetch it."""
        new = CASES[case](self._old, random)
        folder = write_checkpoint(new, self._work / "new")
        costs = {name: cut(folder).cost_after(self._parts[name]) for name, cut in CUTTERS.items()}
        fetched = await self._fetch(folder)
        size = sum(path.stat().st_size for path in files_of(folder))
        shutil.rmtree(folder)
        return Cost(size=size, changed=changed_bytes(self._old, new), fetched=fetched, **costs)

    async def _fetch(self, folder: Path) -> int:
        """Fetch a version as a node that has only the old one; return the bytes received."""
        home, target = self._work / "home", self._work / "target"
        shutil.copytree(self._work / "leecher", home)
        version = await self._seeder.publish(folder, name="bench")
        async with Node(home=home) as leecher:
            await leecher.fetch(version.link(self._seeder.addresses), to=target)
            received = leecher.statistics().bytes_received
        require_same_files(folder, target)
        await self._seeder.remove(version)
        shutil.rmtree(home)
        shutil.rmtree(target)
        return received


def claims_of(costs: Mapping[str, Sequence[Cost]]) -> list[Claim]:
    """Return the two claims, of the worst round, and what the other ways would have cost."""
    resharded = max(100 * cost.fetched / cost.size for cost in costs[RESHARDED])
    replaced = max(cost.fetched / cost.changed for cost in costs[REPLACED])
    claims = [
        Claim(
            name="resharded_percent_of_size",
            value=resharded,
            unit="%",
            target=1.0,
            better="lower",
        ),
        Claim(
            name="replaced_vs_changed_bytes",
            value=replaced,
            unit="x",
            target=1.05,
            better="lower",
        ),
    ]
    for case, label in ((RESHARDED, "resharded"), (REPLACED, "replaced")):
        for way in ("fixed", "content_defined"):
            ratio = statistics.median(getattr(cost, way) / cost.fetched for cost in costs[case])
            claims.append(Claim(name=f"{label}_ratio_vs_{way}", value=ratio, unit="x"))
    return claims


def print_costs(costs: Mapping[str, Sequence[Cost]]) -> None:
    """Print each way's median cost in each case as a share of the new version's size."""
    ways = ("changed", "sbp2p", "fetched", "fixed", "content_defined")
    print(f"{'% of the new version':<24}" + "".join(f"{way:>17}" for way in ways))
    for case, rows in costs.items():
        shares = [
            statistics.median(100 * getattr(row, way) / row.size for row in rows) for way in ways
        ]
        print(f"{case:<24}" + "".join(f"{share:>17.4f}" for share in shares))


async def measure_all(checkpoint: Checkpoint, rounds: int) -> tuple[dict[str, list[Cost]], float]:
    """Return the costs of every case in every round, and the average content-defined chunk."""
    work = fresh_folder("dedup")
    async with Node(home=work / "seeder", listen=[LISTEN]) as seeder:
        dedup = Dedup(checkpoint, work, seeder)
        await dedup.prepare()
        costs: dict[str, list[Cost]] = {case: [] for case in CASES}
        for number in range(rounds):
            for case, rows in costs.items():
                random = Random(f"{case} {number}")  # noqa: S311  (what a benchmark changes)
                rows.append(await dedup.measure(case, random))
                fetched = rows[-1].fetched / MIB
                print(f"  round {number + 1} {case:<24} {fetched:9.3f} MiB", file=sys.stderr)
        return costs, dedup.average_chunk


def main() -> int:
    """Measure every case, print the table and the claims."""
    args = parser(__doc__ or "").parse_args()
    size, hidden = (32 * MIB, 512) if args.quick else (256 * MIB, 1024)
    checkpoint = make_checkpoint(size, hidden=hidden, shards=4)
    costs, average_chunk = trio.run(measure_all, checkpoint, args.rounds or 5)
    print_costs(costs)
    extra = {
        "rounds": {case: [asdict(row) for row in rows] for case, rows in costs.items()},
        "average_chunk_bytes": average_chunk,
    }
    print(f"content-defined chunks are {average_chunk / 1024:.1f} KiB on average")
    return report(claims_of(costs), {}, json_path=args.json, extra=extra)


if __name__ == "__main__":
    sys.exit(main())

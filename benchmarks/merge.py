"""Eight models merged into one: sbp2p, mergekit and plain torch, against reading the same files.

Each contender merges the same eight Llama-like models of 1 GiB in float32 and again in bfloat16:
the mean, TIES (density 0.2, with a base) and the median. mergekit has no median, and plain torch
is no match for TIES; each stands where it has a part. Results are compared with ones that were
computed in another way (`merge_data`). A file is read once by as many threads to know what the disk
and the page cache can do; what is cold was dropped from the cache (posix_fadvise), and whether a
host machine still has it is not ours to say.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks import sbp2p_process
from benchmarks.data import MIB, fresh_folder
from benchmarks.harness import (
    PEERS,
    ROOT,
    Claim,
    Sample,
    alternate,
    median_ratio,
    parser,
    print_table,
    report,
)
from benchmarks.merge_data import DENSITY, WIDTH, names
from benchmarks.processes import Finished, run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

MERGEKIT: Final = ROOT / ".venv-merge-peers" / "bin" / "python"
QUICK_MIB: Final = 64
FULL_MIB: Final = 1024
THREADS: Final = os.cpu_count() or 1
READERS: Final = THREADS + 1
"""As many as sbp2p takes by itself, so that one computes while another waits for the disk."""
READ: Final = "read"
METHODS: Final = ("mean", "ties", "median")
TOLERANCE: Final = {"mergekit": 0.2, "torch": 0.01}
"""Of the largest weight of a tensor. mergekit computes in the dtype of the files, where signs that
are elected by a hair come out the other way; the others are held to be right in every bit."""


@dataclass(frozen=True, slots=True)
class Run:
    """One contender's part in the table."""

    method: str
    who: str
    cold: bool = False

    @property
    def name(self) -> str:
        """Return what the table calls it."""
        name = self.who if self.who == READ else f"{self.method} {self.who}"
        return f"{name} cold" if self.cold else name

    @property
    def is_slow(self) -> bool:
        """Return whether one round has to do: mergekit sorts every tensor for TIES."""
        return self.method == "ties"


class Merge:
    """The contenders, all merging the models of one dtype."""

    def __init__(self, folder: Path, work: Path) -> None:
        self._models = [folder / name for name in names()]
        self._folder = folder
        self._work = work
        self.checked: dict[str, dict[str, Any]] = {}
        """What the comparison of each contender's result said."""

    @property
    def gigabytes(self) -> float:
        """Return what the inputs hold, the base left out."""
        files = (model / "model.safetensors" for model in self._models[1:])
        return sum(path.stat().st_size for path in files) / 1e9

    def contend(self, part: Run) -> Sample:
        """Merge once, and check the result when this contender is new."""
        output = self._work / "output"
        shutil.rmtree(output, ignore_errors=True)
        self._prepare(part.cold)
        sample = {"sbp2p": self._sbp2p, "mergekit": self._mergekit, "torch": self._torch}.get(
            part.who, self._read
        )(part.method, output)
        if part.who != READ and part.name not in self.checked:
            self.checked[part.name] = self._check(part, output)
        return sample

    def _prepare(self, cold: bool) -> None:
        """Have all files in the page cache, or none of them, and nothing left to be written."""
        os.sync()
        for model in self._models:
            with (model / "model.safetensors").open("rb") as file:
                if cold and hasattr(os, "posix_fadvise"):  # Linux only
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    while file.read(4 * MIB):
                        pass

    def _sbp2p(self, method: str, output: Path) -> Sample:
        words = [*self._models[1:], "--method", method, "--output", output]
        words += ["--threads", str(READERS)]
        if method == "ties":
            words += ["--base", self._models[0], "--option", f"density={DENSITY}"]
        merged, finished = sbp2p_process.run_json(self._work / "home", "merge", *words)
        return _sample(finished, merged["seconds"])

    def _mergekit(self, method: str, output: Path) -> Sample:
        if not MERGEKIT.exists():
            raise SystemExit("mergekit is not installed: run `make merge-peers-deps` first")
        words = ["--method", method, "--base", self._models[0], "--density", DENSITY]
        return self._peer([MERGEKIT, PEERS / "mergekit_peer.py", *words], output)

    def _torch(self, method: str, output: Path) -> Sample:
        return self._peer([sys.executable, PEERS / "plain_torch.py", "--method", method], output)

    def _peer(self, argv: Sequence[object], output: Path) -> Sample:
        words = ["--output", output, "--threads", THREADS, *self._models[1:]]
        finished = run([str(word) for word in (*argv, *words)])
        return _sample(finished, json.loads(finished.output.splitlines()[-1])["seconds"])

    def _read(self, _: str, __: Path) -> Sample:
        files = [str(model / "model.safetensors") for model in self._models[1:]]
        argv = [sys.executable, str(PEERS / "read_files.py"), "--threads", str(READERS)]
        finished = run([*argv, *files])
        return _sample(finished, json.loads(finished.output)["seconds"])

    def _check(self, part: Run, output: Path) -> dict[str, Any]:
        argv = [sys.executable, "-m", "benchmarks.merge_data", "check", self._folder, output]
        finished = run([*map(str, argv), "--method", part.method])
        found: dict[str, Any] = json.loads(finished.output)
        allowed = TOLERANCE.get(part.who, 0.0)
        if part.who == "torch" and part.method == "median":
            allowed = 1.0  # torch.median takes the lower one of the two in the middle
        if found["worst"] > allowed or (not allowed and found["different"]):
            raise SystemExit(f"{part.name} is not right: {found}")
        return found


def _sample(finished: Finished, seconds: float) -> Sample:
    return Sample(
        seconds=seconds,
        wall_s=finished.wall_s,
        cpu_s={"process": finished.usage.cpu_s},
        rss_mb={"process": finished.usage.rss_mb},
    )


def parts_of(methods: Sequence[str], *, cold: bool) -> list[Run]:
    """Return who merges what, beginning with the reading that the others are compared with."""
    parts = [Run("", READ)]
    parts += [Run(method, "sbp2p") for method in methods]
    parts += [Run(method, "mergekit") for method in methods if method != "median"]
    parts += [Run(method, "torch") for method in methods if method != "ties"]
    if cold and "mean" in methods:
        parts += [Run("", READ, cold=True), Run("mean", "sbp2p", cold=True)]
        parts += [Run("mean", "mergekit", cold=True)]
    return parts


def claims_of(samples: Mapping[str, Mapping[str, Sequence[Sample]]]) -> list[Claim]:
    """Return the claims of a run, from the samples by dtype and contender.

    A target holds for the worst dtype.
    """
    wanted: list[tuple[str, str, str, float | None]] = [
        ("ratio_vs_mergekit_mean", "mean sbp2p", "mean mergekit", 2.0),
        ("ratio_vs_mergekit_ties", "ties sbp2p", "ties mergekit", 2.0),
        ("ratio_vs_torch_mean", "mean sbp2p", "mean torch", None),
        ("ratio_vs_torch_median", "median sbp2p", "median torch", None),
        ("mean_over_read_speed_cold", "mean sbp2p cold", f"{READ} cold", 0.7),
        ("mean_over_read_speed_warm", "mean sbp2p", READ, None),
    ]
    claims = []
    for name, ours, theirs, target in wanted:
        both = [rows for rows in samples.values() if ours in rows and theirs in rows]
        if ratios := [median_ratio(rows[ours], rows[theirs]) for rows in both]:
            claims.append(Claim(name=name, value=min(ratios), unit="x", target=target))
    peaks = [
        row.rss_mb["process"] / 1024
        for rows in samples.values()
        for name, each in rows.items()
        if "sbp2p" in name
        for row in each
    ]
    if peaks:
        peak = max(peaks)
        claims.append(
            Claim(name="peak_rss_gib", value=peak, unit="GiB", target=1.0, better="lower")
        )
    return claims


def measure(
    dtype: str, mib: int, parts: Sequence[Run], rounds: int
) -> tuple[dict[str, list[Sample]], dict[str, dict[str, Any]]]:
    """Make the models of a dtype, run the contenders, and remove everything."""
    folder = fresh_folder("merge", dtype)
    try:
        run(
            [
                *(sys.executable, "-m", "benchmarks.merge_data", "make", str(folder)),
                *("--mib", str(mib), "--dtype", dtype),
            ]
        )
        merge = Merge(folder, fresh_folder("merge", "work"))
        contenders: dict[str, Callable[[], Sample]] = {
            part.name: partial(merge.contend, part) for part in parts
        }
        slow = [part.name for part in parts if part.is_slow]
        samples: dict[str, list[Sample]] = {}
        for group, count in ([name for name in contenders if name not in slow], rounds), (slow, 1):
            if group:
                chosen = {name: contenders[name] for name in group}
                samples |= alternate(chosen, rounds=count, warmup=0)
        print(f"{dtype}, 8 inputs of {mib} MiB")
        print_table(samples, gigabytes=merge.gigabytes)
        return samples, merge.checked
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(folder.parent / "work", ignore_errors=True)


def main() -> int:
    """Run the contenders with each dtype, print the tables and the claims."""
    options = parser(__doc__ or "")
    options.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options.add_argument("--dtypes", nargs="+", choices=list(WIDTH), default=list(WIDTH))
    options.add_argument("--mib", type=int, help="of each model")
    options.add_argument("--only", nargs="+", metavar="WHO", help="such as sbp2p read")
    args = options.parse_args()
    dtypes = ["BF16"] if args.quick else args.dtypes
    methods = ["mean", "median"] if args.quick else args.methods
    mib = args.mib or (QUICK_MIB if args.quick else FULL_MIB)
    parts = parts_of(methods, cold=True)
    if args.only:
        parts = [part for part in parts if part.who in args.only]
    samples = {}
    checked = {}
    for dtype in dtypes:
        samples[dtype], checked[dtype] = measure(dtype, mib, parts, args.rounds or 3)
    flat = {f"{dtype} {name}": rows for dtype in samples for name, rows in samples[dtype].items()}
    extra = {"checked": checked, "threads": THREADS, "readers": READERS, "mib": mib}
    return report(claims_of(samples), flat, json_path=args.json, extra=extra)


if __name__ == "__main__":
    sys.exit(main())

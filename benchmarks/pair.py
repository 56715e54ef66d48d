"""One seeder process, one leecher process, loopback, file to file: us, libtorrent, curl, py-libp2p.

sbp2p encrypts, authenticates and verifies every block, and syncs the file to disk before it says
that it is done; curl from nginx does none of it, libtorrent verifies, and encrypts with RC4 if told
to. What is compared is each tool's own time from connecting to the finished file; the time of the
whole process (interpreter start included) and the CPU time of both ends stand beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import sbp2p_process
from benchmarks.data import MIB, fresh_folder, model_file, require_same
from benchmarks.harness import (
    LIBTORRENT,
    PEERS,
    PY_LIBP2P,
    Claim,
    Sample,
    alternate,
    median_ratio,
    parser,
    print_table,
    report,
)
from benchmarks.peers import nginx
from benchmarks.processes import Finished, PeerMissingError, Usage, require, run, server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

QUICK_BYTES = 64 * MIB
FULL_BYTES = 1024 * MIB
LARGE_FACTOR = 4


class Pair:
    """The contenders, all moving one file into a fresh destination."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.work = fresh_folder("pair")
        self.target = self.work / "target"
        self.home = self.work / "seeder-home"
        published, _ = sbp2p_process.run_json(
            self.home, "publish", source.parent, "--name", "bench"
        )
        self.cid = published["cid"]

    def _prepare(self) -> Path:
        shutil.rmtree(self.target, ignore_errors=True)
        shutil.rmtree(self.work / "leecher-home", ignore_errors=True)
        self.target.mkdir()
        os.sync()  # the last contender's dirty pages are not the next one's burden
        return self.target

    def sbp2p(self) -> Sample:
        """One `sbp2p get` from one `sbp2p seed`."""
        target = self._prepare()
        home = self.work / "leecher-home"
        with sbp2p_process.seeding(self.home) as (address, seeder):
            link = f"sbp2p:{self.cid}?peer={address}"
            done, finished = sbp2p_process.run_json(home, "get", link, "--to", target)
        require_same(self.source, target / self.source.name)
        return Sample(
            seconds=done["seconds"],
            wall_s=finished.wall_s,
            cpu_s={"seeder": seeder.cpu_s, "leecher": finished.usage.cpu_s},
            rss_mb={"seeder": seeder.rss_mb, "leecher": finished.usage.rss_mb},
        )

    def curl(self) -> Sample:
        """One curl from one nginx: plain HTTP, nothing verified."""
        target = self._prepare() / self.source.name
        if shutil.which("curl") is None:
            raise PeerMissingError("curl")
        with nginx.serve(self.source.parent, self.work / "nginx") as (url, usage):
            words = ["curl", "-sS", "-o", str(target), "-w", "%{time_total}"]
            finished = run([*words, f"{url}/{self.source.name}"])
        require_same(self.source, target)
        return Sample(
            seconds=float(finished.output),
            wall_s=finished.wall_s,
            cpu_s={"seeder": usage.cpu_s, "leecher": finished.usage.cpu_s},
            rss_mb={"seeder": usage.rss_mb, "leecher": finished.usage.rss_mb},
        )

    def libtorrent(self, encryption: str) -> Sample:
        """One libtorrent session from another."""
        target = self._prepare()
        python = require(LIBTORRENT, "libtorrent")
        script = [python, str(PEERS / "libtorrent_peer.py")]
        torrent = self.work / "bench.torrent"
        if not torrent.exists():
            run([*script, "create", "--source", str(self.source), "--torrent", str(torrent)])
        common = ["--torrent", str(torrent), "--encryption", encryption]
        seed = [*script, "seed", *common, "--folder", str(self.source.parent)]
        with server(seed, ready="ready") as (line, usage):
            peer = line.split()[1:]
            finished = run([*script, "fetch", *common, "--folder", str(target), "--peer", *peer])
        require_same(self.source, target / self.source.name)
        return _json_sample(finished, usage)

    def py_libp2p(self) -> Sample:
        """One py-libp2p stream from one py-libp2p host: Noise, nothing verified."""
        target = self._prepare() / self.source.name
        python = require(PY_LIBP2P, "py-libp2p")
        script = [python, str(PEERS / "py_libp2p_peer.py")]
        with server([*script, "serve", "--path", str(self.source)], ready="ready") as (line, usage):
            finished = run([*script, "fetch", "--peer", line.split()[1], "--path", str(target)])
        require_same(self.source, target)
        return _json_sample(finished, usage)


def _json_sample(finished: Finished, server_usage: Usage) -> Sample:
    return Sample(
        seconds=json.loads(finished.output)["seconds"],
        wall_s=finished.wall_s,
        cpu_s={"seeder": server_usage.cpu_s, "leecher": finished.usage.cpu_s},
        rss_mb={"seeder": server_usage.rss_mb, "leecher": finished.usage.rss_mb},
    )


def _peak(samples: Sequence[Sample], role: str) -> float:
    return max(sample.rss_mb[role] for sample in samples)


def claims_of(samples: Mapping[str, Sequence[Sample]], gigabytes: float) -> list[Claim]:
    """Return what this benchmark claims, from the samples of one run."""
    ours = samples["sbp2p"]
    targets = {"libtorrent plain": 2.0, "libtorrent rc4": 3.0, "curl nginx": 1.0}
    names = {"libtorrent rc4": "ratio_vs_libtorrent_encrypted"}
    claims = [
        Claim(
            name=names.get(peer, "ratio_vs_" + peer.replace(" ", "_")),
            value=median_ratio(ours, rows),
            unit="x",
            target=targets.get(peer),
        )
        for peer, rows in samples.items()
        if peer != "sbp2p"
    ]
    for role in ("seeder", "leecher"):
        cpu = statistics.median(sample.cpu_s[role] for sample in ours) / gigabytes
        claims.append(Claim(name=f"cpu_s_per_gb_{role}", value=cpu, unit="s/GB"))
    for role in ("seeder", "leecher"):
        peak = _peak(ours, role)
        claims.append(
            Claim(name=f"peak_rss_mb_{role}", value=peak, unit="MB", target=150, better="lower")
        )
    return claims


def memory_claims(small: Sequence[Sample], large: Sequence[Sample]) -> list[Claim]:
    """Return how much more memory a file takes that is LARGE_FACTOR times larger."""
    return [
        Claim(
            name=f"rss_growth_{role}_1_to_{LARGE_FACTOR}_gib",
            value=_peak(large, role) / _peak(small, role) - 1,
            unit="share",
            target=0.10,
            better="lower",
        )
        for role in ("seeder", "leecher")
    ]


def main() -> int:
    """Run the contenders, print the table and the claims."""
    args = parser(__doc__ or "").parse_args()
    size = QUICK_BYTES if args.quick else FULL_BYTES
    source = model_file(size)
    gigabytes = source.stat().st_size / 1e9
    pair = Pair(source)
    contenders: dict[str, Callable[[], Sample]] = {
        "sbp2p": pair.sbp2p,
        "libtorrent plain": partial(pair.libtorrent, "plain"),
        "libtorrent rc4": partial(pair.libtorrent, "rc4"),
        "curl nginx": pair.curl,
    }
    if not args.quick:  # py-libp2p alone would take longer than a quick run may
        contenders["py libp2p"] = pair.py_libp2p
    samples = alternate(contenders, rounds=args.rounds or 5)
    claims = claims_of(samples, gigabytes)
    if not args.quick:
        large = Pair(model_file(LARGE_FACTOR * FULL_BYTES))
        samples[f"sbp2p {LARGE_FACTOR} GiB"] = [large.sbp2p()]
        claims += memory_claims(samples["sbp2p"], samples[f"sbp2p {LARGE_FACTOR} GiB"])
    print_table(samples, gigabytes=gigabytes)
    return report(claims, samples, json_path=args.json)


if __name__ == "__main__":
    sys.exit(main())

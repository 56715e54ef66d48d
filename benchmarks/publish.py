"""From a cold process to a signed link, against torrent creation and plain hashing tools.

The time is that of the whole process, from starting it to its end: `sbp2p publish` with a home that
does not exist yet (so it also makes and saves a key, and its index), libtorrent's `create_torrent`
in each of its formats, `sha256sum`, and `b3sum` or, where that is not installed, the `blake3`
package. The file is in the page cache for all of them. Every link, torrent and digest is checked.

libtorrent makes hybrid torrents by default: SHA-1 of each piece and a SHA-256 Merkle tree. Its v2
format alone is what sbp2p's trees compare with; its v1 format is not collision resistant, but what
most torrents still are. Its Python binding hashes in one thread; `v1 threads` uses one a core.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from functools import cache, partial
from typing import TYPE_CHECKING

from blake3 import blake3

from benchmarks import sbp2p_process
from benchmarks.data import MIB, fresh_folder, model_file
from benchmarks.harness import (
    LIBTORRENT,
    PEERS,
    Claim,
    Sample,
    alternate,
    median_ratio,
    median_seconds,
    parser,
    print_table,
    report,
)
from benchmarks.processes import Finished, require, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

QUICK_BYTES = 512 * MIB
FULL_BYTES = 1024 * MIB
FULL_ONLY = ("libtorrent v1", "libtorrent v1 threads", "sha256sum")
LEAF = 16 * 1024
BLAKE3_PROGRAM = (
    "import sys; from blake3 import blake3; "
    "print(blake3(max_threads=blake3.AUTO).update_mmap(sys.argv[1]).hexdigest())"
)


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(size):
            yield piece


@cache
def piece_hashes(path: Path, size: int) -> bytes:
    """Return the SHA-1 of every piece, joined, as a v1 torrent holds them."""
    return b"".join(
        hashlib.sha1(piece, usedforsecurity=False).digest() for piece in _pieces(path, size)
    )


@cache
def merkle_root(path: Path) -> bytes:
    """Return the SHA-256 Merkle root of a file, as a v2 torrent holds it (BEP 52).

    Leaves are 16 KiB; hashes of zero fill the last layer up to a power of two.
    """
    layer = [hashlib.sha256(leaf).digest() for leaf in _pieces(path, LEAF)]
    layer += [bytes(32)] * ((1 << (len(layer) - 1).bit_length()) - len(layer))
    while len(layer) > 1:
        pairs = zip(layer[::2], layer[1::2], strict=True)
        layer = [hashlib.sha256(left + right).digest() for left, right in pairs]
    return layer[0]


@cache
def _digest(path: Path, algorithm: str) -> str:
    state = blake3() if algorithm == "blake3" else hashlib.new(algorithm)
    for piece in _pieces(path, MIB):
        state.update(piece)
    return state.hexdigest()


def _sample(finished: Finished) -> Sample:
    return Sample(
        seconds=finished.wall_s,
        wall_s=finished.wall_s,
        cpu_s={"process": finished.usage.cpu_s},
        rss_mb={"process": finished.usage.rss_mb},
    )


class Publish:
    """The contenders, all reading one file."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.work = fresh_folder("publish")
        self._verified = False

    def sbp2p(self) -> Sample:
        """One `sbp2p publish` on a home that is not there."""
        home = self.work / "home"
        shutil.rmtree(home, ignore_errors=True)
        published, finished = sbp2p_process.run_json(
            home, "publish", self.source, "--name", "bench"
        )
        self._check(home, published["cid"], published["link"])
        return _sample(finished)

    def _check(self, home: Path, cid: str, link: str) -> None:
        """Read the link back: its manifest must be signed, and its tree must be this file's."""
        described, _ = sbp2p_process.run_json(home, "inspect", link)
        if not self._verified:  # rehashes the file; the tree's root cannot differ after that
            sbp2p_process.run_json(home, "verify", cid)
            self._verified = True
        if cid not in link or described["publisher"] not in described["signers"]:
            raise SystemExit(f"{link} is not a signed version")

    def libtorrent(self, version: str, threads: int = 0) -> Sample:
        """One torrent made by a process of libtorrent's own environment."""
        python = require(LIBTORRENT, "libtorrent")
        torrent = self.work / "bench.torrent"
        words = ["--source", str(self.source), "--torrent", str(torrent)]
        words += ["--version", version, "--threads", str(threads)]
        finished = run([python, str(PEERS / "libtorrent_peer.py"), "create", *words])
        content = torrent.read_bytes()
        size = json.loads(finished.output)["piece_bytes"]
        if version != "v2" and piece_hashes(self.source, size) not in content:
            raise SystemExit("the torrent does not hold the file's piece hashes")
        if version != "v1" and merkle_root(self.source) not in content:
            raise SystemExit("the torrent does not hold the file's Merkle root")
        return _sample(finished)

    def digest(self, command: Sequence[str], algorithm: str) -> Sample:
        """One digest of the file by a command that prints it first."""
        finished = run([*command, str(self.source)])
        if finished.output.split()[0] != _digest(self.source, algorithm):
            raise SystemExit(f"{command[0]} printed another digest")
        return _sample(finished)

    def contenders(self) -> dict[str, Callable[[], Sample]]:
        """Return everybody, by name."""
        blake3_python = [sys.executable, "-c", BLAKE3_PROGRAM]
        b3sum = shutil.which("b3sum")
        name, command = ("b3sum", [b3sum]) if b3sum else ("blake3 python mmap", blake3_python)
        return {
            "sbp2p": self.sbp2p,
            "libtorrent create": partial(self.libtorrent, "hybrid"),
            "libtorrent v2": partial(self.libtorrent, "v2"),
            "libtorrent v1": partial(self.libtorrent, "v1"),
            "libtorrent v1 threads": partial(self.libtorrent, "v1", os.cpu_count() or 1),
            "sha256sum": partial(self.digest, ["sha256sum"], "sha256"),
            name: partial(self.digest, command, "blake3"),
        }


def claims_of(samples: Mapping[str, Sequence[Sample]], gigabytes: float) -> list[Claim]:
    """Return how many times faster than each contender we are, and our own rate and memory."""
    ours = samples["sbp2p"]
    claims = [
        Claim(
            name="ratio_vs_" + peer.replace(" ", "_"),
            value=median_ratio(ours, rows),
            unit="x",
            target=2.0 if peer == "libtorrent create" else None,
        )
        for peer, rows in samples.items()
        if peer != "sbp2p"
    ]
    rate = gigabytes / median_seconds(ours)
    peak = max(sample.rss_mb["process"] for sample in ours)
    claims.append(Claim(name="publish_gb_per_s", value=rate, unit="GB/s"))
    claims.append(Claim(name="peak_rss_mb", value=peak, unit="MB", better="lower"))
    return claims


def main() -> int:
    """Run the contenders, print the table and the claims."""
    args = parser(__doc__ or "").parse_args()
    source = model_file(QUICK_BYTES if args.quick else FULL_BYTES)
    gigabytes = source.stat().st_size / 1e9
    contenders = Publish(source).contenders()
    if args.quick:  # rather fewer contenders than a file so small that only the start counts
        contenders = {name: call for name, call in contenders.items() if name not in FULL_ONLY}
    samples = alternate(contenders, rounds=args.rounds or 5)
    print_table(samples, gigabytes=gigabytes)
    return report(claims_of(samples, gigabytes), samples, json_path=args.json)


if __name__ == "__main__":
    sys.exit(main())

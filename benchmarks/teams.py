"""The teams of the `swarm` benchmark: how a seeder and a leecher of each tool are started."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from benchmarks import sbp2p_process
from benchmarks.harness import LIBTORRENT, PEERS
from benchmarks.processes import require, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.netns import Host

PORT = 4801


class Sbp2p:
    """sbp2p: `seed` and `get --seed`."""

    def __init__(self, work: Path, source: Path, *, acquainted: bool = False) -> None:
        self._work = work
        self._acquainted = acquainted
        published, _ = sbp2p_process.run_json(
            work / "seeder", "publish", source.parent, "--name", "bench"
        )
        self._cid = published["cid"]
        self._name = source.name

    def _command(self, home: Path, host: Host) -> list[str]:
        listen = f"/ip4/{host.address}/tcp/{PORT}"
        module = "benchmarks.peers.sbp2p_swarm"
        return [sys.executable, "-m", module, "--home", str(home), "--listen", listen]

    def seeder(self, host: Host) -> list[str]:
        """Return the argv of the seeder."""
        return self._command(self._work / "seeder", host)

    def leecher(self, host: Host, number: int) -> list[str]:
        """Return the argv of a leecher."""
        words = self._command(self._work / f"home-{number}", host)
        return [*words, "--to", str(self._work / f"copy-{number}")]

    def signal(self, number: int, addresses: Sequence[str]) -> dict[str, Any]:
        """Return the link, with the seeder's address in it, and no other address."""
        seeder, *leechers = addresses
        others = [each for at, each in enumerate(leechers) if at != number]
        link = f"sbp2p:{self._cid}?peer={seeder}"
        return {"link": link, "peers": others if self._acquainted else []}

    def copy(self, number: int) -> Path:
        """Return where a leecher's copy lies."""
        return self._work / f"copy-{number}" / self._name


class Libtorrent:
    """libtorrent, in one of several configurations."""

    def __init__(
        self,
        work: Path,
        source: Path,
        *,
        super_seeding: bool = False,
        tuned: bool = False,
        acquainted: bool = False,
    ) -> None:
        self._work = work
        self._source = source
        self._acquainted = acquainted
        self._script = [
            require(LIBTORRENT, "libtorrent"),
            str(PEERS / "libtorrent_swarm_peer.py"),
        ]
        self._options = ["--tuned"] if tuned else []
        self._seeding = ["--super-seeding"] if super_seeding else []
        self._torrent = work / "bench.torrent"
        creator = [self._script[0], str(PEERS / "libtorrent_peer.py"), "create"]
        run([*creator, "--source", str(source), "--torrent", str(self._torrent)])

    def _command(self, action: str, host: Host, folder: Path) -> list[str]:
        places = ["--torrent", str(self._torrent), "--folder", str(folder), "--host", host.address]
        return [*self._script, action, *places, *self._options]

    def seeder(self, host: Host) -> list[str]:
        """Return the argv of the seeder."""
        return [*self._command("seed", host, self._source.parent), *self._seeding]

    def leecher(self, host: Host, number: int) -> list[str]:
        """Return the argv of a leecher."""
        folder = self._work / f"copy-{number}"
        folder.mkdir()
        return self._command("fetch", host, folder)

    def signal(self, number: int, addresses: Sequence[str]) -> dict[str, Any]:
        """Return the seeder's address, or everybody's."""
        others = [each for at, each in enumerate(addresses) if at != number + 1]
        return {"peers": others if self._acquainted else others[:1]}

    def copy(self, number: int) -> Path:
        """Return where a leecher's copy lies."""
        return self._work / f"copy-{number}" / self._source.name

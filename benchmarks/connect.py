"""From dialling a peer by id and address to the first byte it serves: us and py-libp2p.

Each side has one server process for the whole run. In every round a client process of that side
dials it several times, each time with a fresh identity and a fresh host, so nothing is kept from
the dial before: TCP, protocol negotiation, the Noise handshake that proves the peer id, the
multiplexer, a stream, and one byte that the server's handler sent. A round counts as the median of
its dials. The first dial of a client process, which finds everything cold, is shown beside it.

py-libp2p, left alone, waits out a quarter of a second in which another address might win, even when
it was given one address and has connected. The claim is about what its users get; `py libp2p eager`
is configured so that it does not wait, and shows the work alone.
"""

from __future__ import annotations

import json
import statistics
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.harness import (
    PEERS,
    PY_LIBP2P,
    Claim,
    Sample,
    alternate,
    median_ratio,
    median_seconds,
    parser,
    print_table,
    report,
)
from benchmarks.processes import require, run, server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QUICK_DIALS = 5
FULL_DIALS = 20


class Dials:
    """What the clients of one side did: the seconds of every dial, one list a round."""

    def __init__(self, client: Sequence[str], count: int) -> None:
        self._command = [*client, "--count", str(count)]
        self.rounds: list[list[float]] = []

    def __call__(self) -> Sample:
        """Run one client process; the sample's seconds are the median of its dials."""
        finished = run(self._command)
        dials: list[float] = json.loads(finished.output)["seconds"]
        self.rounds.append(dials)
        return Sample(
            seconds=statistics.median(dials),
            wall_s=finished.wall_s,
            cpu_s={"client": finished.usage.cpu_s},
            rss_mb={"client": finished.usage.rss_mb},
        )


def claims_of(samples: Mapping[str, Sequence[Sample]], dials: Mapping[str, Dials]) -> list[Claim]:
    """Return the ratio that is claimed, and what it is made of."""
    ours = samples["sbp2p"]
    claims = [
        Claim(
            name="ratio_vs_" + peer.replace(" ", "_"),
            value=median_ratio(ours, rows),
            unit="x",
            target=10.0 if peer == "py libp2p" else None,
        )
        for peer, rows in samples.items()
        if peer != "sbp2p"
    ]
    for name, rows in samples.items():
        label = name.replace(" ", "_")
        first = statistics.median(dialled[0] for dialled in dials[name].rounds)
        claims.append(Claim(name=f"{label}_ms", value=1000 * median_seconds(rows), unit="ms"))
        claims.append(Claim(name=f"{label}_first_dial_ms", value=1000 * first, unit="ms"))
    return claims


def main() -> int:
    """Start the servers, dial them in turn, print the table and the claims."""
    args = parser(__doc__ or "").parse_args()
    count = QUICK_DIALS if args.quick else FULL_DIALS
    ours = [sys.executable, "-m", "benchmarks.peers.sbp2p_connect"]
    theirs = [require(PY_LIBP2P, "py-libp2p"), str(PEERS / "py_libp2p_peer.py")]
    with ExitStack() as stack:

        def dialling(script: Sequence[str], address: str, *options: str) -> Dials:
            return Dials([*script, "connect", "--peer", address, *options], count)

        def serving(script: Sequence[str]) -> str:
            line, _ = stack.enter_context(server([*script, "serve"], ready="ready"))
            return line.split()[1]

        our_address, their_address = serving(ours), serving(theirs)
        dials = {
            "sbp2p": dialling(ours, our_address),
            "py libp2p": dialling(theirs, their_address),
            "py libp2p eager": dialling(theirs, their_address, "--eager"),
        }
        samples = alternate(dials, rounds=args.rounds or 5)
    print_table(samples, gigabytes=None)
    every = {name: each.rounds for name, each in dials.items()}
    return report(
        claims_of(samples, dials), samples, json_path=args.json, extra={"dial_seconds": every}
    )


if __name__ == "__main__":
    sys.exit(main())

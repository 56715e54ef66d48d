"""`sbp2p topology`: what a topology makes of a number of peers, before anything is started.

The peers are made up: 0, 1, 2, ..., in the order in which they stand on the circle. A star whose
centre is a real peer's id has that peer among them, as number 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil, log
from pathlib import Path  # noqa: TC003  (typer evaluates annotations)
from typing import TYPE_CHECKING, Annotated, Final

from typer import Argument, Option

from .console import Settings
from .invocation import Invocation
from .options import Home, Json, Quiet, Verbose  # noqa: TC001  (typer evaluates annotations)
from .text import columns, first, format_count

if TYPE_CHECKING:
    from fractions import Fraction

    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.topology import Graph, Topology

    from .console import Console

_PEERS_MAX: Final = 1024
_DRAWN_MAX: Final = 40
"""Peers of which the adjacency fits a screen."""


def command(
    topology: Annotated[
        str,
        Argument(
            metavar="TOPOLOGY",
            help="full, ring, line, star, grid, torus, exponential, one-peer, matching, "
            "random-regular:DEGREE, small-world:DEGREE:REWIRE; several with commas, in turn.",
            show_default=False,
        ),
    ],
    peers: Annotated[int, Option("--peers", metavar="COUNT", help="How many peers.")] = 16,
    round_number: Annotated[
        int, Option("--round", metavar="N", help="Which round, if rounds differ.")
    ] = 0,
    plot: Annotated[
        Path | None,
        Option(
            "--plot",
            metavar="FILE",
            help="Draw it, as .svg, .png or .pdf; needs matplotlib (the extra `plot`).",
            show_default=False,
        ),
    ] = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Show who exchanges models with whom, and how fast a mean spreads."""
    run = partial(_run, text=topology, count=peers, number=round_number, plot=plot)
    return Invocation(Settings(home, json, quiet, verbose), run)


@dataclass(frozen=True, slots=True)
class _Facts:
    """A graph by numbers of peers, and what is known of it."""

    text: str
    round: int
    graph: Graph[int]
    rows: list[dict[int, Fraction]]
    window: int
    connected: bool
    """Whether the rounds of the window together connect everybody."""

    @property
    def gap(self) -> float:
        return self.graph.spectral_gap()


def _run(console: Console, *, text: str, count: int, number: int, plot: Path | None) -> int:
    from sbp2p.errors import ConfigError
    from sbp2p_protocol.topology import TopologyError, parse_topology

    if not 1 <= count <= _PEERS_MAX:
        raise ConfigError(f"--peers is from 1 to {_PEERS_MAX}, not {count}")
    if not 0 <= number < 2**40:
        raise ConfigError(f"--round {number} is no round")
    try:
        facts = _facts(parse_topology(text), count, number)
    except TopologyError as error:
        raise ConfigError(str(error), hint="docs/topologies.md describes them") from error
    if plot is not None:
        from .topology_plot import draw

        draw(facts.graph, _title(facts), plot)
    console.event("topology", **_fields(facts))
    for line in _lines(console, facts):
        console.result(line)
    if plot is not None:
        console.note(f"drawn as {plot}")
    return 0


def _facts(topology: Topology, count: int, number: int) -> _Facts:
    from sbp2p_protocol.topology import Graph, TopologyError

    members = _members(topology, count)
    numbers = {peer: at for at, peer in enumerate(members)}
    found = topology.graph(members, number)
    edges = [(numbers[one], numbers[other]) for one, other in found.edges()]
    rows = [
        {numbers[other]: weight for other, weight in found.mixing_row(peer).items()}
        for peer in members
    ]
    try:
        topology.check(members, number)
    except TopologyError:
        connected = False
    else:
        connected = True
    graph = Graph(range(count), edges)
    return _Facts(topology.text, number, graph, rows, topology.window(count), connected)


def _members(topology: Topology, count: int) -> list[PeerId]:
    """Return made-up peers, in the order of the circle."""
    from sbp2p_keys.identity import PrivateKey
    from sbp2p_protocol.topologies.order import in_order

    centre = getattr(topology, "centre", None)
    made = (PrivateKey.from_seed(at.to_bytes(32, "big")).peer_id for at in range(count))
    members = in_order(made, "place")
    return members if centre is None else [centre, *members[1:]]


def _title(facts: _Facts) -> str:
    return f"{facts.text}, {len(facts.graph.nodes)} peers, spectral gap {facts.gap:.3g}"


def _fields(facts: _Facts) -> dict[str, object]:
    graph = facts.graph
    degrees = [graph.degree(node) for node in graph.nodes]
    is_connected = graph.is_connected()
    return {
        "topology": facts.text,
        "peers": len(graph.nodes),
        "round": facts.round,
        "edges": [list(edge) for edge in graph.edges()],
        "degree_min": min(degrees),
        "degree_max": max(degrees),
        "connected": is_connected,
        "window": facts.window,
        "connected_in_window": facts.connected,
        "diameter": graph.diameter() if is_connected else None,
        "spectral_gap": facts.gap,
        "weights": [
            [at, other, str(weight)] for at, row in enumerate(facts.rows)
            for other, weight in sorted(row.items())
        ],
    }  # fmt: skip


def _lines(console: Console, facts: _Facts) -> list[str]:
    graph = facts.graph
    degrees = sorted(graph.degree(node) for node in graph.nodes)
    span = f"{degrees[0]}" if degrees[0] == degrees[-1] else f"{degrees[0]} to {degrees[-1]}"
    table = [
        ("topology", facts.text),
        ("peers", f"{len(graph.nodes)}"),
        ("round", f"{facts.round}"),
        ("edges", f"{graph.edge_count()}, {span} for each peer"),
        ("connected", _connection(facts)),
    ]
    if graph.is_connected():
        table.append(("diameter", f"{graph.diameter()}"))
        table.append(("spectral gap", _gap(facts.gap)))
    lines = columns(table)
    lines += ["", "mixing weights", *_weights(console, facts)]
    if len(graph.nodes) <= _DRAWN_MAX:
        lines += ["", "adjacency", *_adjacency(graph)]
    return lines


def _connection(facts: _Facts) -> str:
    parts = len(facts.graph.components())
    if parts <= 1:
        return "yes"
    answer = f"no, {format_count(parts, 'part')}"
    if facts.window > 1:
        answer += f"; within {facts.window} rounds: {'yes' if facts.connected else 'no'}"
    return answer


def _gap(gap: float) -> str:
    if gap > 1 - 1e-9:
        return "1: everybody has the mean after one round"
    rounds = ceil(log(0.01) / log(1 - gap))
    return f"{gap:.4g}: 1 % of the differences is left after {format_count(rounds, 'round')}"


def _weights(console: Console, facts: _Facts) -> list[str]:
    """Return for each peer what it keeps of its own model and what it takes of others'."""
    rows = []
    for at, row in enumerate(facts.rows):
        others = "  ".join(f"{other}: {row[other]}" for other in sorted(row) if other != at)
        rows.append((f"{at}", f"own {row.get(at, 0)}", others))
    shown, more = first(rows, 16, "peer", everything=console.settings.verbose)
    return [*columns(shown, right=frozenset((0,))), *more]


def _adjacency(graph: Graph[int]) -> list[str]:
    width = len(str(len(graph.nodes) - 1))
    return [
        f"{node:>{width}}  "
        + " ".join("#" if other in graph.neighbours(node) else "." for other in graph.nodes)
        for node in graph.nodes
    ]

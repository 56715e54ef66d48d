"""Undirected graphs of peers: what is connected, how far apart, and how fast a mean spreads.

Theory of operation: a graph is a set of nodes and, for each, its neighbours; symmetric, without
loops. From it follow the mixing weights of decentralised averaging. With the Metropolis-Hastings
rule an edge between i and j has weight 1 / (1 + max(degree i, degree j)), and a node keeps what is
left. The matrix W of these weights is symmetric and doubly stochastic whatever the graph, and each
node can compute its row from the degrees of its neighbours alone; so if every node replaces its
value by the weighted sum of its own and its neighbours', again and again, all values go to the mean
(Xiao, Boyd, "Fast linear iterations for distributed averaging", 2004; Boyd, Diaconis, Xiao 2004).

How fast is told by the **spectral gap**, 1 - |l|, where l is the eigenvalue of W that is largest in
magnitude after the 1 that belongs to the mean: the distance from the mean shrinks by |l| at least
with each round. Gap 1 is a mean in one round; gap 0 is a graph that is not connected. It is found
by power iteration on W squared, across the mean, so that a pair of eigenvalues of opposite sign
does no harm.

Error cases: an edge that is a loop or that names a node which is not there is a GraphError, a
ValueError: the fault of whoever made the graph.
"""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from random import Random
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Node = TypeVar("Node")

_STEPS_MAX: Final = 20_000
"""Power iterations at most; a ring of 256 nodes, one of the slowest graphs, needs 5,500."""

_WORK_MAX: Final = 20_000_000
"""Multiplications of all iterations together: a few seconds of Python."""


class GraphError(ValueError):
    """Edges that make no graph of these nodes."""


class Graph(Generic[Node]):
    """An undirected graph without loops; never changes. Nodes keep the order they were given in.

    Args:
        nodes: all nodes, those without edges too; a node given twice is one node.
        edges: pairs of nodes; direction and repetition mean nothing.

    Raises:
        GraphError: an edge from a node to itself, or to one that is not among the nodes.
    """

    __slots__ = ("_neighbours", "nodes")

    def __init__(self, nodes: Iterable[Node], edges: Iterable[tuple[Node, Node]]) -> None:
        linked: dict[Node, set[Node]] = {node: set() for node in nodes}
        for one, other in edges:
            if one == other:
                raise GraphError(f"{one} has an edge to itself")
            for node in (one, other):
                if node not in linked:
                    raise GraphError(f"an edge names {node}, which is not a node")
            linked[one].add(other)
            linked[other].add(one)
        self.nodes = tuple(linked)
        self._neighbours = {node: frozenset(others) for node, others in linked.items()}

    def neighbours(self, node: Node) -> frozenset[Node]:
        """Return the nodes that `node` has an edge to; raises KeyError if it is not a node."""
        return self._neighbours[node]

    def degree(self, node: Node) -> int:
        """Return how many neighbours a node has."""
        return len(self._neighbours[node])

    def edges(self) -> Iterator[tuple[Node, Node]]:
        """Yield each edge once, in the order of the nodes."""
        rank = {node: at for at, node in enumerate(self.nodes)}
        for node in self.nodes:
            for other in sorted(self._neighbours[node], key=rank.__getitem__):
                if rank[node] < rank[other]:
                    yield node, other

    def edge_count(self) -> int:
        """Return the number of edges."""
        return sum(map(len, self._neighbours.values())) // 2

    # -- distances ------------------------------------------------------------------------------

    def distances(self, start: Node) -> dict[Node, int]:
        """Return the number of edges on the way to each node that can be reached from `start`."""
        found = {start: 0}
        waiting = deque([start])
        while waiting:
            node = waiting.popleft()
            for other in self._neighbours[node]:
                if other not in found:
                    found[other] = found[node] + 1
                    waiting.append(other)
        return found

    def components(self) -> list[frozenset[Node]]:
        """Return the connected parts, largest first, then in the order of their first nodes."""
        parts: list[frozenset[Node]] = []
        seen: set[Node] = set()
        for node in self.nodes:
            if node not in seen:
                part = frozenset(self.distances(node))
                seen |= part
                parts.append(part)
        return sorted(parts, key=len, reverse=True)

    def is_connected(self) -> bool:
        """Tell whether every node can be reached from every other; no nodes are connected."""
        return not self.nodes or len(self.distances(self.nodes[0])) == len(self.nodes)

    def diameter(self) -> int:
        """Return the longest of all shortest ways, in edges; GraphError if not connected."""
        if not self.is_connected():
            raise GraphError("a graph that is not connected has no diameter")
        return max((max(self.distances(node).values()) for node in self.nodes), default=0)

    # -- mixing ---------------------------------------------------------------------------------

    def mixing_row(self, node: Node) -> dict[Node, Fraction]:
        """Return a node's Metropolis-Hastings weights, its own among them; they add up to 1."""
        degree = self.degree(node)
        row = {
            other: Fraction(1, 1 + max(degree, self.degree(other)))
            for other in self.nodes_in_order(self._neighbours[node])
        }
        row[node] = 1 - sum(row.values(), Fraction(0))
        return row

    def nodes_in_order(self, some: Iterable[Node]) -> list[Node]:
        """Return some of the nodes in the graph's order."""
        wanted = frozenset(some)
        return [node for node in self.nodes if node in wanted]

    def metropolis_hastings(self) -> list[list[Fraction]]:
        """Return W, rows and columns in the order of `nodes`: symmetric, doubly stochastic."""
        rows: list[list[Fraction]] = []
        for node in self.nodes:
            row: Mapping[Node, Fraction] = self.mixing_row(node)
            rows.append([row.get(other, Fraction(0)) for other in self.nodes])
        return rows

    def spectral_gap(self) -> float:
        """Return 1 - |l|, from 0 (not connected) to 1 (a mean in one round); see above.

        Accurate to about 1e-6 of the gap for graphs of a few hundred nodes. One node, or none, has
        gap 1: it is its own mean.
        """
        count = len(self.nodes)
        if count < 2:
            return 1.0
        if not self.is_connected():
            return 0.0
        rank = {node: at for at, node in enumerate(self.nodes)}
        links = [sorted(rank[other] for other in self._neighbours[node]) for node in self.nodes]
        degrees = [len(each) for each in links]
        rows = [
            [(other, 1 / (1 + max(degrees[at], degrees[other]))) for other in links[at]]
            for at in range(count)
        ]
        return 1.0 - _second_magnitude(rows)


def _second_magnitude(rows: list[list[tuple[int, float]]]) -> float:
    """Return the magnitude of the largest eigenvalue across the mean.

    Args:
        rows: for each node its neighbours and the weights of the edges; what is left is its own.
    """
    own = [1.0 - sum(weight for _, weight in row) for row in rows]
    rng = Random(len(rows))  # noqa: S311  (any start will do, if it is the same everywhere)
    vector = _across_the_mean([rng.gauss(0, 1) for _ in rows])
    work = 2 * sum(len(row) + 1 for row in rows)
    previous = -1.0
    value = 0.0
    for _ in range(min(_STEPS_MAX, 1 + _WORK_MAX // work)):
        half = _mixed(rows, own, vector)
        value = sum(x * x for x in half)  # the Rayleigh quotient of W squared: vector has length 1
        if value < 1e-24:  # rounding errors, and nothing else is left
            return 0.0
        # the quotient only grows; the error is about the last step over what steps shrink by
        if abs(value - previous) <= 1e-9 * (1.0 - value):
            break
        previous = value
        vector = _across_the_mean(_mixed(rows, own, half))
    return min(1.0, float(value**0.5))


def _mixed(
    rows: list[list[tuple[int, float]]], own: list[float], values: list[float]
) -> list[float]:
    """Return what one round makes of the nodes' values."""
    return [
        own[at] * values[at] + sum(weight * values[other] for other, weight in row)
        for at, row in enumerate(rows)
    ]


def _across_the_mean(values: list[float]) -> list[float]:
    """Return the values less their mean, scaled to length 1."""
    mean = sum(values) / len(values)
    rest = [value - mean for value in values]
    length = sum(value * value for value in rest) ** 0.5
    return [value / length for value in rest]

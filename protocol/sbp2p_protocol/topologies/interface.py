"""What a topology is, and what everybody may rely on.

Theory of operation: a topology is a pure function from a set of members and a round's number to a
graph. Every peer that sees the same members gets the same graph, in any process, on any machine:
order comes from hashes of peer ids, never from who came first. Two peers whose views of the
membership differ for a while may disagree about an edge; each then uses the weights of its own
view, which still add up to 1, so that nothing diverges while the views settle.

Rules, for every topology here:

1. The order in which members are given means nothing, nor does giving one twice.
2. The graph is symmetric and has no loops; a lone member has no neighbours.
3. The union of the graphs of `window(count)` consecutive rounds is connected. For a topology that
   is the same in every round the window is 1. `check` computes whether it is so, and raises
   TopologyError; for custom and varying graphs only it can tell.
4. A member that joins or leaves changes few of the edges between the others. How many is said with
   each topology, and tested.

Error cases: TopologyError, a ValueError, for text or options that mean no topology, for a custom
graph that breaks rule 2, and from `check`. `neighbours` and `weights` never fail for a membership
that the topology cannot connect: peers come one by one, and a graph that lacks its centre today
has it tomorrow. LocalProtocolError if the peer that is asked about is not a member.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeAlias

from sbp2p_keys.identity import PeerId
from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.graphs import Graph, GraphError
from sbp2p_protocol.limits import TOPOLOGY_NUMBER_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from fractions import Fraction

Edge: TypeAlias = tuple[PeerId, PeerId]


class TopologyError(ValueError):
    """Text, options or edges that mean no topology, or members that it does not connect."""


def checked_number(number: int, what: str) -> int:
    """Return a number that a topology's text may hold, or raise TopologyError."""
    if not 0 <= number <= TOPOLOGY_NUMBER_MAX:
        raise TopologyError(f"{number} is not {what}: from 0 to {TOPOLOGY_NUMBER_MAX}")
    return number


class Topology(ABC):
    """Which peers exchange their models with which; a value that never changes.

    A topology of your own implements `text` and `edges`; `neighbours` and `weights` may be
    overridden where they are known without the whole graph.
    """

    def __init__(self) -> None:
        self._newest: tuple[tuple[PeerId, ...], int, Graph[PeerId]] | None = None

    @property
    @abstractmethod
    def text(self) -> str:
        """What `parse_topology` makes this topology of; for a custom one, a name for people."""

    @abstractmethod
    def edges(self, members: tuple[PeerId, ...], round_number: int) -> Iterable[Edge]:
        """Return the edges between these members, which are sorted and unique, in a round."""

    def window(self, count: int) -> int:
        """Return how many consecutive rounds together connect `count` members."""
        return 1

    def period(self, count: int) -> int:
        """Return after how many rounds the graphs repeat; 0 if they never do."""
        return 1

    def graph(self, members: Collection[PeerId], round_number: int = 0) -> Graph[PeerId]:
        """Return the graph of a round; its nodes are the members, sorted."""
        ordered = tuple(sorted(frozenset(members), key=PeerId.to_bytes))
        kept = self._newest
        if kept is not None and kept[0] == ordered and kept[1] == round_number:
            return kept[2]
        try:
            graph = Graph(ordered, self.edges(ordered, round_number))
        except GraphError as error:
            raise TopologyError(f"{self.text}: {error}") from error
        self._newest = (ordered, round_number, graph)
        return graph

    def neighbours(
        self, peer: PeerId, members: Collection[PeerId], round_number: int = 0
    ) -> frozenset[PeerId]:
        """Return the members that a peer exchanges its model with in a round."""
        self._check_member(peer, members)
        return self.graph(members, round_number).neighbours(peer)

    def weights(
        self, peer: PeerId, members: Collection[PeerId], round_number: int = 0
    ) -> dict[PeerId, Fraction]:
        """Return a peer's Metropolis-Hastings weights: neighbours and itself, in sum 1."""
        self._check_member(peer, members)
        return self.graph(members, round_number).mixing_row(peer)

    def union(self, members: Collection[PeerId], round_number: int, rounds: int) -> Graph[PeerId]:
        """Return the graph of all edges of `rounds` consecutive rounds."""
        graphs = [self.graph(members, round_number + each) for each in range(rounds)]
        return Graph(graphs[0].nodes, (edge for graph in graphs for edge in graph.edges()))

    def check(self, members: Collection[PeerId], round_number: int = 0) -> None:
        """Return if the rounds of a window from `round_number` on connect all members.

        Raises:
            TopologyError: they do not; it says who is cut off.
        """
        window = self.window(len(frozenset(members)))
        parts = self.union(members, round_number, window).components()
        if len(parts) > 1:
            cut = sorted(str(peer) for peer in parts[-1])
            who = ", ".join(cut[:3]) + (f" and {len(cut) - 3} more" if len(cut) > 3 else "")
            within = "" if window == 1 else f" within {window} rounds"
            raise TopologyError(
                f"{self.text} does not connect these members{within}: "
                f"{len(parts)} parts, one of them {who}"
            )

    def _check_member(self, peer: PeerId, members: Collection[PeerId]) -> None:
        if peer not in members:
            raise LocalProtocolError(f"{peer} is not one of the members")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

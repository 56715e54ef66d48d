"""Topologies that are told what to do: other graphs in other rounds, and graphs of your own.

`OnePeer` and `Varying` have another graph in each round. A round's graph alone may leave peers
without neighbours; the union over a window connects everybody. Between those who stay, a peer that
joins or leaves a namespace of n changes at most n of the round's edges of `OnePeer`, in `Varying`
what its parts do, and in `Custom` none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import lcm
from typing import TypeAlias

from sbp2p_keys.identity import PeerId
from sbp2p_protocol.cid import hash_bytes
from sbp2p_protocol.topologies.interface import Edge, Topology, TopologyError
from sbp2p_protocol.topologies.order import in_order

Links: TypeAlias = Mapping[PeerId, Collection[PeerId]]
"""For each peer its neighbours; must be symmetric."""

EdgeMaker: TypeAlias = Callable[[tuple[PeerId, ...], int], Iterable[Edge]]
"""Edges for members, sorted, and a round's number. Must depend on nothing else."""


class OnePeer(Topology):
    """In round r each with the one whose number differs in bit r: one model a round for each peer.

    Theory of operation: members are numbered in hash order, and in round r number i is paired with
    i XOR 2^(r mod k), where k is the number of bits. If there is no such number, i stays alone for
    that round. When n is a power of two, k rounds give everybody the exact mean of all n models, as
    a full graph does in one. (One-peer exponential graphs: Ying and others, 2021; these pairs, on
    the hypercube, are the symmetric ones.)
    """

    @property
    def text(self) -> str:
        """`one-peer`."""
        return "one-peer"

    def window(self, count: int) -> int:
        """Return log2 n, rounded up."""
        return max(1, (count - 1).bit_length()) if count else 1

    def period(self, count: int) -> int:
        """Return the window."""
        return self.window(count)

    def edges(self, members: tuple[PeerId, ...], round_number: int) -> list[Edge]:
        """Return the pairs of a round."""
        peers = in_order(members, "place")
        bit = 1 << round_number % self.window(len(peers))
        pairs = ((at, at ^ bit) for at in range(len(peers)))
        return [(peers[at], peers[other]) for at, other in pairs if at < other < len(peers)]


class Varying(Topology):
    """Other topologies in turn, or by a function of the round.

    Args:
        parts: the topologies of rounds 0, 1, 2, ..., repeated for ever; or a function from a
            round's number to its topology, which must depend on nothing else.
        window: consecutive rounds that together connect everybody; needed with a function.
        name: what the text form says of a function.
    """

    def __init__(
        self,
        parts: Sequence[Topology] | Callable[[int], Topology],
        *,
        window: int | None = None,
        name: str = "varying",
    ) -> None:
        super().__init__()
        self._function = parts if callable(parts) else None
        self.parts = () if callable(parts) else tuple(parts)
        if self._function is None and not self.parts:
            raise TopologyError("a time-varying topology of no topologies")
        if self._function is not None and window is None:
            raise TopologyError("say within which window of rounds the function connects everybody")
        if window is not None and window < 1:
            raise TopologyError(f"a window of {window} rounds")
        self._window = window
        self._name = name

    @property
    def text(self) -> str:
        """The texts of the parts with commas between them; for a function, its name."""
        return ",".join(part.text for part in self.parts) or self._name

    def at(self, round_number: int) -> Topology:
        """Return the topology of a round."""
        if self._function is not None:
            return self._function(round_number)
        return self.parts[round_number % len(self.parts)]

    def window(self, count: int) -> int:
        """Return the given window, or as many rounds as connect each part by itself."""
        if self._window is not None:
            return self._window
        return min(part.window(count) for part in self.parts) * len(self.parts)

    def period(self, count: int) -> int:
        """Return when all parts are where they began; 0 for a function, or if one never is."""
        periods = [part.period(count) for part in self.parts]
        return lcm(len(self.parts), *periods) if self.parts else 0

    def edges(self, members: tuple[PeerId, ...], round_number: int) -> Iterable[Edge]:
        """Return the edges of the round's topology."""
        return self.at(round_number).edges(members, round_number)


class Custom(Topology):
    """A graph of your own.

    Args:
        edges: pairs of peers; or neighbours by peer, which must be symmetric; or a function from
            the members and the round to pairs. Given pairs whose ends are not both members are left
            out; a function may name members only.
        name: what the text form says.
        window: consecutive rounds that together connect everybody, for a function of the round.

    Raises:
        TopologyError: an edge from a peer to itself, or neighbours that are not each other's.
    """

    def __init__(
        self, edges: Iterable[Edge] | Links | EdgeMaker, *, name: str = "", window: int = 1
    ) -> None:
        super().__init__()
        if window < 1:
            raise TopologyError(f"a window of {window} rounds")
        self._window = window
        self._function: EdgeMaker | None = None
        self._edges: tuple[Edge, ...] = ()
        if isinstance(edges, Mapping):
            self._edges = _normal(_from_links(edges))
        elif callable(edges):
            self._function = edges
        else:
            self._edges = _normal(edges)
        self._name = name or self._default_name()

    def _default_name(self) -> str:
        if self._function is not None:
            return "custom"
        data = b"".join(one.to_bytes() + other.to_bytes() for one, other in self._edges)
        return f"custom-{hash_bytes(data).hex()[:16]}"

    @property
    def text(self) -> str:
        """The name; by default `custom-` and 16 digits of a hash of the edges."""
        return self._name

    def window(self, count: int) -> int:
        """Return the given window."""
        return self._window

    def period(self, count: int) -> int:
        """Return 1 for given edges, 0 for a function."""
        return 0 if self._function is not None else 1

    def edges(self, members: tuple[PeerId, ...], round_number: int) -> Iterable[Edge]:
        """Return the edges between members."""
        if self._function is not None:
            return self._function(members, round_number)
        there = frozenset(members)
        return [edge for edge in self._edges if edge[0] in there and edge[1] in there]

    def peers(self) -> frozenset[PeerId]:
        """Return all peers that given edges name."""
        return frozenset(peer for edge in self._edges for peer in edge)


def _normal(edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """Return edges in their one form: the lower id first, sorted, each once."""
    found: set[Edge] = set()
    for one, other in edges:
        if one == other:
            raise TopologyError(f"{one} has an edge to itself")
        found.add((one, other) if one.to_bytes() < other.to_bytes() else (other, one))
    return tuple(sorted(found, key=lambda edge: (edge[0].to_bytes(), edge[1].to_bytes())))


def _from_links(links: Links) -> list[Edge]:
    for peer, others in links.items():
        for other in others:
            if peer not in links.get(other, ()):
                raise TopologyError(f"{peer} has neighbour {other}, which does not have it")
    return [(peer, other) for peer, others in links.items() for other in others]

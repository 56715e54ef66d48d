"""Topologies of one shape: full, ring, line, star, grid, torus, exponential.

All but `full` and `star` take the members in hash order (`order.py`), so that a newcomer stands
between two others and nobody moves. What changes between those who stay when one peer joins or
leaves a namespace of n:

| topology | edges between others that come or go |
|---|---|
| full, star | none; a star without a named centre: all, if the newcomer becomes the centre |
| ring, line | 1 |
| torus, c columns | at most 2 c |
| grid, c columns | at most 2 c + 2 n / c |
| exponential | at most 2 n, of n log2 n |

A grid or torus without given columns has as many as its rows, and is laid out anew when n passes a
square number.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from typing import TYPE_CHECKING

from sbp2p_protocol.topologies.interface import Edge, Topology, TopologyError, checked_number
from sbp2p_protocol.topologies.order import in_order, path, stride

if TYPE_CHECKING:
    from collections.abc import Collection

    from sbp2p_keys.identity import PeerId

_LABEL = "place"


class Full(Topology):
    """Everybody with everybody: the exact mean in one round, at n - 1 models for each peer."""

    @property
    def text(self) -> str:
        """`full`."""
        return "full"

    def edges(self, members: tuple[PeerId, ...], round_number: int) -> list[Edge]:
        """Return all pairs."""
        return [(one, other) for at, one in enumerate(members) for other in members[at + 1 :]]

    def neighbours(
        self, peer: PeerId, members: Collection[PeerId], round_number: int = 0
    ) -> frozenset[PeerId]:
        """Return the others, without the n^2 / 2 edges."""
        self._check_member(peer, members)
        return frozenset(members) - {peer}

    def weights(
        self, peer: PeerId, members: Collection[PeerId], round_number: int = 0
    ) -> dict[PeerId, Fraction]:
        """Return 1 / n for each."""
        self._check_member(peer, members)
        everybody = sorted(frozenset(members), key=lambda each: each.to_bytes())
        return dict.fromkeys(everybody, Fraction(1, len(everybody)))


class Ring(Topology):
    """Each with the next on the circle, and the last with the first."""

    @property
    def text(self) -> str:
        """`ring`."""
        return "ring"

    def edges(self, members: tuple[PeerId, ...], round_number: int) -> list[Edge]:
        """Return the circle; two members have one edge."""
        return stride(in_order(members, _LABEL), 1)


class Line(Topology):
    """Each with the next in hash order; the ends have one neighbour."""

    @property
    def text(self) -> str:
        """`line`."""
        return "line"

    def edges(self, members: tuple[PeerId, ...], round_number: int) -> list[Edge]:
        """Return the path."""
        return path(in_order(members, _LABEL))


class Star(Topology):
    """One in the middle, who exchanges with all others: the centralised pattern.

    Args:
        centre: who is in the middle. While it is not a member, nobody has a neighbour, `check` says
            so, and rounds go on with everybody's own model; nobody stands in for it, since a centre
            is somebody whom the others chose. None takes the first in hash order, who is another
            one when a newcomer's hash is lower.
    """

    def __init__(self, centre: PeerId | None = None) -> None:
        super().__init__()
        self.centre = centre

    @property
    def text(self) -> str:
        """`star`, or `star:PEER`."""
        return "star" if self.centre is None else f"star:{self.centre}"

    def edges(self, members: tuple[PeerId, ...], round_number: int) -> list[Edge]:
        """Return the rays."""
        if not members:
            return []
        centre = self.centre if self.centre is not None else in_order(members, _LABEL)[0]
        if centre not in members:
            return []
        return [(centre, peer) for peer in members if peer != centre]


class Grid(Topology):
    """Rows of peers in hash order, each with its neighbours left, right, above and below.

    The last row may be shorter. With one row it is a line.
    """

    def __init__(self, columns: int | None = None) -> None:
        super().__init__()
        self.columns = _checked_columns(columns)

    @property
    def text(self) -> str:
        """`grid`, or `grid:COLUMNS`."""
        return "grid" if self.columns is None else f"grid:{self.columns}"

    def edges(self, members: tuple[PeerId, ...], round_number: int) -> list[Edge]:
        """Return the edges in each row and between the rows."""
        columns = self.columns or _square(len(members))
        peers = in_order(members, _LABEL)
        across = [pair for at, pair in enumerate(path(peers)) if (at + 1) % columns]
        return across + list(zip(peers, peers[columns:], strict=False))


class Torus(Topology):
    """A grid wound around: the end of a row leads to the next row, and the last row to the first.

    So it is the circulant graph of strides 1 and `columns`: every peer has the same four neighbours
    relative to it (fewer if strides coincide), whatever the number of members, also when the last
    row is not full.
    """

    def __init__(self, columns: int | None = None) -> None:
        super().__init__()
        self.columns = _checked_columns(columns)

    @property
    def text(self) -> str:
        """`torus`, or `torus:COLUMNS`."""
        return "torus" if self.columns is None else f"torus:{self.columns}"

    def edges(self, members: tuple[PeerId, ...], round_number: int) -> list[Edge]:
        """Return the two strides."""
        columns = self.columns or _square(len(members))
        peers = in_order(members, _LABEL)
        return stride(peers, 1) + stride(peers, columns)


class Exponential(Topology):
    """Each with those 1, 2, 4, 8, ... places on: 2 log2 n neighbours, any other within log2 n.

    Source: Ying, Yuan, Chen, Hu, Pan, Yin, "Exponential graph is provably efficient for
    decentralized deep training", 2021; here with edges in both directions.
    """

    @property
    def text(self) -> str:
        """`exponential`."""
        return "exponential"

    def edges(self, members: tuple[PeerId, ...], round_number: int) -> list[Edge]:
        """Return the strides up to half the circle."""
        peers = in_order(members, _LABEL)
        found: list[Edge] = []
        step = 1
        while 2 * step <= len(peers):
            found += stride(peers, step)
            step *= 2
        return found


def _checked_columns(columns: int | None) -> int | None:
    if columns is not None and checked_number(columns, "a number of columns") < 1:
        raise TopologyError("a grid has at least one column")
    return columns


def _square(count: int) -> int:
    """Return the least number of columns that has no more rows than columns."""
    return 1 + isqrt(count - 1) if count else 1

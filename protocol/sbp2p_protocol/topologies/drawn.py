"""Topologies that a seed draws: random regular, small world, and a new matching each round.

The seed is part of the topology, so every peer draws the same. Drawing is by hashes of peers, not
by a generator that is called in some order, so a newcomer changes little. Between those who stay,
when one peer joins or leaves:

| topology | edges between others that come or go |
|---|---|
| random regular, even degree d | at most d / 2 |
| random regular, odd degree | (d - 1) / 2, and of its matching under log2 n on average |
| small world of degree d | at most d^2 / 4, and the long ways that lead to the newcomer |
| matching | of the round's n / 2 pairs under log2 n on average |

A random regular graph of at most degree + 1 members is a full one, and is drawn when n passes that.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from sbp2p_protocol.topologies.interface import Edge, Topology, TopologyError, checked_number
from sbp2p_protocol.topologies.order import PLACES, Circle, in_order, matching, place, stride

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId

_MILLION = 10**6


class RandomRegular(Topology):
    """`degree` random neighbours for each: short ways and fast mixing at a fixed cost.

    Theory of operation: the union of degree / 2 circles, each with an order of its own; for an odd
    degree, of a matching, too. Each circle connects everybody, so the graph is always connected.
    Where two circles have the same edge, its two ends have a neighbour less: about degree^2 / 4
    edges are lost so, however many members there are, and the degree is `degree` for nearly
    everybody, never more. (A union of random circles is close to a random regular graph: Kim,
    Wormald, "Random matchings which induce Hamilton cycles", 2001; Law, Siu 2003 build peer-to-peer
    networks of it.)

    Args:
        degree: neighbours of each peer, 2 or more; up to that many other members are all connected.
        seed: another seed draws another graph.
    """

    def __init__(self, degree: int, seed: int = 0) -> None:
        super().__init__()
        if checked_number(degree, "a degree") < 2:
            raise TopologyError(f"random-regular:{degree}: below degree 2 nothing is connected")
        self.degree = degree
        self.seed = checked_number(seed, "a seed")

    @property
    def text(self) -> str:
        """`random-regular:DEGREE`, or with `:SEED` if that is not 0."""
        return _with_seed(f"random-regular:{self.degree}", self.seed)

    def edges(self, members: tuple[PeerId, ...], round_number: int) -> list[Edge]:
        """Return the circles' edges."""
        if len(members) <= self.degree + 1:
            return [(one, other) for at, one in enumerate(members) for other in members[at + 1 :]]
        found: list[Edge] = []
        for number in range(self.degree // 2):
            found += stride(in_order(members, f"regular:{self.seed}:{number}"), 1)
        if self.degree % 2:
            label = f"regular:{self.seed}:matching"
            found += matching(in_order(members, label), label)
        return found


class SmallWorld(Topology):
    """Near neighbours on a circle, and a few long ways (Watts, Strogatz, 1998).

    Theory of operation: on the circle in hash order each peer has an edge to the degree / 2 next
    ones. Each of these but the first is led elsewhere with probability `rewire`: to whoever stands
    behind a random place. The edges to the very next stay, so the graph is always connected; in the
    original they may go, too.

    Args:
        degree: neighbours on average, even, 4 or more.
        rewire: probability from 0 to 1; kept to a millionth.
        seed: another seed draws another graph.
    """

    def __init__(self, degree: int, rewire: float | Fraction | str = "0.1", seed: int = 0) -> None:
        super().__init__()
        if checked_number(degree, "a degree") < 4 or degree % 2:
            raise TopologyError(f"small-world:{degree}: the degree is even, and 4 at least")
        try:
            chance = Fraction(str(rewire) if isinstance(rewire, float) else rewire)
        except (ValueError, ZeroDivisionError) as error:
            raise TopologyError(f"{rewire!r} is not a probability") from error
        if not 0 <= chance <= 1:
            raise TopologyError(f"{rewire} is not a probability from 0 to 1")
        self.degree = degree
        self.rewire = Fraction(round(chance * _MILLION), _MILLION)
        self.seed = checked_number(seed, "a seed")

    @property
    def text(self) -> str:
        """`small-world:DEGREE:REWIRE`, or with `:SEED` if that is not 0."""
        return _with_seed(f"small-world:{self.degree}:{_decimal(self.rewire)}", self.seed)

    def edges(self, members: tuple[PeerId, ...], round_number: int) -> list[Edge]:
        """Return the lattice with its long ways."""
        circle = Circle(members, f"world:{self.seed}") if members else None
        if circle is None:
            return []
        found = stride(circle.peers, 1)
        for step in range(2, self.degree // 2 + 1):
            for one, other in stride(circle.peers, step):
                found += self._led(circle, step, one, other)
        return found

    def _led(self, circle: Circle, step: int, one: PeerId, other: PeerId) -> list[Edge]:
        name = f"world:{self.seed}:{step}"
        if place(f"{name}:chance", one) * self.rewire.denominator >= (
            self.rewire.numerator * PLACES
        ):
            return [(one, other)]
        target = circle.after(place(f"{name}:target", one))
        return [(one, target)] if target != one else []


class Matching(Topology):
    """Each round other pairs: one model a round for each peer; over some rounds all are connected.

    The window is 4 log2 n + 8 rounds. That the union of so many random matchings is not connected
    happens less than once in a thousand windows; `check` tells.

    Args:
        seed: another seed draws other pairs.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = checked_number(seed, "a seed")

    @property
    def text(self) -> str:
        """`matching`, or `matching:SEED`."""
        return _with_seed("matching", self.seed)

    def window(self, count: int) -> int:
        """Return 4 log2 n + 8."""
        return 4 * max(0, count - 1).bit_length() + 8

    def period(self, count: int) -> int:
        """Return 0: never."""
        return 0

    def edges(self, members: tuple[PeerId, ...], round_number: int) -> list[Edge]:
        """Return the pairs of a round."""
        label = f"matching:{self.seed}:{round_number}"
        return matching(in_order(members, label), label)


def _with_seed(text: str, seed: int) -> str:
    return f"{text}:{seed}" if seed else text


def _decimal(value: Fraction) -> str:
    """Return a fraction of a million as a decimal number without needless zeros."""
    whole, rest = divmod(value.numerator * (_MILLION // value.denominator), _MILLION)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".")

"""Who exchanges models with whom: the topologies by name, and their text form.

Theory of operation: a topology is a pure function from the members of a namespace and a round's
number to a graph (`topologies/interface.py` has the rules). The functions here make them; text
makes them, too, so that a setting, a command line and a round's record say the same:

| text | topology |
|---|---|
| `full`, `ring`, `line`, `exponential`, `one-peer` | without options |
| `star`, `star:PEER` | the peer in the middle; without one, the first in hash order |
| `grid`, `grid:COLUMNS`, `torus`, `torus:COLUMNS` | without a number, as many columns as rows |
| `random-regular:DEGREE`, `random-regular:DEGREE:SEED` | |
| `small-world:DEGREE:REWIRE`, `small-world:DEGREE:REWIRE:SEED` | |
| `matching`, `matching:SEED` | other pairs in each round |
| several of them with commas between | in turn, round by round |

Every topology but a custom or a function's has a text form, and `parse_topology(t.text) == t`.

Error cases: TopologyError for text that is none of these, which says what is allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_protocol.graphs import Graph, GraphError
from sbp2p_protocol.limits import TOPOLOGY_NUMBER_MAX, TOPOLOGY_PARTS_MAX, TOPOLOGY_TEXT_MAX
from sbp2p_protocol.topologies.drawn import Matching, RandomRegular, SmallWorld
from sbp2p_protocol.topologies.fixed import Exponential, Full, Grid, Line, Ring, Star, Torus
from sbp2p_protocol.topologies.interface import Edge, Topology, TopologyError
from sbp2p_protocol.topologies.varying import Custom, EdgeMaker, Links, OnePeer, Varying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from fractions import Fraction

__all__ = [
    "Graph",
    "GraphError",
    "Topology",
    "TopologyError",
    "custom",
    "exponential",
    "full",
    "grid",
    "line",
    "matching",
    "one_peer",
    "parse_topology",
    "random_regular",
    "ring",
    "small_world",
    "star",
    "time_varying",
    "torus",
]


def full() -> Topology:
    """Everybody with everybody."""
    return Full()


def ring() -> Topology:
    """Each with the next around a circle."""
    return Ring()


def line() -> Topology:
    """Each with the next; two ends."""
    return Line()


def star(centre: PeerId | None = None) -> Topology:
    """One in the middle with all others; None: the first in hash order."""
    return Star(centre)


def grid(columns: int | None = None) -> Topology:
    """Rows and columns; None: as many columns as rows."""
    return Grid(columns)


def torus(columns: int | None = None) -> Topology:
    """A grid wound around in both directions."""
    return Torus(columns)


def exponential() -> Topology:
    """Each with those 1, 2, 4, 8, ... places on."""
    return Exponential()


def one_peer() -> Topology:
    """One neighbour a round, by the bits of a number; exact after log2 n rounds if n is 2^k."""
    return OnePeer()


def random_regular(degree: int, seed: int = 0) -> Topology:
    """`degree` random neighbours for each; always connected."""
    return RandomRegular(degree, seed)


def small_world(degree: int, rewire: float | Fraction | str = "0.1", seed: int = 0) -> Topology:
    """Near neighbours and a few long ways; always connected."""
    return SmallWorld(degree, rewire, seed)


def matching(seed: int = 0) -> Topology:
    """Random pairs, others in each round."""
    return Matching(seed)


def time_varying(
    parts: Sequence[Topology] | Callable[[int], Topology],
    *,
    window: int | None = None,
    name: str = "varying",
) -> Topology:
    """Topologies in turn, or by a function of the round; see Varying."""
    return Varying(parts, window=window, name=name)


def custom(
    edges: Iterable[Edge] | Links | EdgeMaker, *, name: str = "", window: int = 1
) -> Topology:
    """A graph of your own: pairs, neighbours by peer, or a function of members and round."""
    return Custom(edges, name=name, window=window)


# -- text ----------------------------------------------------------------------------------------


def parse_topology(text: str) -> Topology:
    """Return the topology that text means, see the module; raises TopologyError."""
    if len(text) > TOPOLOGY_TEXT_MAX:
        raise TopologyError(f"{len(text)} characters name no topology")
    parts = text.split(",")
    if len(parts) > TOPOLOGY_PARTS_MAX:
        raise TopologyError(f"more than {TOPOLOGY_PARTS_MAX} topologies in turn")
    found = [_parse_one(part.strip()) for part in parts]
    return found[0] if len(found) == 1 else Varying(found)


def _parse_one(text: str) -> Topology:
    name, *options = text.split(":")
    if name not in _PARSERS:
        raise TopologyError(f"{text!a} is no topology; there are {', '.join(_PARSERS)}")
    make, least, most = _PARSERS[name]
    if not least <= len(options) <= most:
        raise TopologyError(f"{text!a}: {name} has {_FORMS.get(name, 'no options')}")
    return make(options)


def _number(text: str) -> int:
    # int() takes underscores, signs, spaces and digits of every script
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        raise TopologyError(f"{text!a} is not a number")
    if (number := int(text)) > TOPOLOGY_NUMBER_MAX:
        raise TopologyError(f"{number} is over {TOPOLOGY_NUMBER_MAX}")
    return number


def _numbers(options: list[str]) -> list[int]:
    return [_number(each) for each in options]


def _star(options: list[str]) -> Topology:
    if not options:
        return Star()
    try:
        return Star(PeerId.parse(options[0]))
    except KeysError as error:
        raise TopologyError(f"star: {error}") from error


def _small_world(options: list[str]) -> Topology:
    chance = options[1] if len(options) > 1 else "0.1"
    whole, _, rest = chance.partition(".")
    _number(whole)
    if rest or "." in chance:
        _number(rest)
    return SmallWorld(_number(options[0]), chance, *_numbers(options[2:]))


_FORMS: Final = {
    "star": "one option, the peer in the middle: star:12D3KooW...",
    "grid": "one option, its columns: grid:4",
    "torus": "one option, its columns: torus:4",
    "random-regular": "a degree, and perhaps a seed: random-regular:4",
    "small-world": "a degree, a probability, perhaps a seed: small-world:4:0.1",
    "matching": "one option, a seed: matching:1",
}

_PARSERS: Final[dict[str, tuple[Callable[[list[str]], Topology], int, int]]] = {
    "full": (lambda _: Full(), 0, 0),
    "ring": (lambda _: Ring(), 0, 0),
    "line": (lambda _: Line(), 0, 0),
    "star": (_star, 0, 1),
    "grid": (lambda options: Grid(*_numbers(options)), 0, 1),
    "torus": (lambda options: Torus(*_numbers(options)), 0, 1),
    "random-regular": (lambda options: RandomRegular(*_numbers(options)), 1, 2),
    "small-world": (_small_world, 1, 3),
    "exponential": (lambda _: Exponential(), 0, 0),
    "one-peer": (lambda _: OnePeer(), 0, 0),
    "matching": (lambda options: Matching(*_numbers(options)), 0, 1),
}
"""Name to (what makes it of its options, the least number of options, the most)."""

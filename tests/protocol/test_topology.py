"""Topologies: the same for everybody, connected, and hardly changed by one peer more."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise
from math import ceil, log2
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.topologies.order import matching as pairs_of
from sbp2p_protocol.topology import (
    Graph,
    Topology,
    TopologyError,
    custom,
    exponential,
    full,
    grid,
    line,
    matching,
    one_peer,
    parse_topology,
    random_regular,
    ring,
    small_world,
    star,
    time_varying,
    torus,
)
from tests.protocol.topology_samples import TEXTS, peers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p_keys.identity import PeerId

_FILE = Path(__file__).resolve().parents[2] / "protocol" / "vectors" / "topology.json"
POOL = peers(120)

topologies = st.sampled_from(TEXTS).map(parse_topology)
memberships = st.sets(st.sampled_from(POOL[:60]), min_size=1, max_size=40).map(
    lambda found: sorted(found, key=str)
)
rounds = st.integers(0, 1000)


# -- the same for everybody ------------------------------------------------------------------------


def _cases() -> list[Any]:
    cases: list[Any] = json.loads(_FILE.read_text(encoding="utf-8"))["topologies"]
    return cases


@pytest.mark.parametrize("case", _cases(), ids=lambda case: f"{case['text']}-{case['round']}")
def test_vectors(case: Any) -> None:
    members = POOL[: case["members"]]
    graph = parse_topology(case["text"]).graph(members, case["round"])
    edges = {frozenset((POOL[one], POOL[other])) for one, other in case["edges"]}
    assert set(map(frozenset, graph.edges())) == edges


@settings(max_examples=40, deadline=None)
@given(topologies, memberships, rounds, st.randoms(use_true_random=False))
def test_order_and_repetition_of_members_mean_nothing(
    topology: Topology, members: list[PeerId], number: int, rng: Random
) -> None:
    shuffled = [*members, members[0]]
    rng.shuffle(shuffled)
    again = parse_topology(topology.text)
    for peer in members[:5]:
        assert topology.neighbours(peer, members, number) == again.neighbours(
            peer, shuffled, number
        )
        assert topology.weights(peer, members, number) == again.weights(peer, shuffled, number)


@settings(max_examples=50, deadline=None)
@given(topologies, memberships, rounds)
def test_the_rules_of_every_topology(
    topology: Topology, members: list[PeerId], number: int
) -> None:
    graph = topology.graph(members, number)
    assert set(graph.nodes) == set(members)
    for peer in members:
        neighbours = topology.neighbours(peer, members, number)
        assert neighbours == graph.neighbours(peer)
        assert peer not in neighbours
        assert all(peer in topology.neighbours(other, members, number) for other in neighbours)
        weights = topology.weights(peer, members, number)
        assert sum(weights.values()) == 1
        assert set(weights) <= neighbours | {peer}
    topology.check(members, number)


@settings(max_examples=50, deadline=None)
@given(topologies, memberships, rounds)
def test_the_window_connects_from_any_round_on(
    topology: Topology, members: list[PeerId], number: int
) -> None:
    window = topology.window(len(members))
    assert topology.union(members, number, window).is_connected()
    period = topology.period(len(members))
    if period:
        edges = [set(topology.graph(members, number + each).edges()) for each in (0, period)]
        assert edges[0] == edges[1]


# -- what each looks like --------------------------------------------------------------------------


def _degrees(topology: Topology, count: int) -> list[int]:
    graph = topology.graph(POOL[:count])
    return sorted(graph.degree(peer) for peer in graph.nodes)


@pytest.mark.parametrize(
    ("topology", "count", "edges", "diameter"),
    [
        (full(), 9, 36, 1),
        (ring(), 9, 9, 4),
        (ring(), 2, 1, 1),
        (line(), 9, 8, 8),
        (star(), 9, 8, 2),
        (grid(), 9, 12, 4),
        (grid(4), 10, 13, 5),
        (torus(3), 9, 18, 2),
        (exponential(), 16, 56, 2),
        (random_regular(4), 5, 10, 1),
    ],
    ids=str,
)
def test_sizes(topology: Topology, count: int, edges: int, diameter: int) -> None:
    graph = topology.graph(POOL[:count])
    assert (graph.edge_count(), graph.diameter()) == (edges, diameter)


def test_a_torus_is_regular_for_any_number_of_members() -> None:
    for count in range(10, 40):
        degrees = set(_degrees(torus(4), count))
        assert len(degrees) == 1


@pytest.mark.parametrize("degree", [2, 3, 4, 6, 9])
def test_a_random_regular_graph_is_nearly_regular(degree: int) -> None:
    lost = []
    for seed in range(10):
        degrees = _degrees(random_regular(degree, seed), 80)
        assert degrees[-1] <= degree
        lost.append(degree * 80 - sum(degrees))
    assert sum(lost) / len(lost) / 2 <= degree * degree / 4 + 1


def test_a_random_regular_graph_mixes_much_faster_than_a_ring() -> None:
    drawn = random_regular(4).graph(POOL[:64])
    assert drawn.diameter() <= 6
    assert drawn.spectral_gap() > 30 * ring().graph(POOL[:64]).spectral_gap()


def test_a_small_world_has_shorter_ways_than_its_lattice() -> None:
    lattice = small_world(4, 0).graph(POOL)
    world = small_world(4, "0.2").graph(POOL)
    assert lattice.diameter() == 30
    assert world.diameter() <= 12
    assert world.edge_count() == pytest.approx(2 * len(POOL), abs=5)


def test_a_star_has_the_centre_that_it_is_told() -> None:
    members = POOL[:6]
    graph = star(POOL[3]).graph(members)
    assert graph.neighbours(POOL[3]) == set(members) - {POOL[3]}
    assert all(graph.neighbours(peer) == {POOL[3]} for peer in members if peer != POOL[3])


def test_a_star_without_its_centre_leaves_everybody_alone() -> None:
    topology = star(POOL[50])
    assert topology.neighbours(POOL[0], POOL[:3]) == frozenset()
    assert topology.weights(POOL[0], POOL[:3]) == {POOL[0]: 1}
    with pytest.raises(TopologyError, match="does not connect these members: 3 parts"):
        topology.check(POOL[:3])


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_one_peer_rounds_give_the_exact_mean_of_a_power_of_two(count: int) -> None:
    members = POOL[:count]
    values = {peer: Fraction(at * at + 1) for at, peer in enumerate(members)}
    mean = sum(values.values(), Fraction()) / count
    topology = one_peer()
    for number in range(topology.window(count)):
        values = {
            peer: sum(
                (weight * values[other]
                 for other, weight in topology.weights(peer, members, number).items()),
                Fraction(),
            )
            for peer in members
        }  # fmt: skip
        assert all(len(topology.neighbours(peer, members, number)) == 1 for peer in members)
    assert set(values.values()) == {mean}


@given(st.integers(0, 40), st.text("ab", max_size=2))
def test_a_matching_leaves_at_most_one_over(count: int, label: str) -> None:
    pairs = pairs_of(POOL[:count], label)
    met = [peer for pair in pairs for peer in pair]
    assert len(set(met)) == len(met) == count - count % 2


def test_each_round_has_another_matching() -> None:
    graphs = [matching().graph(POOL[:10], number) for number in range(4)]
    assert len({frozenset(map(frozenset, graph.edges())) for graph in graphs}) == 4


# -- one peer more or less -------------------------------------------------------------------------


def _changed(topology: Topology, members: Sequence[PeerId], newcomer: PeerId, number: int) -> int:
    """Count edges between members that are there with a newcomer and not without, or reverse."""
    before = set(map(frozenset, topology.graph(members, number).edges()))
    after = set(map(frozenset, topology.graph([*members, newcomer], number).edges()))
    return len(before ^ {edge for edge in after if newcomer not in edge})


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("full", lambda n: 0),
        ("ring", lambda n: 1),
        ("line", lambda n: 1),
        ("torus:4", lambda n: 8),
        ("grid:4", lambda n: 8 + 2 * ceil(n / 4)),
        ("exponential", lambda n: 2 * n),
        ("one-peer", lambda n: n),
        ("random-regular:2", lambda n: 1),
        ("random-regular:6", lambda n: 3),
    ],
)
def test_a_newcomer_changes_few_edges_of_the_others(text: str, bound: Any) -> None:
    rng = Random(text)  # noqa: S311
    topology = parse_topology(text)
    for count in (8, 9, 15, 16, 17, 40, 80):
        for _ in range(6):
            *members, newcomer = rng.sample(POOL, count + 1)
            assert _changed(topology, members, newcomer, rng.randrange(9)) <= bound(count)


@pytest.mark.parametrize(
    ("text", "mean"),
    [
        ("matching", log2),
        ("random-regular:3", lambda n: 1 + log2(n)),
        ("small-world:4:0.2", lambda n: 4.5),
        ("small-world:8:0.3", lambda n: 17),
    ],
)
def test_a_newcomer_changes_few_edges_on_average(text: str, mean: Any) -> None:
    rng = Random(text)  # noqa: S311
    topology = parse_topology(text)
    for count in (16, 80):
        changes = []
        for _ in range(25):
            *members, newcomer = rng.sample(POOL, count + 1)
            changes.append(_changed(topology, members, newcomer, rng.randrange(9)))
        assert sum(changes) / len(changes) <= mean(count)


def test_a_star_with_a_named_centre_does_not_change() -> None:
    assert _changed(star(POOL[3]), POOL[:10], POOL[11], 0) == 0


# -- in turn, and of your own ----------------------------------------------------------------------


def test_topologies_in_turn() -> None:
    topology = time_varying([ring(), star(POOL[0])])
    assert topology.text == f"ring,star:{POOL[0]}"
    members = POOL[:7]
    assert topology.neighbours(POOL[0], members, 1) == set(members) - {POOL[0]}
    assert topology.neighbours(POOL[0], members, 2) == ring().neighbours(POOL[0], members)


def test_a_function_of_the_round() -> None:
    topology = time_varying(lambda number: matching(number % 5), window=16, name="mine")
    assert topology.text == "mine"
    topology.check(POOL[:9])
    assert topology.period(9) == 0
    with pytest.raises(TopologyError, match="within which window"):
        time_varying(lambda number: ring())
    with pytest.raises(TopologyError, match="of no topologies"):
        time_varying([])
    with pytest.raises(TopologyError, match="a window of 0 rounds"):
        time_varying([ring()], window=0)


def test_edges_of_your_own() -> None:
    a, b, c, d = POOL[:4]
    topology = custom([(a, b), (b, a), (b, c), (c, d)])
    assert topology.neighbours(b, [a, b, c]) == {a, c}
    assert topology.neighbours(c, [a, b, c]) == {b}
    topology.check([a, b, c])
    with pytest.raises(TopologyError, match=f"2 parts, one of them {d}"):
        topology.check([a, b, d])
    assert topology.text == custom([(d, c), (b, a), (c, b)]).text
    assert topology.text != custom([(a, b)]).text
    assert topology == custom({a: [b], b: [a, c], c: [b, d], d: [c]})
    assert topology.period(4) == 1


def test_edges_of_your_own_are_checked() -> None:
    a, b, c = POOL[:3]
    with pytest.raises(TopologyError, match="an edge to itself"):
        custom([(a, a)])
    with pytest.raises(TopologyError, match=f"{a} has neighbour {b}, which does not have it"):
        custom({a: [b], b: []})
    with pytest.raises(TopologyError, match=f"an edge names {c}, which is not a node"):
        custom(lambda members, number: [(a, c)]).graph([a, b])
    with pytest.raises(TopologyError, match="edge to itself"):
        custom(lambda members, number: [(a, a)]).neighbours(a, [a, b])
    with pytest.raises(TopologyError, match="a window of 0 rounds"):
        custom([], window=0)


def test_a_function_of_your_own() -> None:
    def halves(members: tuple[PeerId, ...], number: int) -> list[tuple[PeerId, PeerId]]:
        return list(pairwise(members))[number % 2 :: 2]

    topology = custom(halves, name="halves", window=2)
    assert topology.text == "halves"
    assert not topology.graph(POOL[:5], 0).is_connected()
    topology.check(POOL[:5])
    assert topology.period(5) == 0
    with pytest.raises(TopologyError, match="within 2 rounds"):
        custom(lambda members, number: [], window=2).check(POOL[:2])


def test_who_is_cut_off_is_said_shortly() -> None:
    with pytest.raises(TopologyError, match=r"and 2 more$") as caught:
        custom(lambda members, number: [(members[0], each) for each in members[1:5]]
               + [(members[5], each) for each in members[6:]]).check(POOL[:10])  # fmt: skip
    assert len(str(caught.value)) < 300


# -- text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_read_as_it_is_written(text: str) -> None:
    topology = parse_topology(text)
    again = parse_topology(topology.text)
    assert again == topology
    assert hash(again) == hash(topology)
    assert str(topology) == topology.text
    assert topology != parse_topology("random-regular:12:99")


@given(
    st.integers(2, 100), st.integers(0, 2**32 - 1), st.fractions(0, 1) | st.floats(0, 1),
)  # fmt: skip
@settings(max_examples=50)
def test_options_survive_the_text(degree: int, seed: int, chance: Fraction | float) -> None:
    for topology in (
        random_regular(degree, seed),
        small_world(2 * degree, chance, seed),
        matching(seed),
        grid(degree),
        torus(degree),
        star(POOL[degree]),
    ):
        assert parse_topology(topology.text) == topology


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is no topology; there are full, ring"),
        ("Ring", "'Ring' is no topology"),
        ("ring:4", "ring has no options"),
        ("ring,", "'' is no topology"),
        ("random-regular", "a degree, and perhaps a seed"),
        ("random-regular:1", "below degree 2"),
        ("random-regular:-4", "'-4' is not a number"),
        ("random-regular:\u0664", "is not a number"),
        ("random-regular:4_0", "'4_0' is not a number"),
        ("random-regular:99999999999", "is not a number"),
        ("random-regular:4:4294967296", "over 4294967295"),
        ("small-world:3", "the degree is even"),
        ("small-world:2", "4 at least"),
        ("small-world:4:1.5", "not a probability"),
        ("small-world:4:1e-3", "is not a number"),
        ("small-world:4:0.", "'' is not a number"),
        ("small-world:4:1/2", "is not a number"),
        ("grid:0", "at least one column"),
        ("star:nobody", "star: not a peer id"),
        (",".join(["ring"] * 17), "more than 16"),
        ("x" * 600, "600 characters"),
    ],
)
def test_other_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_topology(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (random_regular, (4, -1)),
        (matching, (2**32,)),
        (torus, (-2,)),
        (small_world, (4, "much")),
        (small_world, (4, "1/0")),
        (small_world, (4, -0.1)),
    ],
)
def test_options_are_checked_without_text_too(make: Any, options: Any) -> None:
    with pytest.raises(TopologyError):
        make(*options)


def test_who_is_no_member_has_no_neighbours_to_be_asked_for() -> None:
    for topology in (full(), ring()):
        with pytest.raises(LocalProtocolError, match="is not one of the members"):
            topology.neighbours(POOL[9], POOL[:3])
        with pytest.raises(LocalProtocolError, match="is not one of the members"):
            topology.weights(POOL[9], POOL[:3])


def test_nobody_is_a_graph_too() -> None:
    for text in TEXTS:
        topology = parse_topology(text)
        assert isinstance(topology.graph([]), Graph)
        topology.check([])

"""Graphs: what is connected, mixing weights that keep the mean, and the spectral gap."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p_protocol.graphs import Graph, GraphError


@st.composite
def graphs(draw: st.DrawFn, most: int = 12, connected: bool = False) -> Graph[int]:
    count = draw(st.integers(2 if connected else 0, most))
    pairs = [(one, other) for one in range(count) for other in range(one + 1, count)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=40)) if pairs else []
    if connected:
        edges += [(draw(st.integers(0, at - 1)), at) for at in range(1, count)]
    return Graph(range(count), edges)


def ring(count: int) -> Graph[int]:
    return Graph(range(count), [(at, (at + 1) % count) for at in range(count)])


def full(count: int) -> Graph[int]:
    return Graph(range(count), [(one, other) for other in range(count) for one in range(other)])


def mixing_matrix(graph: Graph[int]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.array([[float(each) for each in row] for row in graph.metropolis_hastings()])


# -- edges and distances ---------------------------------------------------------------------------


def test_edges_are_undirected_and_each_once() -> None:
    graph = Graph("abc", [("a", "b"), ("b", "a"), ("b", "c"), ("b", "c")])
    assert list(graph.edges()) == [("a", "b"), ("b", "c")]
    assert graph.edge_count() == 2
    assert graph.neighbours("b") == {"a", "c"}
    assert [graph.degree(each) for each in graph.nodes] == [1, 2, 1]


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(GraphError, match="edge to itself"):
        Graph("a", [("a", "a")])
    with pytest.raises(GraphError, match="names b, which is not a node"):
        Graph("a", [("a", "b")])
    with pytest.raises(GraphError, match="no diameter"):
        Graph("ab", []).diameter()


@settings(max_examples=50, deadline=None)
@given(graphs())
def test_components_part_the_nodes(graph: Graph[int]) -> None:
    parts = graph.components()
    assert sorted(node for part in parts for node in part) == list(graph.nodes)
    assert graph.is_connected() == (len(parts) <= 1)
    where = {node: part for part in parts for node in part}
    assert all(where[one] is where[other] for one, other in graph.edges())
    assert [len(part) for part in parts] == sorted(map(len, parts), reverse=True)


@given(graphs(connected=True))
def test_the_diameter_is_the_longest_shortest_way(graph: Graph[int]) -> None:
    count = len(graph.nodes)
    ways = np.full((count, count), np.inf)
    np.fill_diagonal(ways, 0)
    for one, other in graph.edges():
        ways[one, other] = ways[other, one] = 1
    for middle in range(count):  # Floyd, Warshall
        ways = np.minimum(ways, ways[:, middle : middle + 1] + ways[middle])
    assert graph.diameter() == ways.max()


# -- mixing ----------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(graphs())
def test_mixing_weights_are_symmetric_and_doubly_stochastic(graph: Graph[int]) -> None:
    rows = graph.metropolis_hastings()
    columns = [list(column) for column in zip(*rows, strict=True)]
    assert columns == rows
    assert all(sum(row) == 1 for row in rows)
    assert all(weight >= 0 for row in rows for weight in row)
    for at, node in enumerate(graph.nodes):
        assert rows[at][at] > 0  # so no pair of peers can swap their models for ever
        assert {other for other, weight in enumerate(rows[at]) if weight} == (
            graph.neighbours(node) | {node}
        )
        assert graph.mixing_row(node) == {
            other: weight for other, weight in enumerate(rows[at]) if weight
        }


@settings(max_examples=50)
@given(graphs(connected=True), st.data())
def test_one_round_keeps_the_mean_exactly(graph: Graph[int], data: st.DataObject) -> None:
    values = data.draw(
        st.lists(
            st.fractions(max_denominator=100), min_size=len(graph.nodes), max_size=len(graph.nodes)
        )
    )
    mixed = [
        sum(
            (weight * values[other] for other, weight in graph.mixing_row(node).items()), Fraction()
        )
        for node in graph.nodes
    ]
    assert sum(mixed) == sum(values)
    assert max(mixed) <= max(values)
    assert min(mixed) >= min(values)


@settings(max_examples=30, deadline=None)
@given(graphs(connected=True))
def test_the_gap_is_that_of_the_eigenvalues(graph: Graph[int]) -> None:
    eigenvalues = np.sort(np.abs(np.linalg.eigvalsh(mixing_matrix(graph))))
    assert math.isclose(graph.spectral_gap(), 1 - eigenvalues[-2], rel_tol=1e-3, abs_tol=1e-9)


@pytest.mark.parametrize("count", [3, 8, 24, 64])
def test_the_gap_of_a_ring_is_known(count: int) -> None:
    eigenvalues = [(1 + 2 * math.cos(2 * math.pi * k / count)) / 3 for k in range(1, count)]
    expected = 1 - max(map(abs, eigenvalues))
    assert ring(count).spectral_gap() == pytest.approx(expected, rel=1e-4)


def test_the_gaps_at_the_ends() -> None:
    assert full(7).spectral_gap() == pytest.approx(1)
    assert Graph(range(1), []).spectral_gap() == 1
    assert Graph[int]((), []).spectral_gap() == 1
    assert Graph(range(4), [(0, 1), (2, 3)]).spectral_gap() == 0
    star = Graph(range(9), [(0, at) for at in range(1, 9)])
    assert star.spectral_gap() == pytest.approx(1 / 9)


@settings(max_examples=30, deadline=None)
@given(graphs(connected=True), st.integers(0, 2**32 - 1))
def test_values_go_to_the_mean_at_the_rate_of_the_gap(graph: Graph[int], seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=len(graph.nodes))
    mean = values.mean()
    start = float(np.linalg.norm(values - mean))
    matrix = mixing_matrix(graph)
    rate = 1 - graph.spectral_gap()
    for number in range(1, 40):
        values = matrix @ values
        bound = start * (rate * (1 + 1e-6)) ** number
        assert np.linalg.norm(values - mean) <= bound + 1e-9
    rounds = int(12 / max(-math.log(max(rate, 1e-9)), 1e-4))
    values = np.linalg.matrix_power(matrix, rounds) @ values
    assert np.allclose(values, mean, atol=1e-3 * max(1, start))

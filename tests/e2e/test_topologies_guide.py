"""The guide to topologies: its snippets run, and its table holds what is computed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbp2p_protocol.topology import parse_topology
from tests.protocol.topology_samples import peers

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "topologies.md"


def test_the_snippets_run_one_after_the_other() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block.group(1), str(GUIDE), "exec"), names)  # noqa: S102
    assert len(blocks) >= 5


def _rows() -> list[list[str]]:
    text = GUIDE.read_text(encoding="utf-8").partition("**Measured**")[2].partition("\n## 2")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.MULTILINE)
    return [[name, *(cell.strip() for cell in cells.split("|"))] for name, cells in rows]


def _matrix(name: str, count: int, number: int) -> Any:
    members = peers(count)
    graph = parse_topology(name).graph(members, number)
    row = {peer: at for at, peer in enumerate(members)}
    order = [row[peer] for peer in graph.nodes]
    return np.array(graph.metropolis_hastings(), dtype=float)[np.ix_(order, order)], graph


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row[0])
def test_the_table_holds_what_is_computed(row: list[str]) -> None:
    name, diameter, gap, rounds, models, *large = row
    graph = parse_topology(name).graph(peers(16))
    if diameter:
        assert (str(graph.diameter()), f"{graph.spectral_gap():.4f}") == (diameter, gap)
        assert f"{parse_topology(name).graph(peers(64)).spectral_gap():.4f}" == large[0]
    left = np.eye(16) - 1 / 16
    done, received = 0, 0.0
    while np.linalg.norm(left, 2) > 0.01:
        matrix, graph = _matrix(name, 16, done)
        left = matrix @ left
        received += 2 * graph.edge_count() / 16
        done += 1
    assert (str(done), f"{received:.0f}") == (rounds, models)


def test_the_table_is_there() -> None:
    assert len(_rows()) >= 10

"""`sbp2p topology`: what it says of a topology, for people and for scripts, and what it draws."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from sbp2p.cli.topology_plot import draw
from sbp2p.errors import ConfigError
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.graphs import Graph
from tests.e2e.cli_process import Cli

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e


def test_what_a_script_reads(tmp_path: Path) -> None:
    event = Cli(tmp_path).json("topology", "random-regular:4", "--peers", 16).last
    assert event["topology"] == "random-regular:4"
    assert event["connected"] is True
    assert event["diameter"] <= 4
    assert 0.1 < event["spectral_gap"] < 0.4
    assert event["degree_max"] == 4
    rows: dict[int, Fraction] = {}
    for row, _, weight in event["weights"]:
        rows[row] = rows.get(row, Fraction(0)) + Fraction(weight)
    assert rows == dict.fromkeys(range(16), Fraction(1))
    assert not (tmp_path / "identity.key").exists(), "nothing needs a key"


def test_what_people_read(tmp_path: Path) -> None:
    out = Cli(tmp_path).run("topology", "ring", "--peers", 4).out
    assert "edges         4, 2 for each peer" in out
    assert "0  own 1/3  1: 1/3  3: 1/3" in out
    assert "0  . # . #" in out
    many = Cli(tmp_path).run("topology", "full", "--peers", 50).out
    assert "spectral gap  1: everybody has the mean after one round" in many
    assert "... and 34 more peers: see --verbose" in many
    assert "adjacency" not in many


def test_a_round_that_does_not_connect_everybody(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    out = cli.run("topology", "one-peer", "--peers", 8, "--round", 1).out
    assert "connected  no, 4 parts; within 3 rounds: yes" in out
    event = cli.json("topology", "one-peer", "--peers", 8, "--round", 1).last
    assert (event["connected"], event["connected_in_window"], event["diameter"]) == (
        False,
        True,
        None,
    )


def test_a_star_around_a_real_peer(tmp_path: Path) -> None:
    centre = PrivateKey.from_seed(bytes(31) + b"\x63").peer_id
    event = Cli(tmp_path).json("topology", f"star:{centre}", "--peers", 5).last
    assert event["edges"] == [[0, other] for other in range(1, 5)]


def test_it_is_drawn_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first, second, large = (tmp_path / name for name in ("a.svg", "b.svg", "c.png"))
    Cli(tmp_path).run("topology", "grid", "--peers", 9, "--plot", first)
    nine = [(at, at + 1) for at in range(9) if at % 3 < 2] + [(at, at + 3) for at in range(6)]
    draw(Graph(range(9), nine), "grid, 9 peers, spectral gap 0.233", second)
    draw(Graph(range(100), [(0, 99)]), "many", large)
    assert first.read_bytes() == second.read_bytes()
    assert b"grid, 9 peers" in first.read_bytes()
    assert large.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("moebius",), "'moebius' is no topology"),
        (("ring", "--peers", "0"), "--peers is from 1 to 1024"),
        (("ring", "--round", "-1"), "--round -1"),
        (("ring", "--plot", "ring.txt"), "not one of .svg, .png, .pdf"),
    ],
)
def test_what_means_nothing(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    assert reason in Cli(tmp_path).run("topology", *words, code=2).err


def test_drawing_without_matplotlib_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="matplotlib is not installed") as caught:
        draw(Graph(range(2), [(0, 1)]), "two", tmp_path / "two.svg")
    assert "sbp2p[plot]" in caught.value.hint

"""A graph as a picture: peers on a circle, an edge for each pair that exchanges models.

matplotlib is imported when something is drawn, and by nothing else.
"""

from __future__ import annotations

from math import cos, pi, sin
from typing import TYPE_CHECKING, Final

from sbp2p.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from sbp2p_protocol.topology import Graph

_SUFFIXES: Final = (".svg", ".png", ".pdf")
_LABELLED_MAX: Final = 64


def draw(graph: Graph[int], title: str, path: Path) -> None:
    """Draw a graph into a file; the same graph gives the same file.

    Raises:
        ConfigError: the file's suffix is not one of them, or matplotlib is not installed.
        OSError: the file cannot be written.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"--plot {path}: not one of {', '.join(_SUFFIXES)}")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "matplotlib is not installed", hint="pip install 'sbp2p[plot]'"
        ) from error
    places = _circle(len(graph.nodes))
    figure = Figure(figsize=(6, 6.4))
    axes = figure.add_axes((0.02, 0.02, 0.96, 0.9))
    axes.set_title(title)
    axes.set_axis_off()
    axes.set_aspect("equal")
    for one, other in graph.edges():
        (x, y), (u, v) = places[one], places[other]
        axes.plot([x, u], [y, v], color="#7a8ba3", linewidth=0.9, zorder=1)
    size = 260 if len(places) <= _LABELLED_MAX else 20
    axes.scatter([x for x, _ in places], [y for _, y in places], s=size, color="#1f4e79", zorder=2)
    if len(places) <= _LABELLED_MAX:
        for node, (x, y) in enumerate(places):
            axes.annotate(
                f"{node}", (x, y), color="white", ha="center", va="center", fontsize=8, zorder=3
            )
    # names within an SVG are random without it
    with matplotlib.rc_context({"svg.hashsalt": "sbp2p"}):
        dated = path.suffix.lower() != ".png"
        figure.savefig(path, metadata=_undated(path.suffix.lower()) if dated else None)


def _circle(count: int) -> list[tuple[float, float]]:
    """Return a place for each peer, clockwise from the top."""
    turns = [2 * pi * at / count for at in range(count)]
    return [(sin(turn), cos(turn)) for turn in turns]


def _undated(suffix: str) -> dict[str, None]:
    return {"Date": None} if suffix == ".svg" else {"CreationDate": None}

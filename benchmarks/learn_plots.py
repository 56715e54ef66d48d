"""Draws what `benchmarks.learn` and `examples.transformer` measured: run by `make docs`.

    python -m benchmarks.learn_plots docs/plots/learn.json docs/plots/transformer.json docs/plots

The same reports give the same bytes: no date, ids from a fixed salt, text as text. A run that a
report does not have is left out; a drawing of which nothing is there is not made.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.learn import MEAN, ROBUST, TOPOLOGIES
from examples.digits.attacks import ATTACKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "sbp2p",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "figure.figsize": (7.2, 4.2),
    "axes.grid": True,
    "grid.color": "#d8dee4",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.8,
}

Curves = dict[str, Any]


def _accuracies(curve: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    rows = curve["rounds"]
    return [row["round"] for row in rows], [row["accuracy"] for row in rows]


def _topologies(axes: Any, curves: Curves) -> bool:
    central = curves.get("centralised mlp")
    if central:
        label = "centralised, as many samples"
        axes.plot(range(1, len(central) + 1), central, "k--", label=label)
    there = [name for name in TOPOLOGIES if name in curves]
    for name in there:
        axes.plot(*_accuracies(curves[name]), label=TOPOLOGIES[name])
    axes.set_title("Eight nodes, shards that are not alike", loc="left")
    axes.set_xlabel("round (120 steps of each node, then one merge)")
    axes.set_ylabel("accuracy, %")
    return bool(there)


def _bytes(axes: Any, curves: Curves) -> bool:
    there = [name for name in TOPOLOGIES if name in curves]
    for name in there:
        rows = curves[name]["rounds"]
        received = [row["received"] / 1e6 for row in rows]
        axes.plot(received, [row["accuracy"] for row in rows], label=TOPOLOGIES[name])
    axes.set_xscale("log")
    axes.set_title("The same, against what a node received", loc="left")
    axes.set_xlabel("MB over the node's connections, handshakes and records included")
    axes.set_ylabel("accuracy, %")
    return bool(there)


def _hostile(axes: Any, curves: Curves) -> bool:
    found = False
    for number, attack in enumerate(ATTACKS):
        for method, dash in ((ROBUST, "-"), (MEAN, ":")):
            curve = curves.get(f"{method} {attack}")
            if curve is not None:
                found = True
                label = f"{attack}, {method}"
                axes.plot(*_accuracies(curve), dash, color=f"C{number}", label=label)
    axes.set_title("Two of eight nodes lie: robust (lines) and plain mean (dots)", loc="left")
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy of the honest, %")
    return found


def _churn(axes: Any, curves: Curves) -> bool:
    labels = {
        "full": "undisturbed",
        "killed": "3 of 8 killed in round 7 and replaced",
        "killed ring": "the same in a ring",
        "frozen": "1 of 8 frozen in round 7",
        "newcomer": "a ninth comes half way",
    }
    there = [name for name in labels if name in curves]
    for name in there:
        axes.plot(*_accuracies(curves[name]), label=labels[name])
    axes.set_title("Nodes that die, freeze and come", loc="left")
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy, %")
    return bool(there)


def _stories(axes: Any, report: Curves) -> bool:
    losses, received = report["losses"], [each / 1e6 for each in report["received"]]
    central = report.get("synchronous") or []
    axes.plot(received, losses, "o-", label="DiLoCo over the swarm, what was received")
    if central:
        step = report["gradients"] / 1e6 / len(central)
        spent = [step * (number + 1) for number in range(len(central))]
        axes.plot(spent, central, "k--", label="synchronous, everybody's gradients every step")
    axes.set_xscale("log")
    axes.set_title("A small transformer on stories, four nodes, equal tokens", loc="left")
    axes.set_xlabel("MB to each node")
    axes.set_ylabel("loss on other text, nats a character")
    return True


def _draw(path: Path, paint: Callable[[Any, Curves], bool], report: Curves) -> bool:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    with mpl.rc_context(_SETTINGS):
        figure, axes = plt.subplots()
        made = paint(axes, report)
        if made:
            axes.legend(frameon=False, fontsize="small")
            figure.tight_layout()
            figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)
    if made:  # matplotlib ends some lines with a space
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join(each.rstrip() for each in lines) + "\n", encoding="utf-8")
    return made


def draw(learned: Curves | None, stories: Curves | None, folder: Path) -> list[str]:
    """Draw everything that the reports have; return the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paints: dict[str, tuple[Callable[[Any, Curves], bool], Curves | None]] = {
        "topologies.svg": (_topologies, learned),
        "bytes.svg": (_bytes, learned),
        "hostile.svg": (_hostile, learned),
        "churn.svg": (_churn, learned),
        "stories.svg": (_stories, stories),
    }
    return [
        name
        for name, (paint, report) in paints.items()
        if report is not None and _draw(folder / name, paint, report)
    ]


def main() -> int:
    """Draw from the two reports into the folder."""
    if len(sys.argv) != 4:
        print("usage: python -m benchmarks.learn_plots LEARN_JSON TRANSFORMER_JSON FOLDER")
        return 2
    learned, stories = (
        json.loads(Path(name).read_text(encoding="utf-8")) if Path(name).exists() else None
        for name in sys.argv[1:3]
    )
    curves = None if learned is None else learned["curves"]
    for name in draw(curves, stories, Path(sys.argv[3])):
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

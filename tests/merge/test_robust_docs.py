"""docs/merge-methods.md and docs/attacks.md say what the code says, and their snippets run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sbp2p.merge import robust
from sbp2p.merge.method import Scope, get, names
from tests.merge.robust_attacks import ATTACKS
from tests.merge.robust_reference import merged
from tests.merge.test_robust_breakdown import HOSTILE, METHODS, away, scene

DOCS = Path(__file__).parents[2] / "docs"
TABLES = (DOCS / "merge-methods.md").read_text(encoding="utf-8")
GUIDE = (DOCS / "attacks.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TABLES + GUIDE, flags=re.MULTILINE | re.DOTALL)


def cells(text: str, first: str, columns: int) -> list[list[str]]:
    """Return the rows with so many cells that begin with this one."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in row] for row in rows if row[0].strip() == first]
    return [row[1:] for row in found if len(row) == columns]


@pytest.mark.parametrize("name", names())
def test_the_tables_say_of_each_method_what_it_says_itself(name: str) -> None:
    method = get(name)
    ((paper, assumes),) = cells(TABLES, f"`{name}`", 3)
    assert (paper, assumes) == (method.doc.paper, method.doc.assumes)
    ((result, needs, breakdown),) = cells(TABLES, f"`{name}`", 4)
    assert result
    assert breakdown == method.doc.breakdown
    assert ("a base" in needs) == method.needs_base
    assert ("2 inputs" in needs) == (method.inputs_min == 2)
    assert ("the inputs twice" in needs) == (method.scope is Scope.MODEL)
    assert ("each tensor twice" in needs) == (method.scope is Scope.TENSOR)


def test_every_robust_method_is_attacked() -> None:
    assert set(METHODS) == set(robust.METHODS)


def test_the_table_of_attacks_is_what_comes_out() -> None:
    (header,) = cells(GUIDE, "attack", 10)
    assert [each.strip("`") for each in header[1:]] == list(robust_columns())[1:]
    for attack in ATTACKS:
        (row,) = cells(GUIDE, attack, 10)
        assert row == measured(attack), f"| {attack} | {' | '.join(measured(attack))} |"


def robust_columns() -> dict[str, dict[str, object]]:
    """Return the methods of the table, with their options."""
    chosen = (
        "median", "trimmed-mean", "krum", "multi-krum", "bulyan", "geometric-median",
        "centered-clipping",
    )  # fmt: skip
    mixing: dict[str, object] = {"of": "trimmed-mean", "f": HOSTILE}
    columns: dict[str, dict[str, object]] = {"mean": {}}
    columns.update({name: METHODS[name] for name in chosen})
    return {**columns, "nearest-neighbour-mixing": mixing}


def measured(attack: str) -> list[str]:
    """Return how far from the honest mean each method ends, in radii."""
    honest, base = scene()
    models = [*ATTACKS[attack](honest, base, HOSTILE).tolist(), *honest.tolist()]
    distances = [
        away(merged(get(name, **options), models, base.tolist()), honest.tolist())
        for name, options in robust_columns().items()
    ]
    return [f"{each:.1f}" if each < 100 else "> 100" for each in distances]


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_the_snippets_run(number: int) -> None:
    exec(SNIPPETS[number], {})  # noqa: S102


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) == 4

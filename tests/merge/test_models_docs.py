"""docs/merge-models.md says what there is: every method, its options, and a snippet that runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

from sbp2p.merge import models, outer
from sbp2p.merge.method import MethodDoc, get, names

TEXT = (Path(__file__).parents[2] / "docs" / "merge-models.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([a-z-]+)` \| [^|]+ \|(?: ([^|]*) ?\|)$", TEXT, flags=re.MULTILINE)
NAMES = sorted([*models.METHODS, *outer.METHODS])


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_in_both_tables_and_can_be_had(name: str) -> None:
    assert name in names()
    assert len(re.findall(rf"^\|.*`{name}`.*\|$", TEXT, flags=re.MULTILINE)) >= 2
    method = get(name)
    assert method.name == name
    assert isinstance(method.doc, MethodDoc)
    paper = re.search(r"arXiv:\d+\.\d+|\d\d\(\d\)", method.doc.paper)
    assert paper is not None
    assert paper.group() in TEXT


@pytest.mark.parametrize(("name", "cell"), [row for row in ROWS if row[0] in NAMES])
def test_options_have_these_names_and_defaults(name: str, cell: str) -> None:
    parameters = inspect.signature(type(get(name))).parameters
    if (other := re.fullmatch(r"as `([a-z-]+)` ?", cell)) is not None:
        assert parameters == inspect.signature(type(get(other.group(1)))).parameters
        return
    for option, default in re.findall(r"`(\w+)`(?: ([\d.]+\d|\d))?", cell):
        assert option in parameters, f"{name} has no option {option}"
        if default:
            assert float(parameters[option].default) == float(default)


def test_the_snippet_runs() -> None:
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    model = torch.nn.Linear(2, 1)
    loss = model(torch.ones(1, 2)).sum()
    exec(snippet, {"model": model, "loss": loss})  # noqa: S102
    assert model.weight.grad is not None

"""The snippets of docs/merging.md run, and do what the text around them says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sbp2p.merge import method as methods
from sbp2p.merge.memory import merge_in_memory
from sbp2p.merge.policies import Policy
from sbp2p.merge.tensors import TensorSpec

GUIDE = Path(__file__).parents[2] / "docs" / "merging.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def run(number: int, **names: Any) -> dict[str, Any]:
    exec(compile(SNIPPETS[number], str(GUIDE), "exec"), names)  # noqa: S102
    return names


def test_two_modules_become_one() -> None:
    torch.manual_seed(1)
    mine, theirs = nn.Linear(2, 2), nn.Linear(2, 2)
    exact = (3 * mine.weight.double() + theirs.weight.double()) / 4
    run(0, mine=mine, theirs=theirs)
    assert torch.equal(mine.weight, exact.float())


def test_policies_by_name() -> None:
    policies = run(1)["policies"]
    assert policies.policy_of(TensorSpec("bn.running_var", "F32", (3,))) is Policy.MEAN
    assert policies.policy_of(TensorSpec("head.weight", "F32", (3,))) is Policy.LOCAL
    assert policies.policy_of(TensorSpec("body", "F32", (3,))) is Policy.MERGE


def test_an_own_method() -> None:
    known = dict(methods._registered)
    try:
        run(2)
        models = [{"w": torch.full((3,), value)} for value in (100.0, 1.0, 2.0)]
        assert merge_in_memory(models, "nearest-half")["w"].tolist() == [1.5] * 3
    finally:
        methods._registered.clear()
        methods._registered.update(known)


def test_large_numbers_cancel() -> None:
    models = [{"w": torch.tensor([value])} for value in (1e38, 3.0, -1e38)]
    assert merge_in_memory(models)["w"].item() == 1

"""The guide to compression: its snippets run, in the order of the text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "compression.md"


def test_the_snippets_run_one_after_the_other() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block.group(1), str(GUIDE), "exec"), names)  # noqa: S102
    assert len(blocks) == 3

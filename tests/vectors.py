"""The published wire vectors, read from beside the checkout where they are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "research" / "vectors"


def load_vectors(name: str) -> Any:
    """Return the parsed `name`.json, or skip the test when the vectors are not on this machine."""
    path = _FOLDER / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"wire vectors not present: {name}.json", allow_module_level=True)
    return json.loads(path.read_text(encoding="utf-8"))

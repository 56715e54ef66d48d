"""The vectors of the keys layer's own formats, which lie beside its spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).resolve().parents[2] / "keys" / "vectors"


def load_own_vectors(name: str) -> Any:
    """Return the parsed keys/vectors/`name`.json."""
    return json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))

"""How many threads are worth starting."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return on how many cores this process may run."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1

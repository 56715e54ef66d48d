"""Drive one target with atheris (libFuzzer), where it is installed: `pip install atheris`.

It sees branches and compared values, so it gets further than this package's own loop; it stops at
the first finding, and it is not a dependency of the project.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Target


def load_targets() -> dict[str, Target]:
    """Import the targets with the code under test instrumented; before anything else does."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["sbp2p", "sbp2p_protocol", "sbp2p_keys"]):
        registry = importlib.import_module("tests.fuzz.registry")
    targets: dict[str, Target] = registry.TARGETS
    return targets


def run(target: Target, seconds: float) -> None:
    """Fuzz until the time is over or something is found; libFuzzer then ends the process."""
    atheris: Any = importlib.import_module("atheris")

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = Random(seed)  # noqa: S311
        if target.mutations and rng.random() < 0.5:
            try:
                return rng.choice(target.mutations)(rng, data)[:max_size]
            except ValueError:
                pass  # not of the format that this mutation knows
        mutated: bytes = atheris.Mutate(data, max_size)
        return mutated

    with tempfile.TemporaryDirectory(prefix="sbp2p-fuzz-") as folder:
        for number, seed in enumerate(target.seeds()):
            (Path(folder) / f"seed-{number}").write_bytes(seed)
        options = [f"-max_len={target.max_size}", f"-max_total_time={max(1, int(seconds))}"]
        atheris.Setup([sys.argv[0], *options, folder], target.check, custom_mutator=mutate)
        atheris.Fuzz()

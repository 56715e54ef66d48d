"""The two models of the example: small enough for eight of them on one core."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from .data import LABELS, PIXELS

_HIDDEN: Final = 128
_CHANNELS: Final = (8, 16)


def make(name: str, seed: int) -> nn.Module:
    """Return a fresh model, the same for the same seed.

    Args:
        name: `mlp` (9,610 parameters) or `cnn` (5,994).
        seed: of its first weights.

    Raises:
        ValueError: there is no such model.
    """
    torch.manual_seed(seed)
    if name == "mlp":
        return nn.Sequential(nn.Linear(PIXELS, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, LABELS))
    if name == "cnn":
        first, second = _CHANNELS
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            *(nn.Conv2d(1, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(4 * second, 64), nn.ReLU(), nn.Linear(64, LABELS)),
        )
    raise ValueError(f"no model is called {name!r}: mlp or cnn")

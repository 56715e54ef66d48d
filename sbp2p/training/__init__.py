"""Training together from code that is not async: a node on a thread of its own.

`opening` has `background`, which makes a `Background` (`beside`): a node and a namespace that run
beside a training loop, on a `thread`. Callbacks for others' trainers are in `sbp2p.integrations`.
"""

from __future__ import annotations

from .beside import Background
from .opening import background
from .values import StepResult

__all__ = ["Background", "StepResult", "background"]

"""Training together from code that is not async: a node on a thread of its own.

`thread` runs a trio program on a thread, `background` runs a node and a namespace in one. Callbacks
for trainers that others wrote are in `sbp2p.integrations`.
"""

from __future__ import annotations

from .background import Background, StepResult, background

__all__ = ["Background", "StepResult", "background"]

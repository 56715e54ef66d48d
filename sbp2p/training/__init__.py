"""Training together from code that is not async: a node on a thread of its own.

`thread` runs a trio program on a thread; `beside` runs a node and a namespace in one, beside a
training loop. Callbacks for trainers that others wrote are in `sbp2p.integrations`.
"""

from __future__ import annotations

from .beside import Background, StepResult, background

__all__ = ["Background", "StepResult", "background"]

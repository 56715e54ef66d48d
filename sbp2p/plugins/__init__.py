"""Models as named tensors, whatever framework they are of.

`plugin` says what a plugin is, and `registry` finds the one for a model: `wrap(model)`. Neither
imports a framework; the modules of the built-in plugins are loaded when a model asks for them.
"""

from __future__ import annotations

from .plugin import Plugin, Snapshot
from .registry import register, wrap

__all__ = ["Plugin", "Snapshot", "register", "wrap"]

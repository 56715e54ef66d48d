"""What users of the library hold: the node and the values that it returns.

node.py        the facade                 values.py      what it returns
home.py        key, trust store, lock     trusting.py    may this version be fetched?
publishing.py  folder to signed version   fetching.py    link to verified files
local.py       what is in the store       threads.py     long work that can be stopped
environment.py what a node has of the world
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .environment import Environment
    from .home import Home, default_home
    from .node import Node
    from .publishing import PublishResult
    from .trusting import TrustCallback, accept_new, refuse_new
    from .values import Damage, Description, FetchResult, FileInfo, Progress, Version

# Loaded when first used: `sbp2p ls` needs no swarm, and all of it costs 0.3 s.
_HOMES: Final = {
    "environment": ("Environment",),
    "home": ("Home", "default_home"),
    "node": ("Node",),
    "publishing": ("PublishResult",),
    "trusting": ("TrustCallback", "accept_new", "refuse_new"),
    "values": ("Damage", "Description", "FetchResult", "FileInfo", "Progress", "Version"),
}
_MODULE_OF: Final = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Damage",
    "Description",
    "Environment",
    "FetchResult",
    "FileInfo",
    "Home",
    "Node",
    "Progress",
    "PublishResult",
    "TrustCallback",
    "Version",
    "accept_new",
    "default_home",
    "refuse_new",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)

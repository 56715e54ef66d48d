"""What users of the library hold: the node and the values that it returns.

node.py        the facade                 values.py      what it returns
home.py        key, trust store, lock     trusting.py    may this version be fetched?
publishing.py  folder to signed version   fetching.py    link to verified files
local.py       what is in the store       threads.py     long work that can be stopped
"""

from __future__ import annotations

from .home import Home, default_home
from .node import Node
from .publishing import PublishResult
from .trusting import TrustCallback, accept_new, refuse_new
from .values import Damage, Description, FetchResult, FileInfo, Progress, Version

__all__ = [
    "Damage",
    "Description",
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

"""Naming: what a publisher's name stands for, with nothing known but its peer id.

protocol/naming.md is the specification.

    naming.py     the API                  values.py     what it says
    resolve.py    from a name to a version publish.py    this node's own name
    follow.py     each new version         mirror.py     others' names, kept alive
    pointers.py   what is remembered, durably   quiet.py    versions that are told of nowhere
"""

from __future__ import annotations

from .follow import Following as Following
from .naming import Naming as Naming
from .naming import open_naming as open_naming
from .pointers import DATABASE_NAME as DATABASE_NAME
from .pointers import Evidence as Evidence
from .pointers import Pointers as Pointers
from .values import PublishedCatalog as PublishedCatalog
from .values import ResolvedName as ResolvedName

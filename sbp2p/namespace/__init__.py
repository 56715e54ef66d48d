"""Namespaces: nodes that train one model together, over the swarm and without a server.

protocol/namespace.md is the wire format.

    namespace.py  the API                       values.py    what it returns and tells
    members.py    who is in it                  contacts.py  whom to ask, and when
    meeting.py    how members find each other   links.py     one stream with one member
    hub.py        the namespaces of one node    inbox.py     messages that wait to be read
    updates.py    models as signed versions     files.py     where they lie
    rounds.py     publish, wait, merge          merging.py   one merge by the engine
    record.py     what was merged, signed       bootstrap.py joining late
    host.py       what is needed of a node
"""

from __future__ import annotations

from .namespace import Namespace
from .record import Replay, replay
from .values import (
    Bootstrapped,
    Contribution,
    Member,
    Message,
    NamespaceEvent,
    PeerJoined,
    PeerLeft,
    Published,
    Rejection,
    RoleChanged,
    RoundResult,
)

__all__ = [
    "Bootstrapped",
    "Contribution",
    "Member",
    "Message",
    "Namespace",
    "NamespaceEvent",
    "PeerJoined",
    "PeerLeft",
    "Published",
    "Rejection",
    "Replay",
    "RoleChanged",
    "RoundResult",
    "replay",
]

"""The swarm: the peers a node is connected to.

| module | what |
|---|---|
| `swarm` | listening, dialling, admission, and what runs on every connection |
| `table` | connections by peer; which of two is kept |
| `dialler` | addresses raced, dials shared, failures explained |
| `probe` | a dial that only looks who is there |
| `own_addresses` | where this node can be found, and what it tells of that |
| `arrivals` | how many come from one address, and who has to wait |
| `gate`, `scores` | who may connect; who misbehaved too often |
| `roles` | who is sent to and asked, and who waits for a change of that |
| `members` | who is let into a private swarm, and who has to leave it |
| `upkeep` | what ends connections that nobody needs |
| `events` | what subscribers hear |
"""

from __future__ import annotations

from .dialler import DialFailedError as DialFailedError
from .events import PeerConnected as PeerConnected
from .events import PeerDisconnected as PeerDisconnected
from .events import PeerIdentified as PeerIdentified
from .events import SwarmEvent as SwarmEvent
from .gate import Gate as Gate
from .roles import Roles as Roles
from .scores import VIOLATION_POINTS as VIOLATION_POINTS
from .swarm import Swarm as Swarm
from .swarm import open_swarm as open_swarm

"""Finding peers, and being found.

| module | what |
|---|---|
| `discovery` | candidates from everywhere, dialled politely; who is kept connected |
| `remembered` | peers that worked last time, on disk |
| `lan` | peers on the same network, by multicast DNS |
| `reach`, `autonat` | whether others can dial this node; dialling others back |
"""

from __future__ import annotations

from sbp2p_protocol.candidates import Candidate as Candidate
from sbp2p_protocol.candidates import Origin as Origin
from sbp2p_protocol.reachability import Reachability as Reachability

from .discovery import Discovery as Discovery
from .discovery import open_discovery as open_discovery
from .discovery import parse_bootstrap as parse_bootstrap

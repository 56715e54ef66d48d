"""Targets of the merge layer: the text of topologies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbp2p_protocol.topology import TopologyError, parse_topology

from .corpus import KEYS
from .engine import Target
from .expect import Refused, attempt, expect_equal, text_of

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId

_PEERS: Final[tuple[PeerId, ...]] = tuple(key.peer_id for key in KEYS)


def _topology(data: bytes) -> None:
    found = attempt(TopologyError, parse_topology, text_of(data))
    if isinstance(found, Refused):
        return
    expect_equal(parse_topology(found.text), found, "parsed again")
    found.neighbours(_PEERS[0], _PEERS, 3)
    attempt(TopologyError, found.check, _PEERS)


def _topology_seeds() -> list[bytes]:
    texts = (
        *("full", "ring", "line", "star", f"star:{_PEERS[0]}", "grid", "grid:4", "torus:3"),
        *("random-regular:4", "random-regular:3:7", "small-world:4:0.25", "small-world:6:1:2"),
        *("exponential", "one-peer", "matching", "matching:5", "ring,random-regular:4,full"),
    )
    return [text.encode() for text in texts]


TARGETS: Final = (
    Target(
        name="topology_text",
        modules=("sbp2p_protocol.topology",),
        check=_topology,
        seeds=_topology_seeds,
        tokens=(b":", b",", b"0.5", b"4294967295", b"-1", b"+1", b"1e3", b"star:"),
        max_size=600,
        test_runs=200,
    ),
)

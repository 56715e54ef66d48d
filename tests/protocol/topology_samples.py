"""Peers for tests of topologies and rounds: the same in every run."""

from __future__ import annotations

from functools import cache

from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_protocol.cid import DAG_CBOR, Cid

TEXTS = (
    *("full", "ring", "line", "star", "grid", "grid:3", "torus", "torus:4", "exponential"),
    *("random-regular:2", "random-regular:3", "random-regular:4:7", "one-peer", "matching:2"),
    *("small-world:4", "small-world:6:0.3", "small-world:4:1:9", "ring,star", "one-peer,grid"),
)
"""A topology of every kind."""


@cache
def peers(count: int) -> tuple[PeerId, ...]:
    """Return the peers of the seeds 0, 1, 2, ..., in this order."""
    return tuple(PrivateKey.from_seed(at.to_bytes(32, "big")).peer_id for at in range(count))


def version(*numbers: int) -> Cid:
    """Return the CID of a manifest that nobody made."""
    return Cid.for_block(DAG_CBOR, bytes(str(numbers), "ascii"))

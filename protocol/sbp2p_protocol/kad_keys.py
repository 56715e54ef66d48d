"""The keyspace of the DHT: where a peer, a block or a name lies, and how far apart two of them are.

Theory of operation. Everything has a place of 256 bits: the SHA-256 of its bytes, read as a big
number. A peer's bytes are its binary peer id, a block's the multihash of its CID, a record's its
key. The distance of two places is their XOR as a number, so the place nearest to a key is that
with the longest common prefix, and all places with one prefix are a region: nearer to each other
than to anything outside.

A place says nothing about what lies there, and what is asked over the wire is bytes, not places. To
ask about a region one needs bytes that hash into it: `bytes_in_region` finds some by trial.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NewType

from sbp2p_keys.multi import SHA2_256, multihash_encode

if TYPE_CHECKING:
    from random import Random

    from sbp2p_keys.identity import PeerId

KadId = NewType("KadId", int)
"""A place in the keyspace, 0 to 2**256 - 1."""

KAD_BITS: Final = 256

TRIAL_BITS_MAX: Final = 15
"""Longest prefix for which bytes are sought by trial: 65,536 hashes, about 50 ms."""


def kad_id(data: bytes) -> KadId:
    """Return the place of a multihash, a record key or a binary peer id."""
    return KadId(int.from_bytes(hashlib.sha256(data).digest()))


@lru_cache(maxsize=16384)
def kad_id_of(peer_id: PeerId) -> KadId:
    """Return the place of a peer."""
    return kad_id(peer_id.to_bytes())


def distance(first: KadId, second: KadId) -> int:
    """Return how far apart two places are."""
    return first ^ second


def common_prefix_length(first: KadId, second: KadId) -> int:
    """Return how many leading bits two places share: 256 if they are the same."""
    return KAD_BITS - (first ^ second).bit_length()


def region_of(place: KadId, bits: int) -> int:
    """Return the number of the region of `place` among the 2**bits regions of that depth."""
    return place >> (KAD_BITS - bits)


def bytes_in_region(region: int, bits: int, rng: Random) -> bytes:
    """Return bytes, in the form of a hashed peer id, whose place is in a region.

    Args:
        region: Number of the region among the 2**bits of its depth.
        bits: Depth of the region, 0 to TRIAL_BITS_MAX.
        rng: Where the trials come from.

    Raises:
        ValueError: The region is deeper than trials reach, or there is none of that number.
    """
    if not 0 <= bits <= TRIAL_BITS_MAX or not 0 <= region < 1 << bits:
        raise ValueError(f"region {region} of {bits} bits")
    while True:
        candidate = multihash_encode(SHA2_256, rng.randbytes(32))
        if region_of(kad_id(candidate), bits) == region:
            return candidate


def bytes_beside(place: KadId, shared: int, rng: Random) -> bytes:
    """Return bytes whose place shares exactly `shared` leading bits with `place`.

    Raises:
        ValueError: `shared` is TRIAL_BITS_MAX or more.
    """
    return bytes_in_region(region_of(place, shared + 1) ^ 1, shared + 1, rng)

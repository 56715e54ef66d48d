"""Places in the keyspace: published hashes, distance, regions."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PeerId
from sbp2p_protocol.kad_keys import (
    KAD_BITS,
    TRIAL_BITS_MAX,
    KadId,
    bytes_beside,
    bytes_in_region,
    common_prefix_length,
    distance,
    kad_id,
    kad_id_of,
    region_of,
)
from tests.vectors import load_vectors

PLACES = st.integers(0, (1 << KAD_BITS) - 1).map(KadId)


def test_published_places() -> None:
    vectors = load_vectors("kad")
    peer = PeerId.parse(vectors["peer"]["base58"])
    assert f"{kad_id_of(peer):064x}" == vectors["peer"]["kad_id_sha256_hex"]
    content = vectors["content"]
    multihash = bytes.fromhex(content["provider_key_multihash_hex"])
    assert f"{kad_id(multihash):064x}" == content["kad_id_sha256_hex"]


@given(PLACES, PLACES, PLACES)
def test_distance_is_a_metric_with_one_peer_at_each(a: KadId, b: KadId, c: KadId) -> None:
    assert distance(a, a) == 0
    assert distance(a, b) == distance(b, a)
    assert distance(a, c) <= distance(a, b) + distance(b, c)
    assert KadId(a ^ distance(a, b)) == b


@given(PLACES, PLACES)
def test_the_common_prefix_is_what_regions_share(a: KadId, b: KadId) -> None:
    shared = common_prefix_length(a, b)
    assert region_of(a, shared) == region_of(b, shared)
    if shared < KAD_BITS:
        assert region_of(a, shared + 1) != region_of(b, shared + 1)


def test_bytes_are_found_in_every_region() -> None:
    rng = Random(1)  # noqa: S311
    for region in range(16):
        assert region_of(kad_id(bytes_in_region(region, 4, rng)), 4) == region
    PeerId.from_bytes(bytes_in_region(0, 0, rng))
    place = kad_id(b"somewhere")
    for shared in (0, 5, 9):
        assert common_prefix_length(kad_id(bytes_beside(place, shared, rng)), place) == shared


@pytest.mark.parametrize(("region", "bits"), [(0, TRIAL_BITS_MAX + 1), (0, -1), (4, 2), (-1, 2)])
def test_regions_that_trials_do_not_reach(region: int, bits: int) -> None:
    with pytest.raises(ValueError, match="region"):
        bytes_in_region(region, bits, Random(1))  # noqa: S311

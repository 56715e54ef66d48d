"""Sweeps: every key gets just the servers that a lookup of its own would find, with few lookups."""

from __future__ import annotations

import heapq
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p_keys.identity import PeerId
from sbp2p_keys.multi import SHA2_256, multihash_encode
from sbp2p_protocol.kad_keys import kad_id, kad_id_of, region_of
from sbp2p_protocol.kad_messages import KadPeer
from sbp2p_protocol.kad_sweep import REGION_LOOKUPS_MAX, Sweep, split_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Closest = Callable[[bytes], list[KadPeer]]


def seeded(seed: int) -> Random:
    return Random(seed)  # noqa: S311


def servers(count: int) -> list[KadPeer]:
    return [
        KadPeer(PeerId(multihash_encode(SHA2_256, number.to_bytes(32)))) for number in range(count)
    ]


def keys(count: int) -> list[bytes]:
    return [multihash_encode(SHA2_256, (number + 10**6).to_bytes(32)) for number in range(count)]


def nearest(key: bytes, among: Sequence[KadPeer]) -> list[KadPeer]:
    place = kad_id(key)
    return heapq.nsmallest(20, among, key=lambda each: kad_id_of(each.peer_id) ^ place)


def run(sweep: Sweep, closest: Closest) -> dict[bytes, set[PeerId]]:
    found: dict[bytes, set[PeerId]] = {}
    while (target := sweep.next_target()) is not None:
        assert sweep.next_target() == target
        for assignment in sweep.on_closest(closest(target)):
            assert assignment.keys
            for key in assignment.keys:
                assert assignment.server.peer_id not in found.setdefault(key, set())
                found[key].add(assignment.server.peer_id)
    assert sweep.left == 0
    return found


@settings(max_examples=30, deadline=None)
@given(count=st.integers(0, 300), key_count=st.integers(0, 200), seed=st.integers(0, 99))
def test_every_key_gets_its_nearest_servers(count: int, key_count: int, seed: int) -> None:
    everybody, wanted = servers(count), keys(key_count)
    seeded(seed).shuffle(wanted)
    found = run(Sweep(wanted, seeded(seed)), lambda target: nearest(target, everybody))
    for key in wanted:
        assert found.get(key, set()) == {each.peer_id for each in nearest(key, everybody)}


@pytest.mark.parametrize(("count", "most"), [(1, 1), (19, 1), (20, 2), (400, 60)])
def test_lookups_go_with_servers_and_not_with_keys(count: int, most: int) -> None:
    everybody = servers(count)
    sweep = Sweep(keys(2000), seeded(1))
    found = run(sweep, lambda target: nearest(target, everybody))
    assert len(found) == 2000
    assert sweep.lookups <= most
    assert sweep.regions <= sweep.lookups


def test_few_keys_take_a_lookup_each() -> None:
    everybody = servers(400)
    sweep = Sweep([*keys(5), *keys(5)], seeded(1))
    assert len(run(sweep, lambda target: nearest(target, everybody))) == 5
    assert sweep.lookups == 5


def test_all_keys_for_a_server_come_at_once() -> None:
    everybody = servers(10)
    sweep = Sweep(keys(100), seeded(1))
    target = sweep.next_target()
    assert target is not None
    assignments = sweep.on_closest(nearest(target, everybody))
    assert len(assignments) == 10
    assert all(len(each.keys) == 100 for each in assignments)


def test_a_lookup_that_fails_costs_one_key() -> None:
    everybody = servers(400)
    answers = iter([0, 20, 20, 20, 3, 0])

    def failing(target: bytes) -> list[KadPeer]:
        return nearest(target, everybody)[: next(answers, 20)]

    found = run(Sweep(keys(1000), seeded(1)), failing)
    assert 990 < len(found) <= 999
    assert sum(len(each) < 20 for each in found.values()) < 60


def test_sybils_do_not_keep_a_sweep_in_one_region() -> None:
    everybody = servers(200)
    fake = iter(range(10**6, 10**9))

    def lying(target: bytes) -> list[KadPeer]:
        number = next(fake)
        told = [
            KadPeer(PeerId(multihash_encode(SHA2_256, bytes([n]) + number.to_bytes(31))))
            for n in range(40)
        ]
        return nearest(target, [*everybody, *told])

    sweep = Sweep(keys(300), seeded(1))
    assert len(run(sweep, lying)) == 300
    assert sweep.lookups <= REGION_LOOKUPS_MAX * max(1, sweep.regions) + 300


def test_what_nobody_asked_for_is_ignored() -> None:
    sweep = Sweep([], seeded(1))
    assert sweep.next_target() is None
    assert not sweep.on_closest(servers(20))


def test_keys_are_split_by_place() -> None:
    lots = split_keys(keys(100), 2)
    assert [len({region_of(kad_id(key), 2) for key in lot}) for lot in lots] == [1] * 4
    assert sorted(key for lot in lots for key in lot) == sorted(keys(100))
    assert split_keys([], 2) == []
    assert split_keys(keys(3), 0) == [keys(3)]

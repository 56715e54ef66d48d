"""Lookups in networks that are plain dictionaries: nearness, ends, liars, slow and dead servers."""

from __future__ import annotations

from collections import deque
from functools import cache
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PeerId
from sbp2p_keys.multi import SHA2_256, multihash_encode
from sbp2p_protocol.kad_keys import kad_id, kad_id_of
from sbp2p_protocol.kad_lookup import ALPHA, Lookup, State
from sbp2p_protocol.kad_messages import KadPeer
from sbp2p_protocol.kad_table import RoutingTable
from sbp2p_protocol.limits import KAD_CANDIDATES_MAX, KAD_CLOSER_MAX, KAD_QUERIES_MAX
from sbp2p_protocol.multiaddr import parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sbp2p_protocol.kad_keys import KadId

    Answer = Callable[[PeerId, KadId], Sequence[KadPeer] | None]

OWN = PeerId(multihash_encode(SHA2_256, bytes(32)))
HERE = (parse_address("/memory/1"),)
TARGET = kad_id(b"target")


def peer(number: int) -> KadPeer:
    return KadPeer(PeerId(multihash_encode(SHA2_256, number.to_bytes(32))), HERE)


def by_distance(peers: Sequence[KadPeer], target: KadId = TARGET) -> list[KadPeer]:
    return sorted(peers, key=lambda each: kad_id_of(each.peer_id) ^ target)


class Network:
    """Servers with honest tables of some of each other."""

    def __init__(self, size: int, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311
        self.peers = [peer(number) for number in range(1, size + 1)]
        self.tables = {each.peer_id: RoutingTable(each.peer_id) for each in self.peers}
        for table in self.tables.values():
            for other in self.rng.sample(self.peers, min(size, 50)):
                table.add(other.peer_id, other.addresses, 0.0)
            for other in by_distance(self.peers, table.own_place)[:20]:
                table.add(other.peer_id, other.addresses, 0.0)

    def answer(self, peer_id: PeerId, target: KadId) -> Sequence[KadPeer] | None:
        return [each.as_peer for each in self.tables[peer_id].closest(target, 20)]


@cache
def network_of(size: int) -> Network:
    return Network(size, size)


def run(lookup: Lookup, answer: Answer, rng: Random | None = None) -> Lookup:
    """Run a lookup to its end: answers come in order, or as `rng` has it."""
    waiting: deque[KadPeer] = deque()
    while not lookup.is_done:
        waiting.extend(lookup.next_requests())
        assert len(waiting) <= ALPHA
        if rng is not None:
            waiting.rotate(rng.randrange(len(waiting)))
        asked = waiting.popleft().peer_id
        closer = answer(asked, lookup.target)
        if closer is None:
            lookup.on_failure(asked)
        else:
            lookup.on_reply(asked, closer)
    return lookup


@pytest.mark.parametrize("paths", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 30, 200])
def test_the_nearest_servers_are_found(size: int, paths: int) -> None:
    network = network_of(size)
    seeds = network.peers[:3]
    lookup = run(Lookup(TARGET, OWN, seeds, paths=paths, whole=True), network.answer, network.rng)
    assert lookup.closest() == by_distance(network.peers)[:20]
    assert lookup.hops <= 6
    assert lookup.answered <= lookup.asked <= 70


def test_without_anybody_there_is_nothing_to_do() -> None:
    lookup = Lookup(TARGET, OWN, [])
    assert lookup.is_done
    assert (lookup.next_requests(), lookup.closest(), lookup.hops) == ([], [], 0)


def test_a_lookup_that_need_not_be_whole_asks_fewer() -> None:
    network = network_of(200)
    seeds = network.peers[:5]
    part = run(Lookup(TARGET, OWN, seeds), network.answer)
    whole = run(Lookup(TARGET, OWN, seeds, whole=True), network.answer)
    assert part.asked < whole.asked
    assert part.closest()[:3] == whole.closest()[:3]


def test_dead_servers_are_passed_by() -> None:
    network = network_of(200)
    nearest = by_distance(network.peers)
    dead = {each.peer_id for each in nearest[:40:2]}
    alive = [each for each in nearest if each.peer_id not in dead]

    def answer(peer_id: PeerId, target: KadId) -> Sequence[KadPeer] | None:
        return None if peer_id in dead else network.answer(peer_id, target)

    lookup = run(Lookup(TARGET, OWN, alive[-5:], whole=True), answer)
    assert lookup.closest() == alive[:20]
    assert 0 < lookup.failed <= len(dead)


def test_stopping_ends_it() -> None:
    lookup = Lookup(TARGET, OWN, [peer(1), peer(2)])
    assert len(lookup.next_requests()) == 2
    lookup.stop()
    assert lookup.is_done
    assert not lookup.next_requests()


def test_no_more_than_alpha_are_asked_at_a_time() -> None:
    lookup = Lookup(TARGET, OWN, map(peer, range(1, 200)))
    asked = lookup.next_requests()
    assert asked == by_distance(list(map(peer, range(1, 200))))[:ALPHA]
    assert not lookup.next_requests()


def test_a_slow_server_is_waited_for_no_more_and_counts_if_it_answers() -> None:
    lookup = Lookup(TARGET, OWN, [peer(1)], beta=1)
    (slow,) = lookup.next_requests()
    assert not lookup.is_done
    lookup.on_slow(slow.peer_id)
    assert lookup.is_done
    lookup.on_reply(slow.peer_id, [peer(2)])
    assert lookup.closest() == [slow]
    assert lookup.is_done == (by_distance([slow, peer(2)])[0] == slow)


def test_many_slow_servers_do_not_let_a_lookup_ask_without_end() -> None:
    lookup = Lookup(TARGET, OWN, map(peer, range(1, 200)))
    asked = []
    while requests := lookup.next_requests():
        asked += requests
        for each in requests:
            lookup.on_slow(each.peer_id)
    assert len(asked) == 3 * ALPHA
    assert not lookup.is_done
    for each in asked[:2]:
        lookup.on_failure(each.peer_id)
    assert len(lookup.next_requests()) == 2


def test_who_was_not_asked_is_not_listened_to() -> None:
    lookup = Lookup(TARGET, OWN, [peer(1)])
    lookup.on_reply(peer(1).peer_id, [peer(2)])
    lookup.on_failure(peer(9).peer_id)
    lookup.on_slow(peer(9).peer_id)
    assert lookup.state_of(peer(2).peer_id) is None
    assert lookup.state_of(peer(1).peer_id) is State.HEARD


def test_this_node_is_not_asked() -> None:
    assert Lookup(TARGET, OWN, [KadPeer(OWN, HERE)]).is_done


def test_wrong_addresses_of_one_teller_do_not_hide_a_server() -> None:
    liar, honest, victim = by_distance([peer(1), peer(2), peer(3)])[::-1]
    wrong = KadPeer(victim.peer_id, (parse_address("/memory/666"),))
    lookup = Lookup(TARGET, OWN, [liar, honest])
    lookup.next_requests()
    lookup.on_reply(liar.peer_id, [wrong])
    assert lookup.next_requests() == [wrong]
    lookup.on_failure(victim.peer_id)
    lookup.on_reply(honest.peer_id, [wrong])
    assert lookup.is_done
    lookup = Lookup(TARGET, OWN, [liar, honest])
    lookup.next_requests()
    lookup.on_reply(liar.peer_id, [wrong])
    lookup.next_requests()
    lookup.on_failure(victim.peer_id)
    lookup.on_reply(honest.peer_id, [victim])
    (again,) = lookup.next_requests()
    assert again.addresses == (*wrong.addresses, *victim.addresses)


def test_a_liar_that_tells_of_nearer_and_nearer_peers_is_followed_only_so_far() -> None:
    numbers = iter(range(1, 10**9))

    def answer(peer_id: PeerId, target: KadId) -> Sequence[KadPeer] | None:
        told = [peer(next(numbers)) for _ in range(100)]
        assert len(told) > KAD_CLOSER_MAX
        return told

    nearest = iter(by_distance(list(map(peer, range(1, 20_000))))[::-1])

    def nearer(peer_id: PeerId, target: KadId) -> Sequence[KadPeer] | None:
        return [next(nearest)]

    assert run(Lookup(TARGET, OWN, [peer(10**9)], whole=True), answer).asked <= KAD_QUERIES_MAX
    assert run(Lookup(TARGET, OWN, [next(nearest)]), nearer).asked == KAD_QUERIES_MAX


def test_candidates_are_bounded_and_the_nearest_stay() -> None:
    lookup = Lookup(TARGET, OWN, map(peer, range(1, 2 * KAD_CANDIDATES_MAX)))
    known = [
        each
        for each in map(peer, range(1, 2 * KAD_CANDIDATES_MAX))
        if lookup.state_of(each.peer_id) is not None
    ]
    assert len(known) == KAD_CANDIDATES_MAX
    everybody = by_distance([peer(number) for number in range(1, 2 * KAD_CANDIDATES_MAX)])
    assert by_distance(known) == everybody[:KAD_CANDIDATES_MAX]


def test_disjoint_paths_reach_who_liars_hide() -> None:
    network = network_of(200)
    nearest = by_distance(network.peers)
    honest = nearest[:20]
    liars = [peer(number) for number in range(10_000, 10_040)]
    first_liar = by_distance([*liars, *network.peers])[0]
    seeds = [*nearest[-4:], liars[0]]

    def answer(peer_id: PeerId, target: KadId) -> Sequence[KadPeer] | None:
        if peer_id in {each.peer_id for each in liars}:
            return by_distance(liars)[:20]
        return network.answer(peer_id, target)

    lookup = run(Lookup(TARGET, OWN, seeds, paths=3), answer)
    found = {each.peer_id for each in lookup.closest()}
    assert len(found & {each.peer_id for each in honest}) >= 3
    assert first_liar.peer_id in found or first_liar in network.peers


@given(
    size=st.integers(1, 60),
    dead=st.sets(st.integers(1, 60)),
    seed=st.integers(0, 1000),
    paths=st.integers(1, 4),
    whole=st.booleans(),
)
def test_it_always_ends_and_tells_only_of_who_answered(
    size: int, dead: set[int], seed: int, paths: int, whole: bool
) -> None:
    rng = Random(seed)  # noqa: S311
    peers = [peer(number) for number in range(1, size + 1)]
    gone = {peer(number).peer_id for number in dead}

    def answer(peer_id: PeerId, target: KadId) -> Sequence[KadPeer] | None:
        return None if peer_id in gone else rng.sample(peers, min(size, 5))

    seeds = rng.sample(peers, min(size, 3))
    lookup = run(Lookup(TARGET, OWN, seeds, paths=paths, whole=whole), answer, rng)
    found = lookup.closest()
    assert found == by_distance(found)
    assert not gone & {each.peer_id for each in found}
    assert lookup.asked >= lookup.answered + lookup.failed
    if whole:
        heard = [each for each in peers if lookup.state_of(each.peer_id) is not None]
        assert found == by_distance([each for each in heard if each.peer_id not in gone])[:20]

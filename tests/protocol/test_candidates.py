from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_protocol.candidates import Candidate, CandidateBook, Origin
from sbp2p_protocol.limits import CANDIDATE_ADDRESSES_MAX, CANDIDATES_MAX
from sbp2p_protocol.multiaddr import Address, parse_address

PEERS = [PrivateKey.from_seed(bytes([number]) * 32).peer_id for number in range(16)]
OWN = PrivateKey.from_seed(b"o" * 32).peer_id


def at(port: int) -> Address:
    return parse_address(f"/ip4/10.0.0.1/tcp/{port}")


def candidate(number: int, origin: Origin = Origin.DHT, port: int = 1) -> Candidate:
    return Candidate(PEERS[number], (at(port),), origin)


def book(wanted: int = 4, bootstrap_wanted: int = 0) -> CandidateBook:
    return CandidateBook(
        OWN,
        wanted=wanted,
        bootstrap_wanted=bootstrap_wanted,
        backoff_s=10.0,
        backoff_max_s=100.0,
        rng=random.Random(1),  # noqa: S311
    )


def peers(candidates: list[Candidate]) -> list[PeerId]:
    return [each.peer_id for each in candidates]


def test_what_is_said_about_a_peer_is_joined() -> None:
    known = book()
    assert known.add(candidate(0, Origin.DHT, 1), 0.0)
    assert not known.add(candidate(0, Origin.DHT, 1), 1.0)
    assert known.add(candidate(0, Origin.DHT, 2), 2.0)
    assert known.add(candidate(0, Origin.LAN, 2), 3.0)
    (found,) = known.known()
    assert found.origin is Origin.LAN
    assert found.addresses == tuple(at(port).with_peer(PEERS[0]) for port in (1, 2))
    assert known.of(PEERS[0]) == found
    assert known.of(PEERS[1]) is None


def test_what_cannot_be_dialled_is_no_candidate() -> None:
    known = book()
    assert not known.add(Candidate(OWN, (at(1),), Origin.LAN), 0.0)
    assert not known.add(Candidate(PEERS[0], (), Origin.LAN), 0.0)
    quic = parse_address("/ip4/10.0.0.1/udp/1/quic-v1")
    assert not known.add(Candidate(PEERS[0], (quic,), Origin.LAN), 0.0)
    assert len(known) == 0


def test_the_best_are_dialled_first_and_once() -> None:
    known = book(wanted=3)
    for number, origin in enumerate([Origin.DHT, Origin.REMEMBERED, Origin.LAN, Origin.LINK]):
        known.add(candidate(number, origin), 0.0)
    assert peers(known.due(0.0, [], 2)) == [PEERS[2], PEERS[3]]
    assert peers(known.due(0.0, [], 9)) == [PEERS[1]]
    assert known.due(0.0, [], 9) == []
    known.succeeded(PEERS[2])
    assert known.due(0.0, [PEERS[2]], 9) == []
    known.failed(PEERS[3], "refused", 0.0)
    assert peers(known.due(0.0, [PEERS[2]], 9)) == [PEERS[0]]
    assert known.failures() == {PEERS[3]: "refused"}


def test_a_few_bootstrap_peers_are_always_wanted() -> None:
    known = book(wanted=0, bootstrap_wanted=2)
    for number in range(4):
        known.add(candidate(number, Origin.BOOTSTRAP), float(number))
    known.add(candidate(9, Origin.LAN), 0.0)
    first = peers(known.due(9.0, [], 9))
    assert first == [PEERS[3], PEERS[2]]
    known.failed(PEERS[3], "refused", 9.0)
    known.succeeded(PEERS[2])
    assert peers(known.due(9.0, [PEERS[2]], 9)) == [PEERS[1]]
    known.succeeded(PEERS[1])
    assert known.due(99.0, [PEERS[2], PEERS[1]], 9) == []
    assert known.next_due(9.0, [PEERS[2], PEERS[1]]) == float("inf")


def test_one_peer_can_be_dialled_for_a_reason_of_its_own() -> None:
    known = book(wanted=0)
    known.add(candidate(0), 0.0)
    assert not known.begin(PEERS[1], 0.0)
    assert known.begin(PEERS[0], 0.0)
    assert not known.begin(PEERS[0], 0.0)
    known.failed(PEERS[0], "refused", 0.0)
    assert not known.begin(PEERS[0], 9.0)
    assert known.begin(PEERS[0], 15.0)


def test_failures_cost_longer_and_longer_waits() -> None:
    known = book()
    known.add(candidate(0), 0.0)
    now, waits = 0.0, []
    for _ in range(8):
        assert peers(known.due(now, [], 1)) == [PEERS[0]]
        known.failed(PEERS[0], "no answer", now)
        assert known.due(now, [], 1) == []
        due_at = known.next_due(now, [])
        waits.append(due_at - now)
        now = due_at
    for wait, least in zip(waits, [10, 20, 40, 80, 100, 100, 100, 100], strict=True):
        assert least <= wait <= 1.5 * least
    known.due(now, [], 1)
    known.succeeded(PEERS[0])
    known.failed(PEERS[0], "turned us away", now)
    assert known.next_due(now, []) - now >= 100
    known.lasted(PEERS[0])
    known.failed(PEERS[0], "gone", now)
    assert 10 <= known.next_due(now, []) - now <= 15
    known.lasted(PEERS[0])
    assert peers(known.due(now, [], 1)) == [PEERS[0]]
    known.given_up(PEERS[0])
    assert peers(known.due(now, [], 1)) == [PEERS[0]]


def test_addresses_and_peers_are_bounded() -> None:
    known = book()
    for port in range(1, 100):
        known.add(candidate(0, port=port), 0.0)
    newest = [at(port).with_peer(PEERS[0]) for port in range(100 - CANDIDATE_ADDRESSES_MAX, 100)]
    assert list(known.known()[0].addresses) == newest
    many = [PeerId.from_bytes(b"\x12\x20" + bytes([n // 256, n % 256]) * 16) for n in range(1100)]
    for number, peer in enumerate(many):
        known.add(Candidate(peer, (at(1),), Origin.DHT), float(number))
    assert len(known) == CANDIDATES_MAX
    assert known.add(candidate(1, Origin.BOOTSTRAP), 0.0)
    assert known.add(candidate(2, Origin.LAN), 0.0)
    for number, peer in enumerate(many):
        known.add(Candidate(peer, (at(2),), Origin.EXCHANGE), float(number))
    assert len(known) == CANDIDATES_MAX
    assert known.of(PEERS[1]) is not None
    assert known.of(PEERS[2]) is not None
    # what strangers say does not push out what this network says
    assert not book_of_lan().add(candidate(0, Origin.DHT), 0.0)


def book_of_lan() -> CandidateBook:
    known = book()
    for number in range(CANDIDATES_MAX):
        peer = PeerId.from_bytes(b"\x12\x20" + number.to_bytes(2, "big") * 16)
        known.add(Candidate(peer, (at(1),), Origin.LAN), 0.0)
    return known


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "due", "succeed", "fail", "give up"]),
            st.integers(0, 15),
            st.sampled_from(list(Origin)),
        ),
        max_size=60,
    ),
    st.integers(0, 4),
    st.integers(0, 2),
)
def test_no_peer_is_dialled_twice_at_once_and_not_more_than_wanted(
    steps: list[tuple[str, int, Origin]], wanted: int, bootstrap_wanted: int
) -> None:
    known = book(wanted, bootstrap_wanted)
    dialling: set[PeerId] = set()
    connected: set[PeerId] = set()
    for now, (step, number, origin) in enumerate(steps):
        peer = PEERS[number]
        if step == "add":
            known.add(candidate(number, origin), float(now))
        elif step == "due":
            for each in known.due(float(now), connected, 3):
                assert each.peer_id not in dialling | connected
                dialling.add(each.peer_id)
            assert len(dialling | connected) <= max(wanted, bootstrap_wanted) + len(connected)
        elif peer in dialling:
            dialling.remove(peer)
            if step == "succeed":
                known.succeeded(peer)
                connected.add(peer)
            elif step == "fail":
                known.failed(peer, "x", float(now))
                assert known.next_due(float(now), connected) >= now
            else:
                known.given_up(peer)


@pytest.mark.parametrize("origin", list(Origin))
def test_every_origin_has_a_name_for_people(origin: Origin) -> None:
    assert origin.value == origin.name.lower()
